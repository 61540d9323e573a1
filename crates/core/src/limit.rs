//! The limits of the ledger, as a refusal names them.

use super::Refusal;
use super::share::ClientShare;

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

/// A limit on the memory of the process.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLimit {
    /// Returns the bytes in use.
    pub in_use: fn() -> u64,
    /// With more bytes in use than this, nothing may grow.
    pub max: u64,
}

impl MemoryLimit {
    /// No limit, as in a new core.
    pub const NONE: Self = Self { in_use: || 0, max: u64::MAX };

    /// Whether nothing may grow.
    pub fn is_exceeded(self) -> bool {
        (self.in_use)() > self.max
    }

    /// The limit because of which nothing may grow for a client that has `own` bytes and this share; `None`: there is memory.
    pub fn lack(self, share: ClientShare, own: usize) -> Option<Limit> {
        let (max, in_use) = (self.max as usize, (self.in_use)());
        let limit = |max, is_share| Some(Limit { kind: LimitKind::Memory, max, is_share });
        if in_use > self.max {
            limit(self.max, false)
        } else if share.is_exhausted(max, in_use as usize, own) {
            limit(share.of(max) as u64, true)
        } else {
            None
        }
    }

    /// Refuses requests that need memory for such a client.
    pub(super) fn check(self, share: ClientShare, own: usize) -> Result<(), Refusal> {
        self.lack(share, own).map_or(Ok(()), |limit| Err(Refusal::LimitReached(limit)))
    }
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
