//! The connections of the listener: how many there are, what they receive, and how long their clients take to receive answers.
//!
//! Invariants: at most [`CONNECTIONS_MAX`] general connections exist, which are all that are not for leases. Once half of
//! them are in use, one client has no more than its share. No client is refused: an open connection is closed to make room
//! for a new one, so a probe is answered even while other clients open connections and send nothing. A connection is for
//! leases if its last request was a short one for a lease. Such a request may wait, so these connections have a limit of
//! their own, of which each client has a share too, and none is closed to make room for another connection. Nothing is
//! written to a client past the deadline of a leader.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};
use tracing::warn;

use super::super::client_address::ClientAddress;
use super::super::lock;
use super::super::shares::{ClientUsage, ConnectionKind, ConnectionLimit, Counted};
use super::super::state::Server;
use super::super::unfinished::{Closed, SHORT_INPUT_BYTES, UnfinishedInput};
use super::shared::Shared;
use signalbox_core::ClientKey;

/// The most general connections at a time. A few browsers and scrapers need far fewer.
pub(super) const CONNECTIONS_MAX: usize = 64;

/// The longest head of a request, in bytes. Its URL may be 64 KiB long, because names may be.
pub(super) const HEAD_BYTES_MAX: usize = 72 * 1024;

/// The outcome of a connection; the error is the reason for which it ended early.
pub(super) type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// The open connections, and what they share.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) shared: Arc<Shared>,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// The number of connections so far, which is the number of the latest one.
    opened: u64,
    /// General connections, by number.
    general: BTreeMap<u64, Connection>,
    /// Connections for leases, by number.
    leases: HashMap<u64, Connection>,
}

#[derive(Debug)]
struct Connection {
    /// The client; the peer, until the header of a proxy has stated the client.
    client: ClientAddress,
    /// `None`: the header of the proxy has not been read yet.
    counted: Option<Counted>,
    is_busy: bool,
    /// The time since which it is busy, or idle.
    since: Instant,
    /// The connection is closed when this is dropped.
    _open: oneshot::Sender<Infallible>,
}

/// A connection that is counted among the open ones, until this is dropped.
#[derive(Debug)]
pub(super) struct OpenConnection {
    pub(super) connections: Arc<Connections>,
    pub(super) shared: Arc<Shared>,
    number: u64,
    /// The request that the connection receives.
    pub(super) input: Input,
}

impl OpenConnection {
    /// Adds a connection, and counts it for the peer unless that is a proxy, which states the client later. Also returns
    /// a future that is ready when the connection must be closed to make room.
    pub(super) fn begin(connections: &Arc<Connections>, peer: ClientAddress) -> (Self, Closed) {
        let shared = &connections.shared;
        Self::open(connections, |connections, number, open| {
            connections.add(shared, number, Connection::new(peer, None, open));
            if !shared.config().is_proxy(peer.socket().ip()) {
                connections.count_client(shared, number, peer);
            }
        })
    }

    /// Counts a request that a node forwards for this client as a connection of the client: among those for leases if
    /// there is room, otherwise among the general ones. Also returns a future that is ready when the request must end to
    /// make room.
    pub(super) fn of_request(connections: &Arc<Connections>, client: ClientAddress) -> (Self, Closed) {
        let shared = &connections.shared;
        Self::open(connections, |connections, number, open| match connections.count_lease(shared, client) {
            Some(counted) => {
                connections.leases.insert(number, Connection::new(client, Some(counted), open));
            }
            None => {
                let connection = Connection { is_busy: true, ..Connection::new(client, None, open) };
                connections.add(shared, number, connection);
                connections.count_client(shared, number, client);
            }
        })
    }

    /// Allocates a number, and calls `add` to add the connection with it.
    fn open(
        connections: &Arc<Connections>,
        add: impl FnOnce(&mut Open, u64, oneshot::Sender<Infallible>),
    ) -> (Self, Closed) {
        let (open, closed) = oneshot::channel();
        let number = connections.with(|all| {
            all.opened += 1;
            let number = all.opened;
            add(all, number, open);
            number
        });
        let (connections, shared) = (Arc::clone(connections), Arc::clone(&connections.shared));
        (Self { connections, shared, number, input: Input::default() }, closed)
    }

    /// Counts the connection among those for leases from now on. Returns `false`, without a change, if there is no room or
    /// the connection is being closed for another one.
    pub(super) fn use_for_leases(&self) -> bool {
        let (shared, number) = (&self.shared, self.number);
        self.connections.with(|connections| {
            if connections.leases.contains_key(&number) {
                return true;
            }
            // The connection may be about to be closed for another one.
            let Some(own) = connections.general.get(&number) else { return false };
            let Some(counted) = connections.count_lease(shared, own.client) else { return false };
            if let Some(own) = connections.general.remove(&number) {
                connections.leases.insert(number, Connection { counted: Some(counted), ..own });
            }
            true
        })
    }

    /// Counts the connection among the general ones from now on, as busy with a request.
    pub(super) fn use_for_anything(&self) {
        let (shared, number) = (&self.shared, self.number);
        self.connections.with(|connections| {
            if let Some(own) = connections.leases.remove(&number) {
                let client = own.client;
                let connection = Connection { is_busy: true, ..Connection::new(client, None, own._open) };
                connections.add(shared, number, connection);
                connections.count_client(shared, number, client);
            }
        });
    }

    /// Counts the connection for its client. If the client has used up its share, another one of its connections is
    /// closed.
    pub(super) fn count_client(&self, client: ClientAddress) {
        let shared = &self.shared;
        self.connections.with(|connections| connections.count_client(shared, self.number, client));
    }

    /// Returns the client, if it is known and the connection is not closed for another one.
    pub(super) fn client(&self) -> Option<ClientAddress> {
        self.counted(|client, _| client)
    }

    /// Returns the usage that the connections of the client share; a new one if the client is not known.
    pub(super) fn usage(&self) -> Arc<ClientUsage> {
        self.counted(|_, counted| Arc::clone(counted.usage())).unwrap_or_default()
    }

    fn counted<R>(&self, visit: impl FnOnce(ClientAddress, &Counted) -> R) -> Option<R> {
        self.connections.with(|connections| {
            let Open { general, leases, .. } = connections;
            let own = general.get(&self.number).or_else(|| leases.get(&self.number))?;
            Some(visit(own.client, own.counted.as_ref()?))
        })
    }

    /// Returns the server, if this process has one.
    pub(super) fn server(&self) -> Option<Arc<Server>> {
        self.shared.stage().server()
    }

    /// Notes that the connection begins to answer a request, or has answered it.
    pub(super) fn set_busy(&self, is_busy: bool) {
        self.connections.with(|connections| {
            if let Some(connection) = connections.general.get_mut(&self.number) {
                (connection.is_busy, connection.since) = (is_busy, Instant::now());
            }
        });
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.connections.with(|connections| {
            connections.general.remove(&self.number);
            connections.leases.remove(&self.number);
        });
    }
}

impl Connection {
    fn new(client: ClientAddress, counted: Option<Counted>, open: oneshot::Sender<Infallible>) -> Self {
        Self { client, counted, is_busy: false, since: Instant::now(), _open: open }
    }
}

impl Connections {
    /// Returns an empty set of connections.
    pub(super) fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self { shared, open: Mutex::default() })
    }

    /// Returns the number of general connections.
    pub(super) fn count(&self) -> u64 {
        self.with(|connections| connections.general.len() as u64)
    }

    /// Returns the number of connections for leases.
    pub(super) fn count_of_leases(&self) -> u64 {
        self.with(|connections| connections.leases.len() as u64)
    }

    fn with<R>(&self, visit: impl FnOnce(&mut Open) -> R) -> R {
        visit(&mut lock(&self.open))
    }
}

impl Open {
    /// Adds a general connection. If there are too many, another one is closed.
    fn add(&mut self, shared: &Shared, number: u64, connection: Connection) {
        if self.general.len() >= CONNECTIONS_MAX
            && let Some(other) = self.least_needed_of_many()
        {
            self.general.remove(&other);
            shared.refused.add(1);
            if shared.warnings.permits() {
                warn!(
                    client = %connection.client.socket().ip(),
                    "HTTP connections are closed for new ones: there are too many; find the client that opens so many"
                );
            }
        }
        self.general.insert(number, connection);
    }

    /// Counts a general connection for its client. If the client has used up its share, another one of its connections
    /// is closed.
    fn count_client(&mut self, shared: &Shared, number: u64, client: ClientAddress) {
        let enter = |in_use| {
            let (name, of) = ("HTTP connections", &[ConnectionKind::Http]);
            let limit = ConnectionLimit { name, max: CONNECTIONS_MAX, in_use, of };
            shared.rules.shares.enter(client, ConnectionKind::Http, limit)
        };
        // `general` has this connection already.
        let mut counted = enter(self.general.len().saturating_sub(1));
        if counted.is_none()
            && let Some(other) = self.least_needed_of(client.machine_key(), number)
        {
            self.general.remove(&other);
            shared.refused.add(1);
            // This connection replaces the other one, so no limit refuses it.
            counted = enter(0);
        }
        // The connection may have been closed for another one.
        if let Some(connection) = self.general.get_mut(&number) {
            (connection.client, connection.counted) = (client, counted);
        }
    }

    /// Counts a connection for leases; `None`: the limit is reached, or the client has used up its share.
    fn count_lease(&self, shared: &Shared, client: ClientAddress) -> Option<Counted> {
        let (max, in_use) = (shared.config().http.lease_connections_max as usize, self.leases.len());
        let limit = ConnectionLimit {
            name: "http.lease_connections_max",
            max,
            in_use,
            of: &[ConnectionKind::Leases],
        };
        if in_use < max { shared.rules.shares.enter(client, ConnectionKind::Leases, limit) } else { None }
    }

    /// Returns the connection of this client that is closed first to make room for the one with this number.
    fn least_needed_of(&self, client: ClientKey, number: u64) -> Option<u64> {
        self.least_needed(|other, connection| connection.client.machine_key() == client && other != number)
    }

    /// Returns the connection that is closed first: one of a client with the most connections.
    fn least_needed_of_many(&self) -> Option<u64> {
        let mut counts = HashMap::<_, usize>::new();
        let client = |connection: &Connection| connection.client.machine_key();
        self.general.values().for_each(|connection| *counts.entry(client(connection)).or_default() += 1);
        let most = counts.values().max().copied();
        self.least_needed(|_, connection| counts.get(&client(connection)).copied() == most)
    }

    /// Returns the connection that has waited longest for its peer, or, if none waits, has been answering longest.
    fn least_needed(&self, may_close: impl Fn(u64, &Connection) -> bool) -> Option<u64> {
        let candidates = self.general.iter().filter(|(number, connection)| may_close(**number, connection));
        let first = candidates.min_by_key(|(_, connection)| (connection.is_busy, connection.since));
        first.map(|(number, _)| *number)
    }
}

/// The request that a connection receives. Once its head and body are long, they count as unfinished input until they are
/// complete.
#[derive(Debug, Default)]
pub(super) struct Input(Mutex<Received>);

#[derive(Debug, Default)]
struct Received {
    bytes: usize,
    /// `None` while the request is short.
    counted: Option<(UnfinishedInput, Closed)>,
}

impl Input {
    /// Notes that the connection has received `bytes` more, perhaps 0. Ready when it must be closed to make room for
    /// others.
    fn poll_received(
        &self,
        connection: &OpenConnection,
        bytes: usize,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let mut received = lock(&self.0);
        received.bytes += bytes;
        if bytes > 0
            && received.bytes > SHORT_INPUT_BYTES
            && let Some(server) = connection.server()
            && let Some(client) = connection.client()
        {
            let bytes = received.bytes;
            let begin = || server.unfinished.begin(client, &connection.usage());
            received.counted.get_or_insert_with(begin).0.set(bytes);
        }
        match &mut received.counted {
            Some((_, closed)) => Pin::new(closed).poll(context).map(drop),
            None => Poll::Pending,
        }
    }

    /// Notes that the request is complete.
    pub(super) fn complete(&self) {
        *lock(&self.0) = Received::default();
    }
}

/// The longest time that output may wait for a client.
const TAKE_MAX: Duration = Duration::from_secs(30);

/// A stream that fails when output has waited for [`TAKE_MAX`], and past the deadline of a leader. The time begins with the
/// first write that has to wait, and ends only when all output is sent, so a client gains nothing by reading a byte now and
/// then. The stream also counts received bytes ([`Input`]).
pub(super) struct Bounded<S> {
    io: S,
    shared: Arc<Shared>,
    /// The connection for which received bytes are counted; `None`: another node forwards requests over it.
    connection: Option<Arc<OpenConnection>>,
    /// Runs while output waits.
    limit: Option<Pin<Box<Sleep>>>,
}

impl<S> Bounded<S> {
    pub(super) fn new(io: S, shared: Arc<Shared>, connection: Option<Arc<OpenConnection>>) -> Self {
        Self { io, shared, connection, limit: None }
    }

    /// Fails past the deadline of a leader: the answer may say that its client holds what another leader has granted to
    /// another client by then.
    fn check_fence(&self) -> io::Result<()> {
        if self.shared.is_fenced() {
            Err(io::Error::other("this node no longer leads the cluster"))
        } else {
            Ok(())
        }
    }

    /// Returns the outcome of a write, or an error if output has waited for too long.
    fn limited<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_pending() {
            let limit = self.limit.get_or_insert_with(|| Box::pin(tokio::time::sleep(TAKE_MAX)));
            if limit.as_mut().poll(context).is_ready() {
                let message = "the client has not taken its answer in time";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)));
            }
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(context, buffer);
        if let Some(connection) = &self.connection
            && connection.input.poll_received(connection, buffer.filled().len() - before, context).is_ready()
        {
            return Poll::Ready(Err(io::Error::other("its request has to make room for others")));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_fence()?;
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        self.limited(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_fence()?;
        let written = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        self.limited(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_fence()?;
        let flushed = Pin::new(&mut self.io).poll_flush(context);
        if flushed.is_ready() {
            self.limit = None;
        }
        self.limited(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.io).poll_shutdown(context);
        self.limited(closed, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;
    use crate::config::Config;

    #[tokio::test(start_paused = true)]
    async fn each_answer_has_its_own_time() {
        let (near, mut far) = duplex(10);
        let mut bounded = Bounded::new(near, Arc::new(Shared::of_test(&Config::default())), None);
        for _ in 0..3 {
            let reading = async {
                tokio::time::sleep(TAKE_MAX - Duration::from_secs(1)).await;
                far.read_exact(&mut [0; 20]).await.unwrap();
            };
            let writing = async {
                bounded.write_all(&[0; 20]).await.unwrap();
                bounded.flush().await.unwrap();
            };
            tokio::join!(reading, writing);
        }
    }
}
