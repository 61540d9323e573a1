//! Leases over HTTP (`docs/http.md`, "Leases"): a client in any language acquires, renews and releases by single
//! requests, and the rules that a client of the binary protocol has to know stay here.
//!
//! A lease is a keyed lease of the core, which has all of its state, also after a restart: nothing here is kept between
//! two requests except the keys that were released recently (`released`) and counts. For each of its keys, a request has a
//! connection of its own to the core, which attaches to the lease. So only the newest request with a key is told of
//! changes, and an earlier one that still waits is answered.
//!
//! Invariants: a lease is renewed as of the arrival of a request, never by its answer; the time for which the client may
//! rely on it (`validity`) counts from the same moment. A wait ends before the lease could expire.

mod acquire;
#[cfg(test)]
mod bodies;
mod claims;
#[cfg(test)]
mod histories;
mod release;
mod released;
mod renew;
mod validity;
mod view;
mod waiting;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use super::super::lock;
use super::super::state::Server;
use super::answer::{Answer, ApiError};
use super::query::Parameters;
pub(super) use acquire::acquire;
pub(super) use release::release;
use released::Released;
pub(super) use renew::renew;
use signalbox_core::Token;
use signalbox_model::{LeaseKey, Refusal, from_hex};
pub(super) use waiting::PARKED_MAX;

/// The token of every request to the core. Tokens tell the requests of a connection apart, and each connection here has
/// only one request.
const TOKEN: Token = Token(1);

/// The state that all requests for leases share.
#[derive(Debug, Default)]
pub(super) struct Leases {
    released: Mutex<Released>,
    /// Refused requests, by the code of the error.
    refused: Mutex<BTreeMap<&'static str, u64>>,
    /// Requests that wait for a change.
    pub(super) parked: super::super::metrics::Count,
}

impl Leases {
    fn released(&self) -> MutexGuard<'_, Released> {
        lock(&self.released)
    }

    /// Counts a request if it is refused.
    fn note(&self, answer: Answer) -> Answer {
        answer.inspect_err(|error| {
            *lock(&self.refused).entry(error.code).or_default() += 1;
        })
    }

    /// Returns how many requests were refused, by the code of the error.
    pub(super) fn refused(&self) -> Vec<(&'static str, u64)> {
        let refused = lock(&self.refused);
        refused.iter().map(|(code, count)| (*code, *count)).collect()
    }
}

/// Ends a lease whose request was refused, or whose grant was revoked. While the server stops, the lease stays for the
/// server's next run.
fn end_lost(server: &Server, key: &LeaseKey, refusal: Refusal) {
    if refusal != Refusal::ShuttingDown {
        server.core.end_idle_keyed(key, server.moment());
    }
}

/// Reads a key of 32 hexadecimal digits.
fn key(digits: &str) -> Result<LeaseKey, ApiError> {
    let key = from_hex(digits).and_then(|key| Some(LeaseKey(*key.as_array()?)));
    key.ok_or_else(|| {
        ApiError::bad_request(
            "a key of 32 hexadecimal digits is required; draw 128 random bits for each lease",
        )
    })
}

/// Returns how long a request may wait for a change, in milliseconds; 0: not at all.
fn poll_ms(parameters: &mut Parameters) -> Result<u32, ApiError> {
    Ok(parameters.milliseconds("poll_ms")?.map_or(0, |poll| poll.0))
}
