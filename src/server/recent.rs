//! Keys that were seen in the last time: clients that are refused, for example, of whose refusals the log has the first.
//!
//! Invariant: the memory is bounded, however many keys are seen.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// A key that was not seen for this time is forgotten.
const QUIET: Duration = Duration::from_secs(60);

/// The most keys. Further ones are not remembered until others are forgotten.
const KEYS_MAX: usize = 256;

/// Keys that were seen in the last time, and a value for each.
#[derive(Debug)]
pub(super) struct Recent<K, V>(HashMap<K, (Instant, V)>);

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq, V: Copy + Default> Recent<K, V> {
    /// Sees a key, and changes its value. Returns the value before if it was seen recently; `None`: there is no room for it.
    pub(super) fn see(&mut self, key: K, now: Instant, change: impl Fn(V) -> V) -> Option<Option<V>> {
        let is_recent = |last: &Instant| now.duration_since(*last) < QUIET;
        if self.0.len() >= KEYS_MAX {
            self.0.retain(|_, (last, _)| is_recent(last));
        }
        if self.0.len() >= KEYS_MAX && !self.0.contains_key(&key) {
            return None;
        }
        let before = self.0.get(&key).filter(|(last, _)| is_recent(last)).map(|(_, value)| *value);
        self.0.insert(key, (now, change(before.unwrap_or_default())));
        Some(before)
    }
}

impl<K: Hash + Eq> Recent<K, ()> {
    /// Sees a key. Returns whether it was not seen recently; false if there is no room for it.
    pub(super) fn begins(&mut self, key: K, now: Instant) -> bool {
        self.see(key, now, |()| ()) == Some(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ClientKey;

    const ONE: ClientKey = ClientKey([1; 16]);
    const OTHER: ClientKey = ClientKey([2; 16]);

    #[test]
    fn what_was_seen_is_remembered_until_it_is_quiet_and_never_for_too_many() {
        let (mut recent, begin) = (Recent::<u32, u32>::default(), Instant::now());
        let count = |count: u32| count + 1;
        assert_eq!(recent.see(1, begin, count), Some(None));
        assert_eq!(recent.see(1, begin + QUIET / 2, count), Some(Some(1)));
        assert_eq!(recent.see(1, begin + QUIET * 2, count), Some(None));
        for key in 2..1000 {
            recent.see(key, begin + QUIET * 2, count);
        }
        assert_eq!(recent.0.len(), KEYS_MAX);
        assert_eq!(recent.see(2000, begin + QUIET * 2, count), None);
        assert_eq!(recent.see(2000, begin + QUIET * 4, count), Some(None));
        assert_eq!(recent.0.len(), 1);
    }

    #[test]
    fn the_log_has_the_first_of_a_client_s_refusals() {
        let (mut recent, begin) = (Recent::default(), Instant::now());
        let begins =
            |recent: &mut Recent<_, _>, client, limit, at| recent.begins((client, limit), begin + at);
        assert!(begins(&mut recent, ONE, "sessions", Duration::ZERO));
        assert!(begins(&mut recent, ONE, "watches", Duration::ZERO));
        assert!(begins(&mut recent, OTHER, "sessions", Duration::ZERO));
        assert!(!begins(&mut recent, ONE, "sessions", QUIET / 2));
        assert!(!begins(&mut recent, ONE, "sessions", QUIET));
        assert!(begins(&mut recent, ONE, "sessions", QUIET * 2));
        for number in 0..=u8::MAX {
            begins(&mut recent, ClientKey([number; 16]), "sessions", QUIET * 2);
        }
        assert_eq!(recent.0.len(), KEYS_MAX);
        assert!(!begins(&mut recent, OTHER, "connections", QUIET * 2));
        assert!(begins(&mut recent, OTHER, "connections", QUIET * 4));
    }
}
