//! Why a connection ended.

use std::io;

use thiserror::Error;

use crate::core::ConnectionEnd;
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
    /// What the end means for a process with semaphore adjustments: only its own machine tells that it is over.
    pub(super) fn of_process(&self) -> ConnectionEnd {
        match self {
            Self::Peer => ConnectionEnd::Closed,
            Self::Io(_)
            | Self::BadInput(_)
            | Self::FrameTimeout
            | Self::Panic
            | Self::Revoked
            | Self::Shutdown => ConnectionEnd::Lost,
        }
    }

    /// Whether the server ends the connection while the peer may still send.
    pub(super) fn is_by_the_server(&self) -> bool {
        matches!(self, Self::BadInput(_) | Self::Revoked | Self::Shutdown)
    }
}
