//! When clients have used the secrets of tokens last, since the start of the process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::super::clock::Clock;
use super::super::lock;
use signalbox_access::TokenId;
use signalbox_model::UnixSeconds;

/// The uses of all secrets. Only those of the file have an entry.
#[derive(Debug)]
pub(in crate::server) struct Uses {
    clock: Clock,
    by_id: Mutex<HashMap<TokenId, Usage>>,
}

#[derive(Debug)]
struct Usage {
    last: UnixSeconds,
    /// Open connections that have shown it.
    connections: usize,
}

/// A connection uses a secret until this is dropped.
#[derive(Debug)]
pub(super) struct InUse {
    uses: Arc<Uses>,
    id: TokenId,
}

impl Uses {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, by_id: Mutex::default() }
    }

    /// A client has shown the secret with one request.
    pub(super) fn note(&self, id: TokenId) {
        self.change(id, |_| ());
    }

    /// A connection has shown the secret.
    pub(super) fn begin(self: &Arc<Self>, id: TokenId) -> InUse {
        self.change(id, |connections| *connections += 1);
        InUse { uses: Arc::clone(self), id }
    }

    /// When the secret was used last: now, if an open connection has shown it; `None`: never.
    pub(in crate::server) fn last(&self, id: TokenId) -> Option<UnixSeconds> {
        let now = self.clock.now();
        lock(&self.by_id).get(&id).map(|usage| if usage.connections > 0 { now } else { usage.last })
    }

    fn change(&self, id: TokenId, change: impl FnOnce(&mut usize)) {
        let now = self.clock.now();
        let mut by_id = lock(&self.by_id);
        let usage = by_id.entry(id).or_insert(Usage { last: now, connections: 0 });
        usage.last = now;
        change(&mut usage.connections);
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.uses.change(self.id, |connections| *connections -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_secret_is_in_use_while_a_connection_is_open_that_has_shown_it() {
        let now = Arc::new(AtomicU64::new(10));
        let read = Arc::clone(&now);
        let uses = Arc::new(Uses::new(Clock::from_fn(move || UnixSeconds(read.load(Ordering::Relaxed)))));
        let [one, other] = ["00112233445566ff", "0011223344556600"].map(|id| id.parse().unwrap());
        assert_eq!(uses.last(one), None);
        let connections = [uses.begin(one), uses.begin(one)];
        uses.note(other);
        now.store(20, Ordering::Relaxed);
        assert_eq!((uses.last(one), uses.last(other)), (Some(UnixSeconds(20)), Some(UnixSeconds(10))));
        drop(connections);
        now.store(30, Ordering::Relaxed);
        assert_eq!(uses.last(one), Some(UnixSeconds(20)));
    }
}
