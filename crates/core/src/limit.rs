//! Limits on memory and on the numbers of sessions, waiters and the like, and the share of them that one client may
//! have.
//!
//! A share binds only once half of the resource is in use, so that many clients with one address, which count as one
//! client, are not limited needlessly (`docs/decisions/0025`).

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};

use signalbox_model::{Limit, ReachedLimit, Refusal};

/// The refusal of a request above this limit.
pub(super) fn limit_reached(limit: Limit, max: usize) -> Refusal {
    Refusal::LimitReached(ReachedLimit { limit, max: max as u64, is_share: false })
}

/// Checks that a client that has `own` may have one more, while all clients together have `in_use`.
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

    /// Returns whether the limit is exceeded, so that nothing may grow.
    pub fn is_exceeded(self) -> bool {
        (self.in_use)() > self.max
    }

    /// The limit that keeps a client with `own` bytes and this share from using more memory; `None`: it may use more.
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

    /// Refuses a request that needs memory if [`Self::lack`] returns a limit.
    pub(super) fn check(self, share: ClientShare, own: usize) -> Result<(), Refusal> {
        self.lack(share, own).map_or(Ok(()), |limit| Err(Refusal::LimitReached(limit)))
    }
}

/// A client, by its identity or its address. The core only compares keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientKey(pub [u8; 16]);

impl ClientKey {
    /// The key of a client that has proven an identity, whatever its address. No client's address equals it, because
    /// addresses that begin with `ff` are multicast groups.
    pub fn of_identity(identity: &str) -> Self {
        let mut hasher = SipHasher24::new();
        hasher.write(identity.as_bytes());
        let mut key = hasher.finish128().as_bytes();
        key[0] = 0xff;
        Self(key)
    }
}

/// How much of a limited resource one client may have once half of it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientShare {
    /// The share in percent of the limit.
    pub percent: u32,
    /// The least share, as an amount of the resource, so that small limits are not divided.
    pub least: usize,
}

/// The least share that servers use.
const LEAST: usize = 16;

impl ClientShare {
    /// No shares, as in a new core: one client may have everything.
    pub const NONE: Self = Self { percent: 100, least: 0 };

    /// Shares of this many percent; 100: no shares.
    pub fn of_percent(percent: u32) -> Self {
        Self { percent, least: LEAST }
    }

    /// The share in a resource with this limit.
    pub fn of(self, max: usize) -> usize {
        let part = max / 100 * self.percent as usize + max % 100 * self.percent as usize / 100;
        part.max(self.least).min(max)
    }

    /// Returns whether a client that has `own` of a resource gets no more, while all clients together have `in_use` of
    /// it.
    pub fn is_exhausted(self, max: usize, in_use: usize, own: usize) -> bool {
        // Checked first, because half of a resource is seldom in use, and the share costs a division.
        if in_use < max.div_ceil(2) {
            return false;
        }
        let share = self.of(max);
        share < max && own >= share
    }
}
