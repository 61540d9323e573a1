//! The state of a connection's requests: what is being executed or sent, and whether more is read.

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

/// The work in progress. While there is some, nothing is read.
#[derive(Default)]
pub(super) enum Work {
    #[default]
    None,
    /// Received frames, at least one, wait to be executed.
    Frames(Frames),
    /// A response of many frames is sent, before the frames behind its request are executed.
    Stream { response: Box<ResponseStream>, frames: Option<Frames> },
}

impl Work {
    /// What is left to do when the frames before these were executed.
    pub(super) fn remaining(frames: Frames) -> Self {
        if frames.is_empty() { Self::None } else { Self::Frames(frames) }
    }

    /// What is to do when a response of many frames comes before the frames that are left.
    pub(super) fn stream(response: Box<ResponseStream>, frames: Frames) -> Self {
        // An empty run would keep the buffer that it was read into.
        Self::Stream { response, frames: (!frames.is_empty()).then_some(frames) }
    }

    pub(super) fn is_stream(&self) -> bool {
        matches!(self, Self::Stream { .. })
    }

    pub(super) fn has_frames(&self) -> bool {
        matches!(self, Self::Frames(_) | Self::Stream { frames: Some(_), .. })
    }

    pub(super) fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}

/// Whether the connection reads.
#[derive(Default)]
pub(super) enum Input {
    #[default]
    Open,
    /// Nothing more is read. What was received before is still answered, and then the connection ends.
    Ended {
        end: End,
        /// Runs while only the store delays the last answers.
        store_timer: Option<Pin<Box<Sleep>>>,
    },
}

impl Input {
    pub(super) fn ended(end: End) -> Self {
        Self::Ended { end, store_timer: None }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }

    /// Whether the peer has sent all of its requests and may still read the answers.
    pub(super) fn is_ended_by_the_peer(&self) -> bool {
        matches!(self, Self::Ended { end: End::Peer | End::BadInput(_), .. })
    }

    /// Stops the wait for the store while the peer takes no output. It starts from zero afterwards.
    pub(super) fn pause_store_timer(&mut self) {
        if let Self::Ended { store_timer, .. } = self {
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
