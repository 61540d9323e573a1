//! One connection that many callers share: queued requests are written together, and the opaque of a response
//! identifies its request.
//!
//! Invariants:
//! - An opaque stays in `waiting` from the moment its request is queued until its last response is received, even if
//!   the caller is gone. So no other request gets this opaque while a response with it may arrive, and nothing has to be
//!   cleaned up after a caller that is gone.
//! - Once `end` is set, `waiting` is empty and stays empty: all callers were informed, and no new ones can wait.
//! - The state's lock is never held across an await.
//! - Memory is bounded: requests wait for room before they are queued, except for those of [`Connection::post`] and
//!   [`Connection::ask_now`], whose number the caller limits. While the buffer of a series is full, nothing is read from
//!   the socket.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Waker};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tracing::debug;

use super::creator::Creator;
use super::error::{ConnectError, Disconnect, Error};
use super::{Token, success};
use signalbox_model::Status;
use signalbox_protocol::{Credentials, Extended, Opaque, Request, ResponseCodec, ResponseFrame, SysvRequest};

/// While at least this many bytes of requests are queued, callers wait: a few thousand requests of usual size.
const QUEUED_BYTES_MAX: usize = 256 * 1024;

/// The free space of the buffer before each read, in bytes.
const READ_BYTES_MIN: usize = 16 * 1024;

/// The number of responses of a series that are buffered for a slow reader. While the buffer is full, nothing more is
/// read from the socket.
const SERIES_FRAMES_MAX: usize = 32;

/// A handle of a connection. Dropping it closes the connection.
pub(super) struct Connection {
    shared: Arc<Shared>,
    driver: AbortHandle,
    creator: Creator,
    /// The server's address if others may read what is sent to it: it is on another machine, and there is no TLS.
    in_clear: Option<SocketAddr>,
}

impl Connection {
    /// Serves a stream in a task of the current runtime. `in_clear` is the address of the server if others may read what is
    /// sent to it.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(super) fn over(
        stream: impl AsyncRead + AsyncWrite + Send + 'static,
        in_clear: Option<SocketAddr>,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let ending = Ending(Arc::clone(&shared));
        let driver = tokio::spawn(async move { ending.0.drive(stream).await }).abort_handle();
        Self { shared, driver, creator: Creator::this_process(), in_clear }
    }

    /// Returns the credentials for Hello: the token, or empty ones without a token. Fails if the token may not be sent
    /// here.
    pub(super) fn credentials<'a>(&self, token: Option<&'a Token>) -> Result<Credentials<'a>, ConnectError> {
        Token::credentials_for(token, self.in_clear)
    }

    /// Queues a request that has one response, once there is room. Returns its opaque, by which the request can be
    /// canceled, and the receiver of the response.
    pub(super) async fn ask(
        &self,
        request: impl Outgoing,
    ) -> Result<(Opaque, oneshot::Receiver<ResponseFrame>), Disconnect> {
        self.creator.check()?;
        let (sender, answer) = oneshot::channel();
        let opaque = self.shared.queue(request, Waiting::Answer(sender)).await?;
        Ok((opaque, answer))
    }

    /// Queues a request with a series of responses, once there is room. Returns the receiver of the series, which ends
    /// with an empty body or a failure.
    pub(super) async fn ask_for_series(
        &self,
        request: impl Outgoing,
    ) -> Result<mpsc::Receiver<ResponseFrame>, Disconnect> {
        self.creator.check()?;
        let (sender, series) = mpsc::channel(SERIES_FRAMES_MAX);
        self.shared.queue(request, Waiting::Series(sender)).await?;
        Ok(series)
    }

    /// Queues a request without waiting for room; the caller limits how many it posts. Each response is sent to
    /// `responses` with the tag: the notice that the request waits, if there is one, then the answer, and then the
    /// notices of [`Answers::OneAndNotices`]. Returns the opaque.
    pub(super) fn post<T>(
        &self,
        request: impl Outgoing,
        tag: T,
        responses: &mpsc::UnboundedSender<(T, ResponseFrame)>,
        answers: Answers,
    ) -> Result<Opaque, Disconnect>
    where
        T: Copy + Send + Sync + 'static,
    {
        self.creator.check()?;
        let responses = responses.clone();
        let deliver = move |frame| drop(responses.send((tag, frame)));
        let waiting = Waiting::Posted { deliver: Box::new(deliver), answers };
        self.shared.queue_now(&request, waiting)
    }

    /// Queues a request without waiting for room, like [`Self::post`], and returns the receiver of its one response.
    pub(super) fn ask_now(
        &self,
        request: impl Outgoing,
    ) -> Result<oneshot::Receiver<ResponseFrame>, Disconnect> {
        self.creator.check()?;
        let (sender, answer) = oneshot::channel();
        self.shared.queue_now(&request, Waiting::Answer(sender))?;
        Ok(answer)
    }

    /// Queues a request that has one response, and waits for it. Returns the response if it reports success.
    pub(super) async fn ask_for_success(&self, request: impl Outgoing) -> Result<ResponseFrame, Error> {
        let (_, answer) = self.ask(request).await?;
        self.success(answer).await
    }

    /// Waits for the response to a request, and returns it if it reports success.
    pub(super) async fn success(
        &self,
        answer: oneshot::Receiver<ResponseFrame>,
    ) -> Result<ResponseFrame, Error> {
        success(answer.await.map_err(|_| self.end_reason())?)
    }

    /// Fails in the child of a fork.
    pub(super) fn check_creator(&self) -> Result<(), Disconnect> {
        self.creator.check()
    }

    /// Returns why the connection ended, for a caller whose response channel has closed.
    pub(super) fn end_reason(&self) -> Disconnect {
        self.shared
            .end
            .borrow()
            .clone()
            .expect("response channels are closed only when the connection has ended")
    }

    /// Waits until the connection has ended, and returns why.
    pub(super) async fn ended(&self) -> Disconnect {
        if let Err(forked) = self.creator.check() {
            return forked;
        }
        let mut end = self.shared.end.subscribe();
        let end = end.wait_for(Option::is_some).await.expect("`self` keeps the sender");
        end.clone().expect("the wait ends when the reason is set")
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("ended", &*self.shared.end.borrow()).finish_non_exhaustive()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.creator.is_this_process() {
            self.driver.abort();
        }
    }
}

/// A request of any kind, before it has an opaque.
pub(super) trait Outgoing {
    fn compose(&self, opaque: Opaque, out: &mut Vec<u8>);
}

macro_rules! outgoing {
    ($($request:ident)*) => {$(
        impl Outgoing for $request<'_> {
            fn compose(&self, opaque: Opaque, out: &mut Vec<u8>) {
                self.compose(opaque, out);
            }
        }
    )*};
}

outgoing! { Request Extended SysvRequest }

/// The number of responses that a posted request has, not counting the notice that it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answers {
    One,
    /// One response and then, with the same opaque, the notices of the server.
    OneAndNotices,
}

/// Receives the responses to one request.
enum Waiting {
    Answer(oneshot::Sender<ResponseFrame>),
    Series(mpsc::Sender<ResponseFrame>),
    Posted { deliver: Box<dyn Fn(ResponseFrame) + Send + Sync>, answers: Answers },
}

/// The state that callers share with the task that serves the connection.
#[derive(Default)]
struct Shared {
    /// A blocking mutex: it is held for a few instructions and never across an await.
    state: Mutex<State>,
    /// Wakes the writer: something is queued.
    queued: Notify,
    /// Wakes callers: the writer has taken the queued requests, or the connection ended.
    room: Notify,
    /// Why the connection ended; set once, under the state's lock.
    end: watch::Sender<Option<Disconnect>>,
}

#[derive(Default)]
struct State {
    /// Composed requests that the writer has not taken yet.
    outgoing: Vec<u8>,
    waiting: HashMap<Opaque, Waiting>,
    opaque_last: u32,
}

impl State {
    /// Returns an unused opaque. There are more opaques than requests that fit in memory, so one is found.
    fn free_opaque(&mut self) -> Opaque {
        loop {
            self.opaque_last = self.opaque_last.wrapping_add(1);
            let opaque = Opaque(self.opaque_last.to_be_bytes());
            if !self.waiting.contains_key(&opaque) {
                return opaque;
            }
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the lock")
    }

    /// Queues the request once there is room, and registers the receiver of its responses. Returns its opaque.
    async fn queue(&self, request: impl Outgoing, waiting: Waiting) -> Result<Opaque, Disconnect> {
        loop {
            // Subscribe before the check, so that no wake-up between the check and the wait is missed.
            let mut room = pin!(self.room.notified());
            room.as_mut().enable();
            if self.end.borrow().is_some() || self.state().outgoing.len() < QUEUED_BYTES_MAX {
                return self.queue_now(&request, waiting);
            }
            room.await;
        }
    }

    fn queue_now(&self, request: &impl Outgoing, waiting: Waiting) -> Result<Opaque, Disconnect> {
        let mut state = self.state();
        if let Some(reason) = self.end.borrow().clone() {
            return Err(reason);
        }
        let opaque = state.free_opaque();
        request.compose(opaque, &mut state.outgoing);
        state.waiting.insert(opaque, waiting);
        self.queued.notify_one();
        Ok(opaque)
    }

    /// Reads and writes concurrently until either fails, so that requests are written even while a slow series stops
    /// the reading.
    async fn drive(&self, stream: impl AsyncRead + AsyncWrite) {
        let mut stream = Closing { stream: Box::pin(stream), creator: Creator::this_process() };
        let (reader, writer) = tokio::io::split(&mut stream.stream);
        let reason = tokio::select! {
            // Read first: responses that the server sent before it closed the connection are valid.
            biased;
            reason = self.read_responses(reader) => reason,
            reason = self.write_requests(writer) => reason,
        };
        drop(stream);
        debug!(%reason, "connection ended");
        self.finish(reason);
    }

    /// Writes the queued requests in batches: a batch is all that was queued during the previous write.
    async fn write_requests(&self, mut writer: impl AsyncWrite + Unpin) -> Disconnect {
        let mut batch = Vec::new();
        loop {
            self.queued.notified().await;
            std::mem::swap(&mut self.state().outgoing, &mut batch);
            self.room.notify_waiters();
            if let Err(error) = writer.write_all(&batch).await {
                return error.into();
            }
            if let Err(error) = writer.flush().await {
                return error.into();
            }
            batch.clear();
        }
    }

    async fn read_responses(&self, mut reader: impl AsyncRead + Unpin) -> Disconnect {
        let mut codec = ResponseCodec;
        let mut buffer = BytesMut::new();
        loop {
            loop {
                match codec.decode(&mut buffer) {
                    Ok(Some(frame)) => self.deliver(frame).await,
                    Ok(None) => break,
                    Err(error) => return error.into(),
                }
            }
            buffer.reserve(READ_BYTES_MIN);
            match reader.read_buf(&mut buffer).await {
                Ok(0) => return Disconnect::ClosedByServer,
                Ok(_) => {}
                Err(error) => return error.into(),
            }
        }
    }

    /// Delivers a response. It is dropped if its caller is gone.
    async fn deliver(&self, frame: ResponseFrame) {
        let Some(frame) = self.deliver_posted(frame) else { return };
        match self.take_recipient(&frame) {
            // An error means that the caller is gone.
            Some(Waiting::Answer(sender)) => drop(sender.send(frame)),
            // An error means that the reader is gone: the rest of the series is received and dropped.
            Some(Waiting::Series(sender)) => drop(sender.send(frame).await),
            Some(Waiting::Posted { .. }) | None => {
                debug!(opaque = %frame.opaque, status = frame.status, "no caller waits for this response")
            }
        }
    }

    /// Delivers the response to a posted request; returns any other response.
    fn deliver_posted(&self, frame: ResponseFrame) -> Option<ResponseFrame> {
        let mut state = self.state();
        let Entry::Occupied(entry) = state.waiting.entry(frame.opaque) else { return Some(frame) };
        let Waiting::Posted { deliver, answers } = entry.get() else { return Some(frame) };
        // The notice that the request waits; the answer comes later.
        let is_queued = frame.status == Status::Queued.code();
        deliver(frame);
        if *answers == Answers::One && !is_queued {
            entry.remove();
        }
        None
    }

    /// Takes the receiver of a response. This frees its opaque, unless more responses of a series follow.
    fn take_recipient(&self, frame: &ResponseFrame) -> Option<Waiting> {
        let ends_series = frame.status != Status::NoError.code() || frame.body.is_empty();
        match self.state().waiting.entry(frame.opaque) {
            Entry::Vacant(_) => None,
            Entry::Occupied(entry) => match entry.get() {
                Waiting::Series(sender) if !ends_series => Some(Waiting::Series(sender.clone())),
                _ => Some(entry.remove()),
            },
        }
    }

    /// Closes the channels of all callers: no more responses will come. Only the first reason is kept.
    fn finish(&self, reason: Disconnect) {
        let mut state = self.state();
        if self.end.borrow().is_some() {
            return;
        }
        self.end.send_replace(Some(reason));
        state.waiting = HashMap::new();
        state.outgoing = Vec::new();
        drop(state);
        self.room.notify_waiters();
    }
}

/// A stream that is shut down when it is dropped. Closing its socket would not be enough: while a child of this process
/// has a copy of the socket, the connection stays open. With TLS, the shutdown sends close_notify, if the socket accepts
/// it at once.
struct Closing<S: AsyncWrite> {
    stream: Pin<Box<S>>,
    creator: Creator,
}

impl<S: AsyncWrite> Drop for Closing<S> {
    fn drop(&mut self) {
        if self.creator.is_this_process() {
            // A failure means that the stream has ended.
            let _ = self.stream.as_mut().poll_shutdown(&mut Context::from_waker(Waker::noop()));
        }
    }
}

/// Ends the connection even if its task is dropped early, because the runtime is shut down or the task panicked.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.finish(Disconnect::Stopped);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;

    use super::*;

    fn state_of(connection: &Connection) -> (usize, usize) {
        let state = connection.shared.state();
        (state.waiting.len(), state.outgoing.len())
    }

    async fn answer(far: &mut DuplexStream, opaque: u32, body: &'static [u8]) {
        let opaque = Opaque(opaque.to_be_bytes());
        let frame = ResponseFrame { opcode: 0, status: 0, opaque, body: body.into() };
        let mut out = Vec::new();
        frame.compose(&mut out);
        far.write_all(&out).await.unwrap();
    }

    #[tokio::test]
    async fn callers_that_went_away_leave_nothing_once_they_were_answered() {
        let (near, mut far) = tokio::io::duplex(1024);
        let connection = Connection::over(near, None);
        drop(connection.ask(Request::Noop).await.unwrap());
        drop(connection.ask_for_series(Request::Dump).await.unwrap());
        let (_, last) = connection.ask(Request::Noop).await.unwrap();
        assert_eq!(state_of(&connection).0, 3, "their opaques are in use until then");

        answer(&mut far, 1, b"").await;
        answer(&mut far, 2, b"one of the series").await;
        answer(&mut far, 2, b"").await;
        answer(&mut far, 3, b"").await;
        last.await.unwrap();
        assert_eq!(state_of(&connection), (0, 0));
    }

    #[tokio::test]
    async fn opaques_in_use_are_skipped_when_the_numbers_wrap() {
        let (near, _far) = tokio::io::duplex(1024);
        let connection = Connection::over(near, None);
        let _first = connection.ask(Request::Noop).await.unwrap();
        connection.shared.state().opaque_last = 0;
        let _second = connection.ask(Request::Noop).await.unwrap();
        assert_eq!(connection.shared.state().opaque_last, 2);
        assert_eq!(state_of(&connection).0, 2);
    }
}
