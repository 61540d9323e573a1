//! One connection shared by many callers: requests are queued and written together, responses find their caller by
//! their opaque.
//!
//! Invariants:
//! - An opaque stays in `waiting` from the moment its request is queued until its last response was received, also
//!   when nobody wants the response any more. So it is never given to another request while a response for it may
//!   come, and a caller that goes away leaves nothing to clean up.
//! - Once `end` is set, `waiting` is empty and stays empty: everybody who waited has been told, nobody waits again.
//! - The state's lock is never held across an await.
//! - Memory is bounded: requests wait for room before they are queued, but for posted ones, which who posts them bounds
//!   by himself; and a Dump that is not read stops the reading.
//!
//! What requests mean and what their answers carry is left to `Client`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tracing::debug;

use super::error::{Error, Loss};
use super::success;
use crate::protocol::{Extended, Opaque, Request, ResponseCodec, ResponseFrame, Status};

/// Bytes of queued requests from which on callers wait before they queue more: some thousand requests of usual size.
const QUEUED_BYTES_MAX: usize = 256 * 1024;

/// Room that a read finds at least, in bytes.
const READ_BYTES_MIN: usize = 16 * 1024;

/// Entries of a Dump that are kept for a slow consumer before reading stops.
const DUMP_FRAMES_MAX: usize = 32;

/// A handle of the connection, which is closed when it is dropped.
pub(super) struct Connection {
    shared: Arc<Shared>,
    driver: AbortHandle,
}

impl Connection {
    /// Takes over a stream and drives it in a task of the current runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(super) fn over(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let shared = Arc::new(Shared::default());
        let ending = Ending(Arc::clone(&shared));
        let driver = tokio::spawn(async move { ending.0.drive(stream).await }).abort_handle();
        Self { shared, driver }
    }

    /// Queues a request that has a single response.
    pub(super) async fn ask(
        &self,
        request: impl Into<Outgoing<'_>>,
    ) -> Result<oneshot::Receiver<ResponseFrame>, Loss> {
        let (sender, answer) = oneshot::channel();
        self.shared.queue(request.into(), Waiting::Answer(sender)).await?;
        Ok(answer)
    }

    /// Queues a request whose responses are a series that an empty body or a failure ends.
    pub(super) async fn ask_for_series(
        &self,
        request: impl Into<Outgoing<'_>>,
    ) -> Result<mpsc::Receiver<ResponseFrame>, Loss> {
        let (sender, series) = mpsc::channel(DUMP_FRAMES_MAX);
        self.shared.queue(request.into(), Waiting::Series(sender)).await?;
        Ok(series)
    }

    /// Queues a request at once, however much is queued: for who bounds by himself how much he asks. Its responses go
    /// to `reports`, each with the tag.
    pub(super) fn post<'a, T>(
        &self,
        request: impl Into<Outgoing<'a>>,
        tag: T,
        reports: &mpsc::UnboundedSender<(T, ResponseFrame)>,
        answers: Answers,
    ) -> Result<(), Loss>
    where
        T: Copy + Send + Sync + 'static,
    {
        let reports = reports.clone();
        let deliver = move |frame| drop(reports.send((tag, frame)));
        self.shared.queue_now(&request.into(), Waiting::Posted { deliver: Box::new(deliver), answers })
    }

    /// Queues a request that has a single response at once, as [`Self::post`] does.
    pub(super) fn ask_now<'a>(
        &self,
        request: impl Into<Outgoing<'a>>,
    ) -> Result<oneshot::Receiver<ResponseFrame>, Loss> {
        let (sender, answer) = oneshot::channel();
        self.shared.queue_now(&request.into(), Waiting::Answer(sender))?;
        Ok(answer)
    }

    /// Asks for what has a single response, and gives that where it reports success.
    pub(super) async fn ask_for_success(
        &self,
        request: impl Into<Outgoing<'_>>,
    ) -> Result<ResponseFrame, Error> {
        let answer = self.ask(request).await?;
        self.success(answer).await
    }

    /// Waits for the response to [`Self::ask_now`], and gives it where it reports success.
    pub(super) async fn success(
        &self,
        answer: oneshot::Receiver<ResponseFrame>,
    ) -> Result<ResponseFrame, Error> {
        success(answer.await.map_err(|_| self.loss())?)
    }

    /// Why the connection ended, for a caller whose answer will not come.
    pub(super) fn loss(&self) -> Loss {
        self.shared.end.borrow().clone().expect("answers are given up only once the connection has ended")
    }

    /// Resolves when the connection has ended.
    pub(super) async fn ended(&self) -> Loss {
        let mut end = self.shared.end.subscribe();
        let end = end.wait_for(Option::is_some).await.expect("the sender lives in what self holds");
        end.clone().expect("waited for just this")
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("ended", &*self.shared.end.borrow()).finish_non_exhaustive()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// A request of either kind, before it has its opaque.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outgoing<'a> {
    Plain(Request<'a>),
    Extended(Extended<'a>),
}

impl<'a> From<Request<'a>> for Outgoing<'a> {
    fn from(request: Request<'a>) -> Self {
        Self::Plain(request)
    }
}

impl<'a> From<Extended<'a>> for Outgoing<'a> {
    fn from(request: Extended<'a>) -> Self {
        Self::Extended(request)
    }
}

impl Outgoing<'_> {
    fn compose(&self, opaque: Opaque, out: &mut BytesMut) {
        match self {
            Self::Plain(request) => request.compose(opaque, out),
            Self::Extended(request) => request.compose(opaque, out),
        }
    }
}

/// How many responses a posted request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answers {
    One,
    /// One and then, under the same opaque, whatever the server has to say.
    AndNotices,
}

/// Who waits for the responses under an opaque.
enum Waiting {
    Answer(oneshot::Sender<ResponseFrame>),
    Series(mpsc::Sender<ResponseFrame>),
    Posted { deliver: Box<dyn Fn(ResponseFrame) + Send + Sync>, answers: Answers },
}

/// What callers and the driving task share.
#[derive(Default)]
struct Shared {
    /// A plain mutex: it is held for a few instructions and never across an await.
    state: Mutex<State>,
    /// Wakes the writer: something is queued.
    queued: Notify,
    /// Wakes callers: the queue was taken, or the connection ended.
    room: Notify,
    /// Why the connection ended; set once, under the state's lock.
    end: watch::Sender<Option<Loss>>,
}

#[derive(Default)]
struct State {
    /// Composed requests that the writer has not taken yet.
    outgoing: BytesMut,
    waiting: HashMap<Opaque, Waiting>,
    opaque_last: u32,
}

impl State {
    /// An opaque that nobody waits under. There are more of them than memory holds, so one is found.
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
        self.state.lock().expect("nothing that is done under the lock panics")
    }

    /// Composes the request into the queue once there is room, and registers who waits for its responses.
    async fn queue(&self, request: Outgoing<'_>, waiting: Waiting) -> Result<(), Loss> {
        loop {
            // Listens before it looks, so that no wake-up falls in between.
            let mut room = pin!(self.room.notified());
            room.as_mut().enable();
            if self.end.borrow().is_some() || self.state().outgoing.len() < QUEUED_BYTES_MAX {
                return self.queue_now(&request, waiting);
            }
            room.await;
        }
    }

    fn queue_now(&self, request: &Outgoing<'_>, waiting: Waiting) -> Result<(), Loss> {
        let mut state = self.state();
        if let Some(loss) = self.end.borrow().clone() {
            return Err(loss);
        }
        let opaque = state.free_opaque();
        request.compose(opaque, &mut state.outgoing);
        state.waiting.insert(opaque, waiting);
        self.queued.notify_one();
        Ok(())
    }

    /// Reads and writes until either fails; both halves run at the same time, so a reader that a slow Dump holds up
    /// does not keep requests from being written.
    async fn drive(&self, stream: impl AsyncRead + AsyncWrite) {
        let (reader, writer) = tokio::io::split(stream);
        let loss = tokio::select! {
            // Reading comes first: what the server answered before it closed the connection counts.
            biased;
            loss = self.read_responses(reader) => loss,
            loss = self.write_requests(writer) => loss,
        };
        debug!(%loss, "connection ended");
        self.finish(loss);
    }

    /// Writes what is queued, all of it at once. While a write is under way, the next one gathers.
    async fn write_requests(&self, mut writer: impl AsyncWrite + Unpin) -> Loss {
        let mut batch = BytesMut::new();
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

    async fn read_responses(&self, mut reader: impl AsyncRead + Unpin) -> Loss {
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
                Ok(0) => return Loss::ClosedByServer,
                Ok(_) => {}
                Err(error) => return error.into(),
            }
        }
    }

    /// Hands a response to who waits for it. One that nobody wants any more is dropped.
    async fn deliver(&self, frame: ResponseFrame) {
        let Some(frame) = self.deliver_posted(frame) else { return };
        match self.recipient(&frame) {
            // An error says that the caller has gone, which it may.
            Some(Waiting::Answer(sender)) => drop(sender.send(frame)),
            // An error says that the consumer has gone: the rest of the series is received and dropped.
            Some(Waiting::Series(sender)) => drop(sender.send(frame).await),
            Some(Waiting::Posted { .. }) | None => {
                debug!(opaque = %frame.opaque, status = frame.status, "nobody waits for this response")
            }
        }
    }

    /// Hands over a response to a posted request; gives back one that is not.
    fn deliver_posted(&self, frame: ResponseFrame) -> Option<ResponseFrame> {
        let mut state = self.state();
        let Entry::Occupied(entry) = state.waiting.entry(frame.opaque) else { return Some(frame) };
        let Waiting::Posted { deliver, answers } = entry.get() else { return Some(frame) };
        deliver(frame);
        if *answers == Answers::One {
            entry.remove();
        }
        None
    }

    /// Who waits for this response. Its opaque is free again unless the response is one of a series and not the
    /// last.
    fn recipient(&self, frame: &ResponseFrame) -> Option<Waiting> {
        let ends_series = frame.status != Status::NoError.code() || frame.body.is_empty();
        match self.state().waiting.entry(frame.opaque) {
            Entry::Vacant(_) => None,
            Entry::Occupied(entry) => match entry.get() {
                Waiting::Series(sender) if !ends_series => Some(Waiting::Series(sender.clone())),
                _ => Some(entry.remove()),
            },
        }
    }

    /// Tells everybody that no more answers will come. Only the first reason counts.
    fn finish(&self, loss: Loss) {
        let mut state = self.state();
        if self.end.borrow().is_some() {
            return;
        }
        self.end.send_replace(Some(loss));
        state.waiting = HashMap::new();
        state.outgoing = BytesMut::new();
        drop(state);
        self.room.notify_waiters();
    }
}

/// Ends the connection also where the driving task is dropped before its time: the runtime is shut down, or it
/// panicked.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.finish(Loss::Stopped);
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
        let mut out = BytesMut::new();
        frame.compose(&mut out);
        far.write_all(&out).await.unwrap();
    }

    #[tokio::test]
    async fn nothing_is_left_of_callers_that_went_away_once_they_were_answered() {
        let (near, mut far) = tokio::io::duplex(1024);
        let connection = Connection::over(near);
        drop(connection.ask(Request::Noop).await.unwrap());
        drop(connection.ask_for_series(Request::Dump).await.unwrap());
        let last = connection.ask(Request::Noop).await.unwrap();
        assert_eq!(state_of(&connection).0, 3, "their opaques are taken until then");

        answer(&mut far, 1, b"").await;
        answer(&mut far, 2, b"one of the series").await;
        answer(&mut far, 2, b"").await;
        answer(&mut far, 3, b"").await;
        last.await.unwrap();
        assert_eq!(state_of(&connection), (0, 0));
    }

    #[tokio::test]
    async fn opaques_in_use_are_passed_over_when_the_numbers_begin_anew() {
        let (near, _far) = tokio::io::duplex(1024);
        let connection = Connection::over(near);
        let _first = connection.ask(Request::Noop).await.unwrap();
        connection.shared.state().opaque_last = 0;
        let _second = connection.ask(Request::Noop).await.unwrap();
        assert_eq!(connection.shared.state().opaque_last, 2);
        assert_eq!(state_of(&connection).0, 2);
    }
}
