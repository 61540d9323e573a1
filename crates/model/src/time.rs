//! Spans of time, and the time that people read. Everything that waits for a time uses a clock that never goes back, which the
//! core has.

use std::time::Duration;

/// A time span in milliseconds, as on the wire: up to 49 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Milliseconds(pub u32);

impl Milliseconds {
    /// The grace period of a revocation or removal for which the command line and the HTTP API are given none.
    pub const GRACE_DEFAULT: Self = Self(10_000);

    /// The whole milliseconds of a span; the longest value if the span is longer.
    pub fn saturating_from(span: Duration) -> Self {
        Self(u32::try_from(span.as_millis()).unwrap_or(u32::MAX))
    }
}

impl From<Milliseconds> for Duration {
    fn from(span: Milliseconds) -> Self {
        Self::from_millis(span.0.into())
    }
}

/// Seconds since the Unix epoch, as the server read them from its clock: for intervals, and for what people read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixSeconds(pub u64);
