//! Keys that were released recently: an acquire that arrives after its release must not begin a lease.
//!
//! Invariants: a key is remembered for [`REMEMBERED`], unless its client releases further keys while [`KEYS_MAX`] keys are
//! remembered or the client has used up its share of them: each further key then replaces the client's oldest one. At
//! most [`KEYS_MAX`] keys are remembered, except that at least one of each client is.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use signalbox_core::{ClientKey, ClientShare};
use signalbox_model::LeaseKey;

/// The time for which a key is remembered. After it, clients have given up the requests that they sent before the release.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The most keys that are remembered. Each takes about 100 bytes.
const KEYS_MAX: usize = 100_000;

/// The keys that were released recently.
#[derive(Debug, Default)]
pub(super) struct Released {
    /// The time until which each key is remembered.
    until: HashMap<[u8; 16], Instant>,
    /// The keys of each client, the oldest first.
    by_client: HashMap<ClientKey, VecDeque<[u8; 16]>>,
    /// The number of keys at which those whose time is over are removed.
    sweep_at: usize,
}

impl Released {
    /// Remembers that a client has released this key.
    pub(super) fn remember(&mut self, LeaseKey(key): &LeaseKey, client: ClientKey, share: ClientShare) {
        let now = Instant::now();
        if self.until.len() >= self.sweep_at {
            let Self { until, by_client, .. } = self;
            by_client.retain(|_, own| {
                forget_expired(until, own, now);
                !own.is_empty()
            });
            self.sweep_at = (2 * self.until.len()).clamp(KEYS_MAX / 100, KEYS_MAX);
        }
        if self.until.get(key).is_some_and(|until| *until > now) {
            return;
        }
        let own = self.by_client.entry(client).or_default();
        forget_expired(&mut self.until, own, now);
        let is_full =
            self.until.len() >= KEYS_MAX || share.is_exhausted(KEYS_MAX, self.until.len(), own.len());
        if is_full && let Some(oldest) = own.pop_front() {
            self.until.remove(&oldest);
        }
        own.push_back(*key);
        self.until.insert(*key, now + REMEMBERED);
    }

    /// Returns whether a key was released recently.
    pub(super) fn contains(&self, LeaseKey(key): &LeaseKey) -> bool {
        self.until.get(key).is_some_and(|until| *until > Instant::now())
    }
}

fn forget_expired(until: &mut HashMap<[u8; 16], Instant>, own: &mut VecDeque<[u8; 16]>, now: Instant) {
    while let Some(oldest) = own.front()
        && until.get(oldest).is_none_or(|until| *until <= now)
    {
        until.remove(oldest);
        own.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: ClientShare = ClientShare { percent: 10, least: 16 };

    fn key(number: usize) -> LeaseKey {
        LeaseKey((number as u128).to_be_bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_remembered_for_a_minute_from_its_first_release_on() {
        let mut released = Released::default();
        let client = ClientKey([1; 16]);
        released.remember(&key(1), client, SHARE);
        tokio::time::advance(REMEMBERED - Duration::from_millis(1)).await;
        released.remember(&key(1), client, SHARE);
        assert!(released.contains(&key(1)) && !released.contains(&key(2)));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!released.contains(&key(1)));
        released.remember(&key(1), client, SHARE);
        assert!(released.contains(&key(1)), "it was released again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_releases_without_end_forgets_its_own_keys_only() {
        let mut released = Released::default();
        released.remember(&key(0), ClientKey([0; 16]), SHARE);
        for number in 1..=KEYS_MAX {
            released.remember(&key(number), ClientKey([1; 16]), SHARE);
        }
        assert!(
            released.contains(&key(0)) && released.contains(&key(KEYS_MAX)) && !released.contains(&key(1))
        );
        assert_eq!(released.until.len(), KEYS_MAX / 2);
        assert_eq!(released.by_client.values().map(VecDeque::len).sum::<usize>(), KEYS_MAX / 2);
        tokio::time::advance(REMEMBERED).await;
        released.sweep_at = 0;
        released.remember(&key(1), ClientKey([2; 16]), SHARE);
        assert_eq!((released.until.len(), released.by_client.len()), (1, 1));
    }
}
