//! The leader's part: connections that other nodes relay.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{AbortHandle, JoinSet};
use tracing::{debug, warn};

use super::super::client_address::{ClientAddress, RelayedOver};
use super::super::listener::{Listener, accept_all, admit};
use super::super::lock;
use super::super::port::port_name;
use super::super::state::Server;
use super::super::throttle::Throttle;
use super::RelayNetwork;
use super::proof::{Handshake, Secret};
use super::unproven::{NoRoom, Unproven};
use signalbox_cluster::keys::RelaySecret;
use signalbox_model::Namespace;
use signalbox_protocol::relay::{Challenge, OPENING_BYTES, Opening, Outcome, RelayedPort};

/// How long the handshake of a connection may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// The port for relays of the node that leads.
pub struct Incoming<N: RelayNetwork> {
    server: Arc<Server>,
    network: N,
    secret: Secret,
    /// The number of this node's term.
    epoch: u32,
    served: Served<N::Stream>,
    trust: Trust,
    is_node: IsNode,
    unproven: Mutex<Unproven<AbortHandle>>,
    warnings: Throttle,
}

/// The ports whose clients are served.
pub struct Served<S> {
    /// Service ports.
    pub namespaces: Vec<Namespace>,
    /// Serves HTTP requests; `None`: HTTP is disabled.
    pub http: Option<ServeRequests<S>>,
}

/// Serves a connection over which a node forwards HTTP requests. The address is that of the node.
pub type ServeRequests<S> = Box<dyn Fn(S, ClientAddress) + Send + Sync>;

/// Returns whether a node of the cluster is known to have this address.
pub type IsNode = Box<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// The entry of a connection among the unproven ones. Dropping this removes the entry.
struct Listed<'a> {
    unproven: &'a Mutex<Unproven<AbortHandle>>,
    number: u64,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        lock(self.unproven).remove(self.number);
    }
}

/// The condition under which the leader trusts the client address that a relay states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The network between nodes is trusted.
    Network,
    /// The relay proves its identity within TLS. Otherwise the client's address gives no rights.
    Proofs,
}

/// The reason why a connection is not served.
#[derive(Debug, Error)]
enum Refused {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it has not completed the handshake in time")]
    Timeout,
    #[error(
        "it does not speak the protocol of relays, or does not know this leader's secret; only nodes of the cluster \
         connect to cluster.bind"
    )]
    Unproven,
    #[error("it is for the leader of epoch {0}")]
    OtherEpoch(u32),
    #[error("it is for the {0} port, which is disabled here; enable the same ports on all nodes")]
    Disabled(&'static str),
    #[error("the system has no random numbers: {0}")]
    Random(getrandom::Error),
}

impl<N: RelayNetwork> Incoming<N> {
    /// Returns the port. It serves the clients of the ports in `served` if their relays know the secret and state this
    /// epoch. `trust` says whether the client addresses that relays state give rights.
    ///
    /// Connections from addresses for which `is_node` returns true are preferred until their relays have proven
    /// themselves.
    pub fn new(
        server: Arc<Server>,
        network: N,
        secret: &RelaySecret,
        epoch: u32,
        served: Served<N::Stream>,
        trust: Trust,
        is_node: IsNode,
    ) -> Self {
        let secret = Secret::new(secret);
        let (unproven, warnings) = Default::default();
        Self { server, network, secret, epoch, served, trust, is_node, unproven, warnings }
    }

    /// Starts to serve a connection. If there are too many unproven ones, closes the oldest that it may replace, or this
    /// one if it may replace none.
    fn begin(self: &Arc<Self>, tasks: &mut JoinSet<()>, stream: N::Stream, relay: SocketAddr) {
        let client = ClientAddress::of_peer(relay).key();
        let is_of_node = (self.is_node)(relay.ip().to_canonical());
        let room = lock(&self.unproven).make_room(client, is_of_node);
        match room {
            Ok(None) => {}
            Ok(Some(oldest)) => {
                oldest.abort();
                self.warn_of_many(relay);
            }
            // Dropping the stream closes it.
            Err(NoRoom) => return self.warn_of_many(relay),
        }
        // The lock is held until the connection is listed; the task needs it to remove the connection from the list.
        lock(&self.unproven).add(client, is_of_node, |number| {
            let incoming = Arc::clone(self);
            tasks.spawn(async move {
                let listed = Listed { unproven: &incoming.unproven, number };
                incoming.accept(stream, relay, listed).await;
            })
        });
    }

    fn warn_of_many(&self, relay: SocketAddr) {
        if self.warnings.permits() {
            warn!(
                %relay,
                "too many connections to cluster.bind have not proven that they come from a node, so the oldest are closed; \
                 let only nodes of the cluster reach the port"
            );
        }
    }

    async fn accept(&self, mut stream: N::Stream, relay: SocketAddr, listed: Listed<'_>) {
        let opened = tokio::time::timeout(HANDSHAKE_MAX, self.handshake(&mut stream, relay, listed)).await;
        match opened.unwrap_or(Err(Refused::Timeout)) {
            Ok((RelayedPort::Service(namespace), client)) => {
                admit::<N::Listener>(&self.server, namespace, stream, client, self.network.spawner());
            }
            Ok((RelayedPort::Http, node)) => {
                if let Some(serve) = &self.served.http {
                    serve(stream, node);
                }
            }
            // The relay is closing, or knows another leader.
            Err(refused @ (Refused::Io(_) | Refused::OtherEpoch(_))) => {
                debug!(%relay, %refused, "a relayed connection was not accepted");
            }
            Err(refused) => {
                if self.warnings.permits() {
                    warn!(%relay, %refused, "a relayed connection was not accepted");
                }
            }
        }
    }

    /// Performs the handshake. Returns the port, and the address of the client, or for HTTP that of the node.
    async fn handshake(
        &self,
        stream: &mut N::Stream,
        relay: SocketAddr,
        listed: Listed<'_>,
    ) -> Result<(RelayedPort, ClientAddress), Refused> {
        N::Listener::prepare(stream, self.server.peer_timeout())?;
        let mut challenge = Challenge { nonce: Default::default() };
        getrandom::fill(&mut challenge.nonce).map_err(Refused::Random)?;
        stream.write_all(&challenge.encode()).await?;
        let mut received = [0; OPENING_BYTES];
        stream.read_exact(&mut received).await?;
        let opening = Opening::decode(&received).ok_or(Refused::Unproven)?;
        let statement = opening.statement;
        let handshake = Handshake { secret: &self.secret, challenge, statement };
        if !handshake.is_proven_by(&opening) {
            return Err(Refused::Unproven);
        }
        // Removed from the list before the verdict, because an accepted connection must not be closed for another one.
        drop(listed);
        let port = statement.port;
        let (client, is_enabled) = match port {
            RelayedPort::Service(namespace) => {
                (statement.client, self.served.namespaces.contains(&namespace))
            }
            RelayedPort::Http => (relay, self.served.http.is_some()),
        };
        let plain = match (self.trust, port) {
            (Trust::Network, RelayedPort::Service(_)) => RelayedOver::Trusted,
            (Trust::Proofs, _) | (_, RelayedPort::Http) => RelayedOver::Untrusted,
        };
        let over = match statement.is_encrypted_by_relay {
            true => RelayedOver::Tls(handshake.channel()),
            false => plain,
        };
        let mut address = ClientAddress::relayed(client, relay, over);
        let outcome = if statement.epoch != self.epoch {
            Outcome::OtherEpoch
        } else if !is_enabled {
            Outcome::Disabled
        } else if port != RelayedPort::Http && address.is_encrypted_by_relay() && self.refuses_plain(address)
        {
            // The answer to the client's first request says that it must use TLS.
            address = ClientAddress::relayed(client, relay, plain);
            Outcome::AcceptedPlain
        } else {
            Outcome::Accepted
        };
        stream.write_all(&handshake.verdict(outcome).encode()).await?;
        match outcome {
            Outcome::Accepted | Outcome::AcceptedPlain => Ok((port, address)),
            Outcome::OtherEpoch => Err(Refused::OtherEpoch(statement.epoch)),
            Outcome::Disabled => Err(Refused::Disabled(match port {
                RelayedPort::Service(namespace) => port_name(namespace),
                RelayedPort::Http => "HTTP",
            })),
        }
    }

    /// Returns whether a client that does not use TLS itself is refused.
    fn refuses_plain(&self, client: ClientAddress) -> bool {
        self.server.tls().is_some_and(|tls| !tls.permits_plain(client))
    }
}

/// Accepts the connections of relays and starts to serve them, until the returned future is dropped.
pub async fn serve_relays<N: RelayNetwork>(incoming: Incoming<N>, listener: N::Listener) {
    let incoming = Arc::new(incoming);
    let mut tasks = JoinSet::new();
    accept_all(
        listener,
        "cluster.bind",
        || incoming.warnings.permits(),
        |_, stream, relay| {
            incoming.begin(&mut tasks, stream, relay);
            while tasks.try_join_next().is_some() {}
        },
    )
    .await;
}
