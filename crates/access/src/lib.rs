//! The rights of clients, the tokens that prove them, and the names in certificates.
//!
//! The server decides by these types, the configuration has them in its rules, and `signalbox token` edits the file of
//! tokens. Nothing here knows clients, connections or requests. Only `file` does I/O.

#![warn(clippy::unwrap_used)]

mod certificate;
mod file;
mod rights;
mod token;
mod tokens;

pub use certificate::{CertificateName, NameKind, UnknownCertificateName};
pub use file::{TokenFileError, read_tokens, update_tokens};
pub use rights::{Area, Right, Rights, UnknownRights};
pub use token::{Token, TokenId, UnknownTokenId};
pub use tokens::{Entry, ListedToken, NoSuchToken, Tokens, TokensError, Verdict};
