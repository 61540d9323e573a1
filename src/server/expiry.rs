//! The tasks that do what comes due: waits, leases and grace periods that end, and semaphores that are removed; and rights of
//! clients that end.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::state::Server;
use super::steps;
use signalbox_core::{Due, TICK_MS};

/// Does what is due when it is due, until it is dropped.
pub async fn expire(server: Arc<Server>) {
    loop {
        let mailbox_of = |connection| server.peers.find(connection).map(|peer| peer.mailbox);
        // Both, each time: as long as there are evictions, something is due.
        while server.core.expire(server.moment()) | server.core.evict(server.moment(), mailbox_of) {
            tokio::task::yield_now().await;
        }
        until_due(&server).await;
    }
}

/// Waits until something is due, and for a tick at most.
async fn until_due(server: &Server) {
    let tick = Instant::now() + Duration::from_millis(TICK_MS);
    let mut sleep = pin!(sleep_until(tick));
    poll_fn(|context| {
        match server.core.next_due(context.waker()) {
            None => {}
            Some(Due::Now) => return Poll::Ready(()),
            Some(Due::At(at)) => {
                let at = server.started + Duration::from_millis(at.0);
                if at <= Instant::now() {
                    return Poll::Ready(());
                }
                if at < sleep.deadline() {
                    sleep.as_mut().reset(at);
                }
            }
        }
        sleep.as_mut().poll(context)
    })
    .await;
}

/// Tells all connections whenever the rules are replaced or a token expires, until it is dropped. A connection looks at the rules
/// before it executes a request or sends a message; one that waits for a grant does neither, and would be granted what it may no
/// longer have.
pub fn announce_rules(server: Arc<Server>) -> impl Future<Output = ()> + Send {
    let mut seen = server.rules.access.seen();
    async move {
        loop {
            server.rules.access.changed(&mut seen).await;
            server.new_rules.send_replace(());
            let mut last = None;
            loop {
                let connections = server.peers.mailboxes_after(last, steps::LISTED_CONNECTIONS);
                let Some((session, _)) = connections.last() else { break };
                last = Some(*session);
                connections.iter().for_each(|(_, mailbox)| mailbox.note_new_rules());
                tokio::task::yield_now().await;
            }
        }
    }
}
