//! The clock that measures leaderships.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A point in time of the clock that counts from the start of the machine and includes the time of suspension
/// (`CLOCK_BOOTTIME`). Changes of the time of day do not affect it. It says nothing to another machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(pub Duration);

impl BootTime {
    /// The present, as the kernel says.
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every Linux that Rust supports has it");
        Self(now.into())
    }

    /// The time this much later.
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }

    /// The time from an earlier point to this one; zero if that one is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_runs_forward() {
        let before = BootTime::now();
        assert!(before > BootTime::default());
        assert!(BootTime::now() >= before);
    }
}
