//! Accepts connections, and serves HTTP/1.1 on each, within bounds.
//!
//! Invariants: each request begins and ends within a limited time, and its client must receive the answer within a
//! limited time. `connections` bounds the number of connections.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use hyper::StatusCode;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tracing::{debug, warn};

use super::super::client_address::{Client, ClientAddress};
use super::super::listener::{accept_all, prepare_connection};
use super::super::node_view::NodeView;
use super::super::proxy_header::read_header;
use super::super::relay::{Outgoing, ServeRequests};
use super::super::rules::Rules;
use super::super::shares::Pauses;
use super::super::state::Server;
use super::super::tls::{FirstBytes, Handshake};
use super::super::workers::Workers;
use super::access::Peer;
use super::connections::{Bounded, Connections, HEAD_BYTES_MAX, OpenConnection, Outcome};
use super::forward::Forwarder;
use super::forwarded;
use super::routes::handle;
use super::shared::{Shared, Stage};
use crate::config::Config;
use signalbox_protocol::TLS_HANDSHAKE;

/// The longest time for the header of a proxy, for the first byte, for the head of a request, and between two requests of
/// a connection.
const HEAD_MAX: Duration = Duration::from_secs(15);

/// The longest time until the connection of a vanished peer ends.
const PEER_MAX: Duration = Duration::from_secs(35);

/// The answer to a plain request where only TLS is accepted.
const TLS_REQUIRED: &str = "This port accepts only TLS; use https://.\n";

/// The HTTP listener of a process. It ends when this value is dropped.
#[derive(Debug)]
pub(in crate::server) struct Http {
    connections: Arc<Connections>,
    /// `None`: the configuration enables no listener.
    thread: Option<HttpThread>,
}

#[derive(Debug)]
struct HttpThread {
    runtime: Handle,
    /// The thread ends when this is dropped.
    _alive: oneshot::Sender<Infallible>,
}

impl Http {
    /// Starts the thread, if there are listeners.
    pub(in crate::server) fn start(
        config: &Config,
        listeners: Vec<StdTcpListener>,
        rules: Rules,
    ) -> io::Result<Self> {
        let connections = Connections::new(Arc::new(Shared::new(config, rules)));
        if listeners.is_empty() {
            return Ok(Self { connections, thread: None });
        }
        let (alive, ended) = oneshot::channel::<Infallible>();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (thread_connections, handle) = (Arc::clone(&connections), runtime.handle().clone());
        std::thread::Builder::new().name("http".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve(thread_connections, listeners) => {}
                    // The receiver is ready when the sender is dropped.
                    _ = ended => {}
                }
            });
        })?;
        Ok(Self { connections, thread: Some(HttpThread { runtime: handle, _alive: alive }) })
    }

    /// Makes this process a standby of a cluster. Until it leads, it forwards requests to the leader over `outgoing`;
    /// `None`: it forwards none, because it does not relay clients.
    pub(in crate::server) fn join(&self, view: NodeView, outgoing: Option<&Arc<Outgoing<Workers>>>) {
        self.connections.shared.set_node(view);
        if let Some(outgoing) = outgoing {
            self.connections.shared.set_forwarder(Forwarder::new(Arc::clone(outgoing)));
        }
        self.connections.shared.set_stage(Stage::Standby);
    }

    /// Makes this server answer all requests from now on.
    pub(in crate::server) fn serve(&self, server: &Arc<Server>) {
        self.connections.shared.set_stage(Stage::Serving(Arc::clone(server)));
    }

    /// Returns the function that serves requests that other nodes forward; `None`: the listener is not enabled.
    pub(in crate::server) fn serve_requests(&self) -> Option<ServeRequests<TcpStream>> {
        let (connections, runtime) = (Arc::clone(&self.connections), self.thread.as_ref()?.runtime.clone());
        Some(Box::new(move |stream, node| {
            // Detached from the runtime that has accepted it, because the runtime of the thread `http` serves it.
            let Ok(stream) = stream.into_std() else { return };
            let served = forwarded::serve(Arc::clone(&connections), stream, node);
            runtime.spawn(async move {
                if let Err(error) = served.await {
                    debug!(node = %node.socket(), %error, "a connection with forwarded requests has ended");
                }
            });
        }))
    }

    /// Notes that the server is being stopped: from now on it is not ready, refuses changes and requests for leases, and
    /// closes the connections over which other nodes forward requests.
    pub(in crate::server) fn drain(&self) {
        self.connections.shared.drain();
    }
}

/// Returns the addresses of listeners, for the log.
pub(in crate::server) fn addresses(listeners: &[StdTcpListener]) -> io::Result<Vec<SocketAddr>> {
    listeners.iter().map(StdTcpListener::local_addr).collect()
}

/// Serves all listeners, until the returned future is dropped.
async fn serve(connections: Arc<Connections>, listeners: Vec<StdTcpListener>) {
    let mut ports = tokio::task::JoinSet::new();
    for listener in listeners {
        match TcpListener::from_std(listener) {
            Ok(listener) => {
                let connections = Arc::clone(&connections);
                ports.spawn(async move {
                    let failed = || connections.shared.warnings.permits();
                    accept_all(listener, "http", failed, |_, stream, peer| {
                        accept(&connections, stream, peer)
                    })
                    .await;
                });
            }
            Err(error) => warn!(%error, "the HTTP listener cannot be served"),
        }
    }
    while ports.join_next().await.is_some() {}
}

fn accept(connections: &Arc<Connections>, stream: TcpStream, peer: SocketAddr) {
    let address = ClientAddress::of_peer(peer);
    let (connection, closed) = OpenConnection::begin(connections, address);
    let connection = Arc::new(connection);
    connections.shared.accepted.add(1);
    tokio::spawn(async move {
        let outcome = tokio::select! {
            outcome = begin(&connection, stream, address) => outcome,
            _ = closed => Err("it was closed for another one".into()),
        };
        if let Err(error) = outcome {
            debug!(%peer, %error, "an HTTP connection has ended");
        }
    });
}

/// Reads the header of a proxy. Returns the client behind the proxy; `None`: there is no valid header, which is logged.
async fn client_behind(
    connection: &OpenConnection,
    stream: &mut TcpStream,
    proxy: ClientAddress,
) -> Option<ClientAddress> {
    match read_header(stream, HEAD_MAX, |_| ()).await {
        Ok(stated) => {
            let client = ClientAddress::behind(proxy, stated);
            connection.count_client(client);
            Some(client)
        }
        Err(error) => {
            if connection.shared.warnings.permits() {
                warn!(peer = %proxy.socket(), %error, "HTTP connection closed");
            }
            None
        }
    }
}

/// Finds the client if a proxy has connected, begins TLS if the client does, and serves the connection. Each stage is
/// boxed, so that a connection takes the memory of only one of them.
async fn begin(connection: &Arc<OpenConnection>, mut stream: TcpStream, peer: ClientAddress) -> Outcome {
    let shared = &connection.shared;
    prepare_connection(&stream, PEER_MAX)?;
    let mut address = peer;
    if connection.client().is_none() {
        let Some(client) = Box::pin(client_behind(connection, &mut stream, peer)).await else {
            return Ok(());
        };
        address = client;
    }
    let local = stream.local_addr()?.ip().to_canonical();
    let mut first = [0];
    if Box::pin(tokio::time::timeout(HEAD_MAX, stream.peek(&mut first))).await?? == 0 {
        return Ok(());
    }
    let tls = shared.rules.tls.get();
    let first_bytes = tls.as_ref().map(|tls| (tls.first_bytes_of(address), tls.handshake_settings()));
    let mut client = Client { address, certificate: Arc::default() };
    match first_bytes {
        Some((_, settings)) if first[0] == TLS_HANDSHAKE => {
            let server = shared.stage().server();
            let unfinished = server.as_ref().map(|server| &server.unfinished);
            let handshake = Handshake { settings, client: address, usage: connection.usage(), unfinished };
            let (stream, names) = Box::pin(handshake.run(stream, BytesMut::new())).await?;
            client.certificate = names;
            let peer = Peer { client: Arc::new(client), local, is_encrypted: true };
            Box::pin(serve_requests(connection, stream, peer)).await
        }
        Some((FirstBytes::Tls, _)) => {
            let answer = format!(
                "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\
                 Content-Length: {}\r\n\r\n{TLS_REQUIRED}",
                TLS_REQUIRED.len()
            );
            Box::pin(tokio::time::timeout(HEAD_MAX, stream.write_all(answer.as_bytes()))).await??;
            Ok(())
        }
        _ => {
            let peer = Peer { client: Arc::new(client), local, is_encrypted: false };
            Box::pin(serve_requests(connection, stream, peer)).await
        }
    }
}

pub(super) async fn serve_requests<S>(connection: &Arc<OpenConnection>, stream: S, peer: Peer) -> Outcome
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let peer = &peer;
    let service = service_fn(|request| {
        // Boxed outside the future, which would otherwise keep room for it.
        let request = Box::new(request);
        async move {
            connection.set_busy(true);
            let response = handle(connection, peer, request).await;
            connection.set_busy(false);
            connection.input.complete();
            if is_refusal(response.status()) {
                let mut pauses = Pauses::new(connection.usage());
                pauses.begin(1);
                poll_fn(|context| pauses.poll(context)).await;
            }
            Ok::<_, Infallible>(response)
        }
    });
    let stream = Bounded::new(stream, Arc::clone(&connection.shared), Some(Arc::clone(connection)));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    served.await?;
    Ok(())
}

/// Returns whether a client is slowed down after this answer, like a client of the service ports that lacks a right.
fn is_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, duplex};
    use tokio::time::Instant;

    use super::super::super::clock::Clock;
    use super::*;
    use signalbox_core::NameHasher;

    #[tokio::test(start_paused = true)]
    async fn a_refused_request_slows_its_client_down() {
        let mut config = Config::default();
        config.access.networks = vec!["127.0.0.0/8 none".parse().unwrap()];
        let server = Server::new(&config, Clock::system(), NameHasher::new());
        for (head, status, is_slowed) in [
            ("GET /healthz", "200", false),
            ("GET /nothing", "404", false),
            ("GET /api/v1/status", "403", true),
            ("GET /metrics", "403", true),
            ("POST /api/v1/pause", "401", true),
        ] {
            let shared = Arc::new(Shared::of_test(&config));
            shared.set_stage(Stage::Serving(Arc::clone(&server)));
            let (peer, (mut near, far)) = (Peer::of_test(), duplex(64 * 1024));
            let (connection, _open) = OpenConnection::begin(&Connections::new(shared), peer.client.address);
            let connection = Arc::new(connection);
            let request = format!(
                "{head} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
            );
            near.write_all(request.as_bytes()).await.unwrap();
            let (begun, mut answer) = (Instant::now(), String::new());
            let (served, _) =
                tokio::join!(serve_requests(&connection, far, peer), near.read_to_string(&mut answer));
            served.unwrap();
            assert_eq!(&answer[9..12], status, "{head}");
            assert_eq!(!begun.elapsed().is_zero(), is_slowed, "{head}");
        }
    }
}
