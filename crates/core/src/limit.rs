//! The limit on memory.

use crate::refusal::{Limit, LimitKind, Refusal};
use crate::share::ClientShare;

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
