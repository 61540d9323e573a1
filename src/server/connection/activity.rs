//! What a connection does: it reads, executes what it has read, sends a long response, or ends.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use super::super::dispatch::ResponseStream;
use super::end::End;
use signalbox_protocol::Frames;

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
