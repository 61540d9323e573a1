//! The token that proves to the server what a program may do. Other clients of this machine read it from the same
//! variables.

use std::ffi::{OsStr, OsString};
use std::{fmt, io};

use thiserror::Error;

/// The variable that names the file with the token.
pub const FILE: &str = "SIGNALBOX_TOKEN_FILE";

/// The variable that has the token itself. The file goes before it.
const TEXT: &str = "SIGNALBOX_TOKEN";

/// The longest token that a request can have, in bytes.
const BYTES_MAX: usize = u16::MAX as usize;

/// A token. `Debug` does not show it.
#[derive(PartialEq, Eq)]
pub struct Token {
    bytes: Vec<u8>,
    /// The file that it is from; `None`: it is from the variable.
    path: Option<String>,
}

/// A token that cannot be used.
#[derive(Debug, Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error(
        "{FILE}: the file \"{path}\" cannot be read: {error}; check the path, and that this user may read it"
    )]
    File {
        /// The file.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// The file is empty.
    #[error(
        "{FILE}: the file \"{0}\" has no token; write one into it, as \"signalbox token create\" prints it"
    )]
    Empty(String),
    /// It is too long to be sent.
    #[error(
        "{0}: a token has at most {BYTES_MAX} bytes; give it what \"signalbox token create\" has printed, and nothing else"
    )]
    TooLong(String),
}

/// Where the token is.
#[derive(Default)]
pub struct TokenSource {
    path: Option<String>,
    text: Option<OsString>,
}

impl TokenSource {
    /// Takes a variable of the environment, if it is about the token.
    pub fn note(&mut self, variable: &OsStr, value: &OsStr) {
        if variable == FILE {
            self.path = Some(value.to_string_lossy().into_owned());
        } else if variable == TEXT {
            self.text = Some(value.to_owned());
        }
    }

    /// Reads the token; `None`: there is none. Space around it is ignored.
    pub fn read(self, open: impl Fn(&str) -> io::Result<String>) -> Result<Option<Token>, TokenError> {
        let token = match (self.path, self.text) {
            (Some(path), _) => match open(&path) {
                Ok(text) if text.trim_ascii().is_empty() => return Err(TokenError::Empty(path)),
                Ok(text) => Token { bytes: text.trim_ascii().into(), path: Some(path) },
                Err(error) => return Err(TokenError::File { path, error }),
            },
            (None, Some(text)) => Token { bytes: text.as_encoded_bytes().trim_ascii().to_vec(), path: None },
            (None, None) => return Ok(None),
        };
        if token.bytes.len() > BYTES_MAX {
            return Err(TokenError::TooLong(token.source().to_string()));
        }
        Ok(Some(token).filter(|token| !token.bytes.is_empty()))
    }
}

impl Token {
    /// As it is sent.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where it is from, for messages.
    pub fn source(&self) -> Source<'_> {
        Source(self.path.as_deref())
    }
}

/// The variable that a token is from, and its file.
pub struct Source<'a>(Option<&'a str>);

impl fmt::Display for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(path) => write!(f, "{FILE} (\"{path}\")"),
            None => f.write_str(TEXT),
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}
