//! The connections of a server, found by their ids: for listings, and for messages to a connection.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};

use signalbox_core::{Connected, Mailbox, MonotonicMs, SessionClient};
use signalbox_model::{ConnectionId, SessionId};

/// By the session of the connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Peers(Arc<Mutex<BTreeMap<SessionId, Peer>>>);

/// One connection.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) connection: ConnectionId,
    pub(super) address: SocketAddr,
    pub(super) opened: MonotonicMs,
    pub(super) mailbox: Arc<Mailbox>,
}

impl Peers {
    /// Enters a connection, until the returned entry is dropped.
    pub(super) fn enter(&self, peer: Peer) -> PeerEntry {
        let session = peer.connection.session();
        self.with(|peers| peers.insert(session, peer));
        PeerEntry { peers: self.clone(), session }
    }

    pub(super) fn find(&self, connection: ConnectionId) -> Option<Peer> {
        self.find_session(connection.session())
    }

    /// The address of a connection as text; empty if there is none.
    pub(super) fn address_text(&self, connection: Option<ConnectionId>) -> Box<[u8]> {
        let peer = connection.and_then(|connection| self.find(connection));
        peer.map(|peer| peer.address.to_string()).unwrap_or_default().into_bytes().into()
    }

    /// The connection with this session; `None`: it has ended, or the session is a leased one.
    pub(super) fn find_session(&self, session: SessionId) -> Option<Peer> {
        self.with(|peers| peers.get(&session).cloned())
    }

    /// At most `count` connections after the one with this session, in the order of their ids.
    pub(super) fn connected_after(&self, after: Option<SessionId>, count: usize) -> Vec<Connected> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let connected = |peer: &Peer| Connected {
            connection: peer.connection,
            client: SessionClient {
                address: peer.address,
                identity: peer.mailbox.client().and_then(|client| client.identity),
            },
            opened: peer.opened,
        };
        self.with(|peers| {
            peers.range((from, Bound::Unbounded)).take(count).map(|(_, peer)| connected(peer)).collect()
        })
    }

    /// At most `count` mailboxes of connections after the one with this session, in the order of their ids.
    pub(super) fn mailboxes_after(
        &self,
        after: Option<SessionId>,
        count: usize,
    ) -> Vec<(SessionId, Arc<Mailbox>)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mailbox = |(session, peer): (&SessionId, &Peer)| (*session, Arc::clone(&peer.mailbox));
        self.with(|peers| peers.range((from, Bound::Unbounded)).take(count).map(mailbox).collect())
    }

    fn with<R>(&self, visit: impl FnOnce(&mut BTreeMap<SessionId, Peer>) -> R) -> R {
        // Nothing is left half done by a panic in between.
        visit(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A connection's entry among its peers.
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
