//! The leader's part: connections that other nodes relay.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::super::client_address::{ClientAddress, RelayedOver};
use super::super::listener::{Backoff, Listener, admit, is_of_the_peer};
use super::super::port::port_name;
use super::super::state::Server;
use super::super::throttle::Throttle;
use super::RelayNetwork;
use super::proof::{Handshake, Secret};
use signalbox_cluster::keys::RelaySecret;
use signalbox_model::Namespace;
use signalbox_protocol::relay::{Challenge, OPENING_BYTES, Opening, Outcome};

/// How long the handshake of a connection may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// The largest number of handshakes at a time. Further connections wait to be accepted.
const HANDSHAKES_MAX: usize = 1024;

/// The port for relays of the node that leads.
pub struct Incoming<N> {
    server: Arc<Server>,
    network: N,
    secret: Secret,
    /// The term of the leadership.
    epoch: u32,
    enabled: Vec<Namespace>,
    trust: Trust,
    warnings: Throttle,
}

/// Why the leader trusts the client address that a relay states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The network between nodes is trusted.
    Network,
    /// The relay proves its identity within TLS. Otherwise the client's address gives no rights.
    Proofs,
}

/// Why a connection is not served.
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
    #[error("it is for the port of the {0}s, which is disabled here; enable the same ports on all nodes")]
    Disabled(&'static str),
    #[error("the system has no random numbers: {0}")]
    Random(getrandom::Error),
}

impl<N: RelayNetwork> Incoming<N> {
    /// A port that serves connections of `enabled` namespaces for relays that know the secret and name this epoch. `trust` says
    /// whether the client addresses that they state give rights.
    pub fn new(
        server: Arc<Server>,
        network: N,
        secret: &RelaySecret,
        epoch: u32,
        enabled: Vec<Namespace>,
        trust: Trust,
    ) -> Self {
        let secret = Secret::new(secret);
        Self { server, network, secret, epoch, enabled, trust, warnings: Throttle::default() }
    }

    async fn accept(&self, mut stream: N::Stream, relay: SocketAddr) {
        let opened = tokio::time::timeout(HANDSHAKE_MAX, self.handshake(&mut stream, relay)).await;
        match opened.unwrap_or(Err(Refused::Timeout)) {
            Ok((namespace, client)) => {
                admit::<N::Listener>(&self.server, namespace, stream, client, self.network.spawner());
            }
            // The relay does not know yet that this node leads, or is closing.
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

    /// Performs the handshake: returns the port and the address of the client.
    async fn handshake(
        &self,
        stream: &mut N::Stream,
        relay: SocketAddr,
    ) -> Result<(Namespace, ClientAddress), Refused> {
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
        let namespace = statement.namespace;
        let plain = match self.trust {
            Trust::Network => RelayedOver::Trusted,
            Trust::Proofs => RelayedOver::Untrusted,
        };
        let over = match statement.is_encrypted_by_relay {
            true => RelayedOver::Tls(handshake.channel()),
            false => plain,
        };
        let mut client = ClientAddress::relayed(statement.client, relay, over);
        let outcome = if statement.epoch != self.epoch {
            Outcome::OtherEpoch
        } else if !self.enabled.contains(&namespace) {
            Outcome::Disabled
        } else if client.is_encrypted_by_relay() && self.refuses_plain(client) {
            // The client learns why from the answer to its first request.
            client = ClientAddress::relayed(statement.client, relay, plain);
            Outcome::AcceptedPlain
        } else {
            Outcome::Accepted
        };
        stream.write_all(&handshake.verdict(outcome).encode()).await?;
        match outcome {
            Outcome::Accepted | Outcome::AcceptedPlain => Ok((namespace, client)),
            Outcome::OtherEpoch => Err(Refused::OtherEpoch(statement.epoch)),
            Outcome::Disabled => Err(Refused::Disabled(port_name(namespace))),
        }
    }

    /// Whether a client that does not use TLS itself is refused.
    fn refuses_plain(&self, client: ClientAddress) -> bool {
        self.server.tls().is_some_and(|tls| !tls.permits_plain(client))
    }
}

/// Accepts the connections of relays and starts to serve them, until the returned future is dropped.
pub async fn serve_relays<N: RelayNetwork>(incoming: Incoming<N>, mut listener: N::Listener) {
    let incoming = Arc::new(incoming);
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    let mut tasks = JoinSet::new();
    let mut backoff = Backoff::default();
    loop {
        let permit = Arc::clone(&handshakes).acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, relay)) => {
                backoff.reset();
                let incoming = Arc::clone(&incoming);
                tasks.spawn(async move {
                    incoming.accept(stream, relay).await;
                    drop(permit);
                });
                while tasks.try_join_next().is_some() {}
            }
            Err(error) if is_of_the_peer(&error) => {
                debug!(%error, "a relay closed a connection before it was accepted");
            }
            Err(error) => backoff.pause("cluster.bind", &incoming.warnings, &error).await,
        }
    }
}
