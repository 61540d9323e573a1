//! The life of a connection: it is accepted (from a proxy, after its header), served with or without TLS, and ended.
//!
//! A connection begins as a plain one, and continues over TLS if its first bytes begin TLS. Later bytes are not checked
//! for the start of TLS.
//!
//! Invariant: however a connection ends, all that it held is released.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_rustls::server::TlsStream;
use tokio_util::io::poll_read_buf;
use tracing::field::display;
use tracing::{debug, warn};

use super::super::admission::Admission;
use super::super::buffers::Buffers;
use super::super::client_address::{Client, ClientAddress};
use super::super::dispatch::ExtendedState;
use super::super::peers::{Peer, PeerEntry};
use super::super::port::{Port, port_name};
use super::super::proxy_header::{HeaderError, read_header};
use super::super::state::Server;
use super::super::steps;
use super::super::tls::{FirstBytes, Handshake, HandshakeError};
use super::Connection;
use super::opening::{Opening, read_opening};
use super::parts::{End, Inbound, READ_BYTES_MAX};
use signalbox_core::{ConnectionEnd, Mailbox, Session};
use signalbox_model::SessionId;

/// How long the server continues to read from a connection that it ends, so that the peer receives the responses and
/// not a reset.
const LINGER: Duration = Duration::from_secs(1);

/// A connection without its stream. It is boxed, so that the task contains it only once.
struct OpenConnection {
    admission: Admission,
    client: Client,
    /// The first bytes of a TLS handshake, if one has begun.
    handshake: Option<BytesMut>,
    /// The holdings of plain requests.
    holder: Session,
    /// The connection's entry in the server's table of peers.
    peer_entry: PeerEntry,
    extended: ExtendedState,
    inbound: Inbound,
}

/// Serves an admitted connection until it has ended and everything that it held is released.
pub(in crate::server) async fn serve<S>(admission: Admission, mut stream: S, peer: ClientAddress)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Some(connection) = OpenConnection::accept(admission, &mut stream, peer).await else { return };
    let begun_tls = if connection.handshake.is_some() {
        Some((connection, stream))
    } else {
        connection.serve_over(stream, false).await
    };
    if let Some((connection, stream)) = begun_tls {
        // Boxed, so that the task of a plain connection needs no room for TLS.
        Box::pin(connection.serve_tls(stream)).await;
    }
}

impl OpenConnection {
    /// Opens an admitted connection. It first reads the header of a proxy and, where plain requests are refused, the
    /// first bytes. `None`: the connection was refused, and is closed.
    async fn accept<S>(mut admission: Admission, stream: &mut S, peer: ClientAddress) -> Option<Box<Self>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut client = peer;
        // The reads of the header and of the first bytes are boxed, so that the task of an open connection needs no
        // room for them.
        if admission.server().is_proxy(peer) {
            client = Box::pin(client_behind(&mut admission, stream, peer)).await?;
        }
        match admission.server().first_bytes_of(client) {
            FirstBytes::Any { may_begin_tls } => Some(Self::open(admission, client, may_begin_tls)),
            FirstBytes::Tls => Box::pin(Self::accept_tls(admission, stream, client)).await,
        }
    }

    /// Opens a connection that must begin with TLS. A plain request is answered with a refusal.
    async fn accept_tls<S>(admission: Admission, stream: &mut S, client: ClientAddress) -> Option<Box<Self>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (server, port) = (admission.server(), admission.port());
        let end = match read_opening(stream, server, &port.metrics.traffic).await {
            Ok(Opening::Tls(received)) => {
                let mut connection = Self::open(admission, client, false);
                connection.handshake = Some(received);
                return Some(connection);
            }
            Ok(Opening::Plain(refusal)) => {
                // Even if the client does not read it, the connection is over.
                let _ = stream.write_all(&refusal).await;
                End::PlainRefused
            }
            Err(end) => end,
        };
        refuse(port, stream, client, &end).await;
        None
    }

    fn open(admission: Admission, client: ClientAddress, may_begin_tls: bool) -> Box<Self> {
        let peer = client.socket();
        let client = Client { address: client, certificate: Arc::default() };
        let server = admission.server();
        let holder = server.core.open_session();
        let connection = holder.id();
        let mailbox = Arc::new(Mailbox::of(peer, Some(client.address.key())));
        let peer_entry = server.peers.enter(Peer {
            connection,
            address: peer,
            opened: server.monotonic(),
            mailbox: Arc::clone(&mailbox),
        });
        let extended =
            ExtendedState::new(server, connection, mailbox, client.clone(), admission.port().namespace);
        debug!(port = port_name(admission.port().namespace), %peer, session = %connection.session(), "connection opened");
        let inbound = Inbound::new(may_begin_tls);
        Box::new(Self { admission, client, handshake: None, holder, peer_entry, extended, inbound })
    }

    /// Serves a connection over TLS, after its handshake.
    async fn serve_tls<S>(mut self: Box<Self>, mut stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let end = match Box::pin(self.handshake(&mut stream)).await {
            Ok(secure) => {
                // TLS does not begin within TLS.
                drop(self.serve_over(secure, true).await);
                return;
            }
            Err(end) => end,
        };
        let Self { mut admission, client, holder, peer_entry, .. } = *self;
        admission.note_unfinished_handshake();
        Box::pin(end_connection(&admission, &client, holder, peer_entry, &end)).await;
        if end.is_by_the_server() {
            Box::pin(linger(stream)).await;
        }
    }

    /// Completes the handshake that has begun.
    async fn handshake<S>(&mut self, stream: S) -> Result<TlsStream<S>, End>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let received = self.handshake.take().unwrap_or_default();
        let (server, port) = (self.admission.server(), self.admission.port());
        let tls = server.tls().ok_or(HandshakeError::NotConfigured);
        let client = self.client.address;
        let done = async {
            let handshake = Handshake {
                settings: tls?.handshake_settings_for(client),
                client,
                usage: self.admission.client_usage(),
                unfinished: Some(&server.unfinished),
            };
            handshake.run(stream, received).await
        };
        let (stream, certificate) = done.await.map_err(End::of_handshake)?;
        port.metrics.tls_connections.add(1);
        self.client.certificate = certificate;
        self.extended.set_encrypted(server, self.client.clone());
        let id = self.holder.id().session();
        debug!(port = port_name(port.namespace), client = %self.client, session = %id, "TLS established");
        Ok(stream)
    }

    /// Serves the connection over a stream. Returns both if the client begins TLS; otherwise the connection has ended.
    /// `is_tls`: the stream uses TLS, so the server ends its output with close_notify, but only if it has sent
    /// everything.
    async fn serve_over<S>(self: Box<Self>, stream: S, is_tls: bool) -> Option<(Box<Self>, S)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Self { admission, client, handshake: _, mut holder, peer_entry, extended, inbound } = *self;
        let (server, port, usage) = (admission.server(), admission.port(), admission.client_usage());
        let mut served = Connection::new(server, port, usage, stream, inbound, extended);
        // Set before the first turn checks for messages, so that each message either is found by that turn or wakes
        // this task.
        poll_fn(|context| {
            served.extended.set_reader(context.waker());
            Poll::Ready(())
        })
        .await;
        let end = served.run(&mut holder).await;
        if end.begins_tls() {
            let (stream, inbound, extended) = served.into_parts();
            let handshake = Some(inbound.into_received());
            let inbound = Inbound::new(false);
            let connection = Self { admission, client, handshake, holder, peer_entry, extended, inbound };
            return Some((Box::new(connection), stream));
        }
        // `_busy` lives until this function returns: a server that stops waits until a busy connection has closed.
        let Connection { mut stream, outbound, inbound, extended, busy: _busy, .. } = served;
        // A connection that lingers needs no buffers.
        drop(inbound);
        let is_unflushed = outbound.is_unflushed();
        drop(outbound);
        extended.end(server);
        // Boxed, so that the task of an open connection needs no room for its end.
        Box::pin(end_connection(&admission, &client, holder, peer_entry, &end)).await;
        if is_tls && is_unflushed {
            // Closes the stream without close_notify and without the rest of the output, which a fence may forbid.
            drop(stream);
        } else if end.is_by_the_server() {
            Box::pin(linger(stream)).await;
        } else if let (true, End::Peer) = (is_tls, end) {
            // Even if it fails, the connection is over.
            let _ = Box::pin(stream.shutdown()).await;
        }
        None
    }
}

/// Reads the header of a proxy, and returns the client behind the proxy; `None`: there is no valid header, or the
/// client has used up its share.
async fn client_behind<S>(
    admission: &mut Admission,
    stream: &mut S,
    proxy: ClientAddress,
) -> Option<ClientAddress>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (server, port) = (admission.server(), admission.port());
    let note_received = |bytes| port.metrics.traffic.note_received(bytes);
    match read_header(stream, server.frame_timeout(), note_received).await {
        Ok(stated) => {
            debug!(port = port_name(port.namespace), proxy = %proxy.socket(), client = stated.map(display), "header received");
            let client = ClientAddress::behind(proxy, stated);
            admission.admit_client(client).then_some(client)
        }
        Err(error) => {
            refuse(port, stream, proxy, &End::of_header(error)).await;
            None
        }
    }
}

/// Ends a connection that was not opened.
async fn refuse(port: &Port, stream: impl AsyncRead + AsyncWrite + Unpin, peer: ClientAddress, end: &End) {
    record_end(end, port, peer.socket(), None);
    if end.is_by_the_server() {
        linger(stream).await;
    }
}

async fn end_connection(
    admission: &Admission,
    client: &Client,
    holder: Session,
    peer_entry: PeerEntry,
    end: &End,
) {
    let session = holder.id().session();
    // Dropped first, so that no request finds this session among the peers after the ledger has forgotten it.
    drop(peer_entry);
    let server = admission.server();
    server.core.leave_process(holder.id(), process_end(end, client.address), server.moment());
    release_all(server, holder).await;
    record_end(end, admission.port(), client.address.socket(), Some(session));
}

/// Returns how the connection of a process of System V calls has ended. Only an end by the client's own
/// machine shows that the process has ended: a proxy also closes the connection when it loses the client.
fn process_end(end: &End, client: ClientAddress) -> ConnectionEnd {
    match end {
        End::Peer if !client.is_proxied() => ConnectionEnd::Closed,
        _ => ConnectionEnd::Lost,
    }
}

/// Releases all that a connection holds, and yields to other connections between steps.
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

/// Logs why a connection ended, and counts an end that is not ordinary. `session` is `None` if the connection was not
/// opened.
fn record_end(end: &End, port: &Port, peer: SocketAddr, session: Option<SessionId>) {
    let port_name = port_name(port.namespace);
    let session = session.map(display);
    match end {
        End::Peer | End::OutOfMemory | End::WrongTokens | End::Revoked | End::Shutdown | End::Fenced => {
            debug!(%peer, session, "connection closed")
        }
        End::Io(error) => debug!(%peer, session, %error, "connection lost"),
        End::BadInput(_) | End::Header(_) | End::FrameTimeout | End::Handshake(_) | End::PlainRefused => {
            let (count, warning) = match end {
                End::FrameTimeout | End::Header(HeaderError::Timeout) => {
                    (&port.metrics.frame_timeouts, &port.warnings.bad_input)
                }
                End::Handshake(_) => (&port.metrics.failed_handshakes, &port.warnings.failed_handshake),
                End::PlainRefused => (&port.metrics.refused_plain, &port.warnings.refused_plain),
                _ => (&port.metrics.bad_input, &port.warnings.bad_input),
            };
            count.add(1);
            if warning.permits() {
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
    let discard = async {
        stream.shutdown().await?;
        let mut discarded = |context: &mut Context<'_>| {
            Buffers::with(|buffers| {
                buffers.input.reserve(READ_BYTES_MAX);
                poll_read_buf(Pin::new(&mut stream), context, &mut buffers.input)
            })
        };
        while poll_fn(&mut discarded).await? > 0 {}
        io::Result::Ok(())
    };
    // Even if it fails or takes too long, the connection is over.
    let _ = tokio::time::timeout(LINGER, discard).await;
}
