//! Why a connection ended.

use std::io;

use thiserror::Error;

use crate::protocol::DecodeError;

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
    #[error("its task panicked; please report this with the lines above it")]
    Panic,
    #[error("its session was revoked")]
    Revoked,
    #[error("the server stops")]
    Shutdown,
}

impl End {
    /// Whether the server ends the connection while the peer may still send.
    pub(super) fn is_by_the_server(&self) -> bool {
        matches!(self, Self::BadInput(_) | Self::Revoked | Self::Shutdown)
    }
}
