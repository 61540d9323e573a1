//! The common part of all calls: a call is performed once, however often its request is repeated, and answered at once or later.

use std::sync::Arc;

use super::processes::{Done, Reply};
use super::set::{Completed, Completion};
use super::state::Sysv;
use super::values::undoes;
use super::waiters::WaiterId;
use crate::mailbox::{Message, ReplyTo};
use crate::outcome::Token;
use crate::time::Moment;
use signalbox_model::sysv::{Caller, Errno, ProcessId, SetAnswer, SetId};
use signalbox_model::{ConnectionId, Refusal, RequestId, RequestIds};

/// The origin of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SysvCall {
    /// The connection of the request.
    pub connection: ConnectionId,
    /// The request's ids within its process.
    pub ids: RequestIds,
    /// The token of the request, for a late answer.
    pub token: Token,
    /// The user and the group of the caller.
    pub caller: Caller,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SysvOutcome {
    /// The call has a result.
    Answered(Result<SetAnswer, Errno>),
    /// The call waits; its result comes as a [`Message`](crate::Message).
    Waiting,
    /// The request is refused, so the call is not made.
    Refused(Refusal),
}

/// Sends the result of a call, if its connection is known.
pub(super) fn send(reply_to: Option<ReplyTo>, result: Result<SetAnswer, Errno>) {
    if let Some(ReplyTo { mailbox, token }) = reply_to {
        mailbox.put(Message::Operated { token, result });
    }
}

impl Sysv {
    /// Returns the process that a request is for, and the reply if the request was made before. Forgets the replies that
    /// the client no longer needs.
    pub(super) fn find_reply(&mut self, call: SysvCall) -> Result<(ProcessId, Option<Reply>), Refusal> {
        let (process, _) = self.processes.acting(call.connection).ok_or(Refusal::NoSuchSession)?;
        let found = self.processes.change(process, |acting| {
            // A process that announced that it would replace its program (exec) has not done so if it sends a call.
            acting.grace_ms = None;
            let forgotten = &mut acting.forgotten;
            let forget = |request, reply: Reply| {
                if let Reply::Storing(done, _) | Reply::Done(done) = reply
                    && done.is_stored
                {
                    forgotten.push(request);
                }
            };
            acting.log.find(call.ids, forget).map(|found| found.cloned())
        });
        Ok((process, found.ok_or(Refusal::NoSuchSession)??))
    }

    /// Makes a call that does not wait for a set, unless its request is repeated. `is_durable`: whether its result
    /// depends on a durable set; `make` returns whether the call has changed one.
    pub(super) fn once(
        &mut self,
        call: SysvCall,
        is_durable: bool,
        make: impl FnOnce(&mut Self, ProcessId) -> Result<(SetAnswer, bool), Errno>,
    ) -> SysvOutcome {
        // The number belongs to another request, since calls made here never wait.
        let stale = |_: &mut Self, _, _| SysvOutcome::Refused(Refusal::StaleRequest);
        match self.first_time(call, is_durable, stale) {
            Ok(process) => {
                let result = make(self, process);
                self.settle(call, process, is_durable, result)
            }
            Err(outcome) => outcome,
        }
    }

    /// Returns the process that is to make the call now. Fails with the outcome if the call was made before, or if its result
    /// depends on a durable set and the store fails. `waiting` gives the outcome if the earlier request waits for a set.
    pub(super) fn first_time(
        &mut self,
        call: SysvCall,
        is_durable: bool,
        waiting: impl FnOnce(&mut Self, SetId, WaiterId) -> SysvOutcome,
    ) -> Result<ProcessId, SysvOutcome> {
        let (process, repeated) = self.find_reply(call).map_err(SysvOutcome::Refused)?;
        match repeated {
            None if is_durable && self.journal.is_failing() => Err(SysvOutcome::Answered(Err(Errno::Io))),
            None => Ok(process),
            Some(Reply::Done(done)) => Err(SysvOutcome::Answered(done.result)),
            Some(Reply::Storing(done, before)) => {
                self.redirect_held(call, process, done, before);
                Err(SysvOutcome::Waiting)
            }
            Some(Reply::Waiting(set, waiter_id)) => Err(waiting(self, set, waiter_id)),
        }
    }

    /// Answers a call that does not wait for a set. The second part of `result` is whether it has changed a durable
    /// set.
    pub(super) fn settle(
        &mut self,
        call: SysvCall,
        process: ProcessId,
        is_durable: bool,
        result: Result<(SetAnswer, bool), Errno>,
    ) -> SysvOutcome {
        let is_stored = result.as_ref().is_ok_and(|(_, has_changed)| *has_changed);
        let done = Done { result: result.map(|(answer, _)| answer), is_stored };
        if is_durable && !self.journal.is_idle() {
            let reply_to = self.reply_to(call);
            self.hold(process, call.ids.own, done, reply_to);
            self.journal.end_unit();
            return SysvOutcome::Waiting;
        }
        // A call that fails has changed nothing, so it is not cached if memory is scarce: a repeated one is executed again.
        if done.result.is_ok() || self.check_memory(process).is_ok() {
            self.cache(process, call.ids.own, Reply::Done(done.clone()));
        }
        SysvOutcome::Answered(done.result)
    }

    /// Directs the answer to a waiting call to this connection from now on. The request that would have been answered fails
    /// with EINTR.
    pub(super) fn redirect(&mut self, call: SysvCall, set: SetId, waiter_id: WaiterId) {
        let reply_to = self.reply_to(call);
        let waiter = self.sets.get_mut(set).and_then(|set| set.waiters.get_mut(waiter_id));
        let Some(waiter) = waiter else { return };
        send(std::mem::replace(&mut waiter.reply_to, reply_to), Err(Errno::Intr));
    }

    /// Directs the result of a call that is being stored to this connection from now on. The request that would have
    /// been answered fails with EINTR.
    fn redirect_held(&mut self, call: SysvCall, process: ProcessId, done: Done, before: Option<ReplyTo>) {
        let reply_to = self.reply_to(call);
        self.cache(process, call.ids.own, Reply::Storing(done, reply_to));
        send(before, Err(Errno::Intr));
    }

    pub(super) fn cache(&mut self, process: ProcessId, request: RequestId, reply: Reply) {
        self.processes.change(process, |acting| acting.log.insert(request, reply));
    }

    /// Checks that the client of a process may use more memory.
    pub(super) fn check_memory(&self, process: ProcessId) -> Result<(), Refusal> {
        self.limits.memory.check(self.limits.client_share, self.processes.bytes_of_client(process))
    }

    pub(super) fn groups_of(&self, process: ProcessId) -> &[u32] {
        self.processes.get(process).map_or(&[], |process| &process.record.groups)
    }

    pub(super) fn reply_to(&self, call: SysvCall) -> Option<ReplyTo> {
        let (_, mailbox) = self.processes.acting(call.connection)?;
        Some(ReplyTo { mailbox: Arc::clone(mailbox), token: call.token })
    }

    /// Completes the waiting calls that a change made possible. If there are many, their changes and results are stored in
    /// several units.
    pub(super) fn complete(&mut self, id: SetId, mut completion: Completion, now: Moment) {
        let mut is_changed = false;
        while let Some(set) = self.sets.get_mut(id)
            && let Some(completed) = completion.next(set, now.unix)
        {
            let is_durable = set.is_durable;
            if completed.result.is_ok() {
                is_changed = true;
                if undoes(&completed.waiter.operations) {
                    self.store_adjustments(completed.waiter.process, id);
                }
            }
            self.finish_one(id, is_durable, completed);
            if is_changed && self.journal.is_unit_large() {
                self.store_set(id);
                self.journal.end_unit();
                is_changed = false;
            }
        }
        if is_changed {
            self.store_set(id);
        }
        self.journal.end_unit();
    }

    /// Answers a call that waited for a set.
    pub(super) fn finish_one(&mut self, set: SetId, is_durable: bool, completed: Completed) {
        let Completed { waiter, waiter_id, result } = completed;
        if let Some(deadline) = waiter.deadline {
            self.timeouts.remove(&(deadline, set, waiter_id));
        }
        self.processes.remove_waiting(waiter.process, waiter.request, waiter.bytes());
        let done = Done { result: result.map(|()| SetAnswer::Done), is_stored: is_durable && result.is_ok() };
        if is_durable && !self.journal.is_idle() {
            self.hold(waiter.process, waiter.request, done, waiter.reply_to);
            return;
        }
        let result = done.result.clone();
        self.cache(waiter.process, waiter.request, Reply::Done(done));
        send(waiter.reply_to, result);
    }

    /// Ends the wait of a call with an error.
    pub(super) fn fail(&mut self, id: SetId, waiter_id: WaiterId, errno: Errno, now: Moment) {
        let Some(set) = self.sets.get_mut(id) else { return };
        let Some(waiter) = set.waiters.remove(waiter_id) else { return };
        let (completion, is_durable) = (set.completion_after_leaving(&waiter.operations), set.is_durable);
        self.finish_one(id, is_durable, Completed { waiter, waiter_id, result: Err(errno) });
        self.complete(id, completion, now);
    }
}
