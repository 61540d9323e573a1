//! The two kinds of time that the rules use (invariant 8 of `docs/design.md`). The core never reads a clock,
//! except the one that the server gives to the history of grants.

use signalbox_model::UnixSeconds;

/// Milliseconds since some moment in the past. They never decrease, so waits and leases use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MonotonicMs(pub u64);

impl MonotonicMs {
    /// This many milliseconds later.
    pub fn after(self, ms: u32) -> Self {
        Self(self.0 + u64::from(ms))
    }

    /// The milliseconds from this time until `now`.
    pub(super) fn age_ms(self, now: Self) -> u64 {
        now.0.saturating_sub(self.0)
    }

    /// The milliseconds from this time until `then`; 0 if that has passed. Never `u32::MAX`, which means "forever".
    pub fn until(self, then: Self) -> u32 {
        u32::try_from(then.0.saturating_sub(self.0)).unwrap_or(u32::MAX).min(u32::MAX - 1)
    }
}

/// One moment in both kinds of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// For waits and leases.
    pub monotonic: MonotonicMs,
    /// For intervals, and for what people read.
    pub unix: UnixSeconds,
}

/// When the core has something to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    /// At once.
    Now,
    /// At this time.
    At(MonotonicMs),
}
