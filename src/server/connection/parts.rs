//! The parts of a connection: [`Inbound`] reads, takes complete frames, and keeps the start of an incomplete one;
//! [`Activity`] is what the connection does now: it reads, executes what it has read, sends a long response, or ends;
//! [`End`] is why it ends; [`Outbound`] has the responses that the peer has not taken yet.
//!
//! The thread lends the buffers: bytes are read into one that its connections share, and a connection has one of its own only
//! while a frame is incomplete or output waits.

use std::io;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep};
use tokio_util::codec::Decoder;
use tokio_util::io::poll_read_buf;

use super::super::buffers::Buffers;
use super::super::dispatch::ResponseStream;
use super::super::metrics::Traffic;
use super::super::proxy_header::HeaderError;
use super::super::state::Server;
use super::super::tls::HandshakeError;
use super::super::unfinished::{Closed, SHORT_INPUT_BYTES, UnfinishedInput};
use signalbox_protocol::{DecodeError, Frames, RequestCodec};

/// The most bytes of one read: a burst of requests in one system call, but few enough that executing them delays other
/// connections by a fraction of a millisecond at most.
pub(super) const READ_BYTES_MAX: usize = 16 * 1024;

/// Splits a stream into requests by tokio-util's trait. [`RequestCodec`] cannot implement the trait, because its
/// package uses no runtime.
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
    /// The entry of the incomplete frame among all unfinished input, once the frame is long or has to be waited for.
    unfinished: Option<Box<(UnfinishedInput, Closed)>>,
    frame_timer: FrameTimer,
}

/// The time that an incomplete frame has taken. It runs only while the connection reads.
#[derive(Default)]
enum FrameTimer {
    #[default]
    Stopped,
    /// No timer of the runtime yet, because the next read completes nearly every frame.
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

    /// Returns the bytes that were received and not taken: all of them if TLS begins.
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

    /// Takes the complete frames, if any, out of what was read, and empties the shared buffer. Returns them, and the
    /// error if the bytes after them cannot be read as frames.
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

    /// Counts the incomplete frame as unfinished input if it is long. A read of many requests often leaves a short one,
    /// which is counted only if the connection has to wait for the rest of it.
    pub(super) fn count_if_long(&mut self, begin: impl FnOnce() -> (UnfinishedInput, Closed)) {
        if self.partial.len() > SHORT_INPUT_BYTES {
            self.count(begin);
        }
    }

    /// Ready when the incomplete frame has to make room for others; never if there is no incomplete frame.
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

/// How long the connection waits until the answers to a peer's last requests are stored. A disk may hang, and the
/// connection must not keep what it holds for that long.
const STORE_WAIT_MAX: Duration = Duration::from_secs(1);

/// The present activity of a connection. It reads only in the state `Reading`.
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
    /// Returns the next activity when these frames are left: it executes them, then ends if there is an `end`, else
    /// reads.
    pub(super) fn next(frames: Option<Frames>, end: Option<End>) -> Self {
        match (frames.filter(|frames| !frames.is_empty()), end) {
            (Some(frames), end) => Self::Executing { frames, end },
            (None, Some(end)) => Self::ending(end),
            (None, None) => Self::Reading,
        }
    }

    /// Returns the activity that sends a response of many frames before the frames that are left are executed.
    pub(super) fn streaming(response: Box<ResponseStream>, frames: Frames, end: Option<End>) -> Self {
        // Empty `Frames` would keep the buffer that they were read into.
        Self::Streaming { response, frames: (!frames.is_empty()).then_some(frames), end }
    }

    pub(super) fn ending(end: End) -> Self {
        Self::Ending { end, store_timer: None }
    }

    /// Returns why nothing more is read; `None`: the connection reads, or will read again.
    fn end(&self) -> Option<&End> {
        match self {
            Self::Reading => None,
            Self::Executing { end, .. } | Self::Streaming { end, .. } => end.as_ref(),
            Self::Ending { end, .. } => Some(end),
        }
    }

    /// Returns whether more is read, now or later.
    pub(super) fn is_input_open(&self) -> bool {
        self.end().is_none()
    }

    /// Returns whether the peer has sent all of its requests and may still read the answers.
    pub(super) fn is_ended_by_the_peer(&self) -> bool {
        matches!(self.end(), Some(End::Peer | End::BadInput(_)))
    }

    pub(super) fn is_streaming(&self) -> bool {
        matches!(self, Self::Streaming { .. })
    }

    pub(super) fn has_frames(&self) -> bool {
        matches!(self, Self::Executing { .. } | Self::Streaming { frames: Some(_), .. })
    }

    /// Returns whether received frames or a response are in progress.
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

/// The reason why a connection ended.
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
    /// Returns whether the server ends the connection while the peer may still send.
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

    /// Returns whether the connection does not end, but begins TLS.
    pub(super) fn begins_tls(&self) -> bool {
        matches!(self, Self::BadInput(DecodeError::BeginsTls))
    }

    /// Returns the end of a connection whose proxy sent no valid header.
    pub(super) fn of_header(error: HeaderError) -> Self {
        match error {
            HeaderError::Closed => Self::Peer,
            HeaderError::Io(error) => Self::Io(error),
            error => Self::Header(error),
        }
    }

    /// Returns the end of a connection whose handshake failed.
    pub(super) fn of_handshake(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Closed => Self::Peer,
            HandshakeError::Io(error) => Self::Io(error),
            HandshakeError::OutOfMemory => Self::OutOfMemory,
            error => Self::Handshake(error),
        }
    }
}

/// The most bytes of output that may wait for the peer while more is read from it.
pub(super) const OUTPUT_BYTES_MAX: usize = 64 * 1024;

/// The limit in place of [`OUTPUT_BYTES_MAX`] while the server has too little memory.
const OUTPUT_BYTES_MIN: usize = 4 * 1024;

#[derive(Default)]
pub(super) struct Outbound {
    buffer: Vec<u8>,
    /// The number of bytes at the start of `buffer` that the peer has taken.
    written: usize,
    /// The output has not been offered to the peer: it is sent in the next turn.
    deferred: bool,
    /// The stream may have output that it has accepted and not sent, as a TLS stream does.
    is_unflushed: bool,
}

impl Outbound {
    /// Takes a buffer of the thread, unless the connection has one.
    pub(super) fn borrow_buffer(&mut self, buffers: &mut Buffers) {
        if self.buffer.capacity() == 0 {
            self.buffer = buffers.lend();
        }
    }

    /// Returns the buffer to the thread, unless output waits in it.
    pub(super) fn return_buffer(&mut self, buffers: &mut Buffers) {
        if self.buffer.is_empty() {
            buffers.take_back(mem::take(&mut self.buffer));
        }
    }

    /// Returns the buffer to which responses are appended.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Returns whether so much output waits that nothing more may be read.
    pub(super) fn is_full(&self, is_memory_exhausted: bool) -> bool {
        self.buffer.len() - self.written
            > if is_memory_exhausted { OUTPUT_BYTES_MIN } else { OUTPUT_BYTES_MAX }
    }

    /// Returns whether output waits that the peer did not take when it was offered.
    pub(super) fn is_blocked(&self) -> bool {
        !self.deferred && (!self.buffer.is_empty() || self.is_unflushed)
    }

    /// Returns whether the stream has accepted output that it may not have sent.
    pub(super) fn is_unflushed(&self) -> bool {
        self.is_unflushed
    }

    /// Leaves the output to the next turn.
    pub(super) fn defer(&mut self) {
        self.deferred = true;
    }

    /// Writes the output. Pending while the peer does not take all of it.
    pub(super) fn poll_flush<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        traffic: &Traffic,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), End>> {
        self.deferred = false;
        while !self.buffer.is_empty() {
            let Poll::Ready(written) =
                Pin::new(&mut *stream).poll_write(context, &self.buffer[self.written..])
            else {
                return Poll::Pending;
            };
            let written = written.map_err(End::Io)?;
            if written == 0 {
                return Poll::Ready(Err(End::Io(io::ErrorKind::WriteZero.into())));
            }
            traffic.note_sent(written);
            self.is_unflushed = true;
            self.written += written;
            if 2 * self.written >= self.buffer.len() {
                // Moves the rest to the start. It is no longer than what was written, and usually empty.
                self.buffer.drain(..mem::take(&mut self.written));
            }
        }
        if self.is_unflushed {
            ready!(Pin::new(stream).poll_flush(context)).map_err(End::Io)?;
            self.is_unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}
