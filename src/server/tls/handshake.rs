//! The handshake of a connection.
//!
//! A signature costs the server far more than its request costs a client, so:
//!
//! - Few handshakes of a client are in progress at a time. The others of that client wait before anything is computed for them.
//! - A thread computes for one handshake at a time. Between two computations it serves its other connections, and learns which
//!   clients have closed theirs: for those, nothing is computed.
//!
//! Invariants: a handshake is limited in time and in the bytes that it reads, which count as unfinished input.

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BufMut, BytesMut};
use rustls::server::{Accepted, AcceptedAlert, Acceptor};
use rustls::{ServerConfig, ServerConnection};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::io::poll_read_buf;

use super::super::client_address::ClientAddress;
use super::super::relay::proof::ChannelProof;
use super::super::shares::{ClientUsage, HandshakePermit};
use super::super::unfinished::{Unfinished, UnfinishedInput};
use super::HandshakeSettings;
use super::x509::names;
use signalbox_access::CertificateName;
use signalbox_protocol::relay::PROOF_BYTES;

/// How long a handshake may take: a few round trips on a bad network.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// The most bytes of one read.
const READ_BYTES: usize = 4 * 1024;

/// Memory that rustls allocates for a handshake, besides the received bytes.
const STATE_BYTES: usize = 4 * 1024;

/// The reason why a handshake has failed.
#[derive(Debug, Error)]
pub(in crate::server) enum HandshakeError {
    #[error("the client closed the connection")]
    Closed,
    #[error(transparent)]
    Io(io::Error),
    #[error("{0}")]
    Tls(io::Error),
    #[error("TLS is no longer configured")]
    NotConfigured,
    #[error(
        "it was not begun by the relay that announced the connection; another program is between the nodes"
    )]
    NotByTheRelay,
    #[error("it was not completed within {} s", HANDSHAKE_MAX.as_secs())]
    Timeout,
    #[error("it was not complete after {0} bytes of the client")]
    TooLong(usize),
    #[error("it took the memory of other clients (memory_max, client_share)")]
    OutOfMemory,
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // The kind of an error of rustls; no socket has it.
            ErrorKind::InvalidData => Self::Tls(error),
            ErrorKind::UnexpectedEof => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

impl From<rustls::Error> for HandshakeError {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(io::Error::new(ErrorKind::InvalidData, error))
    }
}

pub(in crate::server) struct Handshake<'a> {
    pub(in crate::server) settings: HandshakeSettings,
    pub(in crate::server) client: ClientAddress,
    /// The usage that the connections of the client share.
    pub(in crate::server) usage: Arc<ClientUsage>,
    /// Where the input of the handshake is counted; `None`: nowhere, because the process does not serve clients, and
    /// only its few HTTP connections have handshakes.
    pub(in crate::server) unfinished: Option<&'a Arc<Unfinished>>,
}

impl Handshake<'_> {
    /// Performs the handshake of a connection whose first bytes were received. A relay must then send its proof.
    /// Returns the stream, and the names in the client's verified certificate, if it has shown one.
    pub(in crate::server) async fn run<S>(
        self,
        io: S,
        received: BytesMut,
    ) -> Result<(TlsStream<S>, Arc<[CertificateName]>), HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let begun = self.unfinished.map(|unfinished| unfinished.begin(self.client, &self.usage));
        let (counted, closed) = begun.unzip();
        let is_closed = async {
            match closed {
                Some(closed) => drop::<Result<Infallible, _>>(closed.await),
                None => pending().await,
            }
        };
        let left = self.settings.bytes_max.saturating_sub(received.len());
        let input = Input { received, left, counted, handshake: &self };
        let stream = tokio::select! {
            stream = tokio::time::timeout(HANDSHAKE_MAX, self.steps(io, input)) => {
                stream.unwrap_or(Err(HandshakeError::Timeout))?
            }
            () = is_closed => return Err(HandshakeError::OutOfMemory),
        };
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let names = certificates.first().map(names).unwrap_or_default();
        Ok((stream, names.into()))
    }

    async fn steps<S>(&self, mut io: S, mut input: Input<'_>) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        input.count();
        let accepted = read_hello(&mut io, &mut input).await?;
        let mut permit = tokio::select! {
            permit = self.usage.begin_handshake() => permit,
            closed = input.read_until_closed(&mut io) => return Err(closed),
        };
        let connection = negotiate(&mut io, &mut input, accepted, &self.settings.config, &mut permit).await?;
        permit.complete();
        let mut stream = TlsAcceptor::from(Arc::clone(&self.settings.config))
            .accept_with(io, |own| *own = connection)
            .await?;
        if let Some(ChannelProof(proof)) = self.client.channel_proof() {
            let mut sent = [0; PROOF_BYTES];
            stream.read_exact(&mut sent).await?;
            // Each proof is accepted once, so an attacker learns nothing from how long the comparison takes.
            if sent != proof {
                return Err(HandshakeError::NotByTheRelay);
            }
        }
        // Dropped only at the end, because `run` ends a handshake whose input is no longer counted.
        drop(input);
        Ok(stream)
    }
}

/// The input of a client until its handshake is complete.
struct Input<'a> {
    /// Bytes that rustls has not taken yet.
    received: BytesMut,
    /// How many more bytes may be received.
    left: usize,
    counted: Option<UnfinishedInput>,
    handshake: &'a Handshake<'a>,
}

impl Input<'_> {
    /// Counts the memory of the handshake. rustls grows its buffer in multiples of [`READ_BYTES`].
    fn count(&mut self) {
        if let Some(counted) = &mut self.counted {
            let received = self.handshake.settings.bytes_max - self.left;
            counted.set(STATE_BYTES + received.next_multiple_of(READ_BYTES));
        }
    }

    async fn read(&mut self, io: &mut (impl AsyncRead + Unpin)) -> Result<(), HandshakeError> {
        poll_fn(|context| self.poll_read(io, context)).await
    }

    fn poll_read(
        &mut self,
        io: &mut (impl AsyncRead + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<Result<(), HandshakeError>> {
        if self.left == 0 {
            return Poll::Ready(Err(HandshakeError::TooLong(self.handshake.settings.bytes_max)));
        }
        let mut limited = (&mut self.received).limit(self.left.min(READ_BYTES));
        match ready!(poll_read_buf(Pin::new(io), context, &mut limited))? {
            0 => Poll::Ready(Err(HandshakeError::Closed)),
            read => {
                self.left -= read;
                self.count();
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Reads until that fails, because the client has closed the connection or sent too much.
    async fn read_until_closed(&mut self, io: &mut (impl AsyncRead + Unpin)) -> HandshakeError {
        loop {
            if let Err(error) = self.read(io).await {
                return error;
            }
        }
    }

    /// Fails if the thread has learnt that the client has closed the connection.
    async fn check_open(&mut self, io: &mut (impl AsyncRead + Unpin)) -> Result<(), HandshakeError> {
        poll_fn(|context| match self.poll_read(io, context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(())),
        })
        .await
    }

    /// Passes received bytes to rustls, as many as it takes.
    fn pass(&mut self, take: impl FnOnce(&mut &[u8]) -> io::Result<usize>) -> io::Result<()> {
        let taken = take(&mut &self.received[..])?;
        self.received.advance(taken);
        if self.received.is_empty() {
            self.received = BytesMut::new();
        }
        Ok(())
    }
}

/// Reads the ClientHello.
async fn read_hello<S>(io: &mut S, input: &mut Input<'_>) -> Result<Accepted, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut acceptor = Acceptor::default();
    loop {
        if input.received.is_empty() {
            input.read(io).await?;
        }
        input.pass(|mut received| acceptor.read_tls(&mut received))?;
        match acceptor.accept() {
            Ok(Some(accepted)) => return Ok(accepted),
            Ok(None) => {}
            Err((error, alert)) => return Err(send_alert(io, error, alert).await),
        }
    }
}

/// Answers the ClientHello, and completes the handshake.
async fn negotiate<S>(
    io: &mut S,
    input: &mut Input<'_>,
    accepted: Accepted,
    config: &Arc<ServerConfig>,
    permit: &mut HandshakePermit,
) -> Result<ServerConnection, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut turn = take_turn().await;
    input.check_open(io).await?;
    permit.begin_work();
    let mut connection = match accepted.into_connection(Arc::clone(config)) {
        Ok(connection) => connection,
        Err((error, alert)) => return Err(send_alert(io, error, alert).await),
    };
    loop {
        let processed = connection.process_new_packets();
        drop(turn);
        let sent = send(io, &mut connection).await;
        processed?;
        sent?;
        // Bytes after the last message of the handshake belong to the connection, so rustls must take them too.
        if !connection.is_handshaking() && input.received.is_empty() {
            return Ok(connection);
        }
        if input.received.is_empty() {
            input.read(io).await?;
        }
        turn = take_turn().await;
        input.pass(|mut received| connection.read_tls(&mut received))?;
    }
}

/// Sends the output of rustls.
async fn send(io: &mut (impl AsyncWrite + Unpin), connection: &mut ServerConnection) -> io::Result<()> {
    let mut out = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut out)?;
    }
    io.write_all(&out).await?;
    io.flush().await
}

/// Sends the client the alert of a failed handshake, and returns the error.
async fn send_alert(
    io: &mut (impl AsyncWrite + Unpin),
    error: rustls::Error,
    mut alert: AcceptedAlert,
) -> HandshakeError {
    let mut out = Vec::new();
    // Writing to a vector does not fail. Even if the client does not receive the alert, the handshake is over.
    let _ = alert.write_all(&mut out);
    let _ = io.write_all(&out).await;
    error.into()
}

thread_local! {
    /// Has one permit, because the thread computes for one handshake at a time.
    static TURN: Arc<Semaphore> = Arc::new(Semaphore::new(1));
}

/// Waits until the thread may compute for a handshake, and has served its other connections since the last computation.
async fn take_turn() -> Option<OwnedSemaphorePermit> {
    // It fails only if the semaphore was closed, and nothing closes it.
    let turn = TURN.with(Arc::clone).acquire_owned().await.ok();
    // tokio polls this task again after it has asked the kernel which connections are readable.
    tokio::task::yield_now().await;
    turn
}

#[cfg(test)]
mod tests {
    use rustls::crypto::ring::default_provider;
    use rustls::server::ResolvesServerCert;
    use rustls::sign::CertifiedKey;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};
    use tokio::io::duplex;
    use tokio::time::Instant;

    use super::*;

    /// For handshakes that end before the server needs a certificate.
    #[derive(Debug)]
    struct NoCertificate;

    impl ResolvesServerCert for NoCertificate {
        fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            None
        }
    }

    fn hello() -> Vec<u8> {
        let config = ClientConfig::builder_with_provider(default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let mut client = ClientConnection::new(config.into(), "localhost".try_into().unwrap()).unwrap();
        let mut hello = Vec::new();
        client.write_tls(&mut hello).unwrap();
        hello
    }

    /// A handshake of a client that sends its first message, and closes the connection or keeps it open.
    async fn handshake(usage: &Arc<ClientUsage>, is_closed: bool) -> HandshakeError {
        let config = ServerConfig::builder_with_provider(default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(NoCertificate));
        let (io, mut peer) = duplex(64 * 1024);
        peer.write_all(&hello()).await.unwrap();
        let _open = (!is_closed).then_some(peer);
        let handshake = Handshake {
            settings: HandshakeSettings { config: Arc::new(config), bytes_max: 16 * 1024 },
            client: ClientAddress::of_peer(([192, 0, 2, 7], 1).into()),
            usage: Arc::clone(usage),
            unfinished: None,
        };
        handshake.run(io, BytesMut::new()).await.map(drop).expect_err("the client does not complete it")
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_computed_for_a_client_that_has_closed_its_connection() {
        let (usage, begun) = (Arc::default(), Instant::now());
        for _ in 0..100 {
            assert!(matches!(handshake(&usage, true).await, HandshakeError::Closed));
        }
        assert_eq!(begun.elapsed(), Duration::ZERO, "none is still in progress");
        let mut computed = 0;
        while begun.elapsed().is_zero() && computed < 100 {
            handshake(&usage, false).await;
            computed += 1;
        }
        assert_eq!(computed, 33, "the last of which waits for a place");
    }
}
