//! Access control: the rights of clients, and the records of refusals and changes.
//!
//! `policy` decides, without I/O, what one client may do; `standing` keeps the decision for a connection, and notices
//! reloads and expiry; `audit` writes administrative changes to a file. The rights that operations need are in one
//! table, `src/server/dispatch/rights.rs`.

mod audit;
mod policy;
mod standing;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::warn;

pub(super) use audit::{Audit, Ended};
pub(super) use policy::{Identity, Permissions};
pub(super) use standing::{Standing, TokenRefused};

use super::client_address::Client;
use super::clock::Clock;
use super::current::Current;
use super::lock;
use super::metrics::Count;
use super::throttle::{Recent, RefusalLog};
use crate::config::{AccessConfig, Config};
use policy::{Policy, Proven};
pub(super) use signalbox_access::Right;
use signalbox_access::{Entry, TokenFileError, TokenId, Tokens, read_tokens};
use signalbox_core::ClientKey;
use signalbox_model::{TokenRefusal, UnixSeconds};

/// The rules in force, and the refusals that they caused.
#[derive(Debug)]
pub(super) struct Access {
    clock: Clock,
    policy: Current<Arc<Policy>>,
    /// Grows whenever the policy is replaced, so that connections notice with one comparison.
    generation: AtomicU64,
    /// Wakes the task that tells connections about new rules.
    replaced: Notify,
    pub(super) uses: Arc<Uses>,
    /// The requests that were not permitted, by reason.
    refusals: RefusalLog,
    /// The number of wrong tokens that each client has shown.
    failures: Recent<ClientKey>,
    /// Requests that were answered with `Not permitted`, and HTTP requests with a wrong token or without a required
    /// one.
    pub(super) refused: Count,
    /// Tokens that were refused.
    pub(super) failed_authentications: Count,
}

/// The number of wrong tokens of a client after which each further one ends its connection, until the client has shown
/// none for a while.
const FAILURES_MAX: u32 = 10;

/// The longest time between two checks of the clock by the task that waits for the expiry of a token.
const CHECK_PERIOD: Duration = Duration::from_secs(60);

/// The rules that were seen last, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    generation: u64,
    at: UnixSeconds,
}

impl Access {
    /// Returns the rules of a configuration, without tokens.
    pub(super) fn of(config: &Config, clock: Clock) -> Self {
        Self {
            uses: Arc::new(Uses::new(clock.clone())),
            clock,
            policy: Current::new(Arc::new(Policy::of(config, Arc::default()))),
            generation: AtomicU64::new(0),
            replaced: Notify::new(),
            refusals: RefusalLog::default(),
            failures: Recent::default(),
            refused: Count::default(),
            failed_authentications: Count::default(),
        }
    }

    /// Returns the permissions of a client that has shown no token.
    pub(super) fn permissions_of(&self, client: &Client) -> Permissions {
        self.policy().permissions_of(client)
    }

    /// Returns the permissions of a client that shows a token with one request. Connections use
    /// [`Standing::authenticate`], which remembers the token.
    pub(super) fn authenticate(
        &self,
        client: &Client,
        is_encrypted: bool,
        token: &[u8],
    ) -> Result<Permissions, TokenRefusal> {
        let proven = self.prove(client, is_encrypted, token)?;
        self.uses.note(proven.entry.id);
        Ok(proven.permissions)
    }

    /// Counts a request that is answered with `Not permitted`, and logs it if it is the client's first one for this reason
    /// in a while.
    pub(super) fn note_refusal(
        &self,
        client: &Client,
        identity: Option<&Identity>,
        operation: &str,
        reason: &str,
    ) {
        self.refused.add(1);
        if self.refusals.must_log(client.address.key(), reason) {
            let identity = identity.map(tracing::field::display);
            warn!(%client, identity, operation, reason, "a client is refused: Not permitted");
        }
    }

    /// Calls [`Self::note_refusal`] for a client that lacks a right.
    pub(super) fn note_missing(
        &self,
        client: &Client,
        identity: Option<&Identity>,
        operation: &str,
        right: Right,
    ) {
        self.note_refusal(
            client,
            identity,
            operation,
            &format!("it lacks the right \"{}\" there", right.name()),
        );
    }

    /// Counts a refused token, which came with `operation`, and logs it as [`Self::note_refusal`] does. Returns whether the
    /// connection must be closed because the client has shown too many wrong tokens. This is also the case if there is no
    /// room for the client in `failures`.
    pub(super) fn note_failure(&self, client: &Client, operation: &str, denied: TokenRefusal) -> bool {
        self.failed_authentications.add(1);
        self.note_refusal(client, None, operation, &denied.to_string());
        self.failures.see(client.address.key()).is_none_or(|before| before >= FAILURES_MAX)
    }

    /// Replaces the rules and keeps the tokens. Only one thread reads the configuration, so the tokens are not replaced
    /// in between.
    pub(super) fn configure(&self, config: &Config) {
        self.replace(Policy::of(config, self.tokens()));
    }

    /// Reads the file of tokens. If it cannot be used, the tokens in use stay.
    pub(super) fn load_tokens(&self, config: &AccessConfig) -> Result<(), TokenFileError> {
        let tokens = match &config.tokens {
            Some(path) => read_tokens(path)?,
            None => Tokens::default(),
        };
        self.replace(self.policy().with_tokens(Arc::new(tokens)));
        Ok(())
    }

    pub(super) fn tokens(&self) -> Arc<Tokens> {
        self.policy().tokens()
    }

    /// Returns whether a client may show a token over its connection.
    pub(super) fn accepts_token_of(&self, client: &Client, is_encrypted: bool) -> bool {
        self.policy().accepts_token_of(client, is_encrypted)
    }

    fn prove(&self, client: &Client, is_encrypted: bool, token: &[u8]) -> Result<Proven, TokenRefusal> {
        self.policy().authenticate(client, is_encrypted, token, self.clock.now())
    }

    /// Returns the present permissions of a token that was accepted earlier, or why it is no longer accepted.
    fn revalidate(&self, entry: &Entry) -> Result<Proven, TokenRefusal> {
        self.policy().revalidate(entry, self.clock.now())
    }

    fn now(&self) -> UnixSeconds {
        self.clock.now()
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn policy(&self) -> Arc<Policy> {
        self.policy.get()
    }

    fn replace(&self, policy: Policy) {
        self.policy.set(Arc::new(policy));
        // After the change, so that a connection that sees the new number also sees the new rules.
        self.generation.fetch_add(1, Ordering::Release);
        self.replaced.notify_one();
    }

    /// Waits until the rules are newer than `seen` or a token has expired since, and updates `seen`. Only one task may
    /// wait.
    pub(super) async fn changed(&self, seen: &mut Seen) {
        loop {
            let next = self.seen();
            // The clock may have been set back.
            seen.at = seen.at.min(next.at);
            let tokens = self.policy().tokens();
            let expiry = tokens.next_expiry(seen.at.0);
            if next.generation != seen.generation || expiry.is_some_and(|at| at <= next.at.0) {
                *seen = next;
                return;
            }
            let left = expiry.map_or(CHECK_PERIOD, |at| Duration::from_secs(at - next.at.0));
            tokio::select! {
                () = self.replaced.notified() => {}
                // One period at most, because the clock of the machine may be set.
                () = sleep(left.min(CHECK_PERIOD)) => {}
            }
        }
    }

    /// Returns the generation of the rules in force, and the time.
    pub(super) fn seen(&self) -> Seen {
        Seen { generation: self.generation(), at: self.now() }
    }
}

/// When the secrets of tokens were used. Only a secret that was accepted has an entry.
#[derive(Debug)]
pub(super) struct Uses {
    clock: Clock,
    by_id: Mutex<HashMap<TokenId, Usage>>,
}

#[derive(Debug)]
struct Usage {
    last: UnixSeconds,
    /// The number of open connections that have shown the secret.
    connections: usize,
}

/// Counts a connection that uses a secret, until this is dropped.
#[derive(Debug)]
pub(super) struct InUse {
    uses: Arc<Uses>,
    id: TokenId,
}

impl Uses {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, by_id: Mutex::default() }
    }

    /// Notes that a client has shown the secret with one request.
    pub(super) fn note(&self, id: TokenId) {
        self.change(id, |_| ());
    }

    /// Notes that a connection has shown the secret.
    pub(super) fn begin(self: &Arc<Self>, id: TokenId) -> InUse {
        self.change(id, |connections| *connections += 1);
        InUse { uses: Arc::clone(self), id }
    }

    /// Returns when the secret was last used: now, if an open connection has shown it; `None`: never.
    pub(super) fn last(&self, id: TokenId) -> Option<UnixSeconds> {
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

/// Returns a token whose random bytes are all this one.
#[cfg(test)]
pub(in crate::server) fn token_of_test(byte: u8) -> signalbox_access::Token {
    let token = signalbox_access::Token::random(|bytes| {
        bytes.fill(byte);
        Ok::<_, ()>(())
    });
    token.unwrap()
}

#[cfg(test)]
mod tests {
    use super::super::client_address::ClientAddress;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn after_ten_wrong_tokens_each_further_one_ends_a_connection_until_the_client_is_quiet() {
        let access = Access::of(&Config::default(), Clock::system());
        let fail = |ip: [u8; 4]| {
            let client =
                Client { address: ClientAddress::of_peer((ip, 1).into()), certificate: Arc::default() };
            access.note_failure(&client, "Hello", TokenRefusal::Unknown)
        };
        let (one, other) = ([192, 0, 2, 1], [192, 0, 2, 2]);
        for _ in 0..2 {
            assert!((0..10).all(|_| !fail(one)));
            assert!(fail(one) && fail(one) && !fail(other), "each client has only so many");
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        assert_eq!((access.failed_authentications.value(), access.refused.value()), (26, 26));
    }

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
