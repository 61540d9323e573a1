//! Executes the operations of System V semaphore sets (`docs/protocol.md`, "System V semaphores").

use super::executor::{Denial, Executor, NextStep};
use super::extended_state::token_of;
use super::hello::random_key;
use super::response_stream::ResponseStream;
use super::rights;
use signalbox_core::{SysvCall, SysvOutcome};
use signalbox_model::sysv::{Errno, OpenedProcess, SetAnswer};
use signalbox_model::{Milliseconds, SessionKey, Status};
use signalbox_protocol::{
    Frame, Opaque, Response, SysvOpcode, SysvRequest, WAIT_FOREVER_MS, compose_call, compose_opened_process,
};

/// The way in which a valid request is answered.
enum Execution {
    Response(Response<'static>),
    Opened(OpenedProcess),
    Result(Result<SetAnswer, Errno>),
    /// The core sends the answer later, as a message.
    Later,
    Stream(ResponseStream),
}

impl Executor<'_> {
    /// Executes a request on a semaphore set as [`execute`](Self::execute) does. After several of them, the connection
    /// yields, because each may take much work.
    #[cold]
    pub(super) fn execute_sysv(
        &mut self,
        opcode: SysvOpcode,
        frame: &Frame<'_>,
        out: &mut Vec<u8>,
    ) -> NextStep {
        let opaque = frame.opaque();
        let outcome = frame.parse_sysv().map_err(Denial::Status).and_then(|request| {
            self.port.metrics.extended_commands.add(1);
            if self.lacks(opcode, rights::needed_for_sysv(&request)) {
                return Err(Denial::Status(Status::NotPermitted));
            }
            self.execute_call(opcode, opaque, request)
        });
        match outcome {
            Ok(Execution::Response(response)) => response.compose(opcode.code(), opaque, out),
            Ok(Execution::Opened(opened)) => compose_opened_process(&opened, opaque, out),
            Ok(Execution::Result(result)) => compose_call(&result, opcode, opaque, out),
            Ok(Execution::Later) => {}
            Ok(Execution::Stream(response)) => return NextStep::Stream(Box::new(response)),
            Err(denial) => return self.deny(opcode.code(), opaque, denial, out),
        }
        self.yield_after_some()
    }

    fn execute_call(
        &mut self,
        opcode: SysvOpcode,
        opaque: Opaque,
        request: SysvRequest<'_>,
    ) -> Result<Execution, Denial> {
        let (core, connection) = (&self.server.core, self.extended.connection);
        let now = self.server.moment();
        let token = token_of(opaque);
        let call = |ids, caller| SysvCall { connection, ids, token, caller };
        let outcome = match request {
            SysvRequest::OpenProcess { ttl, pid, caller, groups, label } => {
                let ttl = Milliseconds(self.ttl_ms(ttl));
                let key = SessionKey(random_key()?);
                let mailbox = (connection, &self.extended.mailbox);
                let process = (pid, caller, &groups[..]);
                let opened = core.open_process(mailbox, key, ttl, process, label, now)?;
                return Ok(Execution::Opened(opened));
            }
            SysvRequest::AttachProcess { process, key } => {
                let mailbox = (connection, &self.extended.mailbox);
                let ttl_ms = core.attach_process(mailbox, process, &key, now);
                return Ok(Execution::Response(Response::Resources(ttl_ms?)));
            }
            SysvRequest::KeepProcess { grace } => {
                core.keep_process(connection, grace.0)?;
                return Ok(Execution::Response(Response::Done));
            }
            SysvRequest::SemGet { ids, caller, key, count, flags } => {
                self.check_opaque(opaque)?;
                core.sem_get(call(ids, caller), key, count, flags, now)
            }
            SysvRequest::SemOp { ids, caller, set, wait_ms, operations } => {
                self.check_opaque(opaque)?;
                let operations: Vec<_> = operations.iter().collect();
                let wait_ms = (wait_ms != WAIT_FOREVER_MS).then_some(wait_ms);
                let (outcome, limit) = core.sem_op(call(ids, caller), set, &operations, wait_ms, now);
                if let Some(limit) = limit {
                    self.note_refusal(limit);
                }
                outcome
            }
            SysvRequest::SemCtl { ids, caller, set, command } => {
                self.check_opaque(opaque)?;
                core.sem_ctl(call(ids, caller), set, &command, now)
            }
            SysvRequest::ListSets => {
                return Ok(Execution::Stream(ResponseStream::sets(core.sets(), opaque)));
            }
            SysvRequest::ListUsers { set } => {
                let users = core.set_users(set)?;
                return Ok(Execution::Stream(ResponseStream::users(users, opaque)));
            }
        };
        match outcome {
            SysvOutcome::Answered(result) => Ok(Execution::Result(result)),
            SysvOutcome::Refused(refusal) => Err(refusal.into()),
            SysvOutcome::Waiting => {
                self.extended.waiting_calls.insert(opaque, opcode);
                Ok(Execution::Later)
            }
        }
    }
}
