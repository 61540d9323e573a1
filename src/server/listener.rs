//! Accepts connections, refuses those above the limit, and retries when accepting fails.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, warn};

use super::admission::Admission;
use super::client_address::ClientAddress;
use super::port::port_name;
use super::socket;
use super::state::Server;
use super::workers::Spawn;
use signalbox_model::Namespace;

/// A source of connections: a socket or a simulated one.
pub trait Listener: Send + 'static {
    /// A connection.
    type Stream: Send + 'static;

    /// Waits for the next connection and its peer's address.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Stream, SocketAddr)>> + Send;

    /// The connection that was accepted last was refused at once.
    fn note_refusal(&mut self) {}

    /// Sets the options of a connection's socket.
    fn prepare(_stream: &Self::Stream, _peer_timeout: Duration) -> io::Result<()> {
        Ok(())
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        TcpListener::accept(self).await
    }

    fn prepare(stream: &TcpStream, peer_timeout: Duration) -> io::Result<()> {
        socket::prepare_connection(stream, peer_timeout)
    }
}

/// Accepts the connections of a port and starts to serve them, until the returned future is dropped.
pub async fn serve_port<L: Listener>(
    server: Arc<Server>,
    namespace: Namespace,
    listener: L,
    workers: impl Spawn<L::Stream>,
) {
    let port = server.port(namespace);
    let failed = || {
        port.metrics.failed_accepts.add(1);
        port.warnings.failed_accept.permits()
    };
    accept_all(listener, port_name(namespace), failed, |listener, stream, peer| {
        if !admit::<L>(&server, namespace, stream, ClientAddress::of_peer(peer), &workers) {
            listener.note_refusal();
        }
    })
    .await;
}

/// Accepts connections until the returned future is dropped, and passes each on to `take`.
///
/// It waits longer after each accept that failed: the connection stays in the queue of the kernel, so that accepting it again at
/// once would be a busy loop. `failed` returns whether a warning of that may be logged; `port` is its name there.
pub(super) async fn accept_all<L: Listener>(
    mut listener: L,
    port: &'static str,
    failed: impl Fn() -> bool,
    mut take: impl FnMut(&mut L, L::Stream, SocketAddr),
) {
    let mut failures = 0_u32;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                failures = 0;
                take(&mut listener, stream, peer);
            }
            Err(error) if is_of_the_peer(&error) => {
                debug!(port, %error, "the peer closed a connection before it was accepted");
            }
            Err(error) => {
                if failed() {
                    warn!(
                        port,
                        %error,
                        "connections cannot be accepted and wait; if files ran out, raise LimitNOFILE (ulimit -n) or lower \
                         max_connections"
                    );
                }
                tokio::time::sleep(Duration::from_millis(10 << failures.min(6))).await;
                failures += 1;
            }
        }
    }
}

/// Has a connection served, unless the port or the client has as many as it may have: then it is closed. Returns false if it
/// was refused so.
pub(super) fn admit<L: Listener>(
    server: &Arc<Server>,
    namespace: Namespace,
    stream: L::Stream,
    client: ClientAddress,
    workers: &impl Spawn<L::Stream>,
) -> bool {
    let peer = client.socket();
    // Dropping the stream refuses the connection: the peer sees it closed.
    let Ok(admission) = Admission::request(server, namespace, client) else {
        if server.port(namespace).warnings.refused_connection.permits() {
            warn!(
                port = port_name(namespace),
                %peer,
                "connections are refused: max_connections is reached; raise it, or find the client that opens so many"
            );
        }
        return false;
    };
    // The client has its share, which was logged.
    let Some(admission) = admission else { return false };
    match L::prepare(&stream, server.peer_timeout()) {
        Ok(()) => workers.spawn(admission, stream, client),
        Err(error) => debug!(%peer, %error, "connection lost before it was served"),
    }
    true
}

fn is_of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}
