//! Limits: on numbers of things, of all clients and of one, and on memory.

use crate::share::ClientShare;
use signalbox_model::{Limit, ReachedLimit, Refusal};

/// Why a request above this limit is refused.
pub(super) fn limit_reached(limit: Limit, max: usize) -> Refusal {
    Refusal::LimitReached(ReachedLimit { limit, max: max as u64, is_share: false })
}

/// Checks that there may be one more, for all clients, of whom there is `in_use`, and for this one, which has `own`.
pub(super) fn check_limit(
    limit: Limit,
    (max, share): (usize, ClientShare),
    in_use: usize,
    own: usize,
) -> Result<(), Refusal> {
    if in_use >= max {
        return Err(limit_reached(limit, max));
    }
    if share.is_exhausted(max, in_use, own) {
        return Err(Refusal::LimitReached(ReachedLimit { limit, max: share.of(max) as u64, is_share: true }));
    }
    Ok(())
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
    pub fn lack(self, share: ClientShare, own: usize) -> Option<ReachedLimit> {
        let (max, in_use) = (self.max as usize, (self.in_use)());
        let limit = |max, is_share| Some(ReachedLimit { limit: Limit::Memory, max, is_share });
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
