//! Parse, execute, compose: one frame becomes one call of the core, and its outcome one response.
//!
//! Only this folder uses both the protocol and the core. This file has yrmcds' operations, `extended` the extended ones,
//! `sysv` those of System V semaphores, `administration` what concerns all sessions and all records.
//! `extended_state` is what a connection keeps between extended requests, `response_stream` a response of many frames,
//! `answer` composes the answers of the core, and `convert` converts between the types of the two sides.

mod administration;
mod answer;
mod convert;
mod extended;
mod extended_state;
mod response_stream;
mod sysv;

use bytes::BytesMut;
use tracing::warn;

pub(super) use convert::status_of;
pub(super) use extended_state::{ExtendedState, Revoked};
pub(super) use response_stream::ResponseStream;

use super::client_address::ClientAddress;
use super::metrics::{AcquireRefusal, Tally};
use super::{Port, Server, port_name};
use crate::core::{Claim, ConnectionId, Limit, LimitKind, Refusal, Session, UnixSeconds};
use crate::protocol::{Frame, FrameClass, Request, Response, Status};
use answer::compose_status;
use convert::limit_on_wire;

/// What the connection does after a frame was executed.
#[derive(Debug)]
pub(super) enum NextStep {
    /// It executes the next frame.
    Continue,
    /// It yields to other connections first, because the requests took long.
    Yield,
    /// It sends this response first.
    Stream(Box<ResponseStream>),
}

/// Executes the requests of one connection at one point in time.
pub(super) struct Executor<'a> {
    pub(super) server: &'a Server,
    pub(super) port: &'a Port,
    pub(super) session: &'a mut Session,
    pub(super) extended: &'a mut ExtendedState,
    pub(super) now: UnixSeconds,
    /// Nothing may grow: plain Acquires are refused. The core refuses the rest.
    pub(super) is_memory_exhausted: bool,
    pub(super) tally: Tally,
    /// Extended requests executed so far.
    pub(super) extended_requests: usize,
}

impl Executor<'_> {
    /// Executes one frame and appends its response to `out`. A response of many frames is returned instead, and a request
    /// that has to wait is answered later.
    #[inline]
    pub(super) fn execute(&mut self, frame: &Frame<'_>, out: &mut BytesMut) -> NextStep {
        match frame.class() {
            FrameClass::Plain(_) => self.execute_plain(frame, out),
            FrameClass::Extended(opcode) => self.execute_extended(opcode, frame, out),
            FrameClass::Sysv(opcode) => self.execute_sysv(opcode, frame, out),
            FrameClass::Unknown(status) => {
                compose_status(frame.opcode(), frame.opaque(), status, out);
                NextStep::Continue
            }
        }
    }

    #[inline]
    fn execute_plain(&mut self, frame: &Frame<'_>, out: &mut BytesMut) -> NextStep {
        let answer = |response: Response<'_>, out| response.compose(frame.opcode(), frame.opaque(), out);
        let request = match frame.parse() {
            Ok(request) => request,
            Err(status) => {
                answer(Response::Failed(status), out);
                return NextStep::Continue;
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

    /// Adds the commands executed so far to the statistics.
    pub(super) fn record_commands(&mut self) {
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
        if self.is_memory_exhausted {
            self.server.memory.note_refusal();
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
        note_refusal(self.server, self.port, self.session.id(), self.extended.client.address, refusal);
        Response::Failed(status_of(refusal))
    }
}

/// Counts refusals because of the limits on names and memory and of shares, and warns of them.
fn note_refusal(
    server: &Server,
    port: &Port,
    connection: ConnectionId,
    client: ClientAddress,
    refusal: Refusal,
) {
    match refusal {
        Refusal::TooManyNames => {
            port.metrics.refused_names.add(1);
            if port.warnings.refused_name.permits() {
                warn!(
                    port = port_name(port.namespace),
                    session = %connection,
                    "new names are refused: max_names is reached; raise it, or find the client that makes so many"
                );
            }
        }
        Refusal::LimitReached(Limit { kind: LimitKind::Memory, .. }) => server.memory.note_refusal(),
        Refusal::LimitReached(limit @ Limit { is_share: true, max: share, .. }) => {
            server.shares.note_refusal(client, limit_on_wire(limit).limit.key(), share);
        }
        _ => {}
    }
}
