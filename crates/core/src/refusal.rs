//! Why requests are refused.

use crate::share::ClientShare;

/// Why a request was refused. A refused request has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such name.
    NotFound,
    /// The resources are in use.
    NotAvailable,
    /// The session holds less than it asked to release.
    NotAcquired,
    /// The namespace has as many names as its limit allows.
    TooManyNames,
    /// The request's timeout has passed.
    TimedOut,
    /// More requests are waiting than the request accepts ahead of it.
    QueueFull,
    /// The request was canceled, or its owner ended the session.
    Canceled,
    /// The grant or the session was revoked.
    Revoked,
    /// There is no such session, or the connection is no longer attached to it.
    NoSuchSession,
    /// This limit of the server is reached.
    LimitReached(Limit),
    /// The request's number is below the lowest number that its client reported as unanswered, or another request has
    /// used it.
    StaleRequest,
    /// The server is shutting down.
    ShuttingDown,
    /// The semaphore was removed, or is being removed.
    Removed,
    /// The semaphore is declared already.
    AlreadyExists,
    /// The semaphore was changed since its generation was read.
    GenerationDiffers,
    /// The semaphore is held.
    InUse,
    /// The configuration declares the semaphore, so no request may change it.
    NotPermitted,
    /// A number is outside its range.
    OutOfRange,
    /// The semaphore has no slot with this number.
    NoSuchSlot,
    /// The change could not be written to durable storage, and was rolled back.
    NotStored,
}

/// A limit of the server, and its value when it refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The kind of the limit.
    pub kind: LimitKind,
    /// The most that the limit allows; for memory, in bytes.
    pub max: u64,
    /// Whether it is the share of the client; otherwise it is the limit of all clients together.
    pub is_share: bool,
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
    /// The memory of the process.
    Memory,
}

impl Limit {
    /// Why a request above this limit is refused.
    pub(super) fn reached(kind: LimitKind, max: usize) -> Refusal {
        Refusal::LimitReached(Self { kind, max: max as u64, is_share: false })
    }

    /// Checks that there may be one more, for all clients, of whom there is `in_use`, and for this one, which has `own`.
    pub(super) fn check(
        kind: LimitKind,
        (max, share): (usize, ClientShare),
        in_use: usize,
        own: usize,
    ) -> Result<(), Refusal> {
        if in_use >= max {
            return Err(Self::reached(kind, max));
        }
        if share.is_exhausted(max, in_use, own) {
            return Err(Refusal::LimitReached(Self { kind, max: share.of(max) as u64, is_share: true }));
        }
        Ok(())
    }
}
