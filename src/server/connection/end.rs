//! Why a connection ended.

use std::io;

use thiserror::Error;

use super::super::proxy_header::HeaderError;
use super::super::tls::HandshakeError;
use signalbox_protocol::DecodeError;

/// Why a connection ended.
#[derive(Debug, Error)]
pub(super) enum End {
    #[error("the peer closed it")]
    Peer,
    #[error(transparent)]
    Io(io::Error),
    #[error(transparent)]
    BadInput(DecodeError),
    #[error("a started frame was not completed in time")]
    FrameTimeout,
    #[error(transparent)]
    Header(HeaderError),
    #[error(
        "it had begun a request or a handshake, which took the memory of other clients (memory_max, client_share)"
    )]
    OutOfMemory,
    #[error("the TLS handshake failed: {0}")]
    Handshake(HandshakeError),
    #[error(
        "it sends requests without TLS, which tls.plain refuses; make the client use TLS, or change tls.plain"
    )]
    PlainRefused,
    #[error("its task panicked; please report this with the lines above it")]
    Panic,
    #[error("it has shown too many wrong tokens")]
    WrongTokens,
    #[error("its session was revoked")]
    Revoked,
    #[error("the server stops")]
    Shutdown,
    #[error("this node no longer leads the cluster")]
    Fenced,
}

impl End {
    /// Whether the server ends the connection while the peer may still send.
    pub(super) fn is_by_the_server(&self) -> bool {
        matches!(
            self,
            Self::BadInput(_)
                | Self::Header(HeaderError::Bad(_))
                | Self::OutOfMemory
                | Self::Handshake(_)
                | Self::PlainRefused
                | Self::WrongTokens
                | Self::Revoked
                | Self::Shutdown
                | Self::Fenced
        )
    }

    /// Whether only the part of the connection without TLS ends.
    pub(super) fn begins_tls(&self) -> bool {
        matches!(self, Self::BadInput(DecodeError::BeginsTls))
    }

    /// The end of a connection without a header that a proxy should have sent.
    pub(super) fn of_header(error: HeaderError) -> Self {
        match error {
            HeaderError::Closed => Self::Peer,
            HeaderError::Io(error) => Self::Io(error),
            error => Self::Header(error),
        }
    }

    /// The end of a connection whose handshake failed.
    pub(super) fn of_handshake(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Closed => Self::Peer,
            HandshakeError::Io(error) => Self::Io(error),
            HandshakeError::OutOfMemory => Self::OutOfMemory,
            error => Self::Handshake(error),
        }
    }
}
