//! Parse, execute, compose: one frame becomes one call of the core, and its outcome one response.
//!
//! This is the only place that sees both the wire and the rules. Here are yrmcds' operations; `extended` has the others
//! and `party` what a connection remembers for them, `owed` the answers that go out piece by piece, and `translation`
//! says in the words of the one what the other means.

mod answer;
mod extended;
mod owed;
mod party;
mod translation;

use bytes::BytesMut;
use tracing::warn;

pub(super) use owed::Owed;
pub(super) use party::{Party, Revoked};

use super::metrics::Tally;
use super::{Port, Server, port_name, statistics};
use crate::core::{Claim, ConnectionId, Refusal, Session, UnixSeconds};
use crate::protocol::{Frame, Request, Response, Status};
use translation::status_of;

/// What the connection does after a frame was executed.
#[derive(Debug)]
pub(super) enum After {
    /// The next frame.
    Continue,
    /// It lets others have their turns first: the request was much work.
    Pause,
    /// It sends this first.
    Owed(Owed),
}

/// Whose requests are executed, and when.
pub(super) struct Executor<'a> {
    pub(super) server: &'a Server,
    pub(super) port: &'a Port,
    pub(super) session: &'a mut Session,
    pub(super) party: &'a mut Party,
    pub(super) now: UnixSeconds,
    pub(super) tally: Tally,
    /// Extended requests executed so far.
    pub(super) extended: usize,
}

impl Executor<'_> {
    /// Answers one frame, appending to `out`; but for what is long, which is returned and
    /// answered by [`Owed::piece`], or has to wait.
    #[inline]
    pub(super) fn execute(&mut self, frame: &Frame<'_>, out: &mut BytesMut) -> After {
        let answer = |response: Response<'_>, out| response.compose(frame.opcode(), frame.opaque(), out);
        let request = match frame.parse() {
            Ok(request) => request,
            Err(Status::UnknownCommand) => return self.execute_extended(frame, out),
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
                return After::Owed(Owed::dump(names, frame.opaque()));
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
fn note_refusal(port: &Port, connection: ConnectionId, refusal: Refusal) {
    if refusal == Refusal::TooManyNames {
        port.metrics.refused_names.add(1);
        if port.warnings.refused_name.permits() {
            warn!(
                port = port_name(port.namespace),
                session = %connection,
                "new names are refused: there are max_names of them; raise it, or find out who makes so many"
            );
        }
    }
}
