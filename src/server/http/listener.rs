//! Accepts connections, and serves HTTP/1.1 on each, within bounds.
//!
//! Invariants: at most [`CONNECTIONS_MAX`] connections exist, of which one client has no more than its share once half of
//! them are in use; each request begins and ends within a limited time, and so does the taking of its answer.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tracing::{debug, warn};

use super::super::client_address::{Client, ClientAddress};
use super::super::node_view::NodeView;
use super::super::proxy_header::read_header;
use super::super::rules::Rules;
use super::super::shares::{ClientUsage, ConnectionLimit, Counted, Listening, Pauses};
use super::super::socket;
use super::super::state::Server;
use super::super::tls::{FirstBytes, handshake};
use super::guard::guard;
use super::peer::Peer;
use super::shared::{CONNECTIONS_MAX, Shared, Stage};
use super::stream::Bounded;
use crate::config::Config;

/// How long the head of a request may take, and how long a connection may be idle between two requests.
const HEAD_MAX: Duration = Duration::from_secs(15);

/// How long a vanished peer is not noticed.
const PEER_MAX: Duration = Duration::from_secs(35);

/// The longest head of a request. A URL of it may be 64 KiB long, for names.
const HEAD_BYTES_MAX: usize = 72 * 1024;

/// The first byte of a connection over TLS.
const TLS_BYTE: u8 = 0x16;

/// The answer to a plain request where only TLS is accepted.
const TLS_REQUIRED: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\
    Content-Length: 43\r\n\r\nThis port accepts only TLS; use https://.\n\n";

/// How long the listener waits after it could not accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The HTTP listener of a process. It ends when this is dropped.
#[derive(Debug)]
pub(in crate::server) struct Http {
    shared: Arc<Shared>,
    /// Ends the thread. `None`: the configuration enables no listener.
    _alive: Option<oneshot::Sender<Infallible>>,
}

impl Http {
    /// Starts the thread, if there are listeners.
    pub(in crate::server) fn start(
        config: &Config,
        listeners: Vec<StdTcpListener>,
        rules: Rules,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(config, rules));
        if listeners.is_empty() {
            return Ok(Self { shared, _alive: None });
        }
        let (alive, ended) = oneshot::channel::<Infallible>();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let its_shared = Arc::clone(&shared);
        std::thread::Builder::new().name("http".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve(its_shared, listeners) => {}
                    // It fails when the sender is dropped.
                    _ = ended => {}
                }
            });
        })?;
        Ok(Self { shared, _alive: Some(alive) })
    }

    /// This process is a node of a cluster, which stands by until it leads.
    pub(in crate::server) fn join(&self, view: NodeView) {
        self.shared.set_node(view);
        self.shared.set_stage(Stage::Standby);
    }

    /// The server serves clients from now on.
    pub(in crate::server) fn serve(&self, server: &Arc<Server>) {
        self.shared.set_stage(Stage::Serving(Arc::clone(server)));
    }

    /// The server is being stopped: it is no longer ready, and changes nothing.
    pub(in crate::server) fn drain(&self) {
        self.shared.drain();
    }

    /// Applies the settings that may change while the server runs.
    pub(in crate::server) fn apply(&self, config: &Config) {
        self.shared.apply(config);
    }
}

/// The addresses of listeners, for the log.
pub(in crate::server) fn addresses(listeners: &[StdTcpListener]) -> io::Result<Vec<SocketAddr>> {
    listeners.iter().map(StdTcpListener::local_addr).collect()
}

/// A connection counts until this is dropped.
struct CountedConnection {
    shared: Arc<Shared>,
    /// `None`: the header of the proxy has not been read yet.
    counted: Option<Counted>,
}

impl CountedConnection {
    /// Counts a connection of a peer; `None`: it is refused.
    fn count(shared: &Arc<Shared>, peer: ClientAddress) -> Option<Self> {
        let in_use = shared.connections.increment() as usize;
        let mut connection = Self { shared: Arc::clone(shared), counted: None };
        if in_use >= CONNECTIONS_MAX {
            shared.refused.add(1);
            if shared.warnings.permits() {
                warn!(
                    client = %peer.socket().ip(),
                    in_use,
                    "HTTP connections are refused: there are too many; find the client that opens so many"
                );
            }
            return None;
        }
        let is_proxy = shared.settings().is_proxy(peer.socket().ip());
        (is_proxy || connection.count_client(peer)).then_some(connection)
    }

    /// Counts the connection for its client, unless that has its share: then the connection has to be closed.
    fn count_client(&mut self, client: ClientAddress) -> bool {
        // This connection is counted already.
        let in_use = (self.shared.connections.value() as usize).saturating_sub(1);
        let (name, of) = ("HTTP connections", &[Listening::Http]);
        let limit = ConnectionLimit { name, max: CONNECTIONS_MAX, in_use, of };
        self.counted = self.shared.rules.shares.enter(client, Listening::Http, limit);
        if self.counted.is_none() {
            self.shared.refused.add(1);
        }
        self.counted.is_some()
    }

    /// What the connections of the client have together.
    fn usage(&self) -> Arc<ClientUsage> {
        self.counted.as_ref().map_or_else(Arc::default, |counted| Arc::clone(counted.usage()))
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.shared.connections.decrement();
    }
}

/// Serves all listeners, until the returned future is dropped.
async fn serve(shared: Arc<Shared>, listeners: Vec<StdTcpListener>) {
    let mut ports = tokio::task::JoinSet::new();
    for listener in listeners {
        match TcpListener::from_std(listener) {
            Ok(listener) => drop(ports.spawn(accept_all(Arc::clone(&shared), listener))),
            Err(error) => warn!(%error, "the HTTP listener cannot be served"),
        }
    }
    while ports.join_next().await.is_some() {}
}

async fn accept_all(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => accept(&shared, stream, peer),
            Err(error) => {
                debug!(%error, "an HTTP connection cannot be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn accept(shared: &Arc<Shared>, stream: TcpStream, peer: SocketAddr) {
    let address = ClientAddress::of_peer(peer);
    let Some(connection) = CountedConnection::count(shared, address) else { return };
    shared.accepted.add(1);
    tokio::spawn(async move {
        let outcome = begin(connection, stream, address).await;
        if let Err(error) = outcome {
            debug!(%peer, %error, "an HTTP connection has ended");
        }
    });
}

/// Reads the header of a proxy. Returns the client that it states; `None`: there is no header, which is logged, or the client has
/// its share.
async fn client_behind(
    connection: &mut CountedConnection,
    stream: &mut TcpStream,
    proxy: ClientAddress,
) -> Option<ClientAddress> {
    match read_header(stream, HEAD_MAX, |_| ()).await {
        Ok(stated) => {
            let client = ClientAddress::behind(proxy, stated);
            connection.count_client(client).then_some(client)
        }
        Err(error) => {
            if connection.shared.warnings.permits() {
                warn!(peer = %proxy.socket(), %error, "HTTP connection closed");
            }
            None
        }
    }
}

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Finds the client if a proxy has connected, begins TLS if the client does, and serves the connection.
async fn begin(mut connection: CountedConnection, mut stream: TcpStream, peer: ClientAddress) -> Outcome {
    socket::prepare_connection(&stream, PEER_MAX)?;
    let mut address = peer;
    if connection.counted.is_none() {
        let Some(client) = client_behind(&mut connection, &mut stream, peer).await else { return Ok(()) };
        address = client;
    }
    let (shared, usage) = (&connection.shared, connection.usage());
    let local = stream.local_addr()?.ip().to_canonical();
    let mut first = [0];
    if tokio::time::timeout(HEAD_MAX, stream.peek(&mut first)).await?? == 0 {
        return Ok(());
    }
    let tls = shared.rules.tls.current();
    let first_bytes = tls.as_ref().map(|tls| (tls.first_bytes_of(address), tls.config()));
    let mut client = Client { address, certificate: Arc::default() };
    match first_bytes {
        Some((_, config)) if first[0] == TLS_BYTE => {
            let (stream, names) = handshake(stream, config, &[], None).await?;
            client.certificate = names;
            let peer = Peer { client: Arc::new(client), local, is_encrypted: true };
            serve_requests(shared, stream, peer, usage).await
        }
        Some((FirstBytes::Tls, _)) => {
            tokio::time::timeout(HEAD_MAX, stream.write_all(TLS_REQUIRED)).await??;
            Ok(())
        }
        _ => {
            let peer = Peer { client: Arc::new(client), local, is_encrypted: false };
            serve_requests(shared, stream, peer, usage).await
        }
    }
}

async fn serve_requests<S>(shared: &Arc<Shared>, stream: S, peer: Peer, usage: Arc<ClientUsage>) -> Outcome
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(async |request| {
        let response = guard(shared, &peer, request).await;
        if is_refusal(response.status()) {
            let mut pauses = Pauses::new(Arc::clone(&usage));
            pauses.begin(1);
            poll_fn(|context| pauses.poll(context)).await;
        }
        Ok::<_, Infallible>(response)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX).max_buf_size(HEAD_BYTES_MAX);
    // Otherwise the connection copies what it sends.
    http.writev(true);
    http.serve_connection(TokioIo::new(Bounded::new(stream)), service).await?;
    Ok(())
}

/// Whether a client is slowed down for a request with this answer, as those of the service ports are that lack a right.
fn is_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_plain_requests_is_complete() {
        let text = str::from_utf8(TLS_REQUIRED).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())), "{head} {}", body.len());
    }
}
