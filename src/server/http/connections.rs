//! The connections of the listener.
//!
//! Invariants: at most [`CONNECTIONS_MAX`] connections exist, of which one client has no more than its share once half of
//! them are in use. No client is refused: another connection is closed for a further one. So a probe is answered while
//! other clients open connections and send nothing. Connections whose last request was a short one for a lease, which may
//! wait, count for a limit of their own instead, with shares too, and are never closed for others.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::warn;

use super::super::client_address::ClientAddress;
use super::super::shares::{ClientUsage, ConnectionLimit, Counted, Listening};
use super::super::state::Server;
use super::super::unfinished::{Closed, SHORT_INPUT_BYTES, UnfinishedInput};
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
#[derive(Debug)]
pub(super) struct Place {
    pub(super) shared: Arc<Shared>,
    number: u64,
    purpose: Mutex<Purpose>,
    /// The request that the connection receives.
    pub(super) input: Input,
}

/// The use of a connection.
#[derive(Debug)]
enum Purpose {
    /// Anything. The client is not known until the header of a proxy has stated it.
    General(Option<ClientAddress>),
    /// Requests for leases: it is not among the others.
    Leases(Leasing),
}

#[derive(Debug)]
struct Leasing {
    client: ClientAddress,
    /// Counts the connection.
    counted: LeaseConnection,
    /// Its end among the others would close it.
    _open: oneshot::Sender<Infallible>,
}

/// A connection counts among those for leases until this is dropped.
#[derive(Debug)]
struct LeaseConnection(Arc<Shared>, Option<Counted>);

impl LeaseConnection {
    /// `None`: there are as many as there may be, or the client has its share.
    fn count(shared: &Arc<Shared>, client: ClientAddress) -> Option<Self> {
        let max = shared.config().http.lease_connections_max as usize;
        let in_use = shared.lease_connections.increment() as usize;
        let mut connection = Self(Arc::clone(shared), None);
        if in_use < max {
            let (name, of) = ("http.lease_connections_max", &[Listening::Leases]);
            let limit = ConnectionLimit { name, max, in_use, of };
            connection.1 = shared.rules.shares.enter(client, Listening::Leases, limit);
        }
        connection.1.is_some().then_some(connection)
    }
}

impl Drop for LeaseConnection {
    fn drop(&mut self) {
        self.0.lease_connections.decrement();
    }
}

impl Place {
    /// Counts a connection of a peer, and of a client unless the peer is a proxy. Returns what is ready when the connection
    /// has to be closed for another one.
    pub(super) fn take(shared: &Arc<Shared>, peer: ClientAddress) -> (Self, oneshot::Receiver<Infallible>) {
        let (open, closed) = oneshot::channel();
        let place = Self::new(shared);
        place.enter(peer, open);
        if !shared.config().is_proxy(peer.socket().ip()) {
            place.count_client(peer);
        }
        (place, closed)
    }

    /// Counts a request that a node forwards for this client as a connection of the client: among those for leases, if there is
    /// room. Returns what is ready when the request has to end for another connection.
    pub(super) fn of_request(
        shared: &Arc<Shared>,
        client: ClientAddress,
    ) -> (Self, oneshot::Receiver<Infallible>) {
        let (open, closed) = oneshot::channel();
        let place = Self::new(shared);
        match LeaseConnection::count(shared, client) {
            Some(counted) => *place.purpose() = Purpose::Leases(Leasing { client, counted, _open: open }),
            None => {
                place.enter(client, open);
                place.count_client(client);
                place.set_busy(true);
            }
        }
        (place, closed)
    }

    fn new(shared: &Arc<Shared>) -> Self {
        let number = shared.connections.with(|connections| {
            connections.opened += 1;
            connections.opened
        });
        Self {
            shared: Arc::clone(shared),
            number,
            purpose: Mutex::new(Purpose::General(None)),
            input: Input::default(),
        }
    }

    /// Adds the connection to those in general. If there are too many, another one is closed.
    fn enter(&self, peer: ClientAddress, open: oneshot::Sender<Infallible>) {
        let shared = &self.shared;
        shared.connections.with(|connections| {
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
            let connection = Connection {
                client: peer.machine_key(),
                counted: None,
                is_busy: false,
                since: Instant::now(),
                _open: open,
            };
            connections.by_number.insert(self.number, connection);
        });
    }

    /// Has the connection count among those for leases from now on. Returns whether there is room.
    pub(super) fn use_for_leases(&self) -> bool {
        let mut purpose = self.purpose();
        let client = match &*purpose {
            Purpose::Leases(_) => return true,
            Purpose::General(client) => *client,
        };
        let Some(client) = client else { return false };
        let Some(counted) = LeaseConnection::count(&self.shared, client) else { return false };
        // The connection may be about to be closed for another one.
        let own = self.shared.connections.with(|connections| connections.by_number.remove(&self.number));
        let Some(own) = own else { return false };
        *purpose = Purpose::Leases(Leasing { client, counted, _open: own._open });
        true
    }

    /// Has the connection count among those in general from now on.
    pub(super) fn use_for_anything(&self) {
        let mut purpose = self.purpose();
        if let Purpose::Leases(Leasing { client, .. }) = *purpose
            && let Purpose::Leases(leasing) = std::mem::replace(&mut *purpose, Purpose::General(None))
        {
            drop(purpose);
            self.enter(client, leasing._open);
            self.count_client(client);
            self.set_busy(true);
        }
    }

    fn purpose(&self) -> MutexGuard<'_, Purpose> {
        self.purpose.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the connection for its client. If that has its share, another one of its connections is closed.
    pub(super) fn count_client(&self, client: ClientAddress) {
        *self.purpose() = Purpose::General(Some(client));
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
            // The connection may have been closed for another one.
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

    /// The client, if it is known.
    pub(super) fn client(&self) -> Option<ClientAddress> {
        match &*self.purpose() {
            Purpose::General(client) => *client,
            Purpose::Leases(leasing) => Some(leasing.client),
        }
    }

    /// The server, if this process has one.
    pub(super) fn server(&self) -> Option<Arc<Server>> {
        self.shared.stage().server()
    }

    /// What the connections of the client have together.
    pub(super) fn usage(&self) -> Arc<ClientUsage> {
        if let Purpose::Leases(Leasing { counted: LeaseConnection(_, Some(counted)), .. }) = &*self.purpose()
        {
            return Arc::clone(counted.usage());
        }
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

/// The request that a connection receives: its head and its body count as unfinished input once they are long, until all of
/// them are there.
#[derive(Debug, Default)]
pub(super) struct Input(Mutex<Received>);

#[derive(Debug, Default)]
struct Received {
    bytes: usize,
    /// Set once they are many.
    counted: Option<(UnfinishedInput, Closed)>,
}

impl Input {
    /// The connection at this place has received so many more bytes, perhaps none. Ready when it has to be closed, so that there is room for
    /// others.
    pub(super) fn poll_received(&self, place: &Place, bytes: usize, context: &mut Context<'_>) -> Poll<()> {
        let mut received = self.received();
        received.bytes += bytes;
        if bytes > 0
            && received.bytes > SHORT_INPUT_BYTES
            && let Some(server) = place.server()
            && let Some(client) = place.client()
        {
            let bytes = received.bytes;
            let begin = || UnfinishedInput::begin(&server, client, &place.usage());
            received.counted.get_or_insert_with(begin).0.set(&server, bytes);
        }
        match &mut received.counted {
            Some((_, closed)) => Pin::new(closed).poll(context).map(drop),
            None => Poll::Pending,
        }
    }

    /// The request is complete.
    pub(super) fn complete(&self) {
        *self.received() = Received::default();
    }

    fn received(&self) -> MutexGuard<'_, Received> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
