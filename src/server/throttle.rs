//! Limits the rate of warnings that clients can cause, so that they cannot fill the log. The statistics count every
//! occurrence.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::lock;

/// The shortest time between two warnings of one kind.
const INTERVAL: Duration = Duration::from_secs(10);

/// Permits one warning per [`INTERVAL`].
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// A mutex and not an atomic, because it is only used when something has gone wrong.
    last: Mutex<Option<Instant>>,
}

impl Throttle {
    /// Whether a warning may be logged now.
    pub(super) fn permits(&self) -> bool {
        let mut last = lock(&self.last);
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
