//! The handshake of a connection. It is limited in time and in memory.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use rustls::ServerConfig;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::super::relay::ChannelProof;
use super::identity::identity;
use super::records::{self, Progress};
use super::stream::TlsSession;

/// How long a handshake may take: a few round trips on a bad network.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Most bytes of a client's handshake that are kept until they are complete: a chain of certificates.
const HANDSHAKE_BYTES_MAX: usize = 32 * 1024;

/// Room for a first message.
const HANDSHAKE_BYTES_USUAL: usize = 2 * 1024;

/// Why there is no connection over TLS.
#[derive(Debug, Error)]
pub(in crate::server) enum HandshakeError {
    #[error("the client closed the connection")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    #[error("the client has sent more than {HANDSHAKE_BYTES_MAX} bytes of it")]
    TooLong,
    #[error("TLS is not configured any more")]
    NotConfigured,
    #[error(
        "it was not begun by the relay that has stated whose connection this is; somebody is between the nodes"
    )]
    NotByTheRelay,
    #[error("it was not completed within {} s", HANDSHAKE_MAX.as_secs())]
    Timeout,
}

/// Does the handshake of a connection whose first bytes were received. Behind it, a relay has to send its `proof`. Returns the
/// session, and the name in the client's certificate if it has a verified one.
pub(in crate::server) async fn shake_hands<S>(
    io: &mut S,
    config: Arc<ServerConfig>,
    received: BytesMut,
    proof: Option<ChannelProof>,
    record_time: Duration,
) -> Result<(Box<TlsSession>, Option<Arc<str>>), HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut session = TlsSession::new(config, received, record_time)?;
    let proof = proof.as_ref().map_or(&[][..], |proof| &proof.0);
    let in_time = tokio::time::timeout(HANDSHAKE_MAX, drive(io, &mut session, proof.len())).await;
    in_time.unwrap_or(Err(HandshakeError::Timeout))?;
    // Each is expected once, so the time of the comparison helps nobody.
    if session.decrypted.get(..proof.len()) != Some(proof) {
        return Err(HandshakeError::NotByTheRelay);
    }
    session.decrypted.advance(proof.len());
    if session.received.is_empty() {
        session.received = BytesMut::new();
    }
    let certificates = session.connection.peer_certificates().unwrap_or_default();
    let name = certificates.first().and_then(identity);
    Ok((session, name))
}

/// Goes on until the handshake is done and so many bytes have come behind it.
async fn drive<S>(io: &mut S, session: &mut TlsSession, bytes: usize) -> Result<(), HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        let mut out = Vec::new();
        let TlsSession { connection, received, decrypted, .. } = session;
        let deliver = |plain: &[u8]| decrypted.extend_from_slice(plain);
        let (processed, progress) = records::process(connection, received, &mut out, deliver);
        received.advance(processed);
        io.write_all(&out).await?;
        match progress? {
            Progress::Established if session.decrypted.len() >= bytes => return Ok(()),
            Progress::Closed if session.connection.is_handshaking() => return Err(HandshakeError::Closed),
            // The client has sent all of its requests already.
            Progress::Closed => {
                session.is_closed_by_peer = true;
                return Ok(());
            }
            _ if received.len() >= HANDSHAKE_BYTES_MAX => {
                return Err(HandshakeError::TooLong);
            }
            Progress::Handshake | Progress::Established => {
                received.reserve(HANDSHAKE_BYTES_USUAL);
                if io.read_buf(received).await? == 0 {
                    return Err(HandshakeError::Closed);
                }
            }
        }
    }
}
