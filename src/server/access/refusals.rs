//! Which clients are refused: one line of the log when refusals begin, and how many wrong tokens each has shown.
//!
//! Invariant: what is remembered is bounded, however many addresses are refused.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::super::client_address::Client;
use super::Identity;
use crate::core::ClientKey;

/// After this time without a refusal, the log shows the next one again.
const QUIET: Duration = Duration::from_secs(60);

/// The most clients that are told apart.
const CLIENTS_MAX: usize = 256;

/// After so many wrong tokens, each further one of a client ends its connection, until it was quiet.
const FAILURES_MAX: u32 = 10;

#[derive(Debug, Default)]
pub(super) struct Refusals {
    logged: Mutex<Recent<(ClientKey, String), ()>>,
    failures: Mutex<Recent<ClientKey, u32>>,
}

impl Refusals {
    /// Logs a refusal, if the client's refusals for this reason begin with it.
    pub(super) fn note(&self, client: &Client, identity: Option<&Identity>, operation: &str, reason: &str) {
        let key = (client.address.key(), reason.to_owned());
        let begins =
            self.logged.lock().unwrap_or_else(PoisonError::into_inner).see(key, Instant::now(), |()| ());
        if begins == Some(None) {
            let identity = identity.map(tracing::field::display);
            warn!(%client, identity, operation, reason, "a client is refused: Not permitted");
        }
    }

    /// Counts a wrong token. Returns whether the client has shown too many. One that is not remembered has.
    pub(super) fn count_failure(&self, client: &Client) -> bool {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let before = failures.see(client.address.key(), Instant::now(), |count| count.saturating_add(1));
        before.is_none_or(|before| before.is_some_and(|count| count >= FAILURES_MAX))
    }
}

/// What was seen in the last time, by key.
#[derive(Debug)]
struct Recent<K, V>(HashMap<K, (Instant, V)>);

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq, V: Copy + Default> Recent<K, V> {
    /// Sees a key, and changes its value. Returns the value before if it was seen recently; `None`: there is no room for it.
    fn see(&mut self, key: K, now: Instant, change: impl Fn(V) -> V) -> Option<Option<V>> {
        let is_recent = |last: &Instant| now.duration_since(*last) < QUIET;
        if self.0.len() >= CLIENTS_MAX {
            self.0.retain(|_, (last, _)| is_recent(last));
        }
        if self.0.len() >= CLIENTS_MAX && !self.0.contains_key(&key) {
            return None;
        }
        let before = self.0.get(&key).filter(|(last, _)| is_recent(last)).map(|(_, value)| *value);
        self.0.insert(key, (now, change(before.unwrap_or_default())));
        Some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(recent.0.len(), CLIENTS_MAX);
        assert_eq!(recent.see(2000, begin + QUIET * 2, count), None);
        assert_eq!(recent.see(2000, begin + QUIET * 4, count), Some(None));
        assert_eq!(recent.0.len(), 1);
    }
}
