//! The limit that a response with the status `Limit reached` names (`docs/protocol.md`, "Limit reached").
//!
//! The body of an error response is a text for people, so the limit is a part of the text: clients that do not know it
//! show it. Servers without this part send the text of the status alone.

use std::fmt;

use crate::response::ResponseFrame;
use crate::status::Status;

/// What a server limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// The leased sessions of the server.
    Sessions,
    /// The grants and waiting requests of a session, and the AwaitIdle requests of a connection.
    Grants,
    /// The requests that wait for a name, and the AwaitIdle requests for it.
    Waiters,
    /// The Watches of the server.
    Watches,
    /// The exports that are read at once.
    Exports,
    /// How far a request id may be above the lowest unanswered one.
    Requests,
    /// The memory of the server, in bytes.
    Memory,
}

impl Limit {
    /// All limits.
    pub const ALL: [Self; 7] = [
        Self::Sessions,
        Self::Grants,
        Self::Waiters,
        Self::Watches,
        Self::Exports,
        Self::Requests,
        Self::Memory,
    ];

    /// The key of the limit in the server's configuration. [`Self::Exports`] and [`Self::Requests`] cannot be configured.
    pub fn key(self) -> &'static str {
        match self {
            Self::Sessions => "session.max_sessions",
            Self::Grants => "session.max_grants",
            Self::Waiters => "session.max_waiters",
            Self::Watches => "session.max_watches",
            Self::Exports => "exports_max",
            Self::Requests => "requests_max",
            Self::Memory => "memory_max",
        }
    }
}

/// A limit that a request would have exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReachedLimit {
    /// What is limited.
    pub limit: Limit,
    /// The value of the limit when it refused the request.
    pub max: u64,
    /// Whether it is the share of this client; otherwise it is the limit of all clients together.
    pub is_share: bool,
}

/// What follows the value if it is the share of a client.
const SHARE: &str = ", the share of a client";

/// The body of the response: the text of the status, then the key and the value, and what it is the value of unless that is
/// obvious.
impl fmt::Display for ReachedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_share { SHARE } else { "" };
        write!(f, "{}: {}={}{what}", Status::LimitReached.message(), self.limit.key(), self.max)
    }
}

impl ReachedLimit {
    fn read(body: &[u8]) -> Option<Self> {
        let text = str::from_utf8(body).ok()?;
        let limit = text.strip_prefix(Status::LimitReached.message())?.strip_prefix(": ")?;
        let (key, rest) = limit.split_once('=')?;
        let digits = rest.find(|next: char| !next.is_ascii_digit()).unwrap_or(rest.len());
        // A later server may add something else after the value.
        let (max, what) = rest.split_at(digits);
        let limit = Limit::ALL.into_iter().find(|limit| limit.key() == key)?;
        Some(Self { limit, max: max.parse().ok()?, is_share: what == SHARE })
    }
}

impl ResponseFrame {
    /// The limit of a response with the status [`Status::LimitReached`]; `None` if the server did not name it, or names
    /// one that this client does not know.
    pub fn reached_limit(&self) -> Option<ReachedLimit> {
        ReachedLimit::read(&self.body)
    }
}
