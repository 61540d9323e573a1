//! The handshake of a connection. It is limited in time, and rustls limits the length of its messages to 64 KiB.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::super::relay::ChannelProof;
use super::identity::names;
use signalbox_access::CertificateName;
use signalbox_protocol::relay::PROOF_BYTES;

/// How long a handshake may take: a few round trips on a bad network.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Why there is no connection over TLS.
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
        "it was not begun by the relay that has stated whose connection this is; another program is between the nodes"
    )]
    NotByTheRelay,
    #[error("it was not completed within {} s", HANDSHAKE_MAX.as_secs())]
    Timeout,
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

/// Does the handshake of a connection whose first bytes were received. After it, a relay has to send its `proof`. Returns the
/// stream, and the names in the client's certificate, if it has shown one and that is verified.
pub(in crate::server) async fn handshake<S>(
    io: S,
    config: Arc<ServerConfig>,
    received: &[u8],
    proof: Option<ChannelProof>,
) -> Result<(TlsStream<S>, Arc<[CertificateName]>), HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let in_time = tokio::time::timeout(HANDSHAKE_MAX, untimed(io, config, received, proof)).await;
    let stream = in_time.unwrap_or(Err(HandshakeError::Timeout))?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let names = certificates.first().map(names).unwrap_or_default();
    Ok((stream, names.into()))
}

async fn untimed<S>(
    io: S,
    config: Arc<ServerConfig>,
    received: &[u8],
    proof: Option<ChannelProof>,
) -> Result<TlsStream<S>, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut begun = Ok(());
    let mut alert = Vec::new();
    let mut accept = TlsAcceptor::from(config).accept_with(io, |connection| {
        begun = begin(connection, received);
        if begun.is_err() {
            // A vector takes everything.
            let _ = connection.write_tls(&mut alert);
        }
    });
    if let (Err(error), Some(io)) = (begun, accept.get_mut()) {
        io.write_all(&alert).await?;
        return Err(error.into());
    }
    let mut stream = accept.await?;
    if let Some(ChannelProof(proof)) = proof {
        let mut sent = [0; PROOF_BYTES];
        stream.read_exact(&mut sent).await?;
        // Each is expected once, so the time of the comparison helps nobody.
        if sent != proof {
            return Err(HandshakeError::NotByTheRelay);
        }
    }
    Ok(stream)
}

/// Processes the first bytes, which were read before it was known that they begin a handshake.
fn begin(connection: &mut ServerConnection, mut received: &[u8]) -> io::Result<()> {
    while !received.is_empty() && connection.read_tls(&mut received)? > 0 {
        let processed = connection.process_new_packets();
        processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
    }
    Ok(())
}
