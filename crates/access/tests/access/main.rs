//! Rights and tokens, by the package's public items.

mod file;
mod rights;
mod tokens;

use signalbox_access::{Entry, Rights, Token};

/// The token all of whose random bytes are this one.
fn token(byte: u8) -> Token {
    let token = Token::random(|bytes| {
        bytes.fill(byte);
        Ok::<_, ()>(())
    });
    token.unwrap()
}

/// An entry for that token.
fn entry(byte: u8) -> Entry {
    Entry::of(&token(byte), format!("t{byte}"), Rights::ALL, 1, None)
}
