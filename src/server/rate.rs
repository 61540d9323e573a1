//! The rate of events of a kind, per second.

use tokio::time::Instant;

/// A count of events that decays to 1/e in a second. With a constant number of events per second, it approaches this number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    /// The count when the last event was noted.
    count: f64,
    /// `None`: there was none.
    last: Option<Instant>,
}

impl Rate {
    /// Adds this number of events.
    pub(super) fn note(&mut self, now: Instant, events: f64) {
        self.count = self.per_second(now) + events;
        self.last = Some(now);
    }

    /// The events per second.
    pub(super) fn per_second(self, now: Instant) -> f64 {
        self.last.map_or(0.0, |last| self.count * (-now.duration_since(last).as_secs_f64()).exp())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_rate_approaches_the_events_in_a_second_and_decays() {
        let (mut rate, begin) = (Rate::default(), Instant::now());
        assert_eq!(rate.per_second(begin), 0.0);
        for number in 0..10_000 {
            rate.note(begin + Duration::from_millis(number), 1.0);
        }
        let end = begin + Duration::from_secs(10);
        assert!((999.0..1001.0).contains(&rate.per_second(end)), "{rate:?}");
        assert!((365.0..370.0).contains(&rate.per_second(end + Duration::from_secs(1))), "{rate:?}");
        assert!(rate.per_second(end + Duration::from_secs(8)) < 1.0, "{rate:?}");
    }
}
