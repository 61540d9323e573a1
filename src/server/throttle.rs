//! Limits what clients cause in the log, so that they cannot fill it. The log has the first of a client's refusals for
//! one reason, and again the first after a minute without any. It has each other warning at most once in 10 s. The
//! statistics count every occurrence.
//!
//! Invariant: the memory is bounded, however many clients are refused.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::lock;
use signalbox_core::ClientKey;

/// The shortest time between two warnings of one kind.
const INTERVAL: Duration = Duration::from_secs(10);

/// A key that was not seen for this time is forgotten.
const QUIET: Duration = Duration::from_secs(60);

/// The most keys. Further ones are not remembered until others are forgotten.
const KEYS_MAX: usize = 256;

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

    /// Returns the events per second.
    pub(super) fn per_second(self, now: Instant) -> f64 {
        self.last.map_or(0.0, |last| self.count * (-now.duration_since(last).as_secs_f64()).exp())
    }
}

/// Permits one warning per [`INTERVAL`].
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// A mutex and not an atomic, because it is only used when something has gone wrong.
    last: Mutex<Option<Instant>>,
}

impl Throttle {
    /// Returns whether a warning may be logged now. If so, the next interval begins.
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

/// The recent refusals of clients, by reason.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    recent: Recent<(ClientKey, String)>,
    /// Limits the warnings about refusals that are not remembered.
    further: Throttle,
}

impl RefusalLog {
    /// Notes that a client is refused. Returns whether to log it: if it is the client's first refusal for this reason
    /// in a while, or every 10 s if there is no room to remember it.
    pub(super) fn must_log(&self, client: ClientKey, reason: &str) -> bool {
        match self.recent.see((client, reason.to_owned())) {
            Some(before) => before == 0,
            None if self.further.permits() => {
                warn!(
                    "more clients are refused than are remembered; of the further ones, the log has one every 10 s"
                );
                true
            }
            None => false,
        }
    }
}

/// Keys that were seen recently, and how often.
#[derive(Debug)]
pub(super) struct Recent<K>(Mutex<HashMap<K, (Instant, u32)>>);

impl<K> Default for Recent<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq> Recent<K> {
    /// Notes that a key is seen. Returns how often it was seen recently before; `None`: there is no room for it.
    pub(super) fn see(&self, key: K) -> Option<u32> {
        let now = Instant::now();
        let is_recent = |last: &Instant| now.duration_since(*last) < QUIET;
        let mut seen = lock(&self.0);
        if seen.len() >= KEYS_MAX {
            seen.retain(|_, (last, _)| is_recent(last));
        }
        if seen.len() >= KEYS_MAX && !seen.contains_key(&key) {
            return None;
        }
        let before = seen.get(&key).filter(|(last, _)| is_recent(last)).map_or(0, |(_, count)| *count);
        seen.insert(key, (now, before.saturating_add(1)));
        Some(before)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

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

    #[tokio::test(start_paused = true)]
    async fn one_warning_passes_in_each_interval() {
        let throttle = Throttle::default();
        assert!(throttle.permits());
        assert!(!throttle.permits());
        advance(INTERVAL - Duration::from_millis(1)).await;
        assert!(!throttle.permits());
        advance(Duration::from_millis(1)).await;
        assert!(throttle.permits());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_seen_is_remembered_until_it_is_quiet_and_never_for_too_many() {
        let recent = Recent::<u32>::default();
        assert_eq!(recent.see(1), Some(0));
        advance(QUIET / 2).await;
        assert_eq!(recent.see(1), Some(1));
        advance(QUIET).await;
        assert_eq!(recent.see(1), Some(0));
        for key in 2..1000 {
            recent.see(key);
        }
        assert_eq!(recent.0.lock().unwrap().len(), KEYS_MAX);
        assert_eq!(recent.see(2000), None);
        advance(QUIET).await;
        assert_eq!(recent.see(2000), Some(0));
        assert_eq!(recent.0.lock().unwrap().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_log_has_the_first_of_a_client_s_refusals() {
        let log = RefusalLog::default();
        let is_logged = |client, reason| log.must_log(ClientKey([client; 16]), reason);
        assert!(is_logged(1, "sessions"));
        assert!(is_logged(1, "watches"));
        assert!(is_logged(2, "sessions"));
        advance(QUIET / 2).await;
        assert!(!is_logged(1, "sessions"));
        advance(QUIET / 2).await;
        assert!(!is_logged(1, "sessions"));
        advance(QUIET).await;
        assert!(is_logged(1, "sessions"));
        for client in 0..=u8::MAX {
            is_logged(client, "sessions");
        }
        assert!(is_logged(2, "connections"), "one of those that are not remembered");
        assert!(!is_logged(3, "connections"));
        advance(QUIET).await;
        assert!(is_logged(3, "connections"));
    }
}
