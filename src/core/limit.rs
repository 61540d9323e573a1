//! The limits of the ledger, as a refusal names them.

use super::Refusal;

/// A limit of the server, and its value when it refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The kind of the limit.
    pub kind: LimitKind,
    /// The most that the limit allows. Saturates: no limit above it refuses a request.
    pub max: u32,
}

/// What the ledger limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// Leased sessions.
    Sessions,
    /// Grants and waiters of a session, and AwaitIdle requests of a connection.
    Grants,
    /// Waiters of a name, and AwaitIdle requests for it.
    Waiters,
    /// Watches.
    Watches,
    /// How far the request ids of a session may be above its lowest unanswered one.
    Requests,
}

impl Limit {
    /// Why a request above this limit is refused.
    pub(super) fn reached(kind: LimitKind, max: usize) -> Refusal {
        Refusal::LimitReached(Self { kind, max: u32::try_from(max).unwrap_or(u32::MAX) })
    }
}
