//! Forwards requests for leases, and requests that only read, to the leader, over one HTTP/2 connection. A node does so
//! while it does not lead.
//!
//! Each request states its client; the leader reads the token, and answers as it answers its own clients. The
//! connection belongs to one term, like a relayed one. If it ends before the answer, the request is sent again, to the
//! next leader: all forwarded requests may be repeated. So the node keeps the whole request, and never waits for its
//! client while the leader answers.
//!
//! Invariant: each connection of a client has at most one request here, so the limits on connections bound the forwarded
//! requests.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::rt::Executor;
use hyper::{HeaderMap, Method, Request};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use super::super::access::Access;
use super::super::client_address::{Client, ClientAddress};
use super::super::relay::Outgoing;
use super::super::workers::Workers;
use super::access::Peer;
use super::access::may_forward_token;
use super::answer::{ApiError, Response};
use signalbox_cluster::relays::RelayTerm;
use signalbox_model::from_hex;
use signalbox_model::hex;

/// The header that states the client. It is read only on a connection whose node has proven itself.
const CLIENT: &str = "signalbox-client";

/// The time without anything from the leader after which the node pings it. The leader must answer within the same time.
const LEADER_SILENT_MAX: Duration = Duration::from_secs(2);

/// The most requests at a time whose clients have given up, but whose answers may still arrive.
const RESET_STREAMS_MAX: usize = 1024;

/// The pause before a request is sent again.
const PAUSE: Duration = Duration::from_millis(20);

/// Forwards requests to the leader.
pub(in crate::server) struct Forwarder {
    outgoing: Arc<Outgoing<Workers>>,
    /// The connection to the leader, once there is one. Requests that need it wait for this lock.
    connection: Mutex<Option<Connection>>,
}

#[derive(Clone)]
struct Connection {
    requests: SendRequest<Full<Bytes>>,
    /// Whether the requests are protected from being read or changed between the nodes.
    is_encrypted: bool,
}

/// The statements of a node about the client of a request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Stated {
    address: SocketAddr,
    /// Whether the address is the client's own: no program has forwarded the request to the node.
    is_direct: bool,
    /// Whether the client uses TLS.
    is_encrypted: bool,
    /// The names in the certificate that it has shown.
    certificate: Vec<String>,
}

/// Runs the tasks of a connection until its term is over. The connection then closes, and its requests fail.
#[derive(Clone)]
struct UntilOver(Arc<RelayTerm>);

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for UntilOver {
    fn execute(&self, future: F) {
        let term = Arc::clone(&self.0);
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = term.over() => {}
                _ = future => {}
            }
        });
    }
}

impl Forwarder {
    /// Returns a forwarder to the leaders that `outgoing` reaches.
    pub(in crate::server) fn new(outgoing: Arc<Outgoing<Workers>>) -> Self {
        Self { outgoing, connection: Mutex::default() }
    }

    /// Forwards a request to the leader, and returns its answer; `None`: this node leads by now. Fails if there has been no
    /// leader for `cluster.hold`.
    pub(super) async fn forward(
        &self,
        access: &Access,
        peer: &Peer,
        head: &Parts,
        body: &Bytes,
    ) -> Result<Option<Response>, ApiError> {
        tokio::select! {
            biased;
            answered = self.ask_leader(access, peer, head, body) => answered.map(Some),
            _ = self.outgoing.leading() => Ok(None),
        }
    }

    async fn ask_leader(
        &self,
        access: &Access,
        peer: &Peer,
        head: &Parts,
        body: &Bytes,
    ) -> Result<Response, ApiError> {
        // Only the time without a connection to a leader counts, not the time in which a leader answers.
        let mut hold = self.outgoing.hold;
        loop {
            let began = Instant::now();
            let connected = timeout(hold, self.connection()).await;
            let Connection { mut requests, is_encrypted } = connected.map_err(|_| ApiError::no_leader())?;
            hold = hold.saturating_sub(began.elapsed() + PAUSE);
            // A token that needs TLS is not sent over a connection without TLS.
            let stated = if is_encrypted { peer.clone() } else { Peer { is_encrypted, ..peer.forwarded() } };
            may_forward_token(access, &stated, &head.headers)?;
            match answer_to(&mut requests, compose(&stated, head, body)).await {
                Ok(response) => return Ok(response),
                Err(error) => debug!(%error, "a forwarded request was not answered, and is repeated"),
            }
            sleep(PAUSE).await;
        }
    }

    /// Returns the connection to the leader. Waits while there is no leader.
    async fn connection(&self) -> Connection {
        let mut slot = self.connection.lock().await;
        loop {
            if let Some(connection) = slot.as_ref().filter(|connection| !connection.requests.is_closed()) {
                return connection.clone();
            }
            let stream = self.outgoing.connect_for_requests().await;
            let (until_over, is_encrypted) = (UntilOver(stream.term()), stream.is_encrypted());
            let mut http = Builder::new(until_over.clone());
            http.timer(TokioTimer::new())
                .keep_alive_interval(LEADER_SILENT_MAX)
                .keep_alive_timeout(LEADER_SILENT_MAX)
                .max_concurrent_reset_streams(RESET_STREAMS_MAX);
            match http.handshake(TokioIo::new(stream)).await {
                Ok((requests, connection)) => {
                    until_over.execute(connection);
                    *slot = Some(Connection { requests, is_encrypted });
                }
                Err(error) => {
                    debug!(%error, "requests cannot be forwarded to the leader");
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

impl fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Forwarder")
    }
}

/// Sends a request, and reads all of the answer, so that a slow client delays no other client.
async fn answer_to(
    requests: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Result<Response, hyper::Error> {
    requests.ready().await?;
    let (head, body) = requests.send_request(request).await?.into_parts();
    let mut response = Response::new(Full::new(body.collect().await?.to_bytes()));
    (*response.status_mut(), *response.headers_mut()) = (head.status, head.headers);
    Ok(response)
}

/// Composes the request for the leader.
fn compose(peer: &Peer, head: &Parts, body: &Bytes) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body.clone()));
    // HEAD becomes GET: the listener of this node leaves the body out of the answer.
    *request.method_mut() = if head.method == Method::HEAD { Method::GET } else { head.method.clone() };
    *request.uri_mut() = head.uri.clone();
    let headers = request.headers_mut();
    for name in [AUTHORIZATION, CONTENT_TYPE] {
        // All values, because the leader refuses a header that is repeated.
        for value in head.headers.get_all(&name) {
            headers.append(&name, value.clone());
        }
    }
    headers.insert(CLIENT, Stated::of(peer).encode());
    request
}

impl Stated {
    fn of(peer: &Peer) -> Self {
        let Client { address, certificate } = &*peer.client;
        Self {
            address: address.socket(),
            is_direct: !address.is_proxied(),
            is_encrypted: peer.is_encrypted,
            certificate: certificate.iter().map(ToString::to_string).collect(),
        }
    }

    /// Encodes the statements in hexadecimal digits, because names may have any character.
    fn encode(&self) -> HeaderValue {
        let text = serde_json::to_vec(self).expect("texts, flags and an address can be written");
        HeaderValue::try_from(hex(&text)).expect("digits are a value")
    }

    /// Reads the statements in the head of a request; `None`: there are none, or they are malformed.
    pub(super) fn read(headers: &HeaderMap) -> Option<Self> {
        serde_json::from_slice(&from_hex(headers.get(CLIENT)?.to_str().ok()?)?).ok()
    }

    /// Returns the client as the leader sees it. The leader trusts statements that give rights only if they come over the
    /// TLS of `node`.
    pub(super) fn peer(self, node: ClientAddress) -> Peer {
        let is_proven = node.is_encrypted_by_relay();
        let names = self.certificate.iter().filter(|_| is_proven).filter_map(|name| name.parse().ok());
        let client = Client {
            address: ClientAddress::of_request(node, self.address, self.is_direct),
            certificate: names.collect(),
        };
        let is_encrypted = self.is_encrypted && is_proven;
        Peer { client: Arc::new(client), local: node.socket().ip(), is_encrypted }
    }
}
