//! One connection: it reads requests, passes them on for execution, and writes the responses.
//!
//! A connection is a state machine that works in turns. [`Inbound`] has the start of an incomplete frame,
//! [`Activity`] what the connection does now, with the requests and the response in progress, and [`Outbound`] what the peer
//! has not taken.
//!
//! Invariants: responses leave in the order of the requests. While more than 64 KiB of output wait for the peer or a
//! response of many frames is in progress, nothing is read, so TCP slows the peer down. However the connection ends,
//! all that it held is released.
//!
//! Responses are deferred until the thread's other readable connections have been read. By then their requests have
//! arrived too, the responses wake the peers together, and the thread sleeps less often (`docs/decisions/0012`).

mod lifecycle;
mod opening;
mod parts;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::future::poll_fn;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite};

use super::buffers::Buffers;
use super::dispatch::{Executor, ExtendedState, NextStep, Revoked};
use super::metrics::Tally;
use super::port::Port;
use super::shares::{ClientUsage, HoldingBytes, Pauses, Turns};
use super::state::Server;
use super::steps;
pub(super) use lifecycle::serve;
use parts::{Activity, End, Inbound, Outbound, READ_BYTES_MAX, poll_store_timer};
use signalbox_core::Session;

struct Connection<'a, S> {
    server: &'a Server,
    port: &'a Port,
    stream: S,
    inbound: Inbound,
    activity: Activity,
    turns: Turns,
    pauses: Pauses,
    holding_bytes: HoldingBytes,
    outbound: Outbound,
    extended: ExtendedState,
    busy: Busy<'a>,
}

/// How the connection continues after a turn.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// Another turn at once.
    Continue,
    /// Other connections of the thread run first.
    Yield,
}

impl<'a, S> Connection<'a, S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn new(
        server: &'a Server,
        port: &'a Port,
        usage: Arc<ClientUsage>,
        stream: S,
        inbound: Inbound,
        extended: ExtendedState,
    ) -> Self {
        Self {
            server,
            port,
            stream,
            inbound,
            activity: Activity::default(),
            turns: Turns::new(&usage),
            pauses: Pauses::new(Arc::clone(&usage)),
            holding_bytes: HoldingBytes::new(usage),
            outbound: Outbound::default(),
            extended,
            busy: Busy { server, is_busy: false },
        }
    }

    /// Returns the parts that a connection keeps when it begins TLS.
    fn into_parts(self) -> (S, Inbound, ExtendedState) {
        (self.stream, self.inbound, self.extended)
    }

    /// Runs until the connection ends, or begins TLS. A panic ends only this connection; the core aborts the process by
    /// itself if its invariants break.
    async fn run(&mut self, session: &mut Session) -> End {
        loop {
            let turn = poll_fn(|context| {
                let turn = catch_unwind(AssertUnwindSafe(|| self.poll_turn(session, context)));
                turn.unwrap_or(Poll::Ready(Err(End::Panic)))
            });
            match turn.await {
                Ok(Turn::Continue) => {}
                Ok(Turn::Yield) => tokio::task::yield_now().await,
                Err(end) => return end,
            }
        }
    }

    /// Runs one turn: sends waiting output, continues the work in progress or else reads, and sends or defers the
    /// responses.
    fn poll_turn(&mut self, session: &mut Session, context: &mut Context<'_>) -> Poll<Result<Turn, End>> {
        Buffers::with(|buffers| {
            self.outbound.borrow_buffer(buffers);
            // By now, the other connections of the thread have had their turns, so the step of a long response is over,
            // even if the peer has not read its output.
            self.turns.end();
            let turn = self.poll_turn_with(buffers, session, context);
            self.outbound.return_buffer(buffers);
            self.update_busy();
            turn
        })
    }

    fn poll_turn_with(
        &mut self,
        buffers: &mut Buffers,
        session: &mut Session,
        context: &mut Context<'_>,
    ) -> Poll<Result<Turn, End>> {
        // Done even if the peer takes no output, because its waiting requests must no longer be granted.
        let has_lost_rights = self.extended.refresh_on_new_rules(self.server, self.outbound.buffer());
        if has_lost_rights && self.activity.is_streaming() {
            // The client may not see the rest of the response.
            return Poll::Ready(Err(End::Revoked));
        }
        let is_blocked = self.poll_flush(context)?.is_pending();
        match &self.activity {
            // More requests are executed although the peer has not taken all output.
            Activity::Reading | Activity::Executing { end: None, .. }
                if is_blocked && !self.outbound.is_full(self.server.memory.is_exhausted()) => {}
            _ if is_blocked => return self.wait_for_peer(context),
            _ => {}
        }
        let awaits_last_answers = self.awaits_last_answers();
        // The store is checked before the mailbox: an answer that is stored in between is then in the mailbox.
        let awaits_store = awaits_last_answers && self.extended.awaits_store(self.server);
        let has_messages =
            self.extended.has_messages() && (self.activity.is_input_open() || awaits_last_answers);
        if has_messages {
            self.encode_messages();
        }
        let turn = match self.poll_activity(has_messages, awaits_store, buffers, session, context)? {
            Poll::Pending if !has_messages => return Poll::Pending,
            // Frames are left when the output is full or when the last request took long.
            Poll::Ready(turn) if !has_messages && !self.activity.has_frames() => turn,
            _ => Turn::Yield,
        };
        match turn {
            // The next turn comes after those of all connections that are readable now.
            Turn::Continue if !self.outbound.is_empty() && !is_blocked && self.activity.is_input_open() => {
                self.outbound.defer();
                context.waker().wake_by_ref();
                Poll::Pending
            }
            turn => {
                let _ = self.poll_flush(context)?;
                Poll::Ready(Ok(turn))
            }
        }
    }

    /// Reads and executes nothing until the peer takes output.
    fn wait_for_peer(&mut self, context: &mut Context<'_>) -> Poll<Result<Turn, End>> {
        // A slow peer must not keep what was revoked.
        if self.extended.is_revoked() {
            return Poll::Ready(Err(End::Revoked));
        }
        self.inbound.pause_frame_timer();
        self.activity.pause_store_timer();
        self.turns.stop_waiting();
        self.inbound.poll_closed(context).map(Err)
    }

    /// Returns whether the peer sends nothing more and waits for answers that a store may delay.
    fn awaits_last_answers(&self) -> bool {
        self.activity.is_ended_by_the_peer() && self.extended.awaits_answers() && self.server.is_durable()
    }

    /// Continues the current activity of the connection.
    fn poll_activity(
        &mut self,
        has_messages: bool,
        awaits_store: bool,
        buffers: &mut Buffers,
        session: &mut Session,
        context: &mut Context<'_>,
    ) -> Poll<Result<Turn, End>> {
        match &mut self.activity {
            Activity::Streaming { response, .. } => {
                if !self.server.is_closing() {
                    ready!(response.poll_chunk(context));
                    ready!(self.turns.poll_begin(context));
                }
                self.fill_chunk();
                Poll::Ready(Ok(Turn::Yield))
            }
            Activity::Executing { .. } => {
                self.execute(session);
                Poll::Ready(Ok(Turn::Continue))
            }
            // The messages are sent first.
            Activity::Ending { .. } if has_messages => Poll::Pending,
            Activity::Ending { end, store_timer } => {
                if awaits_store && poll_store_timer(store_timer, context).is_pending() {
                    return Poll::Pending;
                }
                // The value left in its place is never read: the connection has ended.
                Poll::Ready(Err(mem::replace(end, End::Peer)))
            }
            Activity::Reading => {
                if self.pauses.poll(context).is_pending() && !self.server.is_closing() {
                    self.inbound.pause_frame_timer();
                    return self.inbound.poll_closed(context).map(Err);
                }
                let Poll::Ready(read) = self.poll_read(&mut buffers.input, context)? else {
                    return Poll::Pending;
                };
                self.execute(session);
                Poll::Ready(Ok(if read >= READ_BYTES_MAX { Turn::Yield } else { Turn::Continue }))
            }
        }
    }

    /// Reads once and takes the complete frames. Returns the number of bytes.
    fn poll_read(&mut self, shared: &mut BytesMut, context: &mut Context<'_>) -> Poll<Result<usize, End>> {
        if self.server.is_closing() {
            self.activity = Activity::ending(End::Shutdown);
            return Poll::Ready(Ok(0));
        }
        let begin = || self.server.unfinished.begin(self.extended.client_address(), self.pauses.usage());
        let read = self.inbound.poll_read(&mut self.stream, shared, self.server, begin, context);
        let read = ready!(read)?;
        if read == 0 {
            self.activity = Activity::ending(End::Peer);
            return Poll::Ready(Ok(0));
        }
        self.port.metrics.traffic.note_received(read);
        self.extended.renew(self.server);
        let (frames, failure) = self.inbound.take_frames(shared);
        self.inbound.count_if_long(begin);
        self.activity = Activity::next(frames, failure.map(End::BadInput));
        Poll::Ready(Ok(read))
    }

    /// Executes received frames until all are done, the requests took long, one has a response of many frames, or too much
    /// output waits.
    fn execute(&mut self, session: &mut Session) {
        let (mut frames, end) = match mem::take(&mut self.activity) {
            Activity::Executing { frames, end } => (frames, end),
            other => return self.activity = other,
        };
        let now = self.server.clock.now();
        self.extended.refresh_standing(self.server, now, self.outbound.buffer());
        let lack =
            self.server.memory.limit().lack(self.server.rules.shares.share(), self.holding_bytes.of_client());
        let is_memory_exhausted = lack.is_some_and(|limit| !limit.is_share);
        let mut executor = Executor {
            server: self.server,
            port: self.port,
            session,
            extended: &mut self.extended,
            now,
            lack,
            tally: Tally::default(),
            extended_requests: 0,
            slowing_requests: Cell::new(0),
        };
        let mut executed = 0_usize;
        let mut stream = None;
        let mut is_closed = false;
        while !self.outbound.is_full(is_memory_exhausted)
            && let Some(frame) = frames.next()
        {
            executed += 1;
            match executor.execute(&frame, self.outbound.buffer()) {
                // Plain requests for names with waiters or watches are rare, so this is not checked after each frame.
                NextStep::Continue
                    if executed.is_multiple_of(steps::LEDGER_REQUESTS) && executor.session.take_tracked() =>
                {
                    break;
                }
                NextStep::Continue => {}
                NextStep::Yield => break,
                NextStep::Close => {
                    is_closed = true;
                    break;
                }
                NextStep::Stream(response) => {
                    stream = Some(response);
                    break;
                }
            }
        }
        executor.record_commands();
        self.pauses.begin(executor.slowing_requests.get());
        self.holding_bytes.set(session.bytes());
        self.activity = match stream {
            Some(response) => Activity::streaming(response, frames, end),
            None if is_closed => Activity::ending(End::WrongTokens),
            None => Activity::next(Some(frames), end),
        };
    }

    /// Encodes messages of the core into the output.
    fn encode_messages(&mut self) {
        let out = self.outbound.buffer();
        // The rights are checked first, because a message may show what the client may no longer see.
        let has_lost = self.extended.refresh_standing(self.server, self.server.clock.now(), out);
        if has_lost && self.activity.is_streaming() {
            // The client may not see the rest of the response either.
            self.activity = Activity::ending(End::Revoked);
            return;
        }
        let bytes = out.len() + steps::DUMP_CHUNK_BYTES;
        if let Err(Revoked) = self.extended.encode_messages(self.server, bytes, out) {
            self.activity = Activity::ending(End::Revoked);
        }
    }

    /// Composes the next chunk of the response in progress.
    fn fill_chunk(&mut self) {
        self.inbound.pause_frame_timer();
        let out = self.outbound.buffer();
        let bytes = out.len() + steps::DUMP_CHUNK_BYTES;
        if let Activity::Streaming { response, frames, end } = &mut self.activity
            && !response.fill_chunk(self.server, self.server.clock.now(), bytes, out)
        {
            self.activity = Activity::next(frames.take(), end.take());
        }
    }

    /// Writes the output. Pending while the peer does not take all of it.
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<Result<(), End>> {
        if self.server.is_fenced() {
            return Poll::Ready(Err(End::Fenced));
        }
        self.outbound.poll_flush(&mut self.stream, &self.port.metrics.traffic, context)
    }

    /// Counts the connection as busy while it has something for its peer. While the server stops, a busy connection
    /// stays busy until it has closed. Deferred output does not count: the thread sends it before it answers
    /// [`finish_turns`](super::workers::Workers::finish_turns).
    fn update_busy(&mut self) {
        let is_outstanding =
            self.activity.is_busy() || self.extended.has_messages() || self.outbound.is_blocked();
        self.busy.set(is_outstanding || (self.busy.is_busy && self.server.is_closing()));
    }
}

/// A connection's part in the server's count of busy connections.
struct Busy<'a> {
    server: &'a Server,
    is_busy: bool,
}

impl Busy<'_> {
    fn set(&mut self, is_busy: bool) {
        if is_busy != self.is_busy {
            self.is_busy = is_busy;
            self.server.count_busy(is_busy);
        }
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.set(false);
    }
}
