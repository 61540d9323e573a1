//! The token that proves to the server what a program may do. The other clients of signalbox read it from the same
//! environment variables. Its file may be replaced while the program runs.

use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{fmt, fs, io};

use crate::message;

/// The variable that names the file with the token.
pub const FILE: &str = "SIGNALBOX_TOKEN_FILE";

/// The variable that has the token itself. The file takes precedence.
const TEXT: &str = "SIGNALBOX_TOKEN";

/// The variable that permits sending the token to other machines without encryption.
pub const OVER_PLAIN: &str = "SIGNALBOX_TOKEN_OVER_PLAIN";

/// The longest token that a request can have, in bytes.
const BYTES_MAX: usize = u16::MAX as usize;

/// A token. `Debug` does not show it.
pub struct Token {
    /// The text that was read last. Texts are never freed, so that no lock is needed: a fork may happen at any time.
    last: AtomicPtr<Vec<u8>>,
    /// The file with the token; `None` if the variable has it.
    path: Option<String>,
    may_be_read_by_others: bool,
}

/// The variables about the token.
#[derive(Default)]
pub struct TokenSource {
    path: Option<String>,
    text: Option<OsString>,
    over_plain: Option<OsString>,
}

impl TokenSource {
    /// Notes a variable of the environment, if it is about the token. An empty file name counts as not set.
    pub fn note(&mut self, variable: &OsStr, value: &OsStr) {
        if variable == FILE {
            self.path = (!value.is_empty()).then(|| value.to_string_lossy().into_owned());
        } else if variable == TEXT {
            self.text = Some(value.to_owned());
        } else if variable == OVER_PLAIN {
            self.over_plain = Some(value.to_owned());
        }
    }

    /// Reads the token; `None` if there is none. White space around it is ignored.
    pub fn read(self, open: impl Fn(&str) -> io::Result<String>) -> Result<Option<Token>, String> {
        let may_be_read_by_others = self.over_plain.as_deref().map_or(Ok(false), flag)?;
        let (bytes, path) = match (self.path, self.text) {
            (Some(path), _) => (of_file(&path, open)?, Some(path)),
            (None, Some(text)) => (checked(text.as_encoded_bytes(), None)?, None),
            (None, None) => return Ok(None),
        };
        if bytes.is_empty() {
            return Ok(None);
        }
        Ok(Some(Token { last: AtomicPtr::new(Box::leak(Box::new(bytes))), path, may_be_read_by_others }))
    }
}

/// Reads the token in a file.
fn of_file(path: &str, open: impl Fn(&str) -> io::Result<String>) -> Result<Vec<u8>, String> {
    let text = open(path).map_err(|error| {
        format!("{FILE}: the file \"{path}\" cannot be read: {error}; check the path, and that this user may read it")
    })?;
    match checked(text.as_bytes(), Some(path))? {
        bytes if bytes.is_empty() => Err(format!(
            "{FILE}: the file \"{path}\" has no token; write one into it, as \"signalbox token create\" prints it"
        )),
        bytes => Ok(bytes),
    }
}

fn checked(text: &[u8], path: Option<&str>) -> Result<Vec<u8>, String> {
    match text.trim_ascii() {
        token if token.len() > BYTES_MAX => Err(format!(
            "{}: a token has at most {BYTES_MAX} bytes; give it what \"signalbox token create\" has printed, and nothing else",
            source(path)
        )),
        token => Ok(token.to_vec()),
    }
}

/// Parses a boolean. The words are those of the command line.
fn flag(value: &OsStr) -> Result<bool, String> {
    match value.to_string_lossy().to_ascii_lowercase().as_str() {
        "y" | "yes" | "t" | "true" | "on" | "1" => Ok(true),
        "n" | "no" | "f" | "false" | "off" | "0" => Ok(false),
        _ => Err(format!(
            "{OVER_PLAIN}: \"{}\" is neither 1 nor 0; set it to 1 to send the token without TLS to other machines, or \
             unset it",
            value.to_string_lossy()
        )),
    }
}

impl Token {
    /// The token that was read last.
    pub fn last(&self) -> &'static [u8] {
        // SAFETY: it points to a text that is never freed.
        unsafe { &*self.last.load(Ordering::Acquire) }
    }

    /// The token to send. Its file is read again, unless it is a pipe; if it cannot be used, the last token stays in
    /// use.
    pub fn latest(&self) -> &'static [u8] {
        let file = self.path.as_ref().filter(|path| fs::metadata(path).map_or(true, |found| found.is_file()));
        if let Some(path) = file {
            match of_file(path, |path| fs::read_to_string(path)) {
                Ok(bytes) => {
                    message::TOKEN.clear();
                    if bytes != self.last() {
                        self.last.store(Box::leak(Box::new(bytes)), Ordering::Release);
                    }
                }
                Err(problem) => message::TOKEN
                    .report(format_args!("{problem}; the token that was read before stays in use")),
            }
        }
        self.last()
    }

    /// Returns whether the token may be sent to a server at this address, over a connection that is not encrypted.
    pub fn may_be_sent_to(&self, server: IpAddr) -> bool {
        self.may_be_read_by_others || server.to_canonical().is_loopback()
    }

    /// The variable that the token is from, and its file, for messages.
    pub fn source(&self) -> String {
        source(self.path.as_deref())
    }
}

fn source(path: Option<&str>) -> String {
    path.map_or(TEXT.to_owned(), |path| format!("{FILE} (\"{path}\")"))
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}
