//! Which clients are refused: one line of the log when refusals begin, and how many wrong tokens each has shown.
//!
//! Invariant: the memory is bounded, however many addresses are refused.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;
use tracing::warn;

use super::super::client_address::Client;
use super::super::recent::Recent;
use super::super::throttle::Throttle;
use super::Identity;
use crate::core::ClientKey;

/// After so many wrong tokens, each further one of a client ends its connection, until it was quiet.
const FAILURES_MAX: u32 = 10;

#[derive(Debug, Default)]
pub(super) struct Refusals {
    logged: Mutex<Recent<(ClientKey, String), ()>>,
    failures: Mutex<Recent<ClientKey, u32>>,
    /// Of clients that are not remembered.
    too_many: Throttle,
}

impl Refusals {
    /// Logs a refusal, if the client's refusals for this reason begin with it.
    pub(super) fn note(&self, client: &Client, identity: Option<&Identity>, operation: &str, reason: &str) {
        let key = (client.address.key(), reason.to_owned());
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = logged.see(key, Instant::now(), |()| ());
        drop(logged);
        let identity = identity.map(tracing::field::display);
        match seen {
            Some(None) => {
                warn!(%client, identity, operation, reason, "a client is refused: Not permitted");
            }
            None if self.too_many.permits() => {
                warn!(
                    %client, identity, operation, reason,
                    "more clients are refused than are remembered: Not permitted; of the further ones, the log has one every \
                     10 s"
                );
            }
            _ => {}
        }
    }

    /// Counts a wrong token. Returns whether the client has shown too many. One that is not remembered has.
    pub(super) fn count_failure(&self, client: &Client) -> bool {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let before = failures.see(client.address.key(), Instant::now(), |count| count.saturating_add(1));
        before.is_none_or(|before| before.is_some_and(|count| count >= FAILURES_MAX))
    }
}
