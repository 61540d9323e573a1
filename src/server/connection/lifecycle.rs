//! The life of a connection: it is accepted, from a proxy with its header, served by one thread after the other, and
//! ended.
//!
//! Invariants: a connection moves only while nothing is in progress, and then as a whole, so that no byte is lost and no
//! response overtakes another. However it ends, all that it held is released.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tracing::field::display;
use tracing::{debug, warn};

use super::super::admission::Admission;
use super::super::client_address::ClientAddress;
use super::super::dispatch::ExtendedState;
use super::super::peers::{Peer, Place};
use super::super::workers::{Seat, WorkerIndex};
use super::super::{Port, Server, port_name, steps};
use super::end::End;
use super::inbound::{Inbound, READ_BYTES_MAX};
use super::proxied::read_header;
use super::{Connection, Departure};
use crate::core::{ConnectionEnd, Mailbox, Session, SessionId};

/// How long the server still reads from a connection that it ends, so that the peer receives the responses and not a
/// reset.
const LINGER: Duration = Duration::from_secs(1);

/// A connection without its stream, between two threads that serve it. It is boxed, so that the task of a connection that
/// does not move has no room for it.
pub(in crate::server) struct OpenConnection {
    admission: Admission,
    client: ClientAddress,
    /// What plain requests hold.
    holder: Session,
    /// The connection's place among its peers.
    place: Place,
    extended: ExtendedState,
    /// The start of an incomplete frame.
    inbound: Inbound,
}

/// A connection that moves to another thread.
pub(in crate::server) struct Move<S> {
    pub(in crate::server) connection: Box<OpenConnection>,
    pub(in crate::server) stream: S,
    pub(in crate::server) to: WorkerIndex,
}

impl OpenConnection {
    /// Opens an admitted connection. From a proxy, it reads the header first; `None`: there was no usable one, and the
    /// connection is closed.
    pub(in crate::server) async fn accept<S>(
        admission: Admission,
        stream: &mut S,
        peer: SocketAddr,
    ) -> Option<Box<Self>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        if !admission.server().is_proxy(peer.ip()) {
            return Some(Self::open(admission, ClientAddress::of_peer(peer)));
        }
        // Boxed, so that the task of an open connection has no room for its start.
        Box::pin(Self::accept_from_proxy(admission, stream, peer)).await
    }

    async fn accept_from_proxy<S>(
        mut admission: Admission,
        stream: &mut S,
        proxy: SocketAddr,
    ) -> Option<Box<Self>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (server, port) = (admission.server(), admission.port());
        match read_header(stream, server, &port.metrics.traffic).await {
            Ok(stated) => {
                debug!(port = port_name(port.namespace), %proxy, client = stated.map(display), "header received");
                let client = ClientAddress::behind(proxy, stated);
                admission.admit_client(client).then(|| Self::open(admission, client))
            }
            Err(end) => {
                record_end(&end, port, proxy, None);
                if end.is_by_the_server() {
                    linger(stream).await;
                }
                None
            }
        }
    }

    fn open(admission: Admission, client: ClientAddress) -> Box<Self> {
        let peer = client.socket();
        let server = admission.server();
        let holder = server.core.open_session();
        let connection = holder.id();
        let mailbox = Arc::new(Mailbox::of(client.key()));
        let place = server.peers.enter(Peer { connection, address: peer, mailbox: Arc::clone(&mailbox) });
        let extended = ExtendedState::new(connection, mailbox, client);
        debug!(port = port_name(admission.port().namespace), %peer, session = %connection.session(), "connection opened");
        Box::new(Self { admission, client, holder, place, extended, inbound: Inbound::default() })
    }

    /// Serves the connection on this thread. Returns it when another thread has to go on; otherwise it has ended, and what
    /// it held is released.
    pub(in crate::server) async fn serve<S>(
        self: Box<Self>,
        stream: S,
        seat: &mut impl Seat,
    ) -> Option<Move<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Self { admission, client, mut holder, place, extended, inbound } = *self;
        let (server, port, turns) = (admission.server(), admission.port(), admission.turns());
        let mut served = Connection::new(server, port, turns, seat, stream, inbound, extended);
        // Before the first turn looks for messages: each is found by that turn, or wakes this task.
        poll_fn(|context| {
            served.extended.set_reader(context.waker());
            Poll::Ready(())
        })
        .await;
        match served.run(&mut holder).await {
            Departure::End(end) => {
                // While the server stops, it waits until a busy connection has closed in good order.
                let Connection { stream, busy: _busy, .. } = served;
                // Boxed, so that the task of an open connection has no room for its end.
                Box::pin(end_connection(&admission, client, holder, place, &end)).await;
                if end.is_by_the_server() {
                    Box::pin(linger(stream)).await;
                }
                None
            }
            Departure::Move(to) => {
                let (stream, mut inbound, extended) = served.into_parts();
                inbound.leave_runtime();
                let connection = Box::new(Self { admission, client, holder, place, extended, inbound });
                Some(Move { connection, stream, to })
            }
        }
    }

    /// Ends a connection that no thread can serve, because its socket failed on the way to one.
    pub(in crate::server) async fn fail(self: Box<Self>, error: io::Error) {
        let Self { admission, client, holder, place, .. } = *self;
        end_connection(&admission, client, holder, place, &End::Io(error)).await;
    }
}

async fn end_connection(
    admission: &Admission,
    client: ClientAddress,
    holder: Session,
    place: Place,
    end: &End,
) {
    let session = holder.id().session();
    // First, so that no request for this session finds it among the peers after the ledger has forgotten it.
    drop(place);
    let server = admission.server();
    server.core.leave_process(holder.id(), process_end(end, client), server.moment());
    release_all(server, holder).await;
    record_end(end, admission.port(), client.socket(), Some(session));
}

/// What the end of a connection means for its process of System V calls: only its own machine tells that it is over. A
/// proxy closes the connection also when it lost the client, and nothing tells the two apart.
fn process_end(end: &End, client: ClientAddress) -> ConnectionEnd {
    match end {
        End::Peer if client.is_proxied() => ConnectionEnd::Lost,
        End::Peer => ConnectionEnd::Closed,
        End::Io(_)
        | End::BadInput(_)
        | End::FrameTimeout
        | End::BadHeader(_)
        | End::HeaderTimeout
        | End::OutOfMemory
        | End::Panic
        | End::Revoked
        | End::Shutdown
        | End::Fenced => ConnectionEnd::Lost,
    }
}

/// Releases all that a connection holds. It yields to others between steps.
async fn release_all(server: &Server, holder: Session) {
    let connection = holder.id();
    let mut ending = server.core.end_session(holder);
    while ending.step(steps::ENDING_NAMES, server.clock.now()) {
        tokio::task::yield_now().await;
    }
    while server.core.leave(connection, server.moment()) {
        tokio::task::yield_now().await;
    }
}

/// Logs why a connection ended, and counts it unless that is ordinary. It has no session before it is opened.
fn record_end(end: &End, port: &Port, peer: SocketAddr, session: Option<SessionId>) {
    let port_name = port_name(port.namespace);
    let session = session.map(display);
    match end {
        End::Peer | End::OutOfMemory | End::Revoked | End::Shutdown | End::Fenced => {
            debug!(%peer, session, "connection closed")
        }
        End::Io(error) => debug!(%peer, session, %error, "connection lost"),
        End::BadInput(_) | End::BadHeader(_) | End::FrameTimeout | End::HeaderTimeout => {
            let count = if let End::FrameTimeout | End::HeaderTimeout = end {
                &port.metrics.frame_timeouts
            } else {
                &port.metrics.bad_input
            };
            count.add(1);
            if port.warnings.bad_input.permits() {
                warn!(port = port_name, %peer, session, error = %end, "connection closed");
            } else {
                debug!(port = port_name, %peer, session, error = %end, "connection closed");
            }
        }
        End::Panic => {
            port.metrics.panics.add(1);
            // The panic's own message was logged by the hook that the daemon sets.
            warn!(port = port_name, %peer, session, error = %end, "connection closed");
        }
    }
}

/// Ends the output, and reads and discards what the peer still sends. If a socket is closed while input is unread, the
/// peer's kernel drops the responses that its program has not read.
async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut discarded = BytesMut::with_capacity(READ_BYTES_MAX);
    let discard = async {
        stream.shutdown().await?;
        while stream.read_buf(&mut discarded).await? > 0 {
            discarded.clear();
        }
        io::Result::Ok(())
    };
    // Whether it fails or takes too long, the connection is over.
    let _ = tokio::time::timeout(LINGER, discard).await;
}
