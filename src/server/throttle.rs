//! Warnings that many connections cause are logged now and then, so that nobody fills the log from outside; what is
//! left out is counted by the statistics.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// The least time between two warnings of one kind.
const INTERVAL: Duration = Duration::from_secs(10);

/// Lets one warning pass every [`INTERVAL`].
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// Not a number of milliseconds in an atomic, because it is only asked where something went wrong already.
    last: Mutex<Option<Instant>>,
}

impl Throttle {
    /// Whether a warning may be logged now.
    pub(super) fn permits(&self) -> bool {
        // A panic while it is locked cannot leave anything half done.
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = Instant::now();
        let permits = last.is_none_or(|last| now.duration_since(last) >= INTERVAL);
        if permits {
            *last = Some(now);
        }
        permits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_warning_passes_in_each_interval() {
        let throttle = Throttle::default();
        assert!(throttle.permits());
        assert!(!throttle.permits());
        tokio::time::advance(INTERVAL - Duration::from_millis(1)).await;
        assert!(!throttle.permits());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(throttle.permits());
    }
}
