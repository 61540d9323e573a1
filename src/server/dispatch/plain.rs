//! Executes the operations of yrmcds.

use super::super::metrics::AcquireRefusal;
use super::executor::{Executor, NextStep};
use super::response_stream::ResponseStream;
use super::rights;
use signalbox_core::Claim;
use signalbox_model::{Refusal, Status};
use signalbox_protocol::{Frame, Request, Response};

impl Executor<'_> {
    /// Executes a plain request as [`execute`](Self::execute) does.
    #[inline]
    pub(super) fn execute_plain(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) -> NextStep {
        let answer = |response: Response<'_>, out| response.compose(frame.opcode(), frame.opaque(), out);
        let request = match frame.parse() {
            Ok(request) => request,
            Err(status) => {
                answer(Response::Failed(status), out);
                return NextStep::Continue;
            }
        };
        self.tally.count(request.opcode());
        if self.extended.standing.restricts_plain()
            && self.lacks(request.opcode(), rights::needed_for_plain(&request, self.port.namespace))
        {
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
                // Recorded first, so that the answer includes all requests up to this one.
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
        let released = self.server.core.release(self.port.namespace, name, resources, self.session, self.now);
        released.map_or_else(|refusal| self.refused(refusal), |()| Response::Done)
    }

    fn refused(&self, refusal: Refusal) -> Response<'static> {
        self.note_refusal(refusal);
        Response::Failed(refusal.status())
    }
}
