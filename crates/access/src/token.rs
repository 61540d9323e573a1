//! A token: a random secret that a client shows, and the hash of it that the file has.
//!
//! A token has a public id, by which it is found, and 256 random bits. That much randomness cannot be guessed, and one fast
//! hash hides it: a slow one, as passwords need, would only cost the server time. The hash is an HMAC under the id,
//! because ring compares one in constant time.

use std::fmt;
use std::str::FromStr;

use ring::hmac;

use signalbox_model::hex;

/// The prefix of all tokens, by which scanners of source code and logs recognise them.
const PREFIX: &str = "sbx_";

const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;

/// The hash of a secret.
pub(super) const HASH_BYTES: usize = 32;

/// The public part of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenId(pub(super) [u8; ID_BYTES]);

/// The text is not the id of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected the id of a token, 16 hexadecimal digits; \"signalbox token list\" shows the ids")]
pub struct UnknownTokenId;

/// A token. Neither its `Debug` nor a log shows the secret.
pub struct Token {
    id: TokenId,
    secret: [u8; SECRET_BYTES],
}

impl Token {
    /// Returns a new token. `fill` fills a slice with random bytes; if it fails, so does this.
    pub fn random<E>(fill: impl Fn(&mut [u8]) -> Result<(), E>) -> Result<Self, E> {
        let (mut id, mut secret) = ([0; ID_BYTES], [0; SECRET_BYTES]);
        fill(&mut id)?;
        fill(&mut secret)?;
        Ok(Self { id: TokenId(id), secret })
    }

    /// Parses the text of a token, as [`Token::reveal`] returns it; `None`: it is not a token.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = text.strip_prefix(PREFIX.as_bytes())?;
        let (id, rest) = text.split_at_checked(2 * ID_BYTES)?;
        let secret = rest.strip_prefix(b"_")?;
        Some(Self { id: TokenId(from_hex(id)?), secret: from_hex(secret)? })
    }

    /// The public id.
    pub fn id(&self) -> TokenId {
        self.id
    }

    /// The token as its client keeps it. It is secret.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}_{}", self.id, hex(&self.secret))
    }

    /// The hash that the file has instead of the secret.
    pub(super) fn hash(&self) -> [u8; HASH_BYTES] {
        let tag = hmac::sign(&self.key(), &self.secret);
        tag.as_ref().try_into().expect("HMAC-SHA256 has 32 bytes")
    }

    /// Returns whether this is the hash of the token, in constant time.
    pub(super) fn has_hash(&self, hash: &[u8; HASH_BYTES]) -> bool {
        hmac::verify(&self.key(), &self.secret, hash).is_ok()
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.id.0)
    }
}

impl Drop for Token {
    /// Clears the secret. The compiler may omit this if it proves that nothing reads it; core dumps are disabled anyway.
    fn drop(&mut self) {
        self.secret = std::hint::black_box([0; SECRET_BYTES]);
        std::hint::black_box(&self.secret);
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("id", &self.id).finish_non_exhaustive()
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

/// Parses the text that `Display` writes.
impl FromStr for TokenId {
    type Err = UnknownTokenId;

    fn from_str(text: &str) -> Result<Self, UnknownTokenId> {
        from_hex(text.as_bytes()).map(Self).ok_or(UnknownTokenId)
    }
}

/// Decodes hexadecimal digits in lower case; upper case is refused, so that a token has only one form.
pub(super) fn from_hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token { id: TokenId([0x1f; ID_BYTES]), secret: [0xa5; SECRET_BYTES] }
    }

    #[test]
    fn only_the_exact_text_is_the_token() {
        let text = token().reveal();
        let hash = token().hash();
        assert!(Token::parse(text.as_bytes()).unwrap().has_hash(&hash));
        for wrong in [
            text[..text.len() - 1].to_owned(),
            text.to_uppercase(),
            text.replace('a', "A"),
            format!("{text}\0"),
            format!("{text}\n"),
            format!(" {text}"),
            text.replace("sbx_", ""),
            String::new(),
            "x".repeat(65_535),
        ] {
            assert!(Token::parse(wrong.as_bytes()).is_none(), "{wrong}");
        }
    }

    #[test]
    fn every_byte_of_the_secret_and_of_the_hash_counts() {
        let hash = token().hash();
        for index in 0..SECRET_BYTES {
            let mut other = token();
            other.secret[index] ^= 1;
            assert!(!other.has_hash(&hash), "byte {index} of the secret");
            let mut other = hash;
            other[index] ^= 1;
            assert!(!token().has_hash(&other), "byte {index} of the hash");
        }
        let other = Token { id: TokenId([0; ID_BYTES]), secret: token().secret };
        assert!(!other.has_hash(&hash), "another id");
    }

    #[test]
    fn debug_output_has_no_secret() {
        let shown = format!("{:?}", token());
        assert!(!shown.contains("a5a5") && !shown.contains("165, 165"), "{shown}");
    }
}
