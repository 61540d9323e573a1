//! What a connection does: it reads, executes what it has read, sends a long response, or ends, and why it ends.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use thiserror::Error;
use tokio::time::Sleep;

use super::super::dispatch::ResponseStream;
use super::super::proxy_header::HeaderError;
use super::super::tls::HandshakeError;
use signalbox_protocol::{DecodeError, Frames};

/// How long the answers to a peer's last requests may take to be stored. A disk may hang, and the connection must not keep
/// what it holds for that long.
const STORE_WAIT_MAX: Duration = Duration::from_secs(1);

/// What a connection does now. It reads in one state only.
#[derive(Default)]
pub(super) enum Activity {
    /// It reads requests.
    #[default]
    Reading,
    /// It executes received frames, at least one.
    Executing {
        frames: Frames,
        /// Why nothing more is read afterwards; `None`: it reads again.
        end: Option<End>,
    },
    /// It sends a response of many frames, before the frames after its request are executed.
    Streaming { response: Box<ResponseStream>, frames: Option<Frames>, end: Option<End> },
    /// Everything that was received is executed. It sends the last answers, and ends.
    Ending {
        end: End,
        /// Runs while only the store delays the last answers.
        store_timer: Option<Pin<Box<Sleep>>>,
    },
}

impl Activity {
    /// What follows when these frames are left.
    pub(super) fn next(frames: Option<Frames>, end: Option<End>) -> Self {
        match (frames.filter(|frames| !frames.is_empty()), end) {
            (Some(frames), end) => Self::Executing { frames, end },
            (None, Some(end)) => Self::ending(end),
            (None, None) => Self::Reading,
        }
    }

    /// A response of many frames comes before the frames that are left.
    pub(super) fn streaming(response: Box<ResponseStream>, frames: Frames, end: Option<End>) -> Self {
        // An empty run would keep the buffer that it was read into.
        Self::Streaming { response, frames: (!frames.is_empty()).then_some(frames), end }
    }

    pub(super) fn ending(end: End) -> Self {
        Self::Ending { end, store_timer: None }
    }

    /// Why nothing more is read; `None`: it reads, or will read again.
    fn end(&self) -> Option<&End> {
        match self {
            Self::Reading => None,
            Self::Executing { end, .. } | Self::Streaming { end, .. } => end.as_ref(),
            Self::Ending { end, .. } => Some(end),
        }
    }

    /// Whether more is read, now or later.
    pub(super) fn is_input_open(&self) -> bool {
        self.end().is_none()
    }

    /// Whether the peer has sent all of its requests and may still read the answers.
    pub(super) fn is_ended_by_the_peer(&self) -> bool {
        matches!(self.end(), Some(End::Peer | End::BadInput(_)))
    }

    pub(super) fn is_streaming(&self) -> bool {
        matches!(self, Self::Streaming { .. })
    }

    pub(super) fn has_frames(&self) -> bool {
        matches!(self, Self::Executing { .. } | Self::Streaming { frames: Some(_), .. })
    }

    /// Whether received frames or a response are in progress.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Self::Executing { .. } | Self::Streaming { .. })
    }

    /// Stops the wait for the store while the peer takes no output. It starts from zero afterwards.
    pub(super) fn pause_store_timer(&mut self) {
        if let Self::Ending { store_timer, .. } = self {
            *store_timer = None;
        }
    }
}

/// Ready when the last answers have waited too long for the store.
pub(super) fn poll_store_timer(
    store_timer: &mut Option<Pin<Box<Sleep>>>,
    context: &mut Context<'_>,
) -> Poll<()> {
    let timer = store_timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(STORE_WAIT_MAX)));
    timer.as_mut().poll(context)
}

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
