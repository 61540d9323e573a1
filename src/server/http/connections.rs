//! The connections of the listener.
//!
//! Invariants: at most [`CONNECTIONS_MAX`] connections exist, of which one client has no more than its share once half of
//! them are in use. No client is refused: another connection is closed for a further one. So a probe is answered whoever
//! opens connections and sends nothing.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::warn;

use super::super::client_address::ClientAddress;
use super::super::shares::{ClientUsage, ConnectionLimit, Counted, Listening};
use super::shared::Shared;
use signalbox_core::ClientKey;

/// Connections at a time. A few browsers and scrapers need far fewer.
pub(super) const CONNECTIONS_MAX: usize = 64;

/// The open connections.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    opened: u64,
    by_number: BTreeMap<u64, Connection>,
}

#[derive(Debug)]
struct Connection {
    /// Its peer, until the header of a proxy has stated the client.
    client: ClientKey,
    /// `None`: the header of the proxy has not been read yet.
    counted: Option<Counted>,
    is_busy: bool,
    /// When it began to be busy, or not to be.
    since: Instant,
    /// The connection is closed when this is dropped.
    _open: oneshot::Sender<Infallible>,
}

/// A place among the open connections, until it is dropped.
pub(super) struct Place {
    shared: Arc<Shared>,
    number: u64,
}

impl Place {
    /// Counts a connection of a peer, and of a client unless the peer is a proxy. Returns what is ready when the connection
    /// has to be closed for another one.
    pub(super) fn take(shared: &Arc<Shared>, peer: ClientAddress) -> (Self, oneshot::Receiver<Infallible>) {
        let (open, closed) = oneshot::channel();
        let number = shared.connections.with(|connections| {
            if connections.by_number.len() >= CONNECTIONS_MAX
                && let Some(other) = connections.least_needed_of_many()
            {
                connections.by_number.remove(&other);
                shared.refused.add(1);
                if shared.warnings.permits() {
                    warn!(
                        client = %peer.socket().ip(),
                        "HTTP connections are closed for new ones: there are too many; find the client that opens so many"
                    );
                }
            }
            connections.opened += 1;
            let connection = Connection {
                client: peer.machine_key(),
                counted: None,
                is_busy: false,
                since: Instant::now(),
                _open: open,
            };
            connections.by_number.insert(connections.opened, connection);
            connections.opened
        });
        let place = Self { shared: Arc::clone(shared), number };
        if !shared.settings().is_proxy(peer.socket().ip()) {
            place.count_client(peer);
        }
        (place, closed)
    }

    /// Counts the connection for its client. If that has its share, another one of its connections is closed.
    pub(super) fn count_client(&self, client: ClientAddress) {
        let shared = &self.shared;
        shared.connections.with(|connections| {
            let enter = |in_use| {
                let (name, of) = ("HTTP connections", &[Listening::Http]);
                let limit = ConnectionLimit { name, max: CONNECTIONS_MAX, in_use, of };
                shared.rules.shares.enter(client, Listening::Http, limit)
            };
            // This connection is counted already.
            let mut counted = enter(connections.by_number.len().saturating_sub(1));
            if counted.is_none()
                && let Some(other) = connections.least_needed_of(client.machine_key(), self.number)
            {
                connections.by_number.remove(&other);
                shared.refused.add(1);
                // It takes the place of the other one, however many are in use.
                counted = enter(0);
            }
            // It may have been closed meanwhile.
            if let Some(connection) = connections.by_number.get_mut(&self.number) {
                (connection.client, connection.counted) = (client.machine_key(), counted);
            }
        });
    }

    /// Whether the client is known.
    pub(super) fn has_client(&self) -> bool {
        self.shared.connections.with(|connections| {
            connections.by_number.get(&self.number).is_some_and(|connection| connection.counted.is_some())
        })
    }

    /// What the connections of the client have together.
    pub(super) fn usage(&self) -> Arc<ClientUsage> {
        self.shared.connections.with(|connections| {
            let counted = connections.by_number.get(&self.number).and_then(|own| own.counted.as_ref());
            counted.map_or_else(Arc::default, |counted| Arc::clone(counted.usage()))
        })
    }

    /// The connection begins to answer a request, or has done that.
    pub(super) fn set_busy(&self, is_busy: bool) {
        self.shared.connections.with(|connections| {
            if let Some(connection) = connections.by_number.get_mut(&self.number) {
                (connection.is_busy, connection.since) = (is_busy, Instant::now());
            }
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.connections.with(|connections| connections.by_number.remove(&self.number));
    }
}

impl Connections {
    pub(super) fn count(&self) -> u64 {
        self.with(|connections| connections.by_number.len() as u64)
    }

    fn with<R>(&self, visit: impl FnOnce(&mut Open) -> R) -> R {
        // Nothing is left half done by a panic in between.
        visit(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Open {
    /// The connection of this client that is closed first for its connection with this number.
    fn least_needed_of(&self, client: ClientKey, number: u64) -> Option<u64> {
        self.least_needed(|other, connection| connection.client == client && other != number)
    }

    /// The connection that is closed first, of one of the clients with the most.
    fn least_needed_of_many(&self) -> Option<u64> {
        let mut counts = HashMap::<_, usize>::new();
        self.by_number.values().for_each(|connection| *counts.entry(connection.client).or_default() += 1);
        let most = counts.values().max().copied();
        self.least_needed(|_, connection| counts.get(&connection.client).copied() == most)
    }

    /// The one that has waited longest for its peer, or if none does, that answers longest.
    fn least_needed(&self, may_close: impl Fn(u64, &Connection) -> bool) -> Option<u64> {
        let candidates = self.by_number.iter().filter(|(number, connection)| may_close(**number, connection));
        let first = candidates.min_by_key(|(_, connection)| (connection.is_busy, connection.since));
        first.map(|(number, _)| *number)
    }
}
