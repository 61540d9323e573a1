//! The task that tells connections of new rules of access control.
//!
//! A connection looks at the rules before it executes a request or sends a message. One that waits for a grant does neither,
//! and would be granted what it may no longer have.

use std::sync::Arc;

use super::state::Server;
use super::steps;

/// Tells all connections whenever the rules are replaced or a token expires, until it is dropped.
pub fn announce_rules(server: Arc<Server>) -> impl Future<Output = ()> + Send {
    let mut seen = server.access.seen();
    async move {
        loop {
            server.access.changed(&mut seen).await;
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
