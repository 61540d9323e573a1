//! Which refusals of clients are in the log: the first of each client for a reason, and again the first after a minute without
//! any. It is made of keys that were seen in the last time.
//!
//! Invariant: the memory is bounded, however many clients are refused.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::lock;
use super::throttle::Throttle;
use signalbox_core::ClientKey;

/// A key that was not seen for this time is forgotten.
const QUIET: Duration = Duration::from_secs(60);

/// The most keys. Further ones are not remembered until others are forgotten.
const KEYS_MAX: usize = 256;

/// The refusals that clients had recently, by reason.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    recent: Recent<(ClientKey, String), ()>,
    /// Refusals that are not remembered.
    further: Throttle,
}

impl RefusalLog {
    /// A client is refused. Returns whether the log has it: if the client's refusals for this reason begin with it, or once in
    /// a while if there is no room for it.
    pub(super) fn begins(&self, client: ClientKey, reason: &str) -> bool {
        match self.recent.see((client, reason.to_owned()), |()| ()) {
            Some(before) => before.is_none(),
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

/// Keys that were seen in the last time, and a value for each.
#[derive(Debug)]
pub(super) struct Recent<K, V>(Mutex<HashMap<K, (Instant, V)>>);

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq, V: Copy + Default> Recent<K, V> {
    /// Sees a key, and changes its value. Returns the value before if it was seen recently; `None`: there is no room for it.
    pub(super) fn see(&self, key: K, change: impl Fn(V) -> V) -> Option<Option<V>> {
        let now = Instant::now();
        let is_recent = |last: &Instant| now.duration_since(*last) < QUIET;
        let mut seen = lock(&self.0);
        if seen.len() >= KEYS_MAX {
            seen.retain(|_, (last, _)| is_recent(last));
        }
        if seen.len() >= KEYS_MAX && !seen.contains_key(&key) {
            return None;
        }
        let before = seen.get(&key).filter(|(last, _)| is_recent(last)).map(|(_, value)| *value);
        seen.insert(key, (now, change(before.unwrap_or_default())));
        Some(before)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_seen_is_remembered_until_it_is_quiet_and_never_for_too_many() {
        let recent = Recent::<u32, u32>::default();
        let see = |key| recent.see(key, |count| count + 1);
        assert_eq!(see(1), Some(None));
        advance(QUIET / 2).await;
        assert_eq!(see(1), Some(Some(1)));
        advance(QUIET).await;
        assert_eq!(see(1), Some(None));
        for key in 2..1000 {
            see(key);
        }
        assert_eq!(recent.0.lock().unwrap().len(), KEYS_MAX);
        assert_eq!(see(2000), None);
        advance(QUIET).await;
        assert_eq!(see(2000), Some(None));
        assert_eq!(recent.0.lock().unwrap().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_log_has_the_first_of_a_client_s_refusals() {
        let log = RefusalLog::default();
        let begins = |client, reason| log.begins(ClientKey([client; 16]), reason);
        assert!(begins(1, "sessions"));
        assert!(begins(1, "watches"));
        assert!(begins(2, "sessions"));
        advance(QUIET / 2).await;
        assert!(!begins(1, "sessions"));
        advance(QUIET / 2).await;
        assert!(!begins(1, "sessions"));
        advance(QUIET).await;
        assert!(begins(1, "sessions"));
        for client in 0..=u8::MAX {
            begins(client, "sessions");
        }
        assert!(begins(2, "connections"), "one of those that are not remembered");
        assert!(!begins(3, "connections"));
        advance(QUIET).await;
        assert!(begins(3, "connections"));
    }
}
