//! What a counter remembers beside its consumption: the peak of the present interval (`counter.md`, "Dump").

use std::num::NonZeroU32;

use super::UnixSeconds;

/// The number of an interval since the epoch: boundaries lie at multiples of its length in Unix time.
///
/// The clock may be set back; an interval earlier than the last one seen is then not yet over, and what was counted
/// in the later one stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Interval(u32);

impl Interval {
    pub(super) fn of(now: UnixSeconds, length_s: NonZeroU32) -> Self {
        // Division of 32 bits takes a fraction of the time of one of 64, and every request needs one.
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
    /// The interval in which the consumption last changed; the peak is of that one.
    changed: Interval,
}

impl Counter {
    pub(super) fn new(interval: Interval) -> Self {
        Self { peak: 0, changed: interval }
    }

    /// Notes that the consumption went from `before` to `after`.
    pub(super) fn note(&mut self, before: u32, after: u32, interval: Interval) {
        let highest = before.max(after);
        self.peak = if self.changed < interval { highest } else { self.peak.max(highest) };
        self.changed = interval;
    }

    /// The highest consumption within `interval`. Nothing changed since its start means it was the present one.
    pub(super) fn peak(&self, consumption: u32, interval: Interval) -> u32 {
        if self.is_over(interval) { consumption } else { self.peak }
    }

    /// Whether the interval of the last change lies before `interval`, so that the peak says nothing any more.
    pub(super) fn is_over(&self, interval: Interval) -> bool {
        self.changed < interval
    }
}
