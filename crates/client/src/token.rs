//! The token that a client sends in Hello.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use super::ConnectError;
use super::reread::Reread;
use signalbox_protocol::Credentials;

/// A token, which proves to the server what its client may do. `Debug` does not show it, and its memory is cleared when the
/// last clone is dropped.
///
/// ```
/// use signalbox_client::Token;
///
/// let token = Token::new("sbx_0123456789abcdef_0123");
/// assert_eq!(format!("{token:?}"), "Token(hidden)");
/// ```
#[derive(Clone)]
pub struct Token {
    secret: Arc<Secret>,
    /// The file that it was read from.
    file: Option<Arc<Reread<Arc<Secret>>>>,
    may_be_read_by_others: bool,
}

/// The text of a token.
struct Secret(Vec<u8>);

/// Why the file of a token cannot be used.
#[derive(Debug, Error)]
#[error("the token cannot be read from {}: {error}", path.display())]
struct FileError {
    path: PathBuf,
    error: io::Error,
}

impl Secret {
    fn read(path: &Path) -> io::Result<Self> {
        let text = Self(std::fs::read(path)?);
        let trimmed = text.0.trim_ascii();
        if trimmed.is_empty() || u16::try_from(trimmed.len()).is_err() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the file must have one token and nothing else",
            ));
        }
        Ok(Self(trimmed.to_vec()))
    }
}

impl Token {
    /// Takes a token as `signalbox token create` printed it. White space around it is ignored.
    ///
    #[doc = example!("", r#"let token = std::env::var("SIGNALBOX_TOKEN").ok().map(|text| Token::new(&text));"#)]
    pub fn new(text: &str) -> Self {
        let secret = Arc::new(Secret(text.trim().as_bytes().to_vec()));
        Self { secret, file: None, may_be_read_by_others: false }
    }

    /// Reads a file that has nothing but a token. It is read again for each connection, and by a
    /// [`Client`](super::Client) after the server has refused a request, so that it can be replaced while the program
    /// runs. If the new file cannot be used, the former token stays in use, and the log has a warning (`tracing`). A
    /// pipe is read once.
    ///
    /// # Errors
    /// The error of the operating system, or one of the kind `InvalidData` if the file is empty or too long.
    ///
    /// ```no_run
    /// # fn example() -> std::io::Result<()> {
    /// use signalbox_client::{Client, Token};
    ///
    /// let token = Token::from_file("/etc/worker/token")?;
    /// let builder = Client::builder("lock.example.org".parse().expect("an address")).token(token);
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_file(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let same = path.to_owned();
        let read = move || {
            Secret::read(&same).map(Arc::new).map_err(|error| FileError { path: same.clone(), error })
        };
        let file = Reread::new(&[path], read).map_err(|FileError { error, .. }| error)?;
        Ok(Self { secret: file.last(), file: Some(file), may_be_read_by_others: false })
    }

    /// Returns the token after reading its file again, if it has one.
    pub(super) async fn latest(token: Option<&Self>) -> Option<Self> {
        let token = token?;
        let secret = match &token.file {
            Some(file) => file.latest().await,
            None => Arc::clone(&token.secret),
        };
        Some(Self { secret, ..token.clone() })
    }

    /// Returns whether the text of both tokens is the same.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.secret.0 == other.secret.0
    }

    /// Allows the client to send the token to other machines even without TLS, where others may read it. The server
    /// accepts it there only with `access.tokens_over_plain`. Without this permission, the client does not send the
    /// token, and such a connection fails with [`ConnectError::TokenInClear`](super::ConnectError::TokenInClear).
    ///
    #[doc = example!("", r#"let token = Token::new("sbx_0123456789abcdef_0123").over_plain();"#)]
    #[must_use]
    pub fn over_plain(self) -> Self {
        Self { may_be_read_by_others: true, ..self }
    }

    /// Returns the token as Hello sends it.
    #[doc(hidden)] // For the command line.
    pub fn credentials(&self) -> Credentials<'_> {
        Credentials(&self.secret.0)
    }

    /// Returns the credentials for Hello, empty without a token. `in_clear` is the address of the server if others may
    /// read what is sent to it.
    ///
    /// # Errors
    /// [`ConnectError::TokenInClear`] if others may read the token, and [`Self::over_plain`] does not allow that.
    pub(super) fn credentials_for(
        token: Option<&Self>,
        in_clear: Option<SocketAddr>,
    ) -> Result<Credentials<'_>, ConnectError> {
        match (token, in_clear) {
            (None, _) => Ok(Credentials::default()),
            (Some(Self { may_be_read_by_others: false, .. }), Some(address)) => {
                Err(ConnectError::TokenInClear { address })
            }
            (Some(token), _) => Ok(token.credentials()),
        }
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        // Keeps the compiler from removing the line above.
        std::hint::black_box(&self.0);
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_sent_in_clear_only_if_that_is_allowed() {
        let (token, server) = (Token::new("sbx_secret"), SocketAddr::from(([192, 0, 2, 7], 11215)));
        let shown = |token: Option<&Token>, in_clear| {
            Token::credentials_for(token, in_clear).map(|shown| shown.0.to_vec())
        };
        assert_eq!(shown(None, Some(server)).unwrap(), b"");
        assert_eq!(shown(Some(&token), None).unwrap(), b"sbx_secret");
        let refused = shown(Some(&token), Some(server)).unwrap_err();
        assert!(refused.to_string().contains("192.0.2.7:11215"), "{refused}");
        assert_eq!(shown(Some(&token.over_plain()), Some(server)).unwrap(), b"sbx_secret");
    }

    #[test]
    fn the_space_around_a_token_is_no_part_of_it() {
        for text in ["sbx_secret", " sbx_secret\n"] {
            assert_eq!(Token::new(text).credentials().0, b"sbx_secret");
        }
    }
}
