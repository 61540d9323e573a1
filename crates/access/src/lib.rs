//! What clients may do: rights, and the tokens that prove them.
//!
//! The server decides by these types, the configuration has them in its rules, and `signalbox token` edits the file of
//! tokens. Nothing here knows clients, connections or requests. `file` does the only I/O.

#![warn(clippy::unwrap_used)]

mod file;
mod rights;
mod text;
mod token;
mod tokens;

pub use file::{TokenFileError, read_tokens, update_tokens};
pub use rights::{Area, Right, Rights, UnknownRights};
pub use token::{Token, TokenId};
pub use tokens::{Entry, NoSuchToken, Tokens, TokensError, Verdict};
