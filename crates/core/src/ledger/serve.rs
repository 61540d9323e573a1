//! Serving queues: a waiter takes its names one by one, in the order of ids and never out of turn, and becomes a grant; when it
//! ends, what it has taken is released. The steps of the backlog, which serve queues, are here too.
//!
//! The end of a grant or a waiter is only part of an operation: the caller runs the backlog afterwards, so that the resources
//! are granted to others.

use super::backlog::{NameRef, TIMELESS_KINDS, Task, TaskKind};
use super::grants::{CachedGrant, Grant, Kind, Part, Queueing, Target, Waiting};
use super::removal::SEMAPHORES;
use super::sessions::CachedReply;
use super::slots::GRANT_SLOTS_MAX;
use super::state::{Ledger, LedgerContext, PendingReply};
use crate::claim::Claim;
use crate::durable::{Change, Key};
use crate::invariant::broken;
use crate::object::{Granting, ObjectRef, QueuePosition};
use crate::semaphore::Lifecycle;
use crate::time::Due;
use signalbox_model::{EventKind, GrantId, Namespace, Refusal};

/// The outcome of taking the next name of a waiter.
enum Progress {
    Taken,
    Queued,
    Refused(Refusal),
}

impl Ledger {
    /// Acquires the remaining names of a waiter one by one, until it has to wait, is refused, or has everything and is
    /// granted. `queueing`: the request was just made, and may be refused because of the queue; `None`: it has waited. Returns the
    /// reply to the request; `None`: it waits.
    pub(super) fn advance(
        &mut self,
        id: GrantId,
        queueing: Option<Queueing>,
        context: LedgerContext<'_>,
    ) -> Option<PendingReply> {
        while self.grants.existing(id).awaited().is_some() {
            match self.take_next(id, queueing, context) {
                Progress::Taken => self.grants.existing_mut(id).count_taken(),
                Progress::Queued => {
                    let grant = self.grants.existing(id);
                    if let Some(part) = grant.awaited() {
                        self.publish_part(id, grant.session, part, EventKind::Queued);
                    }
                    return None;
                }
                Progress::Refused(refusal) => return Some(self.end_waiter(id, refusal, context)),
            }
        }
        let session = self.grants.existing(id).session;
        Some(match self.check_store_for(session).and_then(|()| self.choose_grant_id(id)) {
            Ok(granted) => self.grant(id, granted, context),
            Err(refusal) => self.end_waiter(id, refusal, context),
        })
    }

    /// Takes the next name of a waiter, or adds the waiter to the queue of that name.
    fn take_next(&mut self, id: GrantId, queueing: Option<Queueing>, context: LedgerContext<'_>) -> Progress {
        let Some(part) = self.grants.existing(id).awaited() else {
            broken(format_args!("waiter {id} lacks a name when it takes the next"))
        };
        let Target::Later(name) = &part.target else {
            broken(format_args!("the turn of the next name of waiter {id} has not come"))
        };
        // A request for a semaphore that was removed must not take from one that was declared since.
        let is_removed = queueing.is_none()
            && part.kind == Kind::Of(SEMAPHORES)
            && self.declarations.is_declared_after(name, id);
        if is_removed {
            return Progress::Refused(Refusal::Removed);
        }
        let (namespace, claim) = match self.resolve_part(part) {
            Ok(resolved) => resolved,
            Err(refusal) => return Progress::Refused(refusal),
        };
        let slot = part.slot;
        let slots_left = self.slots_left(id);
        // The shard is locked during the visit, so that the object is not collected before it is taken from or waited for.
        let visit = |object: &ObjectRef| {
            (
                object.clone(),
                self.take_from(object, namespace, id, (claim, slot), queueing, slots_left, context),
            )
        };
        let registry = context.registry(namespace);
        let (object, granting) =
            match registry.find_or_create(namespace, name, claim, context.interval, visit) {
                Ok(found) => found,
                Err(refusal) => return Progress::Refused(refusal),
            };
        let granting = match granting {
            Ok(granting) => granting,
            Err(refusal) => {
                self.counts.queue_full += u64::from(refusal == Refusal::QueueFull);
                self.counts.limited += u64::from(matches!(refusal, Refusal::LimitReached(_)));
                return Progress::Refused(refusal);
            }
        };
        let awaited = self.awaited_mut(id);
        awaited.kind = Kind::Of(namespace);
        awaited.claim = claim;
        self.set_target(id, &object, granting);
        if let Granting::Granted { .. } = granting {
            self.queues.add_grant(namespace, &object, id);
            Progress::Taken
        } else {
            let is_shared = self.awaited_mut(id).is_shared;
            self.queues.add_waiter(namespace, &object, id, is_shared);
            // The work of a single flight may have been done before the waiter returned to its place after a restart.
            if self.queues.is_done(namespace, &object, id) {
                self.backlog.push(Task::TellDone(NameRef::new(namespace, &object)));
            }
            if self.places.is_held_back(id) {
                self.places.hold_back(NameRef::new(namespace, &object));
            }
            Progress::Queued
        }
    }

    /// Takes from an object, or marks it as queued for this waiter.
    #[expect(clippy::too_many_arguments, reason = "called from one place, under the lock of a shard")]
    fn take_from(
        &self,
        object: &ObjectRef,
        namespace: Namespace,
        id: GrantId,
        (claim, slot): (Claim, Option<u16>),
        queueing: Option<Queueing>,
        slots_left: usize,
        context: LedgerContext<'_>,
    ) -> Result<Granting, Refusal> {
        // Checked before the queue, because this refusal does not depend on the queue.
        if let Some(refusal) = self.lasting_refusal(object, claim, slot) {
            return Err(refusal);
        }
        if object.lifecycle() == Lifecycle::Numbered && claim.resources as usize > slots_left {
            return Err(Refusal::NotAvailable);
        }
        let waiting = self.queues.waiting(namespace, object);
        let is_first = self.queues.head(namespace, object).is_none_or(|head| head > id);
        // In the reconnect window, a waiter that was ahead of this one may still return.
        let is_first = is_first && !self.places.is_held_back(id);
        let position = queue_position(queueing, is_first, waiting, || self.check_queue(id, waiting))?;
        let granting = if slot.is_none_or(|slot| self.slots.is_available(object, slot)) {
            object.grant(claim, context.interval, position)
        } else if position == QueuePosition::Immediate {
            Granting::MustWait
        } else {
            // The slot is not available, so the waiter waits as if others were ahead of it.
            object.grant(claim, context.interval, QueuePosition::Behind)
        };
        match granting {
            Granting::MustWait if position == QueuePosition::Immediate => Err(match queueing {
                Some(Queueing { wait_ms: 1.., .. }) => Refusal::QueueFull,
                _ => Refusal::NotAvailable,
            }),
            Granting::Impossible => Err(Refusal::NotAvailable),
            granting => Ok(granting),
        }
    }

    /// The refusal of a request that can never be granted unless the semaphore changes; `None`: it can be granted.
    pub(super) fn lasting_refusal(
        &self,
        object: &ObjectRef,
        claim: Claim,
        slot: Option<u16>,
    ) -> Option<Refusal> {
        let no_such_slot = || slot.filter(|slot| self.lacks_slot(object, *slot)).map(|_| Refusal::NoSuchSlot);
        object.refusal(claim).or_else(no_such_slot)
    }

    /// Returns whether a semaphore does not have this slot, and will not have it until the semaphore is changed.
    pub(super) fn lacks_slot(&self, object: &ObjectRef, slot: u16) -> bool {
        match object.lifecycle() {
            // Until the removal is committed, nothing is refused because of it.
            Lifecycle::Closing => false,
            Lifecycle::Numbered => object.capacity().is_none_or(|capacity| capacity <= slot.into()),
            Lifecycle::Implicit | Lifecycle::Declared | Lifecycle::Removing => true,
        }
    }

    /// The number of slots that a grant may still take, of all its names together.
    fn slots_left(&self, id: GrantId) -> usize {
        let slots = |part: &Part| part.object().map_or(0, |(_, object)| self.slots.of(object, id).len());
        GRANT_SLOTS_MAX - self.grants.existing(id).taken().iter().map(slots).sum::<usize>()
    }

    /// The next name that a waiter lacks.
    fn awaited_mut(&mut self, id: GrantId) -> &mut Part {
        match self.grants.existing_mut(id).awaited_mut() {
            Some(part) => part,
            None => broken(format_args!("waiter {id} lacks the name that it takes")),
        }
    }

    /// Resolves the namespace of a part's name. Returns it with the claim on the name.
    fn resolve_part(&self, part: &Part) -> Result<(Namespace, Claim), Refusal> {
        let claim = part.claim;
        let permitted = match part.kind {
            Kind::Of(namespace) => return Ok((namespace, claim)),
            Kind::Resolved(permitted) => permitted,
        };
        let namespace = self.resolve(part.name());
        if !permitted.includes(namespace) {
            return Err(Refusal::NotPermitted);
        }
        match self.declarations.get(part.name()) {
            None if claim.is_of_existing() => Err(Refusal::NotFound),
            None => Ok((namespace, claim)),
            Some(declared)
                if !claim.is_of_existing() && !declared.removing && claim.maximum < declared.capacity =>
            {
                Err(Refusal::MaximumTooSmall(declared.capacity))
            }
            Some(_) => Ok((namespace, Claim { maximum: 0, ..claim })),
        }
    }

    /// Resolves a name for a request that does not state its namespace: to the declared semaphore if there is one, from
    /// the request for its declaration until its removal has ended, else to the counter.
    pub(super) fn resolve(&self, name: &[u8]) -> Namespace {
        if self.declarations.get(name).is_some() { SEMAPHORES } else { Namespace::Counters }
    }

    /// Returns whether `passes` is true for every name of a grant.
    pub(super) fn names_pass(&self, grant: &Grant, passes: impl Fn(Namespace, &[u8]) -> bool) -> bool {
        grant.parts().iter().all(|part| passes(self.namespace_of(part), part.name()))
    }

    /// The namespace of a name of a grant, as resolved now if the turn of the name has not come.
    pub(super) fn namespace_of(&self, part: &Part) -> Namespace {
        match part.kind {
            Kind::Of(namespace) => namespace,
            Kind::Resolved(_) => self.resolve(part.name()),
        }
    }

    /// Sets the object of a waiter's next name. If the resources are granted, also sets the capacity, and takes the slots.
    fn set_target(&mut self, id: GrantId, object: &ObjectRef, granting: Granting) {
        let part = self.awaited_mut(id);
        part.target = Target::Now(object.clone());
        let (slot, resources) = (part.slot, part.claim.resources as usize);
        if let Granting::Granted { capacity, is_numbered } = granting {
            part.claim.maximum = capacity;
            match slot {
                Some(slot) => self.slots.take_slot(object, id, slot),
                None if is_numbered => self.slots.take(object, id, resources),
                None => {}
            }
        }
    }

    /// Turns a waiter that has everything into a grant with this id. Returns the reply to its request.
    fn grant(&mut self, waiter: GrantId, id: GrantId, context: LedgerContext<'_>) -> PendingReply {
        let Waiting { received, reply_to: to, .. } = self.grants.hold(waiter, self.now_ms(context));
        let grant = self.grants.existing(waiter);
        let session = grant.session;
        let cached = Box::new(CachedGrant { grant: id, ..grant.cached(waiter, &self.slots) });
        self.uncount_waiter(session);
        let state = self.sessions.existing_mut(session);
        state.waiter_granted();
        if let Some(to) = &to {
            state.remove_token(to.token, waiter);
        }
        if id != waiter {
            self.renumber(waiter, id);
        }
        self.counts.granted += 1;
        self.publish_grant(id, EventKind::Granted);
        if self.is_durable(session) {
            self.store_unstored(session, received);
            self.store_new_grant(id);
        } else {
            self.record_grant(id);
        }
        PendingReply { reply: CachedReply::Granted(cached), received, to }
    }

    /// Runs a step of the backlog: refuses waiters, serves queues from their heads until a head does not fit, and acts on drops
    /// in usage. The rest is left for the next step.
    pub(crate) fn run_backlog(&mut self, context: LedgerContext<'_>) {
        for kind in TIMELESS_KINDS {
            // The usage is final only when the queues are served.
            if kind == TaskKind::UsageDropped && self.backlog.has(TaskKind::ServeQueue) {
                break;
            }
            let mut work = 0;
            while work < kind.budget()
                && let Some(task) = self.backlog.pop(kind)
            {
                work += self.run_task(task, context);
            }
        }
        let has_satisfied = !self.backlog.has(TaskKind::ServeQueue) && self.answer_satisfied();
        if has_satisfied || self.backlog.has_any_of(&TIMELESS_KINDS) {
            self.alarm.ring(Due::Now);
        }
    }

    /// Runs a step of one task. Returns the amount of work, in the units of `TaskKind::budget`.
    fn run_task(&mut self, task: Task, context: LedgerContext<'_>) -> usize {
        match task {
            Task::RefuseWaiters(task) => self.refuse_some_waiters(task, context),
            Task::TellDone(name) => match self.queues.first_done(name.namespace, &name.object) {
                Some(id) => {
                    let work = self.work_of(id);
                    self.refuse_waiter(id, Refusal::Done, context);
                    self.backlog.push_front(Task::TellDone(name));
                    work
                }
                None => 1,
            },
            Task::ServeQueue(name) => match self.serve_head(&name, context) {
                Some(work) => {
                    self.backlog.push_front(Task::ServeQueue(name));
                    work
                }
                None => 1,
            },
            Task::UsageDropped(NameRef { namespace, object }) => {
                self.satisfy_idle_waiters(namespace, &object);
                if namespace == SEMAPHORES {
                    self.finish_removal(&object, context);
                }
                1
            }
            Task::Disconnect(..) | Task::Evict(_) | Task::RevokeClients(_) => {
                broken(format_args!("tasks that need the time are not run by a step without it"))
            }
        }
    }

    /// Serves the head of a queue. Returns the amount of work, like [`Self::run_task`]; `None`: the queue is empty, or
    /// its head does not fit.
    fn serve_head(&mut self, name: &NameRef, context: LedgerContext<'_>) -> Option<usize> {
        let NameRef { namespace, object } = name;
        let id = self.queues.head(*namespace, object)?;
        let work = self.work_of(id);
        let grant = self.grants.existing(id);
        let Some(Part { claim, slot, .. }) = grant.awaited() else {
            broken(format_args!("waiter {id} waits for the name in whose queue it is"))
        };
        let (claim, slot) = (*claim, *slot);
        let (session, request) = (grant.session, grant.request);
        // A session that is ending would only release the grant again. A waiter for a removed semaphore must not take
        // from one that was declared since.
        let ending = self.sessions.ending(session);
        let removed = self.backlog.will_refuse(object, id).then_some(Refusal::Removed);
        let done = self.queues.is_done(*namespace, object, id).then_some(Refusal::Done);
        // The resources of the semaphore may have become numbered slots while the request waited.
        let too_many_slots = (object.lifecycle() == Lifecycle::Numbered
            && claim.resources as usize > self.slots_left(id))
        .then_some(Refusal::NotAvailable);
        let lasting = self.lasting_refusal(object, claim, slot);
        if let Some(refusal) = ending.or(removed).or(done).or(too_many_slots).or(lasting) {
            self.refuse_waiter(id, refusal, context);
            return Some(work);
        }
        if self.places.is_held_back(id) || slot.is_some_and(|slot| !self.slots.is_available(object, slot)) {
            return None;
        }
        let is_alone = self.queues.waiting(*namespace, object) == 1;
        let position = if is_alone { QueuePosition::OnlyWaiter } else { QueuePosition::Head };
        match object.grant(claim, context.interval, position) {
            Granting::MustWait => return None,
            Granting::Impossible => {
                broken(format_args!("waiter {id} can be granted, as nothing changed since it was checked"))
            }
            granting @ Granting::Granted { .. } => {
                self.queues.grant_waiter(*namespace, object, id);
                self.set_target(id, object, granting);
                self.grants.existing_mut(id).count_taken();
                if let Some(pending) = self.advance(id, None, context) {
                    self.reply_to_waiter(session, request, pending);
                }
            }
        }
        Some(work)
    }
}

/// Returns the position that a request gets in a queue with this many waiters, or a refusal if it may not join the
/// queue. `may_join` checks the limits.
fn queue_position(
    queueing: Option<Queueing>,
    is_first: bool,
    waiting: usize,
    may_join: impl FnOnce() -> Result<(), Refusal>,
) -> Result<QueuePosition, Refusal> {
    let queued = if is_first { QueuePosition::Head } else { QueuePosition::Behind };
    // A waiter that takes its next name may join any queue.
    let Some(Queueing { wait_ms, queue_max }) = queueing else { return Ok(queued) };
    let joined = match wait_ms {
        0 => Err(Refusal::NotAvailable),
        _ if waiting >= queue_max as usize => Err(Refusal::QueueFull),
        _ => may_join(),
    };
    match joined {
        Ok(()) => Ok(queued),
        // The request may be granted at once, but not wait.
        Err(_) if is_first => Ok(QueuePosition::Immediate),
        Err(refusal) => Err(refusal),
    }
}

impl Ledger {
    /// Refuses the request of a waiter, and releases what the waiter has taken.
    pub(super) fn refuse_waiter(&mut self, id: GrantId, refusal: Refusal, context: LedgerContext<'_>) {
        let Grant { session, request, .. } = *self.grants.existing(id);
        let pending = self.end_waiter(id, refusal, context);
        self.send_reply(session, request, pending);
    }

    /// Ends a waiter without a grant, and releases what it has taken. Returns the reply to its request, which is refused.
    fn end_waiter(&mut self, id: GrantId, refusal: Refusal, context: LedgerContext<'_>) -> PendingReply {
        self.counts.told_done += u64::from(refusal == Refusal::Done);
        let grant = self.remove_grant(id);
        for part in grant.taken() {
            self.release_part(id, part, context);
            self.publish_part(id, grant.session, part, EventKind::Left);
        }
        // A waiter whose next name has no object yet is in no queue.
        if let Some(part) = grant.awaited()
            && let Some((namespace, object)) = part.object()
        {
            if self.queues.remove_waiter(namespace, object, id) {
                self.backlog.serve_later(namespace, object);
            }
            self.publish_part(id, grant.session, part, EventKind::Left);
        }
        let session = grant.session;
        let Some(Waiting { received, reply_to: to, .. }) = grant.into_waiter() else {
            broken(format_args!("grant {id} waits when its request is refused"))
        };
        if let Some(to) = &to {
            self.sessions.existing_mut(session).remove_token(to.token, id);
        }
        PendingReply { reply: CachedReply::Done(Err(refusal)), received, to }
    }

    /// Ends a held grant, and publishes an event of the kind `why` for each of its names.
    pub(super) fn end_grant(&mut self, id: GrantId, why: EventKind, context: LedgerContext<'_>) {
        let grant = self.remove_grant(id);
        self.record_end(id, &grant, why);
        if self.is_durable(grant.session) {
            self.journal.add(Change::Delete(Key::Grant(id)));
            let refusal = match why {
                EventKind::Revoked => Refusal::Revoked,
                EventKind::Expired => Refusal::NoSuchSession,
                _ => Refusal::Canceled,
            };
            self.refuse_pending_grant(grant.session, grant.request, id, refusal);
            self.journal.end_unit();
        }
        for part in grant.parts() {
            self.release_part(id, part, context);
            self.publish_part(id, grant.session, part, why);
        }
    }

    fn remove_grant(&mut self, id: GrantId) -> Grant {
        let Some(grant) = self.grants.remove(id) else { broken(format_args!("grant {id} ends once")) };
        let state = self.sessions.existing_mut(grant.session);
        if grant.is_waiting() {
            state.remove_waiter(id);
            self.uncount_waiter(grant.session);
        } else {
            state.remove_grant(id);
        }
        self.subtract_bytes(grant.session, grant.bytes());
        self.note_if_unused(grant.session);
        grant
    }

    /// Releases what a grant has taken of one name.
    fn release_part(&mut self, id: GrantId, part: &Part, context: LedgerContext<'_>) {
        let Some((namespace, object)) = part.object() else {
            broken(format_args!("each name that grant {id} has taken has an object"))
        };
        let has_slots_out = self.slots.free(object, id);
        let withheld = has_slots_out.then(|| self.slots.present_withheld(object));
        if object.release_grant(part.claim.resources, withheld, context.interval) {
            self.backlog.usage_dropped_later(namespace, object);
        }
        if self.queues.remove_grant(namespace, object, id) {
            self.backlog.serve_later(namespace, object);
        }
    }
}
