//! The requests of one connection, and yrmcds' operations.

use std::cell::Cell;

use tracing::warn;

use super::super::metrics::{AcquireRefusal, Tally};
use super::super::port::{Port, port_name};
use super::super::state::Server;
use super::extended_state::ExtendedState;
use super::response_stream::ResponseStream;
use super::rights;
use signalbox_core::{Claim, Session};
use signalbox_model::{Limit, ReachedLimit, Refusal, Status, UnixSeconds};
use signalbox_protocol::{Frame, FrameClass, Request, Response};

/// What the connection does after a frame was executed.
pub(in crate::server) enum NextStep {
    /// It executes the next frame.
    Continue,
    /// It yields to other connections first, because the requests took long.
    Yield,
    /// It sends this response first.
    Stream(Box<ResponseStream>),
    /// It closes the connection, once this is answered.
    Close,
}

/// Executes the requests of one connection at one point in time.
pub(in crate::server) struct Executor<'a> {
    pub(in crate::server) server: &'a Server,
    pub(in crate::server) port: &'a Port,
    pub(in crate::server) session: &'a mut Session,
    pub(in crate::server) extended: &'a mut ExtendedState,
    pub(in crate::server) now: UnixSeconds,
    /// The limit on memory because of which plain Acquires are refused; `None`: there is enough. The core refuses other requests.
    pub(in crate::server) lack: Option<ReachedLimit>,
    pub(in crate::server) tally: Tally,
    /// Extended requests executed so far.
    pub(in crate::server) extended_requests: usize,
    /// The number of requests for which the client is slowed down: it has used up its share, or lacks the right.
    pub(in crate::server) slowing_requests: Cell<u32>,
}

impl Executor<'_> {
    /// Executes one frame and appends its response to `out`. A response of many frames is returned instead, and a request
    /// that has to wait is answered later.
    #[inline]
    pub(in crate::server) fn execute(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) -> NextStep {
        match frame.class() {
            FrameClass::Plain(_) => self.execute_plain(frame, out),
            FrameClass::Extended(opcode) => self.execute_extended(opcode, frame, out),
            FrameClass::Sysv(opcode) => self.execute_sysv(opcode, frame, out),
            FrameClass::Unknown(status) => {
                Response::Failed(status).compose(frame.opcode(), frame.opaque(), out);
                NextStep::Continue
            }
        }
    }

    #[inline]
    fn execute_plain(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) -> NextStep {
        let answer = |response: Response<'_>, out| response.compose(frame.opcode(), frame.opaque(), out);
        let request = match frame.parse() {
            Ok(request) => request,
            Err(status) => {
                answer(Response::Failed(status), out);
                return NextStep::Continue;
            }
        };
        self.tally.count(request.opcode());
        if self.extended.standing.restricts_plain() && self.refuses_plain(&request) {
            answer(Response::Failed(Status::NotPermitted), out);
            return NextStep::Continue;
        }
        match request {
            Request::Noop => answer(Response::Done, out),
            Request::Get { name } => answer(self.get(name), out),
            Request::Acquire { name, resources, maximum } => {
                answer(self.acquire(name, resources, maximum), out);
            }
            Request::Release { name, resources } => answer(self.release(name, resources), out),
            Request::Stats => {
                // The requests before this one are in its answer.
                self.record_commands();
                return NextStep::Stream(Box::new(ResponseStream::statistics(
                    self.port.namespace,
                    frame.opaque(),
                )));
            }
            Request::Dump => {
                let names = self.server.core.dump(self.port.namespace);
                return NextStep::Stream(Box::new(ResponseStream::dump(names, frame.opaque())));
            }
        }
        NextStep::Continue
    }

    /// Whether the client lacks the right that a request needs. It is counted and logged then.
    #[cold]
    fn refuses_plain(&self, request: &Request<'_>) -> bool {
        let needed = rights::needed_for_plain(request, self.port.namespace);
        let Some(missing) = needed.filter(|(right, target)| !self.extended.standing.may(*right, *target))
        else {
            return false;
        };
        self.note_missing(&format!("{:?}", request.opcode()), missing);
        true
    }

    /// Notes one more request for which the client is slowed down.
    pub(super) fn slow_down(&self) {
        self.slowing_requests.set(self.slowing_requests.get().saturating_add(1));
    }

    /// Counts and logs a request that is refused because the client lacks a right.
    pub(super) fn note_missing(&self, operation: &str, (right, _): rights::Needed<'_>) {
        self.slow_down();
        let identity = self.extended.standing.permissions().identity();
        self.server.rules.access.note_missing(&self.extended.client, identity, operation, right);
    }

    /// Adds the commands executed so far to the statistics.
    pub(in crate::server) fn record_commands(&mut self) {
        self.tally.record(&self.port.metrics.traffic);
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
        if let Some(limit) = self.lack {
            self.note_refusal(Refusal::LimitReached(limit));
            self.tally.refuse(AcquireRefusal::Limit);
            return Response::Failed(Status::OutOfMemory);
        }
        let taken = self.server.core.acquire(self.port.namespace, name, claim, self.session, self.now);
        match taken {
            Ok(()) => Response::Resources(resources),
            Err(refusal) => self.refused_acquire(refusal),
        }
    }

    fn refused_acquire(&mut self, refusal: Refusal) -> Response<'static> {
        self.tally.refuse(match refusal {
            Refusal::TooManyNames | Refusal::LimitReached(_) => AcquireRefusal::Limit,
            _ => AcquireRefusal::NotAvailable,
        });
        self.refused(refusal)
    }

    #[inline]
    fn release(&mut self, name: &[u8], resources: u32) -> Response<'static> {
        let given = self.server.core.release(self.port.namespace, name, resources, self.session, self.now);
        given.map_or_else(|refusal| self.refused(refusal), |()| Response::Done)
    }

    fn refused(&self, refusal: Refusal) -> Response<'static> {
        self.note_refusal(refusal);
        Response::Failed(refusal.status())
    }

    /// Counts refusals because of the limits on names and memory and of shares, and warns of them.
    pub(super) fn note_refusal(&self, refusal: Refusal) {
        let (server, port) = (self.server, self.port);
        match refusal {
            Refusal::TooManyNames => {
                port.metrics.refused_names.add(1);
                if port.warnings.refused_name.permits() {
                    warn!(
                        port = port_name(port.namespace),
                        session = %self.session.id(),
                        "new names are refused: max_names is reached; raise it, or find the client that makes so many"
                    );
                }
            }
            Refusal::LimitReached(limit @ ReachedLimit { is_share: true, max: share, .. }) => {
                self.slow_down();
                server.rules.shares.note_refusal(self.extended.client.address, limit.limit.key(), share);
            }
            Refusal::LimitReached(ReachedLimit { limit: Limit::Memory, .. }) => server.memory.note_refusal(),
            _ => {}
        }
    }
}
