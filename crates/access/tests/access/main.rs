//! Rights and tokens, tested through the public API of the package.

mod file;
mod rights;
mod tokens;

use signalbox_access::{Entry, Rights, Token};

/// A token whose random bytes all have this value.
fn token(byte: u8) -> Token {
    let token = Token::random(|bytes| {
        bytes.fill(byte);
        Ok::<_, ()>(())
    });
    token.unwrap()
}

/// An entry for `token(byte)`.
fn entry(byte: u8) -> Entry {
    Entry::of(&token(byte), format!("t{byte}"), Rights::ALL, 1, None)
}
