//! The connections of a server, by their ids: to send messages to them, and for listings.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use super::lock;
use signalbox_core::{Connected, Mailbox, MonotonicMs, SessionClient};
use signalbox_model::{ConnectionId, SessionId};

/// The connections, by their sessions.
#[derive(Clone, Debug, Default)]
pub(super) struct Peers(Arc<Mutex<BTreeMap<SessionId, Peer>>>);

#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) connection: ConnectionId,
    pub(super) address: SocketAddr,
    pub(super) opened: MonotonicMs,
    pub(super) mailbox: Arc<Mailbox>,
}

impl Peers {
    /// Adds a connection, until the returned entry is dropped.
    pub(super) fn enter(&self, peer: Peer) -> PeerEntry {
        let session = peer.connection.session();
        self.with(|peers| peers.insert(session, peer));
        PeerEntry { peers: self.clone(), session }
    }

    pub(super) fn find(&self, connection: ConnectionId) -> Option<Peer> {
        self.find_session(connection.session())
    }

    /// Returns the connection whose own session this is; `None`: it has ended, or the session is leased.
    pub(super) fn find_session(&self, session: SessionId) -> Option<Peer> {
        self.with(|peers| peers.get(&session).cloned())
    }

    /// Returns at most `count` connections after the one with this session, in the order of their ids.
    pub(super) fn connected_after(&self, after: Option<SessionId>, count: usize) -> Vec<Connected> {
        let connected = |peer: &Peer| Connected {
            connection: peer.connection,
            client: SessionClient {
                address: peer.address,
                identity: peer.mailbox.client().and_then(|client| client.identity),
            },
            opened: peer.opened,
        };
        self.after(after, count, connected)
    }

    /// Returns at most `count` mailboxes of connections after the one with this session, in the order of their ids.
    pub(super) fn mailboxes_after(
        &self,
        after: Option<SessionId>,
        count: usize,
    ) -> Vec<(SessionId, Arc<Mailbox>)> {
        self.after(after, count, |peer| (peer.connection.session(), Arc::clone(&peer.mailbox)))
    }

    fn after<T>(&self, after: Option<SessionId>, count: usize, of: impl Fn(&Peer) -> T) -> Vec<T> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.with(|peers| {
            peers.range((from, Bound::Unbounded)).take(count).map(|(_, peer)| of(peer)).collect()
        })
    }

    fn with<R>(&self, visit: impl FnOnce(&mut BTreeMap<SessionId, Peer>) -> R) -> R {
        visit(&mut lock(&self.0))
    }
}

/// The entry of a connection. Dropping this removes the entry.
#[derive(Debug)]
pub(super) struct PeerEntry {
    peers: Peers,
    session: SessionId,
}

impl Drop for PeerEntry {
    fn drop(&mut self) {
        self.peers.with(|peers| peers.remove(&self.session));
    }
}
