//! The connections of a server, by their ids: to send a message to one, and for listings. The core's entries of a listing have
//! neither the address of the client nor the rest of its lease; they are added here.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use super::lock;
use super::state::Server;
use signalbox_core::{Claimed, Connected, Listed, Mailbox, MonotonicMs, NameEntry, SessionClient};
use signalbox_model::{ConnectionId, HeldEntry, SessionId, TtlLeft};

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
    /// Adds a connection, until the returned entry is dropped.
    pub(super) fn enter(&self, peer: Peer) -> PeerEntry {
        let session = peer.connection.session();
        self.with(|peers| peers.insert(session, peer));
        PeerEntry { peers: self.clone(), session }
    }

    pub(super) fn find(&self, connection: ConnectionId) -> Option<Peer> {
        self.find_session(connection.session())
    }

    /// The connection whose own session this is; `None`: it has ended, or the session is leased.
    pub(super) fn find_session(&self, session: SessionId) -> Option<Peer> {
        self.with(|peers| peers.get(&session).cloned())
    }

    /// At most `count` connections after the one with this session, in the order of their ids.
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

    /// At most `count` mailboxes of connections after the one with this session, in the order of their ids.
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

impl Server {
    /// The address of the client of a connection, as lists show it; empty if there is no connection.
    pub(super) fn address_text(&self, connection: Option<ConnectionId>) -> Box<[u8]> {
        let address = connection.and_then(|connection| {
            let peer = self.peers.find(connection).map(|peer| peer.address);
            // A request over HTTP is a connection of the core, and not of a port.
            peer.or_else(|| self.core.client_of(connection).map(|client| client.address))
        });
        address.map(|address| address.to_string()).unwrap_or_default().into_bytes().into()
    }

    /// Adds the address to an entry. Returns it with the time for which its grant is held without a renewal.
    pub(super) fn with_address(&self, (mut entry, connection): Listed) -> (NameEntry, TtlLeft) {
        entry.address = self.address_text(connection);
        let held = entry.grant.filter(|_| entry.position == 0);
        let verified = held.and_then(|grant| self.core.verify(grant, self.moment()).ok());
        (entry, verified.map_or(TtlLeft::Connection, |verified| verified.ttl_left))
    }

    /// As [`Self::with_address`], for what a session holds or waits for.
    pub(super) fn held_entry(&self, claimed: Claimed) -> HeldEntry<Box<[u8]>, Box<[u16]>> {
        let Claimed { namespace, name, is_held, listed } = claimed;
        let (entry, ttl_left) = self.with_address(listed);
        HeldEntry { namespace, name, is_held, ttl_left, entry }
    }
}
