//! The inbound part of a connection: it reads, takes complete frames, and keeps the start of an incomplete one.
//!
//! Bytes are read into a buffer that the connections of a thread share. A connection has a buffer of its own only while a
//! frame is incomplete.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::AsyncRead;
use tokio::time::{Instant, Sleep};
use tokio_util::codec::Decoder;
use tokio_util::io::poll_read_buf;

use super::super::state::Server;
use super::super::unfinished::{Closed, SHORT_INPUT_BYTES, UnfinishedInput};
use super::activity::End;
use signalbox_protocol::{DecodeError, Frames, RequestCodec};

/// Most bytes of one read: a burst of requests in one system call, but not so many that executing them keeps other
/// connections waiting for more than a fraction of a millisecond.
pub(super) const READ_BYTES_MAX: usize = 16 * 1024;

/// Splits a stream into requests, as a codec of tokio-util, which the design asks for. [`RequestCodec`] is in a package without a
/// runtime, so that it cannot implement the trait itself.
struct RequestDecoder(RequestCodec);

impl Decoder for RequestDecoder {
    type Item = Frames;
    type Error = DecodeError;

    fn decode(&mut self, source: &mut BytesMut) -> Result<Option<Frames>, DecodeError> {
        self.0.decode(source)
    }
}

pub(super) struct Inbound {
    decoder: RequestDecoder,
    /// The start of a frame whose rest has not been received.
    partial: BytesMut,
    /// The incomplete frame among all unfinished input, once it is long or its rest is not there.
    unfinished: Option<Box<(UnfinishedInput, Closed)>>,
    frame_timer: FrameTimer,
}

/// The time that an incomplete frame has taken. It runs only while the connection reads.
#[derive(Default)]
enum FrameTimer {
    #[default]
    Stopped,
    /// No timer of the runtime yet, as the next read completes nearly every frame.
    Running {
        since: Instant,
    },
    Armed(Pin<Box<Sleep>>),
}

impl Inbound {
    /// `may_begin_tls`: the first bytes may be the start of a TLS handshake.
    pub(super) fn new(may_begin_tls: bool) -> Self {
        Self {
            decoder: RequestDecoder(RequestCodec::new(may_begin_tls)),
            partial: BytesMut::new(),
            unfinished: None,
            frame_timer: FrameTimer::default(),
        }
    }

    /// The bytes that were received and not taken: where TLS begins, all of them.
    pub(super) fn into_received(self) -> BytesMut {
        self.partial
    }

    /// Reads once into the shared buffer, and returns the number of bytes; 0 when the peer sends nothing more. Fails when
    /// a started frame is overdue, or has to make room for others. `begin` counts a frame as unfinished input.
    pub(super) fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        shared: &mut BytesMut,
        server: &Server,
        begin: impl FnOnce() -> (UnfinishedInput, Closed),
        context: &mut Context<'_>,
    ) -> Poll<Result<usize, End>> {
        self.start_frame_timer();
        shared.reserve(READ_BYTES_MAX);
        let Poll::Ready(read) = poll_read_buf(Pin::new(stream), context, shared) else {
            return self.poll_frame_timer(server, begin, context).map(Err);
        };
        Poll::Ready(read.map_err(End::Io))
    }

    /// Takes the complete frames out of what was read, if there are any, and returns why the bytes after them cannot be read as
    /// frames. It empties the shared buffer.
    pub(super) fn take_frames(&mut self, shared: &mut BytesMut) -> (Option<Frames>, Option<DecodeError>) {
        let buffer = if self.partial.is_empty() {
            &mut *shared
        } else {
            // The buffer grows with the bytes that were sent, not with the length that was announced.
            self.partial.extend_from_slice(shared);
            shared.clear();
            &mut self.partial
        };
        let received = match self.decoder.decode(buffer) {
            // These are all complete frames. The second call returns whether the input after them is unreadable.
            Ok(Some(frames)) => (Some(frames), self.decoder.decode(buffer).err()),
            Ok(None) => (None, None),
            Err(error) => (None, Some(error)),
        };
        if received.0.is_some() {
            self.pause_frame_timer();
            self.unfinished = None;
        }
        // Keeps the start of an incomplete frame, or drops the connection's own buffer if there is none.
        if self.partial.is_empty() {
            self.partial = BytesMut::new();
        }
        self.partial.extend_from_slice(shared);
        shared.clear();
        self.start_frame_timer();
        received
    }

    /// Counts the incomplete frame as unfinished input if it is long, before the next read. A read of many requests leaves a
    /// short one, which is counted only if its rest has to be waited for.
    pub(super) fn count_if_long(&mut self, begin: impl FnOnce() -> (UnfinishedInput, Closed)) {
        if self.partial.len() > SHORT_INPUT_BYTES {
            self.count(begin);
        }
    }

    /// Ready when the incomplete frame has to make room for others. Without one, never.
    pub(super) fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<End> {
        match self.unfinished.as_deref_mut() {
            Some((_, closed)) => Pin::new(closed).poll(context).map(|_| End::OutOfMemory),
            None => Poll::Pending,
        }
    }

    fn count(&mut self, begin: impl FnOnce() -> (UnfinishedInput, Closed)) {
        let (input, _) = &mut **self.unfinished.get_or_insert_with(|| Box::new(begin()));
        input.set(self.partial.capacity());
    }

    /// Stops the time of an incomplete frame while its rest is not read. It starts from zero with the next read.
    pub(super) fn pause_frame_timer(&mut self) {
        self.frame_timer = FrameTimer::Stopped;
    }

    fn start_frame_timer(&mut self) {
        if !self.partial.is_empty()
            && let FrameTimer::Stopped = self.frame_timer
        {
            self.frame_timer = FrameTimer::Running { since: Instant::now() };
        }
    }

    /// Ready when a started frame is overdue, or has to make room for others.
    fn poll_frame_timer(
        &mut self,
        server: &Server,
        begin: impl FnOnce() -> (UnfinishedInput, Closed),
        context: &mut Context<'_>,
    ) -> Poll<End> {
        if let FrameTimer::Running { since } = self.frame_timer {
            let deadline = since + server.frame_timeout();
            self.frame_timer = FrameTimer::Armed(Box::pin(tokio::time::sleep_until(deadline)));
        }
        let FrameTimer::Armed(timer) = &mut self.frame_timer else { return Poll::Pending };
        if timer.as_mut().poll(context).is_ready() {
            return Poll::Ready(End::FrameTimeout);
        }
        self.count(begin);
        self.poll_closed(context)
    }
}
