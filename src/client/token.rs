//! The token that a client shows in Hello.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::protocol::Credentials;

/// A token, which proves to the server what its client may do. `Debug` does not show it, and its memory is cleared when the
/// last clone is dropped.
///
/// ```
/// use signalbox::client::Token;
///
/// let token = Token::new("sbx_0123456789abcdef_0123");
/// assert_eq!(format!("{token:?}"), "Token(hidden)");
/// ```
#[derive(Clone)]
pub struct Token(Arc<Secret>);

/// The text of a token.
struct Secret(Vec<u8>);

impl Token {
    /// A token as `signalbox token create` printed it. Space around it is ignored.
    ///
    /// ```
    /// use signalbox::client::Token;
    ///
    /// let token = std::env::var("SIGNALBOX_TOKEN").ok().map(|text| Token::new(&text));
    /// ```
    pub fn new(text: &str) -> Self {
        Self(Arc::new(Secret(text.trim().as_bytes().to_vec())))
    }

    /// Reads a file that has nothing but a token.
    ///
    /// # Errors
    /// That of the operating system; of the kind `InvalidData` if the file has no text or too much.
    ///
    /// ```no_run
    /// # fn example() -> std::io::Result<()> {
    /// use signalbox::client::{Client, Token};
    ///
    /// let token = Token::from_file("/etc/worker/token".as_ref())?;
    /// let builder = Client::builder("lock.example.org".parse().expect("an address")).token(token);
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_file(path: &Path) -> io::Result<Self> {
        let text = Secret(std::fs::read(path)?);
        let trimmed = text.0.trim_ascii();
        if trimmed.is_empty() || u16::try_from(trimmed.len()).is_err() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the file must have one token and nothing else",
            ));
        }
        Ok(Self(Arc::new(Secret(trimmed.to_vec()))))
    }

    /// As it is sent.
    pub(crate) fn credentials(&self) -> Credentials<'_> {
        Credentials(&self.0.0)
    }

    /// Those of a token, if there is one.
    pub(super) fn of(token: Option<&Self>) -> Credentials<'_> {
        token.map_or(Credentials::default(), Self::credentials)
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        // So that the compiler does not leave it out.
        std::hint::black_box(&self.0);
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}
