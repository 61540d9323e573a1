//! The state of a counter in addition to its consumption: the peak of the current interval (`counter.md`, "Dump").

use std::num::NonZeroU32;

use signalbox_model::UnixSeconds;

/// The number of an interval since the Unix epoch: boundaries are at multiples of its length in Unix time.
///
/// The clock may be set back. Then the latest interval seen so far stays the current one, and its peak is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Interval(u32);

impl Interval {
    pub(super) fn of(now: UnixSeconds, length_s: NonZeroU32) -> Self {
        // A 32-bit division takes a fraction of the time of a 64-bit one, and every request needs one.
        match u32::try_from(now.0) {
            Ok(now_s) => Self(now_s / length_s),
            Err(_) => Self(u32::try_from(now.0 / u64::from(length_s.get())).unwrap_or(u32::MAX)),
        }
    }
}

/// The peak of one counter.
#[derive(Debug)]
pub(super) struct Counter {
    peak: u32,
    /// The interval in which the consumption last changed, to which the peak belongs.
    changed: Interval,
}

impl Counter {
    pub(super) fn new(interval: Interval) -> Self {
        Self { peak: 0, changed: interval }
    }

    /// Records that the consumption changed from `before` to `after`.
    #[inline]
    pub(super) fn note(&mut self, before: u32, after: u32, interval: Interval) {
        let highest = before.max(after);
        self.peak = if self.changed < interval { highest } else { self.peak.max(highest) };
        self.changed = interval;
    }

    /// The highest consumption within `interval`. If nothing changed since its start, that is the current consumption.
    pub(super) fn peak(&self, consumption: u32, interval: Interval) -> u32 {
        if self.is_over(interval) { consumption } else { self.peak }
    }

    /// Returns whether the interval of the last change is before `interval`, so that the peak no longer applies.
    pub(super) fn is_over(&self, interval: Interval) -> bool {
        self.changed < interval
    }
}
