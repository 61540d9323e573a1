//! The request that a connection receives: its head and its body count as unfinished input once they are long, until all of
//! them are there.

use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use super::super::unfinished::{Closed, SHORT_INPUT_BYTES, UnfinishedInput};
use super::connections::Place;

/// The bytes of a request that is being received.
#[derive(Debug, Default)]
pub(super) struct Input(Mutex<Received>);

#[derive(Debug, Default)]
struct Received {
    bytes: usize,
    /// Set once they are many.
    counted: Option<(UnfinishedInput, Closed)>,
}

impl Input {
    /// The connection at this place has received so many more bytes, perhaps none. Ready when it has to be closed, so that there is room for
    /// others.
    pub(super) fn poll_received(&self, place: &Place, bytes: usize, context: &mut Context<'_>) -> Poll<()> {
        let mut received = self.received();
        received.bytes += bytes;
        if bytes > 0
            && received.bytes > SHORT_INPUT_BYTES
            && let Some(server) = place.server()
            && let Some(client) = place.client()
        {
            let bytes = received.bytes;
            let begin = || UnfinishedInput::begin(&server, client, &place.usage());
            received.counted.get_or_insert_with(begin).0.set(&server, bytes);
        }
        match &mut received.counted {
            Some((_, closed)) => Pin::new(closed).poll(context).map(drop),
            None => Poll::Pending,
        }
    }

    /// The request is complete.
    pub(super) fn complete(&self) {
        *self.received() = Received::default();
    }

    fn received(&self) -> MutexGuard<'_, Received> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
