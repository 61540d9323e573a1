//! Parks requests for leases until one of their leases may have changed, their time is over, or the client has lost its
//! rights.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::super::super::access::Standing;
use super::super::super::state::Server;
use super::super::access::{Right, refuse};
use super::super::answer::ApiError;
use super::super::request::{Context, Requester};
use signalbox_core::{Mailbox, Message};
use signalbox_model::{LeaseKey, Notice, Target};

/// The longest time that a request waits for a change of its leases. Proxies give up after 30 s or more.
pub(in super::super) const PARKED_MAX: Duration = Duration::from_secs(25);

/// Returns the mailbox of a request's connection to the core. It has the address and the identity of the client, so that
/// the connection is counted and listed for the client, and can be revoked, as on the service ports.
pub(super) fn mailbox(context: &Context) -> Mailbox {
    let address = context.peer.client.address;
    let mailbox = Mailbox::of(address.socket(), Some(address.key()));
    if let Some(identity) = context.permissions.identity() {
        mailbox.identify(&identity.to_string());
    }
    mailbox
}

/// The wait of a request.
pub(super) struct Parking<'a> {
    context: &'a Context,
    server: &'a Server,
    /// The time at which the request must be answered.
    until: Instant,
    standing: Standing,
    new_rules: watch::Receiver<()>,
}

/// The reason why a wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// The state of a lease may have changed.
    ByMessage,
    /// The request must be answered now: a newer one has one of the keys, its session was closed, or its time is over.
    ToAnswer,
}

impl<'a> Parking<'a> {
    /// Begins a wait of `poll_ms`, but of at most [`PARKED_MAX`], and of at most a third of the time to live `ttl_ms`, so
    /// that the client can renew in time.
    pub(super) fn begin(context: &'a Context, server: &'a Server, poll_ms: u32, ttl_ms: u32) -> Self {
        let parked = Duration::from_millis(poll_ms.min(ttl_ms / 3).into()).min(PARKED_MAX);
        // Subscribed first, so that no change of the rules is missed.
        let new_rules = server.new_rules.subscribe();
        let client = &context.peer.client;
        let mut standing = Standing::of(&server.rules.access, client);
        if let Some(token) = &context.token {
            // If the token is no longer accepted, the client keeps the rights that it has without a token.
            let _ = standing.authenticate(&server.rules.access, client, context.peer.is_encrypted, token);
        }
        Self { context, server, until: Instant::now() + parked, standing, new_rules }
    }

    /// Waits for a message to one of these requesters, or until the time is over. Fails when the client may no longer
    /// acquire the names of one of the leases.
    pub(super) async fn wait(&mut self, requesters: &[(LeaseKey, Requester<'_>)]) -> Result<Woken, ApiError> {
        let _parked = Parked::count(self.context, self.server);
        loop {
            tokio::select! {
                woken = message(requesters) => {
                    // A server that is being stopped refuses the request, so that the client asks the next server.
                    return self.context.serving().map(|_| woken);
                }
                Ok(()) = self.new_rules.changed() => self.check_rights(requesters)?,
                () = tokio::time::sleep_until(self.until) => return Ok(Woken::ToAnswer),
            }
        }
    }

    /// Applies changed rules. Fails if the client may no longer acquire the names of one of its leases.
    fn check_rights(&mut self, requesters: &[(LeaseKey, Requester<'_>)]) -> Result<(), ApiError> {
        let peer = &self.context.peer;
        self.standing.refresh(&self.server.rules.access, &peer.client, peer.is_encrypted);
        let may = |namespace, name: &[u8]| self.standing.may(Right::Acquire, Target::Name(namespace, name));
        if requesters.iter().all(|(key, _)| self.server.core.keyed_names_pass(key, may)) {
            return Ok(());
        }
        let (access, permissions) =
            (&self.context.connection.shared.rules.access, self.standing.permissions());
        Err(refuse(access, peer, permissions, Right::Acquire, Target::Anywhere))
    }
}

/// Waits for a message to one of these requesters, and takes all messages. They only determine whether the request must be
/// answered now: the core has the new states.
async fn message(requesters: &[(LeaseKey, Requester<'_>)]) -> Woken {
    poll_fn(|context| {
        let mut woken = Poll::Pending;
        for (_, requester) in requesters {
            requester.mailbox().set_reader(context.waker());
            while let Some(message) = requester.mailbox().take() {
                let must_answer =
                    matches!(message, Message::Notice(Notice::AttachedElsewhere { .. }) | Message::Close);
                if must_answer {
                    woken = Poll::Ready(Woken::ToAnswer);
                } else if woken.is_pending() {
                    woken = Poll::Ready(Woken::ByMessage);
                }
            }
        }
        woken
    })
    .await
}

/// Counts a request as waiting, until this value is dropped. A server that is being stopped ends only after it has answered
/// such requests.
struct Parked<'a>(&'a Context, &'a Server);

impl<'a> Parked<'a> {
    fn count(context: &'a Context, server: &'a Server) -> Self {
        context.connection.shared.leases.parked.increment();
        server.count_busy(true);
        Self(context, server)
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.connection.shared.leases.parked.decrement();
        self.1.count_busy(false);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::histories::{connect, post, start};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_a_third_of_the_shortest_time_to_live_and_25_s_at_most() {
        let (_server, connections) = start(1);
        let ask = async |path: &str, body: Value| {
            let (mut connection, mut answer) = (connect(&connections), String::new());
            let begun = Instant::now();
            connection.write_all(&post(path, body.to_string().as_bytes())).await.unwrap();
            connection.read_to_string(&mut answer).await.unwrap();
            (answer[9..12].to_owned(), begun.elapsed())
        };
        let key = |number: u8| format!("{number:032}");
        let acquire = |number, name: &str, ttl_ms: u32| {
            json!({"key": key(number), "claims": [{"name": name, "maximum": 1}], "ttl_ms": ttl_ms,
                   "wait_ms": 3_600_000, "poll_ms": 60_000})
        };
        let hour = 3_600_000;
        assert_eq!(ask("lease/acquire", acquire(1, "a", hour)).await, ("200".to_owned(), Duration::ZERO));
        assert_eq!(ask("lease/acquire", acquire(2, "b", 3_000)).await, ("200".to_owned(), Duration::ZERO));
        for keys in [[1, 2], [2, 1]] {
            let body = json!({"keys": keys.map(key), "poll_ms": 60_000});
            assert_eq!(
                ask("lease/renew", body).await,
                ("200".to_owned(), Duration::from_secs(1)),
                "{keys:?}"
            );
        }
        let renewed = ask("lease/renew", json!({"keys": [key(1)], "poll_ms": 60_000})).await;
        assert_eq!(renewed, ("200".to_owned(), Duration::from_secs(25)));
        let queued = ask("lease/acquire", acquire(3, "a", hour)).await;
        assert_eq!(queued, ("202".to_owned(), Duration::from_secs(25)));
    }
}
