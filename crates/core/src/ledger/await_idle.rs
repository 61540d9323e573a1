//! AwaitIdle: a request waits until the usage of a name has dropped. It does not acquire anything.

use super::backlog::STEP_GRANTS;
use super::idle_waiters::{IDLE_WAITER_BYTES, IdleRequest, IdleWaiter};
use super::state::Ledger;
use crate::clients::Counted;
use crate::limit::limit_reached;
use crate::object::ObjectRef;
use crate::outcome::{Answer, Outcome, Token};
use crate::state::Core;
use crate::time::{Due, Moment, MonotonicMs};
use signalbox_model::{ConnectionId, Idle, Limit, Namespace, Refusal};

impl Core {
    /// Waits until no more than a level of a name is in use, or until one of its slots is free, for `wait_ms`
    /// milliseconds at most (`docs/protocol.md`, "AwaitIdle").
    pub fn await_idle(
        &self,
        (connection, token): (ConnectionId, Token),
        (namespace, name): (Namespace, &[u8]),
        until: Idle,
        wait_ms: u32,
        now: Moment,
    ) -> Outcome {
        let (ledger, context) = (&mut *self.ledger(), self.context(now.unix));
        if let Err(refusal) = ledger.sessions.check_not_ending(connection).and_then(|()| ledger.check_open())
        {
            return Outcome::Refused(refusal);
        }
        let found = context.registry(namespace).find(name, |object| {
            // Marked before the usage is read, so that no release in between goes unnoticed.
            object.set_tracking(|tracking| tracking.awaited = true);
            object.clone()
        });
        let Some(object) = found else { return Outcome::Refused(Refusal::NotFound) };
        let in_use = object.consumption();
        let outcome = if ledger.is_idle(&object, until) {
            Outcome::Answered(Answer::Idle { in_use })
        } else if wait_ms == 0 {
            Outcome::Refused(Refusal::NotAvailable)
        } else if let Err(refusal) = ledger.check_idle_limits(connection, namespace, &object) {
            ledger.counts.limited += 1;
            Outcome::Refused(refusal)
        } else {
            Outcome::Waiting
        };
        let reply_to = ledger.sessions.reply_to(connection, token);
        if let (Outcome::Waiting, Some(reply_to)) = (&outcome, reply_to) {
            let deadline = now.monotonic.after(wait_ms);
            let waiter = IdleWaiter { namespace, object, until, deadline, reply_to };
            ledger.idle_waiters.insert((connection, token), waiter);
            ledger.clients.add(ledger.sessions.owner_of(connection), Counted::Waiters, 1);
            ledger.add_bytes(connection.session(), IDLE_WAITER_BYTES);
            ledger.alarm.ring(Due::At(deadline));
        } else {
            ledger.untrack_unawaited(namespace, &object);
        }
        outcome
    }
}

impl Ledger {
    /// Checks that one more request may wait until the name is idle.
    fn check_idle_limits(
        &self,
        connection: ConnectionId,
        namespace: Namespace,
        object: &ObjectRef,
    ) -> Result<(), Refusal> {
        self.check_memory_uncounted(connection)?;
        let grants_max = self.limits.grants_max;
        if self.idle_waiters.count_of(connection) >= grants_max {
            return Err(limit_reached(Limit::Grants, grants_max));
        }
        self.check_idle_queue(connection, self.idle_waiters.count_for(namespace, object))
    }

    fn is_idle(&self, object: &ObjectRef, until: Idle) -> bool {
        match until {
            Idle::Level(level) => object.consumption() <= level,
            Idle::Slot(number) => !self.slots.is_taken(object, number),
        }
    }

    /// Marks the requests that a drop in usage of a name satisfies. [`Self::answer_satisfied`] answers them.
    pub(super) fn satisfy_idle_waiters(&mut self, namespace: Namespace, object: &ObjectRef) {
        let is_free = |number| !self.slots.is_taken(object, number);
        if self.idle_waiters.satisfy((namespace, object), object.consumption(), is_free) {
            self.untrack_unawaited(namespace, object);
        }
    }

    /// Runs a step that answers satisfied requests. Returns whether there are more.
    pub(super) fn answer_satisfied(&mut self) -> bool {
        for _ in 0..STEP_GRANTS {
            let Some((request, in_use)) = self.idle_waiters.pop_satisfied() else { return false };
            if let Some(request) = request {
                self.end_idle_wait(request, Ok(Answer::Idle { in_use }));
            }
        }
        self.idle_waiters.has_satisfied()
    }

    fn remove_idle_waiter(&mut self, request: IdleRequest) -> Option<IdleWaiter> {
        let waiter = self.idle_waiters.remove(request)?;
        self.clients.subtract(self.sessions.owner_of(request.0), Counted::Waiters, 1);
        self.subtract_bytes(request.0.session(), IDLE_WAITER_BYTES);
        Some(waiter)
    }

    /// Ends the wait of a request with this outcome. Returns whether the request waited.
    fn end_idle_wait(&mut self, request: IdleRequest, outcome: Result<Answer, Refusal>) -> bool {
        let Some(waiter) = self.remove_idle_waiter(request) else { return false };
        waiter.reply_to.send(outcome);
        self.untrack_unawaited(waiter.namespace, &waiter.object);
        true
    }

    /// Lets plain operations on a name bypass the ledger again if nothing waits for a drop in its usage.
    fn untrack_unawaited(&self, namespace: Namespace, object: &ObjectRef) {
        let is_removing = namespace == Namespace::Semaphores && self.declarations.is_removing(object.name());
        let is_awaited = is_removing || self.idle_waiters.count_for(namespace, object) > 0;
        object.set_tracking(|tracking| tracking.awaited = is_awaited);
    }

    /// Ends the wait of a connection's request. Returns whether there was one.
    pub(super) fn cancel_idle_wait(&mut self, connection: ConnectionId, token: Token) -> bool {
        self.end_idle_wait((connection, token), Err(Refusal::Canceled))
    }

    /// Runs a step that drops the requests of a connection that has ended. Returns whether there may be more.
    pub(super) fn drop_idle_waits_of(&mut self, connection: ConnectionId) -> bool {
        for _ in 0..STEP_GRANTS {
            let Some(request) = self.idle_waiters.first_of(connection) else { return false };
            if let Some(waiter) = self.remove_idle_waiter(request) {
                self.untrack_unawaited(waiter.namespace, &waiter.object);
            }
        }
        true
    }

    /// Runs a step that answers requests whose wait has timed out.
    pub(super) fn time_out_idle_waits(&mut self, now: MonotonicMs) {
        // A satisfied request that is not answered yet has not timed out.
        if self.idle_waiters.has_satisfied() {
            return;
        }
        for _ in 0..STEP_GRANTS {
            let Some(request) = self.idle_waiters.first_due(now) else { return };
            self.counts.timed_out += 1;
            self.end_idle_wait(request, Err(Refusal::TimedOut));
        }
    }

    /// Runs a step that answers requests that still wait when the server shuts down. Returns whether there may be more.
    pub(super) fn shut_down_idle_waits(&mut self) -> bool {
        if self.answer_satisfied() {
            return true;
        }
        for _ in 0..STEP_GRANTS {
            let Some(request) = self.idle_waiters.first() else { return false };
            self.end_idle_wait(request, Err(Refusal::ShuttingDown));
        }
        true
    }
}
