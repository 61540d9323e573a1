//! Parse, execute, compose: one frame becomes one call of the core, and its outcome one response.
//!
//! This is the only place that sees both the wire and the rules.

use bytes::BytesMut;
use tracing::warn;

use super::metrics::Tally;
use super::{Port, Server, port_name, statistics};
use crate::core::{Claim, Dump, Refusal, Session, SessionId, UnixSeconds};
use crate::protocol::{DumpEntry, Frame, Opaque, Opcode, Request, Response, Status};

/// A Dump that a connection owes its peer: it goes out piece by piece.
#[derive(Debug)]
pub(super) struct OwedDump {
    names: Dump,
    opaque: Opaque,
}

/// What the connection does after a frame was executed.
#[derive(Debug)]
pub(super) enum After {
    /// The next frame.
    Continue,
    /// It lets others have their turns first: the request was much work.
    Pause,
    /// It sends the Dump first.
    Dump(OwedDump),
}

/// Whose requests are executed, and when.
pub(super) struct Executor<'a> {
    pub(super) server: &'a Server,
    pub(super) port: &'a Port,
    pub(super) session: &'a mut Session,
    pub(super) now: UnixSeconds,
    pub(super) tally: Tally,
}

impl Executor<'_> {
    /// Answers one frame, appending to `out`; but for a Dump, which is returned and answered by [`OwedDump::piece`].
    #[inline]
    pub(super) fn execute(&mut self, frame: &Frame<'_>, out: &mut BytesMut) -> After {
        let answer = |response: Response<'_>, out| response.compose(frame.opcode(), frame.opaque(), out);
        let request = match frame.parse() {
            Ok(request) => request,
            Err(status) => {
                answer(Response::Failed(status), out);
                return After::Continue;
            }
        };
        self.tally.count(request.opcode());
        match request {
            Request::Noop => answer(Response::Done, out),
            Request::Get { name } => answer(self.get(name), out),
            Request::Acquire { name, resources, maximum } => {
                answer(self.acquire(name, resources, maximum), out);
            }
            Request::Release { name, resources } => answer(self.release(name, resources), out),
            Request::Stats => {
                self.settle();
                answer(Response::Statistics(&statistics::items(self.server, self.port)), out);
                return After::Pause;
            }
            Request::Dump => {
                let names = self.server.core.dump(self.port.namespace);
                return After::Dump(OwedDump { names, opaque: frame.opaque() });
            }
        }
        After::Continue
    }

    /// Makes the commands executed so far show in the statistics.
    pub(super) fn settle(&mut self) {
        self.tally.settle(&self.port.metrics.traffic);
    }

    fn get(&self, name: &[u8]) -> Response<'static> {
        let value = self.server.core.value(self.port.namespace, name);
        value.map_or_else(|refusal| self.refused(refusal), Response::Resources)
    }

    #[inline]
    fn acquire(&mut self, name: &[u8], resources: u32, maximum: u32) -> Response<'static> {
        let Some(claim) = Claim::new(resources, maximum) else {
            return Response::Failed(Status::InvalidArguments);
        };
        let taken = self.server.core.acquire(self.port.namespace, name, claim, self.session, self.now);
        taken.map_or_else(|refusal| self.refused(refusal), |()| Response::Resources(resources))
    }

    #[inline]
    fn release(&mut self, name: &[u8], resources: u32) -> Response<'static> {
        let given = self.server.core.release(self.port.namespace, name, resources, self.session, self.now);
        given.map_or_else(|refusal| self.refused(refusal), |()| Response::Done)
    }

    fn refused(&self, refusal: Refusal) -> Response<'static> {
        note_refusal(self.port, self.session.id(), refusal);
        Response::Failed(status_of(refusal))
    }
}

/// Counts and warns of what an administrator should know.
pub(super) fn note_refusal(port: &Port, session: SessionId, refusal: Refusal) {
    if refusal == Refusal::TooManyNames {
        port.metrics.refused_names.add(1);
        if port.warnings.refused_name.permits() {
            warn!(
                port = port_name(port.namespace),
                %session,
                "new names are refused: there are max_names of them; raise it, or find out who makes so many"
            );
        }
    }
}

/// What a refusal is on the wire.
pub(super) fn status_of(refusal: Refusal) -> Status {
    match refusal {
        Refusal::NotFound => Status::NotFound,
        Refusal::NotAvailable => Status::ResourceNotAvailable,
        Refusal::NotAcquired => Status::NotAcquired,
        Refusal::TooManyNames => Status::OutOfMemory,
        Refusal::TimedOut => Status::TimedOut,
        Refusal::QueueFull => Status::QueueFull,
        Refusal::Canceled => Status::Canceled,
        Refusal::Revoked => Status::Revoked,
        Refusal::NoSuchSession => Status::NoSuchSession,
        Refusal::LimitReached => Status::LimitReached,
        Refusal::StaleRequest => Status::InvalidArguments,
        Refusal::ShuttingDown => Status::ShuttingDown,
    }
}

impl OwedDump {
    /// Appends entries to `out` until it has `bytes` or more. Tells whether there is more to come; the last piece
    /// has the empty response that ends a Dump.
    pub(super) fn piece(
        &mut self,
        server: &Server,
        now: UnixSeconds,
        bytes: usize,
        out: &mut BytesMut,
    ) -> bool {
        let opcode = Opcode::Dump.code();
        while out.len() < bytes {
            let shown = self.names.next(&server.core, now, |name, item| {
                let entry = DumpEntry { consumption: item.consumption, peak: item.peak, name };
                Response::Entry(entry).compose(opcode, self.opaque, out);
            });
            if shown.is_none() {
                Response::Done.compose(opcode, self.opaque, out);
                return false;
            }
        }
        true
    }
}
