//! A limit that clients share: once half of it is in use, none gets more than its share.
//!
//! Invariants: all clients together have no more than the limit, and what they have is the sum of what each has.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::warn;

use super::super::Server;
use super::super::client_address::ClientAddress;
use super::super::metrics::Count;
use super::super::throttle::Throttle;
use crate::core::{ClientKey, ClientShare};

/// What clients have of a limit. The limit itself may change.
#[derive(Debug)]
pub(super) struct SharedLimit {
    /// In the log, of a client that has its share.
    name: &'static str,
    /// Logged if clients are refused for another reason than their shares.
    warning: &'static str,
    in_use: Mutex<InUse>,
    pub(super) refused: Count,
    warnings: Throttle,
}

#[derive(Debug, Default)]
struct InUse {
    /// The sum of what the clients have.
    all: u64,
    /// Only clients that have some.
    by_client: HashMap<ClientKey, u64>,
}

/// Why a client gets no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exhausted {
    /// There is no more.
    Limit,
    /// What it has is its share, which is so much.
    Share(u64),
}

impl SharedLimit {
    pub(super) fn new(name: &'static str, warning: &'static str) -> Self {
        let (refused, warnings) = (Count::default(), Throttle::default());
        Self { name, warning, in_use: Mutex::default(), refused, warnings }
    }

    /// What all clients have.
    pub(super) fn in_use(&self) -> u64 {
        self.lock().all
    }

    /// Gives a client more, until [`Self::give_back`], if a limit of `max` permits.
    pub(super) fn take(
        &self,
        client: ClientKey,
        more: u64,
        (max, share): (u64, ClientShare),
    ) -> Result<(), Exhausted> {
        let mut in_use = self.lock();
        if in_use.all.saturating_add(more) > max {
            return Err(Exhausted::Limit);
        }
        let own = in_use.by_client.get(&client).copied().unwrap_or_default();
        let [max, all, own] = [max, in_use.all, own].map(|amount| amount as usize);
        if share.is_exhausted(max, all, own) {
            return Err(Exhausted::Share(share.of(max) as u64));
        }
        in_use.all += more;
        *in_use.by_client.entry(client).or_default() += more;
        Ok(())
    }

    /// A client has so much less than before.
    pub(super) fn give_back(&self, client: ClientKey, amount: u64) {
        let mut in_use = self.lock();
        in_use.all -= amount;
        if let Some(own) = in_use.by_client.get_mut(&client) {
            *own -= amount;
            if *own == 0 {
                in_use.by_client.remove(&client);
            }
        }
    }

    /// Counts that a client was refused, and logs it, but not every time.
    pub(super) fn note_refusal(&self, client: ClientAddress, exhausted: Exhausted, server: Option<&Server>) {
        self.refused.add(1);
        match (exhausted, server) {
            (Exhausted::Share(share), Some(server)) => server.shares.note_refusal(client, self.name, share),
            (Exhausted::Share(_), None) | (Exhausted::Limit, _) => {
                if self.warnings.permits() {
                    warn!(client = %client.socket().ip(), in_use = self.in_use(), "{}", self.warning);
                }
            }
        }
    }

    /// Nothing is left half done by a panic while it is locked.
    fn lock(&self) -> MutexGuard<'_, InUse> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_no_more_than_its_share_once_half_is_in_use() {
        let (one, other) = (ClientKey([1; 16]), ClientKey([2; 16]));
        let share = ClientShare { percent: 13, least: 1 };
        let limit = SharedLimit::new("bytes", "none is left");
        let take = |client, more| limit.take(client, more, (800, share));
        assert_eq!(take(one, 300), Ok(()));
        assert_eq!(take(one, 100), Ok(()), "a share binds once half is in use");
        assert_eq!(take(one, 1), Err(Exhausted::Share(104)));
        assert_eq!(take(other, 104), Ok(()));
        assert_eq!(take(other, 1), Err(Exhausted::Share(104)));
        assert_eq!(take(other, 297), Err(Exhausted::Limit));
        assert_eq!(limit.in_use(), 504);
        limit.give_back(one, 400);
        limit.give_back(other, 104);
        assert_eq!((limit.in_use(), limit.lock().by_client.len()), (0, 0));
    }
}
