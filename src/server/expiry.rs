//! The task that ends what is over: waits, leases, graces, and semaphores that are removed.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::Server;
use crate::core::TICK_MS;

/// Does what is due when it is due, until it is dropped.
pub async fn expire(server: Arc<Server>) {
    loop {
        let mailbox_of = |session| server.peers.find(session).map(|peer| peer.mailbox);
        // Both, each time: as long as somebody is to be evicted, something is due.
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
        if let Some(due_ms) = server.core.next_due(context.waker()) {
            let due = server.started + Duration::from_millis(due_ms);
            if due <= Instant::now() {
                return Poll::Ready(());
            }
            if due < sleep.deadline() {
                sleep.as_mut().reset(due);
            }
        }
        sleep.as_mut().poll(context)
    })
    .await;
}
