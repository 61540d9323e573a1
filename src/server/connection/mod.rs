//! One connection: it reads runs of frames, has them executed, and writes what they came to.
//!
//! Invariants: responses leave in the order of the requests; while more than [`OUTPUT_BYTES_MAX`] wait to be
//! taken by the peer, or a Dump is under way, nothing more is read; however the connection ends, what it held is
//! given back.
//!
//! Answers wait until the other connections of the thread have been read that can be: then what all of them ask is
//! there, the peers are woken by answers that come together, and the thread sleeps less often.
//!
//! Bytes are read into a buffer of the thread, and the thread lends those for output. A connection has a buffer only
//! while a frame is incomplete or output waits, so an idle one costs little.

use std::future::poll_fn;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, Sleep};
use tokio_util::codec::Decoder;
use tokio_util::io::poll_read_buf;
use tracing::{debug, warn};

use super::admission::Admission;
use super::buffers::Buffers;
use super::dispatch::{After, Executor, Owed, Party, Revoked};
use super::metrics::Tally;
use super::peers::Peer;
use super::{Port, Server, parking, port_name, steps};
use crate::core::{Mailbox, Session};
use crate::protocol::{DecodeError, Frames, RequestCodec};

/// Output that may wait for the peer before its requests are left unread.
const OUTPUT_BYTES_MAX: usize = 64 * 1024;

/// Most bytes of one read: a burst of requests in one system call, and few enough to be executed in a fraction of a
/// millisecond before others have their turn.
const READ_BYTES_MAX: usize = 16 * 1024;

/// How long a connection that the server ends is still read, so that its peer receives the answers and not a reset.
const LINGER: Duration = Duration::from_secs(1);

/// How long the answers to a peer's last requests may take to be stored. A disk may hang, and what the peer held is not to
/// be held for that.
const STORE_PATIENCE: Duration = Duration::from_secs(1);

/// Serves a connection until it ends, and gives back what it held.
pub(super) async fn serve<S>(admission: Admission, stream: S, peer: SocketAddr)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let server = admission.server();
    let port = admission.port();
    let port_name = port_name(port.namespace);
    let mut holder = server.core.open_session();
    let session = holder.id();
    let mailbox = Arc::new(Mailbox::default());
    let place = server.peers.enter(session, Peer { address: peer, mailbox: Arc::clone(&mailbox) });
    let party = Party::new(session, Arc::clone(&mailbox), peer);
    let mut connection = Connection::new(server, port, stream, party);
    poll_fn(|context| {
        mailbox.set_reader(context.waker());
        Poll::Ready(())
    })
    .await;
    debug!(port = port_name, %peer, %session, "connection opened");

    let end = connection.run(&mut holder).await;
    // Nobody is to take up a session that nobody will end any more.
    drop(place);
    give_back(server, holder).await;
    match &end {
        End::Peer | End::Revoked | End::Shutdown => debug!(%peer, %session, "connection closed"),
        End::Io(error) => debug!(%peer, %session, %error, "connection lost"),
        End::BadInput(_) | End::FrameTimeout => {
            let count = if let End::FrameTimeout = end {
                &port.metrics.frame_timeouts
            } else {
                &port.metrics.bad_input
            };
            count.add(1);
            if port.warnings.bad_input.permits() {
                warn!(port = port_name, %peer, %session, error = %end, "connection closed");
            } else {
                debug!(port = port_name, %peer, %session, error = %end, "connection closed");
            }
        }
        End::Panic => {
            port.metrics.panics.add(1);
            // The panic's own message was logged by the hook that the daemon sets.
            warn!(port = port_name, %peer, %session, error = %end, "connection closed");
        }
    }
    if let End::BadInput(_) | End::Revoked | End::Shutdown = end {
        connection.linger().await;
    }
}

/// Gives back all that a session holds, letting others have their turns between steps.
async fn give_back(server: &Server, holder: Session) {
    let (session, holder) = (holder.id(), holder);
    let mut ending = server.core.end_session(holder);
    while ending.step(steps::ENDING_NAMES, server.clock.now()) {
        tokio::task::yield_now().await;
    }
    while server.core.leave(session, server.moment()) {
        tokio::task::yield_now().await;
    }
}

/// Why a connection ended.
#[derive(Debug, Error)]
enum End {
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

struct Connection<'a, S> {
    server: &'a Server,
    port: &'a Port,
    stream: S,
    codec: RequestCodec,
    /// The start of a frame whose rest has not come yet.
    input: BytesMut,
    /// When that frame was first seen by a connection that reads on, and the alarm for it. The alarm is set only when
    /// there is nothing to read, as nearly every frame is completed by the next read.
    started: Option<Instant>,
    alarm: Option<Pin<Box<Sleep>>>,
    /// Frames that were received and wait for output to be taken.
    frames: Option<Frames>,
    owed: Option<Owed>,
    party: Party,
    /// What has not been sent yet. Between turns it has a buffer only where there is something.
    output: BytesMut,
    /// Set where the output has not been offered to the peer yet.
    is_put_off: bool,
    /// Set where the peer took a part of the output: the buffer is larger than it says then.
    is_begun: bool,
    /// Set when nothing more will be read; what was read before is still answered.
    end: Option<End>,
    is_busy: bool,
}

/// Whether others should have their turn before this connection goes on.
enum Turn {
    Over,
    MoreAtOnce,
}

impl<'a, S> Connection<'a, S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn new(server: &'a Server, port: &'a Port, stream: S, party: Party) -> Self {
        Self {
            server,
            port,
            stream,
            codec: RequestCodec::default(),
            input: BytesMut::new(),
            started: None,
            alarm: None,
            frames: None,
            owed: None,
            party,
            output: BytesMut::new(),
            is_put_off: false,
            is_begun: false,
            end: None,
            is_busy: false,
        }
    }

    /// Runs until the connection ends. A panic ends this connection and no other; the core has its own guard.
    async fn run(&mut self, session: &mut Session) -> End {
        loop {
            let turn = poll_fn(|context| {
                let turn = catch_unwind(AssertUnwindSafe(|| self.poll_turn(session, context)));
                turn.unwrap_or(Poll::Ready(Err(End::Panic)))
            });
            match turn.await {
                Ok(Turn::MoreAtOnce) => {}
                Ok(Turn::Over) => tokio::task::yield_now().await,
                Err(end) => return end,
            }
        }
    }

    /// One turn: what waits is sent, then a Dump or received frames are worked on, or else more is read.
    fn poll_turn(&mut self, session: &mut Session, context: &mut Context<'_>) -> Poll<Result<Turn, End>> {
        Buffers::with(|buffers| {
            if self.output.capacity() == 0 {
                self.output = buffers.lend();
            }
            let turn = self.poll_turn_with(buffers, session, context);
            if self.output.is_empty() {
                let output = mem::take(&mut self.output);
                if !mem::take(&mut self.is_begun) {
                    buffers.take_back(output);
                }
            }
            self.note_busy();
            turn
        })
    }

    fn poll_turn_with(
        &mut self,
        buffers: &mut Buffers,
        session: &mut Session,
        context: &mut Context<'_>,
    ) -> Poll<Result<Turn, End>> {
        self.is_put_off = false;
        let is_stuck = self.poll_flush(context)?.is_pending();
        if is_stuck && (self.output.len() > OUTPUT_BYTES_MAX || self.owed.is_some() || self.end.is_some()) {
            // What was revoked is not to be held for as long as the peer likes to read.
            if self.party.is_revoked() {
                return Poll::Ready(Err(End::Revoked));
            }
            self.excuse();
            return Poll::Pending;
        }
        let mut turn = Turn::MoreAtOnce;
        let is_finishing = self.is_finishing();
        // Outcome before the news are looked at: what is stored meanwhile is among them.
        let is_storing = is_finishing && self.party.is_storing(self.server);
        let is_news = self.party.has_news() && (self.end.is_none() || is_finishing);
        if is_news {
            self.tell();
            turn = Turn::Over;
        }
        if let Some(owed) = &mut self.owed {
            if self.server.is_closing() || owed.poll_rest(context).is_ready() {
                self.pay_piece();
                turn = Turn::Over;
            } else if !is_news {
                return Poll::Pending;
            }
        } else if self.frames.is_some() {
            self.execute(session);
        } else if self.end.is_some() && is_news {
            // It is sent first.
        } else if is_storing && self.poll_patience(context).is_pending() {
            return Poll::Pending;
        } else if let Some(end) = self.end.take() {
            return Poll::Ready(Err(end));
        } else {
            match self.poll_read(&mut buffers.input, context)? {
                Poll::Ready(read) if read >= READ_BYTES_MAX => turn = Turn::Over,
                Poll::Ready(_) => {}
                Poll::Pending if is_news => {}
                Poll::Pending => return Poll::Pending,
            }
            self.execute(session);
        }
        // Frames that are left have filled the output already, or the last one was much work.
        if self.frames.is_some() {
            turn = Turn::Over;
        }
        if let Turn::MoreAtOnce = turn
            && !self.output.is_empty()
            && !is_stuck
            && self.end.is_none()
        {
            // Behind whoever can be read now. What is put off is sent in the next turn, or counted there as owed.
            self.is_put_off = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let _ = self.poll_flush(context)?;
        Poll::Ready(Ok(turn))
    }

    /// Reads once and takes the complete frames of what came. Gives the number of bytes read.
    fn poll_read(&mut self, shared: &mut BytesMut, context: &mut Context<'_>) -> Poll<Result<usize, End>> {
        if self.server.is_closing() {
            self.end = Some(End::Shutdown);
            return Poll::Ready(Ok(0));
        }
        self.note_started();
        shared.reserve(READ_BYTES_MAX);
        let Poll::Ready(read) = poll_read_buf(Pin::new(&mut self.stream), context, shared) else {
            return self.poll_alarm(context).map(Err);
        };
        let read = read.map_err(End::Io)?;
        if read == 0 {
            self.excuse();
            self.end = Some(End::Peer);
            return Poll::Ready(Ok(0));
        }
        self.port.metrics.traffic.note_received(read);
        parking::note_read();
        self.party.renew(self.server);
        let buffer = if self.input.is_empty() {
            &mut *shared
        } else {
            // It grows with what was sent and not with what was announced.
            self.input.extend_from_slice(shared);
            shared.clear();
            &mut self.input
        };
        match self.codec.decode(buffer) {
            Ok(Some(frames)) => {
                self.frames = Some(frames);
                self.started = None;
                self.alarm = None;
                // All complete frames were taken; asked again, the codec tells whether they were the last.
                self.end = self.codec.decode(buffer).err().map(End::BadInput);
            }
            Ok(None) => {}
            Err(error) => {
                self.excuse();
                self.end = Some(End::BadInput(error));
            }
        }
        self.keep_rest(shared);
        Poll::Ready(Ok(read))
    }

    /// Keeps the start of an incomplete frame, and gives up the connection's own buffer where there is none.
    fn keep_rest(&mut self, shared: &mut BytesMut) {
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
        self.input.extend_from_slice(shared);
        shared.clear();
        self.note_started();
    }

    /// Starts the time of an incomplete frame, unless it runs already.
    fn note_started(&mut self) {
        if !self.input.is_empty() && self.started.is_none() {
            self.started = Some(Instant::now());
        }
    }

    /// Ready when a started frame is overdue.
    fn poll_alarm(&mut self, context: &mut Context<'_>) -> Poll<End> {
        let Some(started) = self.started else { return Poll::Pending };
        let deadline = started + self.server.frame_timeout();
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        alarm.as_mut().poll(context).map(|()| End::FrameTimeout)
    }

    /// Whether the peer's requests are all there, and some of them may wait for their answers to be stored.
    fn is_finishing(&self) -> bool {
        matches!(self.end, Some(End::Peer | End::BadInput(_)))
            && self.party.is_waiting()
            && self.server.is_durable()
    }

    /// Ready when the last answers have taken too long to be stored.
    fn poll_patience(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep(STORE_PATIENCE)));
        alarm.as_mut().poll(context)
    }

    /// Stops the time of an incomplete frame, as the peer cannot have its rest read: it begins anew with the next read.
    fn excuse(&mut self) {
        self.started = None;
        self.alarm = None;
    }

    /// Executes frames until they are done, one was much work, a Dump comes up, or too much output waits.
    fn execute(&mut self, session: &mut Session) {
        let Some(frames) = &mut self.frames else { return };
        let out = &mut self.output;
        let mut executor = Executor {
            server: self.server,
            port: self.port,
            session,
            party: &mut self.party,
            now: self.server.clock.now(),
            tally: Tally::default(),
            extended: 0,
        };
        let mut executed = 0_usize;
        while out.len() <= OUTPUT_BYTES_MAX
            && let Some(frame) = frames.next()
        {
            executed += 1;
            match executor.execute(&frame, out) {
                // Outcome seldom, since it is seldom so.
                After::Continue
                    if executed.is_multiple_of(steps::LEDGER_REQUESTS)
                        && executor.session.take_supervised() =>
                {
                    break;
                }
                After::Continue => {}
                After::Pause => break,
                After::Owed(owed) => {
                    self.owed = Some(owed);
                    break;
                }
            }
        }
        executor.settle();
        if frames.is_empty() {
            self.frames = None;
        }
    }

    /// Prepares what the core has to tell the peer.
    fn tell(&mut self) {
        let out = &mut self.output;
        let bytes = out.len() + steps::DUMP_PIECE_BYTES;
        if let Err(Revoked) = self.party.tell(self.server, bytes, out) {
            self.frames = None;
            self.owed = None;
            self.end = Some(End::Revoked);
        }
    }

    /// Prepares the next piece of what is owed.
    fn pay_piece(&mut self) {
        self.excuse();
        let out = &mut self.output;
        let bytes = out.len() + steps::DUMP_PIECE_BYTES;
        if let Some(owed) = &mut self.owed
            && !owed.piece(self.server, self.server.clock.now(), bytes, out)
        {
            self.owed = None;
        }
    }

    /// Writes what waits. Pending while the peer does not take all of it.
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<Result<(), End>> {
        while !self.output.is_empty() {
            let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(context, &self.output) else {
                return Poll::Pending;
            };
            let written = self.note_written(written)?;
            if written == self.output.len() {
                // Unlike an advance, this leaves the whole buffer to be used again.
                self.output.clear();
            } else {
                self.output.advance(written);
                self.is_begun = true;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn note_written(&self, written: io::Result<usize>) -> Result<usize, End> {
        match written {
            Ok(0) => Err(End::Io(io::ErrorKind::WriteZero.into())),
            Ok(written) => {
                self.port.metrics.traffic.note_sent(written);
                Ok(written)
            }
            Err(error) => Err(End::Io(error)),
        }
    }

    /// Keeps count of the connections that owe their peers something. Where the server stops, they owe an orderly
    /// close as well. What was put off goes out before the thread comes to what is asked of it when the server stops, so
    /// it need not be counted ([`finish_turns`](super::workers::Workers::finish_turns)).
    fn note_busy(&mut self) {
        let owes = self.owed.is_some()
            || self.party.has_news()
            || self.frames.is_some()
            || (!self.output.is_empty() && !self.is_put_off);
        let is_busy = owes || (self.is_busy && self.server.is_closing());
        if is_busy != self.is_busy {
            self.is_busy = is_busy;
            self.server.count_busy(is_busy);
        }
    }

    /// Says that nothing more comes, and reads what the peer still sends: closed with input unread, a socket makes
    /// its peer forget the answer that it was sent.
    async fn linger(&mut self) {
        let mut discarded = BytesMut::with_capacity(READ_BYTES_MAX);
        let discard = async {
            self.stream.shutdown().await?;
            while self.stream.read_buf(&mut discarded).await? > 0 {
                discarded.clear();
            }
            io::Result::Ok(())
        };
        // However this ends, the connection is over.
        let _ = tokio::time::timeout(LINGER, discard).await;
    }
}

impl<S> Drop for Connection<'_, S> {
    fn drop(&mut self) {
        if self.is_busy {
            self.server.count_busy(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::{DuplexStream, duplex};

    use super::super::clock::Clock;
    use super::*;
    use crate::config::Config;
    use crate::core::{Claim, NameHasher, Namespace, Scope, Token};
    use crate::protocol::{Opaque, Opcode, Request};

    fn connection<'a>(
        server: &'a Server,
        session: &Session,
        stream: DuplexStream,
    ) -> Connection<'a, DuplexStream> {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let party = Party::new(session.id(), Arc::default(), address);
        Connection::new(server, server.port(Namespace::Counters), stream, party)
    }

    /// What its two answers take is what the peer's socket has room for.
    fn two_requests() -> BytesMut {
        let mut requests = BytesMut::new();
        Request::Noop.compose(Opaque([1; 4]), &mut requests);
        Request::Noop.compose(Opaque([2; 4]), &mut requests);
        requests
    }

    #[tokio::test]
    async fn what_a_peer_does_not_take_is_owed_while_more_is_read_and_while_the_server_stops() {
        let requests = two_requests();
        let server = Server::new(&Config::default(), Clock::system(), NameHasher::new());
        let mut session = server.core.open_session();
        let (mut peer, stream) = duplex(requests.len());
        let mut connection = connection(&server, &session, stream);
        let mut turn = || {
            let turn = connection.poll_turn(&mut session, &mut Context::from_waker(Waker::noop()));
            assert!(!matches!(turn, Poll::Ready(Err(_))), "the connection goes on");
        };

        peer.write_all(&requests).await.unwrap();
        turn();
        assert!(!server.is_busy(), "the answers are put off");
        turn();
        assert!(!server.is_busy(), "the peer's socket has taken them");
        peer.write_all(&requests).await.unwrap();
        turn();
        turn();
        assert!(server.is_busy(), "the socket is full");
        peer.write_all(&requests).await.unwrap();
        turn();
        assert!(server.is_busy(), "and still is, whatever was read");
        server.close();
        turn();
        turn();
        assert!(server.is_busy(), "nothing is put off any more");
    }

    #[tokio::test]
    async fn plain_requests_for_a_name_that_is_watched_leave_others_their_turns() {
        let server = Server::new(&Config::default(), Clock::system(), NameHasher::new());
        let watcher = server.core.open_session();
        server.core.join(watcher.id(), None, &Arc::default());
        let all = Scope::Prefix(Box::default());
        server.core.watch(watcher.id(), Token(0), Namespace::Counters, all, server.moment()).unwrap();
        let mut session = server.core.open_session();
        let (mut peer, stream) = duplex(OUTPUT_BYTES_MAX);
        let mut connection = connection(&server, &session, stream);
        let mut requests = BytesMut::new();
        for _ in 0..steps::LEDGER_REQUESTS {
            Request::Acquire { name: b"watched", resources: 1, maximum: 1 }
                .compose(Opaque([1; 4]), &mut requests);
            Request::Release { name: b"watched", resources: 1 }.compose(Opaque([2; 4]), &mut requests);
        }
        peer.write_all(&requests).await.unwrap();
        let traffic = &server.port(Namespace::Counters).metrics.traffic;
        let mut turn = || {
            let turn = connection.poll_turn(&mut session, &mut Context::from_waker(Waker::noop()));
            assert!(!matches!(turn, Poll::Ready(Err(_))), "the connection goes on");
            traffic.commands(Opcode::Acquire) + traffic.commands(Opcode::Release)
        };
        let first = turn();
        let second = turn();
        assert_eq!(second - first, steps::LEDGER_REQUESTS as u64);
        assert_eq!(second, 2 * steps::LEDGER_REQUESTS as u64);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dump_does_not_rest_while_the_server_stops() {
        let server = Server::new(&Config::default(), Clock::system(), NameHasher::new());
        let mut session = server.core.open_session();
        let (claim, now) = (Claim::new(1, 1).unwrap(), server.clock.now());
        // Each fills a piece, so it would rest twice.
        for number in 0..steps::DUMP_PIECES * 2 {
            let name = format!("{number:0width$}", width = steps::DUMP_PIECE_BYTES);
            server.core.acquire(Namespace::Counters, name.as_bytes(), claim, &mut session, now).unwrap();
        }
        let (mut peer, stream) = duplex(OUTPUT_BYTES_MAX);
        let mut connection = connection(&server, &session, stream);
        let mut requests = BytesMut::new();
        Request::Dump.compose(Opaque([1; 4]), &mut requests);
        peer.write_all(&requests).await.unwrap();
        assert!(connection.poll_turn(&mut session, &mut Context::from_waker(Waker::noop())).is_ready());
        assert!(connection.owed.is_some());

        server.close();
        let begun = Instant::now();
        let read = async {
            let mut answers = BytesMut::new();
            while peer.read_buf(&mut answers).await.is_ok() {
                answers.clear();
            }
        };
        let end = tokio::select! {
            end = connection.run(&mut session) => end,
            () = read => unreachable!("the connection is still there"),
        };
        assert!(matches!(end, End::Shutdown), "{end}");
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
