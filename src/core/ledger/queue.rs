//! Queues: who is served next, what a grant takes on its way, and how it is given back.

use std::collections::VecDeque;

use super::grant::{Part, Target};
use super::slots::GRANT_SLOTS_MAX;
use super::{
    Answer, EventKind, GrantId, Ledger, NameEntry, Namespace, ObjectRef, Phase, Queueing, Refusal,
    Remembered, RememberedGrant, STEP_GRANTS, SessionId, World,
};
use crate::core::durable::{Change, Key};
use crate::core::mailbox::Token;
use crate::core::object::{Next, Taken};
use crate::core::semaphore::Standing;

/// Names of grants that are served at a time: whoever has queues served has given something back first, or ended it.
const STEP_SERVED: usize = STEP_GRANTS / 2;

/// Watches that are told for as much work as it is to give or take a name.
const WATCHES_OF_WORK: usize = 8;

/// What came of a waiter's next part.
enum Step {
    Taken,
    Waits,
    Fails(Refusal),
}

/// Puts a name behind others. Often it is one name that many leave: it stands there once.
fn put_last(names: &mut VecDeque<(Namespace, ObjectRef)>, namespace: Namespace, object: &ObjectRef) {
    let is_last =
        |(last, other): &(Namespace, ObjectRef)| (*last, other.address()) == (namespace, object.address());
    if !names.back().is_some_and(is_last) {
        names.push_back((namespace, object.clone()));
    }
}

impl Ledger {
    /// Takes what a waiter still lacks, name by name in their order, until it has to wait or has all. `queueing` is
    /// that of a request that was just made, which may be refused; a waiter that is on its way is not.
    pub(super) fn advance(&mut self, id: GrantId, queueing: Option<Queueing>, world: World<'_>) {
        loop {
            let Some(grant) = self.grants.get(&id) else { return };
            if grant.awaited().is_none() {
                return self.complete(id, world);
            }
            match self.enter(id, queueing, world) {
                Step::Taken => self.note_taken(id),
                Step::Waits => return self.tell_awaited(id, EventKind::Queued),
                Step::Fails(refusal) => return self.fail(id, refusal, world),
            }
        }
    }

    /// Takes the next part of a waiter, or stands it in the queue at its id's place.
    fn enter(&mut self, id: GrantId, queueing: Option<Queueing>, world: World<'_>) -> Step {
        let Some(part) = self.grants.get(&id).and_then(|grant| grant.awaited()) else { return Step::Waits };
        let Target::Later(name) = &part.target else { return Step::Waits };
        let (namespace, claim) = (part.namespace, part.claim);
        // What is declared since is not for who asked for what was removed.
        if queueing.is_none() && self.is_created_after(namespace, name, id) {
            return Step::Fails(Refusal::Removed);
        }
        let registry = world.registries[namespace as usize];
        let names = &self.names[namespace as usize];
        let waiters_max = self.limits.waiters_max;
        let slots_left = GRANT_SLOTS_MAX - self.slots_taken(id);
        // The shard is held meanwhile, so that the object is not collected before it is taken from or waited for.
        let visit = |object: &ObjectRef| {
            let queue = names.get(&object.address()).map(|entry| &entry.queue);
            let waiting = queue.map_or(0, |queue| queue.len());
            let is_first = queue.and_then(|queue| queue.first()).is_none_or(|first| *first > id);
            // Said before anything about the queue: it would be as true of an empty one.
            if let Some(refusal) = object.refusal(claim) {
                return (object.clone(), Err(refusal));
            }
            if object.standing() == Standing::Numbered && claim.resources as usize > slots_left {
                return (object.clone(), Err(Refusal::NotAvailable));
            }
            let next = match queueing {
                Some(Queueing { wait_ms: 0, .. }) if is_first => Next::Now,
                Some(Queueing { wait_ms: 0, .. }) => return (object.clone(), Err(Refusal::NotAvailable)),
                Some(Queueing { queue_max, .. }) if !is_first && waiting >= queue_max as usize => {
                    return (object.clone(), Err(Refusal::QueueFull));
                }
                // Where it may not wait at all, it is granted now or not.
                Some(Queueing { queue_max, .. }) if waiting >= (queue_max as usize).min(waiters_max) => {
                    if is_first {
                        Next::Now
                    } else {
                        return (object.clone(), Err(Refusal::LimitReached));
                    }
                }
                _ if is_first => Next::Head,
                _ => Next::Behind,
            };
            let taken = object.take(claim, world.interval, next);
            let outcome = match taken {
                Taken::Not if next == Next::Now => Err(match queueing {
                    Some(Queueing { wait_ms: 1.., .. }) => Refusal::QueueFull,
                    _ => Refusal::NotAvailable,
                }),
                Taken::Never => Err(Refusal::NotAvailable),
                taken => Ok(taken),
            };
            (object.clone(), outcome)
        };
        let (object, outcome) = match registry.find_or_make(namespace, name, claim, world.interval, visit) {
            Ok(found) => found,
            Err(refusal) => return Step::Fails(refusal),
        };
        let taken = match outcome {
            Ok(taken) => taken,
            Err(refusal) => {
                self.stats.queue_full += u64::from(refusal == Refusal::QueueFull);
                self.stats.limited += u64::from(refusal == Refusal::LimitReached);
                return Step::Fails(refusal);
            }
        };
        let entry = self.names[namespace as usize].entry(object.address());
        let entry = entry.or_insert_with(|| NameEntry::of(&object));
        let step = if let Taken::Yes { .. } = taken {
            entry.held.insert(id);
            Step::Taken
        } else {
            entry.queue.insert(id);
            Step::Waits
        };
        self.set_target(id, object, taken);
        step
    }

    /// Numbers of slots that a grant has so far, of all its names.
    fn slots_taken(&self, id: GrantId) -> usize {
        let Some(grant) = self.grants.get(&id) else { return 0 };
        let taken = &grant.parts()[..grant.taken()];
        taken.iter().map(|part| self.slots_of(id, part).len()).sum()
    }

    /// Serves queues from their heads until those do not fit, and has happen what waits for less to be in use; what is
    /// too much for one step is left for the next.
    pub(super) fn serve(&mut self, world: World<'_>) {
        self.prune(world);
        let mut work = 0;
        while work < STEP_SERVED {
            let Some((namespace, object)) = self.unserved.front().cloned() else { break };
            match self.serve_head(namespace, &object, world) {
                0 => {
                    self.unserved.pop_front();
                    work += 1;
                }
                names => work += names,
            }
        }
        if !self.unserved.is_empty() {
            return self.sound_alarm(world.now.monotonic_ms);
        }
        // Only now is in use what stays in use.
        for _ in 0..STEP_GRANTS {
            let Some((namespace, object)) = self.lessened.pop_back() else { break };
            self.note_less(namespace, &object, world);
        }
        if self.tell_idles() || !self.lessened.is_empty() {
            self.sound_alarm(world.now.monotonic_ms);
        }
    }

    /// Has a queue served by the step that goes on, or by the next.
    pub(super) fn serve_later(&mut self, namespace: Namespace, object: &ObjectRef) {
        put_last(&mut self.unserved, namespace, object);
    }

    /// Has a name of which less is in use looked at by the step that goes on, or by the next.
    pub(super) fn note_lessened(&mut self, namespace: Namespace, object: &ObjectRef) {
        put_last(&mut self.lessened, namespace, object);
    }

    /// The work that a grant may be, in names. To tell many watches is work as well.
    pub(super) fn work_of(&self, id: GrantId) -> usize {
        let Some(grant) = self.grants.get(&id) else { return 1 };
        if self.watches.len() == 0 {
            return grant.parts().len();
        }
        let told = |part: &Part| {
            part.object().map_or(0, |object| self.watches.count_of(part.namespace, object.name()))
        };
        grant.parts().iter().map(|part| 1 + told(part) / WATCHES_OF_WORK).sum()
    }

    /// Serves the head of a queue. Gives the work that it was; 0 where it did not fit.
    fn serve_head(&mut self, namespace: Namespace, object: &ObjectRef, world: World<'_>) -> usize {
        let Some(entry) = self.names[namespace as usize].get(&object.address()) else { return 0 };
        let Some(id) = entry.queue.first().copied() else { return 0 };
        let work = self.work_of(id);
        // What a session that is ending was granted now, it would lose in one of the next steps.
        let ending = self.grants.get(&id).and_then(|grant| self.ending(grant.session));
        // And what is declared since is not for who waited for what was removed.
        let removed = self.waits_for_removed(object, id).then_some(Refusal::Removed);
        if let Some(refusal) = ending.or(removed) {
            self.fail(id, refusal, world);
            return work;
        }
        let slots_left = GRANT_SLOTS_MAX - self.slots_taken(id);
        let Some(entry) = self.names[namespace as usize].get_mut(&object.address()) else { return 0 };
        let next = if entry.queue.len() == 1 { Next::Last } else { Next::Head };
        let Some(claim) = self.grants.get(&id).and_then(|grant| grant.awaited()).map(|part| part.claim)
        else {
            return 0;
        };
        // It may have been given numbers since.
        let is_numbered = object.standing() == Standing::Numbered;
        if is_numbered && claim.resources as usize > slots_left {
            self.fail(id, Refusal::NotAvailable, world);
            return work;
        }
        match object.take(claim, world.interval, next) {
            taken @ Taken::Yes { .. } => {
                entry.queue.remove(&id);
                entry.held.insert(id);
                self.set_target(id, object.clone(), taken);
                self.note_taken(id);
                self.advance(id, None, world);
                work
            }
            Taken::Not => 0,
            Taken::Never => {
                self.fail(id, object.refusal(claim).unwrap_or(Refusal::NotAvailable), world);
                work
            }
        }
    }

    /// Notes what a part is taken from, or waits for.
    fn set_target(&mut self, id: GrantId, object: ObjectRef, taken: Taken) {
        let Some(grant) = self.grants.get_mut(&id) else { return };
        let index = grant.taken();
        let Some(part) = grant.parts_mut().get_mut(index) else { return };
        if let Taken::Yes { capacity, is_numbered } = taken {
            part.claim.maximum = capacity;
            if is_numbered && let Some(slots) = self.slots.get_mut(&object.address()) {
                slots.take(id, part.claim.resources as usize);
            }
        }
        part.target = Target::Now(object);
    }

    fn note_taken(&mut self, id: GrantId) {
        if let Some(grant) = self.grants.get_mut(&id)
            && let Phase::Waiting { taken, .. } = &mut grant.phase
        {
            *taken += 1;
        }
    }

    /// A waiter has all that it wants.
    fn complete(&mut self, id: GrantId, world: World<'_>) {
        let Some(grant) = self.grants.get_mut(&id) else { return };
        let phase = Phase::Held { since: world.now.unix.into(), revoked_ms: None };
        let Phase::Waiting { until_ms, received_ms, reply, .. } = std::mem::replace(&mut grant.phase, phase)
        else {
            return;
        };
        self.grant_ends.remove(&(until_ms, id));
        self.stats.waiters -= 1;
        self.stats.grants += 1;
        let (session, request) = (grant.session, grant.request);
        if let Some(reply) = &reply {
            self.forget_token(session, reply.token, id);
        }
        let Some(grant) = self.grants.get(&id) else { return };
        let remembered = Box::new(RememberedGrant::of(id, grant, |part| self.slots_of(id, part)));
        self.tell(id, EventKind::Granted);
        if self.is_durable(session) {
            self.note_grant(id, world);
            return self.answer_when_stored(
                session,
                request,
                received_ms,
                Remembered::Granted(remembered),
                reply,
            );
        }
        if let Some(reply) = reply {
            let granted = remembered.clone().told(self.ttl_left_ms(session, received_ms));
            reply.answer(Ok(Answer::Granted(granted)));
        }
        self.remember(session, request, Remembered::Granted(remembered));
    }

    /// Ends a waiter that comes to nothing: what it had set aside is free, and it is answered.
    pub(super) fn fail(&mut self, id: GrantId, refusal: Refusal, world: World<'_>) {
        let Some(mut grant) = self.grants.remove(&id) else { return };
        for part in &grant.parts()[..grant.taken()] {
            self.put_back(id, part, world);
            self.tell_part(id, grant.session, part, EventKind::Left);
        }
        if let Some(part) = grant.awaited()
            && let Some(object) = part.object()
        {
            let namespace = part.namespace;
            let entry = self.names[namespace as usize].entry(object.address());
            let entry = entry.or_insert_with(|| NameEntry::of(object));
            entry.queue.remove(&id);
            if entry.queue.is_empty() {
                object.supervise(|supervision| supervision.queued = false);
            } else {
                self.serve_later(namespace, object);
            }
            self.forget_entry(namespace, object);
            self.tell_part(id, grant.session, part, EventKind::Left);
        }
        self.stats.waiters -= 1;
        self.forget_grant(grant.session, id);
        if let Phase::Waiting { until_ms, reply, .. } = &mut grant.phase {
            self.grant_ends.remove(&(*until_ms, id));
            if let Some(reply) = reply.take() {
                self.forget_token(grant.session, reply.token, id);
                reply.answer(Err(refusal));
            }
        }
        self.remember(grant.session, grant.request, Remembered::Done(Err(refusal)));
    }

    /// Gives back a grant that is held; `why` is what watchers are told.
    pub(super) fn give_back(&mut self, id: GrantId, why: EventKind, world: World<'_>) {
        let Some(grant) = self.grants.remove(&id) else { return };
        if let Phase::Held { revoked_ms: Some(revoked_ms), .. } = grant.phase {
            self.grant_ends.remove(&(revoked_ms, id));
        }
        self.stats.grants -= 1;
        self.forget_grant(grant.session, id);
        if self.is_durable(grant.session) {
            self.note(Change::Delete(Key::Grant(id)));
            let refusal = match why {
                EventKind::Revoked => Refusal::Revoked,
                EventKind::Expired => Refusal::NoSuchSession,
                _ => Refusal::Canceled,
            };
            self.fail_storing(grant.session, grant.request, id, refusal);
        }
        for part in grant.parts() {
            self.put_back(id, part, world);
            self.tell_part(id, grant.session, part, why);
        }
    }

    /// Gives back what was taken for a part of a grant.
    fn put_back(&mut self, id: GrantId, part: &Part, world: World<'_>) {
        let namespace = part.namespace;
        let Some(object) = part.object() else { return };
        if let Some(slots) = self.slots.get_mut(&object.address()) {
            slots.put_back(id);
        }
        if object.put_back(part.claim.resources, world.interval) {
            self.note_lessened(namespace, object);
        }
        if let Some(entry) = self.names[namespace as usize].get_mut(&object.address()) {
            entry.held.remove(&id);
            if !entry.queue.is_empty() {
                self.serve_later(namespace, object);
            }
        }
        self.forget_entry(namespace, object);
    }

    fn forget_entry(&mut self, namespace: Namespace, object: &ObjectRef) {
        let names = &mut self.names[namespace as usize];
        let is_empty = |entry: &NameEntry| entry.held.is_empty() && entry.queue.is_empty();
        if names.get(&object.address()).is_some_and(is_empty) {
            names.remove(&object.address());
        }
    }

    fn forget_grant(&mut self, session: SessionId, id: GrantId) {
        if let Some(owner) = self.owners.get_mut(&session) {
            owner.grants.remove(id);
        }
    }

    fn forget_token(&mut self, session: SessionId, token: Token, id: GrantId) {
        if let Some(owner) = self.owners.get_mut(&session) {
            owner.forget_token(token, id);
        }
    }

    /// How many requests wait for a name.
    pub(in crate::core) fn waiting(&self, namespace: Namespace, object: &ObjectRef) -> usize {
        self.names[namespace as usize].get(&object.address()).map_or(0, |entry| entry.queue.len())
    }

    /// What becomes of a name of which a session gave back resources by plain means.
    pub(in crate::core) fn after_release(
        &mut self,
        namespace: Namespace,
        object: &ObjectRef,
        session: SessionId,
        resources: u32,
        world: World<'_>,
    ) {
        self.tell_name(namespace, object, EventKind::Released, None, Some(session), resources);
        if object.is_awaited() {
            self.note_lessened(namespace, object);
        }
        if self.waiting(namespace, object) > 0 {
            self.serve_later(namespace, object);
        }
        self.serve(world);
        self.let_go_unwatched(namespace, object);
    }
}
