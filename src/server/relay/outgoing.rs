//! The part of a node that does not lead: it accepts clients and opens connections to the leader for them.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use tracing::{debug, warn};

use super::super::client_address::ClientAddress;
use super::super::listener::{Listener, accept_all, admit};
use super::super::port::port_name;
use super::super::state::Server;
use super::super::throttle::Throttle;
use super::RelayNetwork;
use super::proof::{Handshake, Secret};
use super::splice::{Broken, splice};
use signalbox_cluster::relays::{Relay, RelayTerm, Relays};
use signalbox_model::Namespace;
use signalbox_protocol::TLS_HANDSHAKE;
use signalbox_protocol::relay::{
    CHALLENGE_BYTES, Challenge, Outcome, RelayedPort, Statement, VERDICT_BYTES, Verdict,
};
use signalbox_tls::{FileError, VERSIONS, certificates, provider};

/// How long one attempt to reach the leader may take.
const ATTEMPT_MAX: Duration = Duration::from_secs(1);

/// The pause between two attempts to reach a leader.
const PAUSE: Duration = Duration::from_millis(20);

/// The pause before another attempt to reach a leader that could not serve the client.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);

/// How long a relay that encrypts waits for the first byte of a client, which shows whether the client uses TLS itself.
const FIRST_BYTE_MAX: Duration = Duration::from_secs(60);

/// Relays the clients of a node to the leader.
pub struct Outgoing<N> {
    relays: Relays,
    network: N,
    /// How long a client waits for a leader.
    pub(in crate::server) hold: Duration,
    /// A vanished client or leader is noticed within this time.
    peer_timeout: Duration,
    /// `None`: connections without TLS are relayed without TLS.
    authority: Option<RelayAuthority>,
    /// The server of this node, once it leads: it serves the clients that waited for a leader.
    server: OnceLock<Arc<Server>>,
    leads: Notify,
    warnings: Warnings,
}

/// Encrypts the relayed connections of clients that do not use TLS themselves.
#[derive(Clone)]
pub struct RelayAuthority(Arc<ClientConfig>);

/// Warnings whose rate is limited.
#[derive(Default)]
struct Warnings {
    no_leader: Throttle,
    failed_attempt: Throttle,
    failed_accept: Throttle,
}

/// The reason why an attempt to connect to the leader has failed.
#[derive(Debug, Error)]
enum AttemptError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("no answer within {} s", ATTEMPT_MAX.as_secs())]
    Timeout,
    #[error("the program that listens there is not this cluster's leader")]
    NotTheLeader,
    #[error("it does not lead in this epoch")]
    OtherEpoch,
    #[error("the port of these clients is disabled there; enable the same ports on all nodes")]
    Disabled,
    #[error("TLS has failed: {0}")]
    Tls(io::Error),
    #[error("this node leads, leaves, or does not reach etcd")]
    TermOver,
}

impl AttemptError {
    /// Returns whether the leader was reached, so that an attempt for another client may succeed.
    fn has_reached_leader(&self) -> bool {
        match self {
            Self::OtherEpoch | Self::Disabled | Self::Tls(_) => true,
            Self::Io(_) | Self::Timeout | Self::NotTheLeader | Self::TermOver => false,
        }
    }
}

impl RelayAuthority {
    /// Reads the file with the certificates of the authorities that have signed those of the nodes.
    pub(in crate::server) fn read(file: &Path) -> Result<Self, FileError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(file)? {
            roots.add(certificate).map_err(FileError::unusable(file))?;
        }
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .expect("the provider has the cipher suites of the version")
            .with_root_certificates(roots)
            .with_no_client_auth();
        // The leader issues no tickets.
        config.resumption = Resumption::disabled();
        Ok(Self(Arc::new(config)))
    }
}

impl<N: RelayNetwork> Outgoing<N> {
    /// Returns an `Outgoing` that relays clients to the leaders that `relays` knows. A client waits for a leader for
    /// `hold`, and a vanished peer is noticed within `peer_timeout`. With an authority, connections without TLS are
    /// encrypted.
    pub fn new(
        relays: Relays,
        network: N,
        hold: Duration,
        peer_timeout: Duration,
        authority: Option<RelayAuthority>,
    ) -> Self {
        let (server, leads, warnings) = Default::default();
        Self { relays, network, hold, peer_timeout, authority, server, leads, warnings }
    }

    /// Notes that this node leads: `server` serves the clients that wait for a leader.
    pub fn on_leading(&self, server: &Arc<Server>) {
        // A process leads once.
        let _ = self.server.set(Arc::clone(server));
        self.leads.notify_waiters();
    }

    /// Opens a connection to the leader for HTTP requests. Waits while there is no leader.
    pub(in crate::server) async fn connect_for_requests(&self) -> ToLeader<N::Stream> {
        let no_client = SocketAddr::from(([0, 0, 0, 0], 0));
        let (relay, leader) = self.connect(RelayedPort::Http, no_client, self.authority.is_some()).await;
        debug!(epoch = relay.term().epoch(), "forwarding HTTP requests");
        ToLeader { leader, relay }
    }

    /// Waits until this node leads.
    pub(in crate::server) async fn leading(&self) -> &Arc<Server> {
        loop {
            let leads = self.leads.notified();
            if let Some(server) = self.server.get() {
                return server;
            }
            leads.await;
        }
    }

    /// Relays a client until it or the leader ends the connection. Waits for a leader for a limited time.
    async fn relay(self: Arc<Self>, namespace: Namespace, client: N::Stream, peer: SocketAddr) {
        let port = port_name(namespace);
        let is_encrypted_by_relay = match &self.authority {
            None => false,
            // A client that sends nothing holds nothing, and needs no leader. No limit on connections counts it, so it
            // is disconnected after a while.
            Some(_) => match tokio::time::timeout(FIRST_BYTE_MAX, N::first_byte(&client)).await {
                Ok(Ok(Some(byte))) => byte != TLS_HANDSHAKE,
                Ok(Ok(None) | Err(_)) | Err(_) => return,
            },
        };
        let (relay, leader) = tokio::select! {
            biased;
            connected = self.connect(RelayedPort::Service(namespace), peer, is_encrypted_by_relay) => connected,
            server = self.leading() => {
                let peer = ClientAddress::of_peer(peer);
                admit::<N::Listener>(server, namespace, client, peer, self.network.spawner());
                return;
            }
            () = tokio::time::sleep(self.hold) => {
                if self.warnings.no_leader.permits() {
                    warn!(
                        port, %peer,
                        "clients are disconnected: no leader has served them within cluster.hold; see \"signalbox cluster \
                         status\""
                    );
                }
                return;
            }
        };
        relay.count();
        debug!(port, %peer, epoch = relay.term().epoch(), "relaying a connection");
        match splice(client, leader, &relay).await {
            Ok(()) => debug!(port, %peer, "relayed connection closed"),
            Err(error) => {
                if let Broken::Leader(_) = error {
                    relay.ended_by_leader();
                }
                debug!(port, %peer, %error, "relayed connection closed");
            }
        }
    }

    /// Opens a connection to the leader. Waits while there is no leader.
    async fn connect(
        &self,
        port: RelayedPort,
        client: SocketAddr,
        is_encrypted_by_relay: bool,
    ) -> (Relay, Leader<N::Stream>) {
        loop {
            let leader_changed = self.relays.leader_changed();
            let Some(term) = self.relays.leader() else {
                leader_changed.await;
                continue;
            };
            let guard = tokio::select! {
                biased;
                () = term.over() => continue,
                guard = term.begin_attempt() => guard,
            };
            let statement = Statement { port, is_encrypted_by_relay, epoch: term.epoch(), client };
            let failed = match self.attempt(&term, statement).await {
                Ok(connected) => return connected,
                Err(failed) => failed,
            };
            self.on_failed_attempt(&term, &failed);
            // If the leader was not reached, the attempts for other clients wait until the pause is over.
            let (guard, pause) = match failed.has_reached_leader() {
                true => (None, REFUSED_PAUSE),
                false => (guard, PAUSE),
            };
            tokio::select! {
                biased;
                () = leader_changed => {}
                () = tokio::time::sleep(pause) => {}
            }
            drop(guard);
        }
    }

    /// Logs a failed attempt to connect to the leader. Unless the leader was reached and still leads, this also makes the
    /// node poll etcd. Does nothing if the attempt failed because the term is over.
    fn on_failed_attempt(&self, term: &RelayTerm, failed: &AttemptError) {
        let is_suspicious = match failed {
            AttemptError::TermOver => return,
            AttemptError::Disabled | AttemptError::Tls(_) => false,
            AttemptError::Io(_)
            | AttemptError::Timeout
            | AttemptError::NotTheLeader
            | AttemptError::OtherEpoch => true,
        };
        if is_suspicious {
            self.relays.suspect_leader();
        }
        if !failed.has_reached_leader() {
            term.set_reached(false);
        }
        let address = term.endpoint().address;
        // A leader that has failed refuses connections.
        let is_expected = matches!(failed, AttemptError::Io(_) | AttemptError::OtherEpoch);
        if !is_expected && self.warnings.failed_attempt.permits() {
            warn!(%address, error = %failed, "clients wait, because they cannot be relayed to the leader");
        } else {
            debug!(%address, error = %failed, "the leader was not reached");
        }
    }

    async fn attempt(
        &self,
        term: &Arc<RelayTerm>,
        statement: Statement,
    ) -> Result<(Relay, Leader<N::Stream>), AttemptError> {
        // The relay is counted before anything is sent, and dropped after the socket.
        let relay = self.relays.open(term).ok_or(AttemptError::TermOver)?;
        let leader = tokio::select! {
            biased;
            () = term.over() => Err(AttemptError::TermOver),
            leader = timeout_at(Instant::now() + ATTEMPT_MAX, self.handshake(&relay, statement)) => {
                leader.unwrap_or(Err(AttemptError::Timeout))
            }
        };
        Ok((relay, leader?))
    }

    async fn handshake(
        &self,
        relay: &Relay,
        statement: Statement,
    ) -> Result<Leader<N::Stream>, AttemptError> {
        let endpoint = relay.term().endpoint();
        let mut stream = self.network.connect(endpoint.address, self.peer_timeout).await?;
        let mut challenge = [0; CHALLENGE_BYTES];
        stream.read_exact(&mut challenge).await?;
        let challenge = Challenge::decode(&challenge).ok_or(AttemptError::NotTheLeader)?;
        let secret = Secret::new(&endpoint.secret);
        let handshake = Handshake { secret: &secret, challenge, statement };
        if !relay.may_forward() {
            return Err(AttemptError::TermOver);
        }
        stream.write_all(&handshake.opening().encode()).await?;
        let mut verdict = [0; VERDICT_BYTES];
        stream.read_exact(&mut verdict).await?;
        let verdict = Verdict::decode(&verdict).ok_or(AttemptError::NotTheLeader)?;
        if !handshake.is_answered_by(&verdict) {
            return Err(AttemptError::NotTheLeader);
        }
        relay.term().set_reached(true);
        match (verdict.outcome, &self.authority) {
            (Outcome::Accepted, Some(RelayAuthority(config))) if statement.is_encrypted_by_relay => {
                let name = ServerName::IpAddress(endpoint.address.ip().into());
                let connected = TlsConnector::from(Arc::clone(config)).connect(name, stream).await;
                let mut stream = connected.map_err(AttemptError::Tls)?;
                stream.write_all(&handshake.channel().0).await?;
                stream.flush().await?;
                Ok(Either::Right(Box::new(stream)))
            }
            (Outcome::Accepted | Outcome::AcceptedPlain, _) => Ok(Either::Left(stream)),
            (Outcome::OtherEpoch, _) => Err(AttemptError::OtherEpoch),
            (Outcome::Disabled, _) => Err(AttemptError::Disabled),
        }
    }
}

/// Accepts clients of a port and relays them, until the returned future is dropped.
pub async fn relay_port<N: RelayNetwork>(
    outgoing: Arc<Outgoing<N>>,
    namespace: Namespace,
    listener: N::Listener,
) {
    let port = port_name(namespace);
    let failed = || outgoing.warnings.failed_accept.permits();
    accept_all(listener, port, failed, |_, stream, peer| {
        if let Err(error) = N::Listener::prepare(&stream, outgoing.peer_timeout) {
            return debug!(port, %peer, %error, "connection lost before it was relayed");
        }
        let relaying = Arc::clone(&outgoing);
        outgoing.network.run(stream, move |stream| relaying.relay(namespace, stream, peer));
    })
    .await;
}

/// A connection to the leader: a plain one, or one over TLS that this node has begun.
type Leader<S> = Either<S, Box<TlsStream<S>>>;

/// A connection to the leader over which nothing is read or written past the term. It counts as relayed until this is
/// dropped.
pub(in crate::server) struct ToLeader<S> {
    // Dropped first, because a new leader waits until the relay is dropped.
    leader: Leader<S>,
    relay: Relay,
}

impl<S> ToLeader<S> {
    /// Returns the term, after which the connection must be closed.
    pub(in crate::server) fn term(&self) -> Arc<RelayTerm> {
        Arc::clone(self.relay.term())
    }

    /// Returns whether this node has begun TLS, and has proven this to the leader.
    pub(in crate::server) fn is_encrypted(&self) -> bool {
        matches!(self.leader, Either::Right(_))
    }

    fn check_term(&self) -> io::Result<()> {
        if self.relay.may_forward() { Ok(()) } else { Err(io::Error::other(Broken::TermOver)) }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for ToLeader<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_term()?;
        Pin::new(&mut self.leader).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ToLeader<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_term()?;
        Pin::new(&mut self.leader).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_term()?;
        Pin::new(&mut self.leader).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.leader).poll_shutdown(context)
    }
}
