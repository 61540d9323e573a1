//! The removal of declared semaphores: waiters are refused, holders keep what they have or lose it after a grace period,
//! and the semaphore ends with its last holder.

use std::ops::Bound;

use super::backlog::{Eviction, RefuseWaiters, STEP_GRANTS, Task};
use super::state::{Ledger, LedgerContext};
use crate::durable::{Change, DeclarationRecord, Key};
use crate::object::ObjectRef;
use crate::semaphore::{Lifecycle, Withheld};
use crate::time::{Due, MonotonicMs};
use signalbox_model::{EventKind, GrantId, Namespace, Refusal};

pub(super) const SEMAPHORES: Namespace = Namespace::Semaphores;

impl Ledger {
    /// Ends the removal of a semaphore if its last holder has left and no change of it is pending.
    pub(super) fn finish_removal(&mut self, object: &ObjectRef, context: LedgerContext<'_>) {
        let is_unused = object.lifecycle() == Lifecycle::Removing
            && object.consumption() == 0
            && self.waiting(SEMAPHORES, object) == 0;
        // This is called again when a pending change has taken effect.
        let is_pending = self.declarations.is_pending(object.name());
        if !is_unused || !self.declarations.is_removing(object.name()) || is_pending {
            return;
        }
        self.publish(SEMAPHORES, object, EventKind::Removed, None, None, 0);
        self.journal.add(Change::Delete(Key::Declaration(object.name().into())));
        self.journal.end_unit();
        object.declare(Lifecycle::Implicit, 0, Withheld::NOTHING);
        self.forget_declaration(object, context);
    }

    /// Forgets the declaration of a semaphore, and the semaphore if nothing refers to it.
    pub(super) fn forget_declaration(&mut self, object: &ObjectRef, context: LedgerContext<'_>) {
        self.declarations.remove(object);
        self.slots.set_numbered(object, false);
        context.registry(SEMAPHORES).collect(object, context.interval);
    }

    /// Continues the removals that were in progress when the process ended; called after everything was restored. Grace periods
    /// start again.
    pub(super) fn resume_removals(&mut self, now: MonotonicMs, context: LedgerContext<'_>) {
        let is_removed =
            |declaration: &DeclarationRecord| declaration.removing || declaration.evicted_grace_ms.is_some();
        let removed = self.declarations.iter().filter(|(_, declaration)| is_removed(declaration));
        let removed: Vec<_> =
            removed.map(|(object, declaration)| (object.clone(), declaration.clone())).collect();
        for (object, declaration) in removed {
            if let Some(grace_ms) = declaration.evicted_grace_ms {
                let id = if declaration.removing { declaration.generation } else { declaration.created };
                self.evict_later(&object, now.after(grace_ms), GrantId(id));
            }
            self.finish_removal(&object, context);
        }
    }

    /// Lets the backlog refuse the waiters of a removed semaphore, and evict its holders if it was removed at once.
    pub(super) fn refuse_and_evict_later(
        &mut self,
        object: &ObjectRef,
        removal: &DeclarationRecord,
        evicts: bool,
        now: MonotonicMs,
    ) {
        let removed = GrantId(removal.generation);
        self.refuse_waiters_later(object, Some(removed));
        if let Some(grace_ms) = removal.evicted_grace_ms.filter(|_| evicts) {
            self.evict_later(object, now.after(grace_ms), removed);
        }
        self.alarm.ring(Due::Now);
    }

    /// Lets the backlog evict the holders of a semaphore, whose grace period ends at `at`: grants with ids below `removed`,
    /// and connections that hold the semaphore by plain Acquires.
    fn evict_later(&mut self, object: &ObjectRef, at: MonotonicMs, removed: GrantId) {
        let plain: Vec<_> = object.holdings().into_iter().map(|(connection, _)| connection).collect();
        let (object, plain) = (object.clone(), plain.into_iter());
        self.backlog.push(Task::Evict(Eviction { object, at, after: None, removed, plain }));
    }

    /// Lets the backlog refuse the waiters that a semaphore can never satisfy, and all waiters with ids below `removed`.
    pub(super) fn refuse_waiters_later(&mut self, object: &ObjectRef, removed: Option<GrantId>) {
        self.backlog.push(Task::RefuseWaiters(RefuseWaiters {
            object: object.clone(),
            after: None,
            removed,
        }));
    }

    /// Refuses some waiters of a semaphore that shrank or is being removed. Returns the amount of work, as the backlog
    /// counts it.
    pub(super) fn refuse_some_waiters(&mut self, task: RefuseWaiters, context: LedgerContext<'_>) -> usize {
        let RefuseWaiters { object, after, removed } = task;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let waiters = self.queues.waiters(SEMAPHORES, &object, (from, Bound::Unbounded));
        let some: Vec<_> = waiters.take(STEP_GRANTS).collect();
        let Some(last) = some.last().copied() else {
            self.finish_removal(&object, context);
            if self.declarations.get(object.name()).is_none() {
                context.registry(SEMAPHORES).collect(&object, context.interval);
            }
            return 1;
        };
        for id in &some {
            let part = self.grants.existing(*id).awaited();
            let refusal = part.and_then(|part| self.lasting_refusal(&object, part.claim, part.slot));
            if removed.is_some_and(|removed| *id < removed) {
                self.refuse_waiter(*id, Refusal::Removed, context);
            } else if let Some(refusal) = refusal {
                self.refuse_waiter(*id, refusal, context);
            }
        }
        self.backlog.push_front(Task::RefuseWaiters(RefuseWaiters { object, after: Some(last), removed }));
        some.len()
    }
}
