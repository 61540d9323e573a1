//! Leases, and the pauses of the server that extend them.

use crate::sync::{AtomicU64, Ordering};
use crate::time::MonotonicMs;

/// The longest intended time between two checks for expired leases, in milliseconds.
pub const TICK_MS: u64 = 1000;

/// The shortest time between two such checks that counts as a suspension of the server, in milliseconds.
const GAP_MS: u64 = 3 * TICK_MS;

/// The number of gaps that are remembered. An older gap no longer extends a lease, even if the lease was not renewed since.
const GAPS_MAX: usize = 64;

/// The lease of a session. Its connection shares it, so that a renewal takes no lock.
#[derive(Debug)]
pub struct Lease {
    renewed_ms: AtomicU64,
    ttl_ms: u32,
}

impl Lease {
    pub(super) fn new(ttl_ms: u32, now: MonotonicMs) -> Self {
        Self { renewed_ms: AtomicU64::new(now.0), ttl_ms }
    }

    /// Renews the lease: a message of the client was received at this time. An earlier time than the last changes nothing.
    #[inline]
    pub fn renew(&self, now: MonotonicMs) {
        self.renewed_ms.fetch_max(now.0, Ordering::Relaxed);
    }

    /// The session's time to live in milliseconds.
    pub fn ttl_ms(&self) -> u32 {
        self.ttl_ms
    }

    /// When the lease was renewed last.
    fn renewed(&self) -> MonotonicMs {
        MonotonicMs(self.renewed_ms.load(Ordering::Relaxed))
    }
}

/// The pauses in which the server could receive nothing. They are added to every lease that they fell into.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    last_tick: Option<MonotonicMs>,
    gaps: Vec<Gap>,
}

#[derive(Debug)]
struct Gap {
    end: MonotonicMs,
    length_ms: u64,
}

impl Gaps {
    /// Notes that the server runs at this time. A pause of [`GAP_MS`] or more since the last call is a gap.
    pub(super) fn tick(&mut self, now: MonotonicMs) {
        let length_ms = self.last_tick.map_or(0, |last| now.0.saturating_sub(last.0));
        if length_ms >= GAP_MS {
            self.gaps.push(Gap { end: now, length_ms });
            if self.gaps.len() > GAPS_MAX {
                self.gaps.remove(0);
            }
        }
        self.last_tick = Some(now);
    }

    /// When a lease expires, gaps included.
    pub(super) fn expiry(&self, lease: &Lease) -> MonotonicMs {
        let renewed = lease.renewed();
        let gaps = self.gaps.iter().filter(|gap| gap.end > renewed);
        let gaps_ms: u64 = gaps.map(|gap| gap.length_ms).sum();
        MonotonicMs(renewed.after(lease.ttl_ms).0 + gaps_ms)
    }
}
