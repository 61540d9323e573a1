//! Declare, Resize and Remove: an administrator sets the capacity of a semaphore, which stays until it is changed. Pause, Resume
//! and SetSlot: temporary changes by an administrator. They are not part of the declaration, so they are permitted for semaphores
//! of the configuration too.
//!
//! A change is made in the ledger at once, so that the next request sees it, and takes effect when it is committed:
//! only then are waiters granted what was added, or refused. A semaphore grants nothing from the moment its removal is
//! requested.
//!
//! Invariant: a name has a declaration if and only if its object has the lifecycle of a declared semaphore, so that no sweep
//! collects the object.
//!
//! Semaphores that the configuration declares belong to it, and their changes take effect without a commit: the configuration
//! file has them.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::listing::STEP_ENTRIES;
use super::removal::SEMAPHORES;
use super::replies::Changed;
use super::sessions::CachedReply;
use super::state::{Ledger, LedgerContext, OnCommit};
use crate::claim::Claim;
use crate::durable::{Change, DeclarationRecord, Origin, Record, Service};
use crate::object::ObjectRef;
use crate::semaphore::{Lifecycle, SLOTS_MAX, Withheld};
use crate::state::Core;
use crate::time::{Due, Moment, MonotonicMs};
use signalbox_model::{
    ConnectionId, Declaration, DeclaredState, EventKind, Generation, IfExists, Namespace, Refusal, Removal,
    Resizing, ServiceChange, SessionId,
};

/// The number of semaphores of the configuration that are declared in one step.
const CONFIGURED_STEP: usize = 64;

impl Core {
    /// Declares the semaphores of the configuration, and removes those that it no longer declares. Returns the names of
    /// those that cannot be declared, with the reason.
    pub fn declare_configured(&self, wanted: &[Declaration<'_>], now: Moment) -> Vec<(Box<[u8]>, Refusal)> {
        let context = self.context(now.unix);
        let mut refused = Vec::new();
        for some in wanted.chunks(CONFIGURED_STEP) {
            let mut ledger = self.ledger();
            for declare in some {
                if let Err(refusal) = ledger.configure(declare, now.monotonic, context) {
                    refused.push((declare.name.into(), refusal));
                }
            }
        }
        let configured: BTreeSet<_> = wanted.iter().map(|declare| declare.name).collect();
        let mut last = None;
        loop {
            let next = self.ledger().remove_unconfigured(&configured, last.as_ref(), now.monotonic, context);
            let Some(next) = next else { return refused };
            last = Some(next);
        }
    }
}

impl Ledger {
    /// Declares semaphores, all or none of them (`docs/protocol.md`, "Declare"). No name may be declared twice.
    pub(super) fn declare(
        &mut self,
        (connection, session): (ConnectionId, SessionId),
        wanted: &[Declaration<'_>],
        if_exists: IfExists,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) -> Result<Changed, Refusal> {
        self.check_store()?;
        self.check_memory(connection)?;
        self.check_declares(wanted, if_exists, context)?;
        let objects = self.objects_to_declare(wanted, context)?;
        let generations = wanted.iter().map(|_| self.next_id()).collect::<Result<Vec<_>, _>>();
        let generations = generations.inspect_err(|_| self.release_undeclared(&objects, context))?;
        let mut is_change = false;
        let mut states = Vec::with_capacity(wanted.len());
        for ((declare, object), generation) in wanted.iter().zip(&objects).zip(generations) {
            let present = self.declarations.get(declare.name).filter(|present| !present.removing);
            let stays =
                |present: &&DeclarationRecord| if_exists == IfExists::Keep || present.is_declared_as(declare);
            if let Some(present) = present.filter(stays) {
                states.push(present.state(object));
                continue;
            }
            let after = self.successor(object, DeclarationRecord::new(declare, generation, Origin::Request));
            states.push(after.state(object));
            self.change_declaration(object, after, false, now, context);
            is_change = true;
        }
        let is_durable = is_change || self.stores_answer_without_change(session);
        Ok(Changed { reply: CachedReply::declared(states), is_durable, is_change })
    }

    /// Changes the capacity of a declared semaphore, if it has the expected generation (`docs/protocol.md`, "Resize").
    pub(super) fn resize(
        &mut self,
        session: SessionId,
        name: &[u8],
        (how, expected): (Resizing, Option<Generation>),
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) -> Result<Changed, Refusal> {
        let check = |declared: &DeclarationRecord| declared.check_change(expected);
        self.alter(session, name, check, |after| after.resize(how), now, context)
    }

    /// Pauses or resumes a declared semaphore, or takes one of its slots out of service or puts the slot back, if the
    /// semaphore has the expected generation (`docs/protocol.md`, "Pause" and "SetSlot").
    pub(super) fn change_service(
        &mut self,
        session: SessionId,
        name: &[u8],
        (how, expected): (ServiceChange, Option<Generation>),
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) -> Result<Changed, Refusal> {
        let check = |declared: &DeclarationRecord| declared.check_generation(expected);
        self.alter(session, name, check, |after| after.change_service(how), now, context)
    }

    /// Removes a declared semaphore, if it has the expected generation (`docs/protocol.md`, "Remove").
    pub(super) fn remove(
        &mut self,
        name: &[u8],
        (how, expected): (Removal, Option<Generation>),
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) -> Result<Changed, Refusal> {
        self.check_store()?;
        let (object, declared) = self.declarations.entry(name).ok_or(Refusal::NotFound)?;
        declared.check_change(expected)?;
        let is_in_use = object.consumption() > 0 || self.waiting(SEMAPHORES, object) > 0;
        if how == Removal::IfIdle && is_in_use {
            return Err(Refusal::InUse);
        }
        let (object, mut after) = (object.clone(), declared.clone());
        after.generation = self.next_id()?;
        match how {
            Removal::Now { grace } => after.evicted_grace_ms = Some(grace.0),
            // A semaphore of this name that was removed before had a grace period, which does not apply to these holders.
            Removal::IfIdle | Removal::WithLastHolder if !after.removing => {
                after.evicted_grace_ms = None;
            }
            Removal::IfIdle | Removal::WithLastHolder => {}
        }
        after.removing = true;
        after.service = Service::default();
        self.change_declaration(&object, after, matches!(how, Removal::Now { .. }), now, context);
        let reply = CachedReply::declared([] as [DeclaredState; 0]);
        Ok(Changed { reply, is_durable: true, is_change: true })
    }

    /// Refuses semaphores that cannot be declared as requested, before anything is changed.
    fn check_declares(
        &self,
        wanted: &[Declaration<'_>],
        if_exists: IfExists,
        context: LedgerContext<'_>,
    ) -> Result<(), Refusal> {
        for declare in wanted {
            if declare.numbered && declare.capacity > SLOTS_MAX {
                return Err(Refusal::OutOfRange);
            }
            let declared = self.declarations.get(declare.name);
            match declared.filter(|declared| !declared.removing) {
                Some(_) if if_exists == IfExists::Fail => return Err(Refusal::AlreadyExists),
                Some(_) if if_exists == IfExists::Keep => continue,
                Some(present) if present.is_declared_as(declare) => continue,
                Some(present) => present.check_change(None)?,
                None => {}
            }
            self.check_counter(declare.name, context)?;
            self.check_numbering(declare, declared, context)?;
        }
        Ok(())
    }

    /// Refuses to declare a semaphore while sessions hold or wait for the counter of its name: later requests for the name would
    /// get the semaphore, and both would be in use at once.
    fn check_counter(&self, name: &[u8], context: LedgerContext<'_>) -> Result<(), Refusal> {
        let is_new = self.declarations.get(name).is_none();
        let is_in_use = |object: &ObjectRef| self.queues.is_in_use(Namespace::Counters, object);
        match is_new && context.registry(Namespace::Counters).find(name, is_in_use) == Some(true) {
            true => Err(Refusal::CounterInUse),
            false => Ok(()),
        }
    }

    /// Refuses to add or remove slot numbers while a semaphore is in use: it is not known which slots its holders would have.
    fn check_numbering(
        &self,
        declare: &Declaration<'_>,
        present: Option<&DeclarationRecord>,
        context: LedgerContext<'_>,
    ) -> Result<(), Refusal> {
        let was_numbered = present.is_some_and(|present| present.numbered);
        let in_use = context.registry(SEMAPHORES).find(declare.name, |object| object.consumption());
        if was_numbered != declare.numbered && in_use.unwrap_or(0) > 0 {
            return Err(Refusal::InUse);
        }
        Ok(())
    }

    /// Finds or creates the objects of names that will be declared, all or none.
    fn objects_to_declare(
        &self,
        wanted: &[Declaration<'_>],
        context: LedgerContext<'_>,
    ) -> Result<Vec<ObjectRef>, Refusal> {
        let mut objects = Vec::with_capacity(wanted.len());
        for declare in wanted {
            let object = self.object_to_declare(declare, context);
            objects.push(object.inspect_err(|_| self.release_undeclared(&objects, context))?);
        }
        Ok(objects)
    }

    /// Finds or creates the object of a name that will be declared. The object counts as declared from now on, so that no
    /// sweep collects it before it is declared.
    fn object_to_declare(
        &self,
        declare: &Declaration<'_>,
        context: LedgerContext<'_>,
    ) -> Result<ObjectRef, Refusal> {
        let declare_implicit = |object: &ObjectRef| {
            if object.lifecycle() == Lifecycle::Implicit {
                object.set_lifecycle(Lifecycle::Declared);
            }
            object.clone()
        };
        let claim = claim_of(declare.capacity);
        context.registry(SEMAPHORES).find_or_create(
            SEMAPHORES,
            declare.name,
            claim,
            context.interval,
            declare_implicit,
        )
    }

    /// Releases objects that are not declared after all, and collects those that nothing refers to.
    fn release_undeclared(&self, objects: &[ObjectRef], context: LedgerContext<'_>) {
        for object in objects {
            if self.declarations.get(object.name()).is_none() {
                object.set_lifecycle(Lifecycle::Implicit);
                context.registry(SEMAPHORES).collect(object, context.interval);
            }
        }
    }

    /// Completes a declaration with what it takes over from the present one: the id from which grants belong to it,
    /// what is out of service, and the grace period of holders that are still to be evicted.
    fn successor(&self, object: &ObjectRef, mut after: DeclarationRecord) -> DeclarationRecord {
        let present = self.declarations.get(object.name());
        match present {
            Some(present) if !present.removing => {
                after.created = present.created;
                after.service = present.service.clone();
            }
            Some(_) => {}
            // Grants from before the first declaration belong to the same semaphore.
            None => after.created = 0,
        }
        if !after.numbered {
            after.service.slots_out = Box::default();
        }
        after.evicted_grace_ms = present.and_then(|present| present.evicted_grace_ms);
        after
    }

    /// Alters a declared semaphore that passes a check and is not being removed. If the result equals the present declaration,
    /// the generation stays, and nothing is stored.
    fn alter(
        &mut self,
        session: SessionId,
        name: &[u8],
        check: impl FnOnce(&DeclarationRecord) -> Result<(), Refusal>,
        alter: impl FnOnce(&mut DeclarationRecord) -> Result<(), Refusal>,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) -> Result<Changed, Refusal> {
        self.check_store()?;
        let (object, declaration) = self.declarations.entry(name).ok_or(Refusal::NotFound)?;
        check(declaration)?;
        if declaration.removing {
            return Err(Refusal::Removed);
        }
        let (object, mut after) = (object.clone(), declaration.clone());
        alter(&mut after)?;
        let is_changed = self.declarations.get(object.name()) != Some(&after);
        if is_changed {
            after.generation = self.next_id()?;
        }
        let reply = CachedReply::declared([after.state(&object)]);
        let is_durable = is_changed || self.stores_answer_without_change(session);
        if is_changed {
            self.change_declaration(&object, after, false, now, context);
        }
        Ok(Changed { reply, is_durable, is_change: is_changed })
    }

    /// Returns whether the answer to a request that changed nothing must still wait for a commit: the present state may
    /// not be stored yet, and after a restart the repeated request of a leased session must not be answered with a
    /// later state.
    fn stores_answer_without_change(&self, session: SessionId) -> bool {
        !self.journal.is_idle() || self.is_durable(session)
    }

    /// Makes a change in the ledger at once, and lets it take effect when it is committed. `evicts`: the holders lose the
    /// semaphore then.
    fn change_declaration(
        &mut self,
        object: &ObjectRef,
        after: DeclarationRecord,
        evicts: bool,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) {
        let was_numbered = self.declarations.get(object.name()).map(|present| present.numbered);
        let is_closed = matches!(object.lifecycle(), Lifecycle::Closing | Lifecycle::Removing);
        if after.removing {
            if object.lifecycle() != Lifecycle::Removing {
                object.declare(Lifecycle::Closing, 0, Withheld::NOTHING);
            }
        } else {
            self.slots.set_numbered(object, after.numbered);
            match was_numbered {
                None => {
                    // A semaphore that is held or waited for keeps its present capacity until the change is committed, unless
                    // its slots become numbered.
                    let is_unused = object.consumption() == 0 && self.waiting(SEMAPHORES, object) == 0;
                    let capacity = object.capacity().filter(|_| !is_unused && !after.numbered);
                    object.declare(after.lifecycle(), capacity.unwrap_or(after.usable()), Withheld::NOTHING);
                }
                // The semaphore is not in use. Slot numbers and capacity change together, so that every slot has a number.
                Some(was_numbered) if was_numbered != after.numbered && !is_closed => {
                    let is_paused = object.withheld() == Withheld::ALL;
                    let withheld = self.slots.withheld(object, is_paused, after.usable());
                    object.declare(after.lifecycle(), after.usable(), withheld);
                    self.refuse_waiters_later(object, None);
                    self.backlog.serve_later(SEMAPHORES, object);
                    self.alarm.ring(Due::Now);
                }
                // The object stays as it is until the change is committed.
                Some(_) => {}
            }
        }
        self.put_declaration(object, &after);
        if self.journal.has_store() {
            let (object, after) = (object.clone(), Box::new(after));
            self.journal.on_commit(OnCommit::Declared { object, after, evicts });
        } else {
            self.apply(object, &after, evicts, now, context);
        }
    }

    fn put_declaration(&mut self, object: &ObjectRef, after: &DeclarationRecord) {
        self.journal.add(Change::Put(Record::Declaration(after.clone())));
        self.declarations.put(object, after.clone());
    }

    /// Applies a committed change, unless the configuration has changed the semaphore since. In that case, a removal
    /// still refuses earlier waiters, and evicts earlier holders if that was requested.
    pub(super) fn declaration_committed(
        &mut self,
        object: &ObjectRef,
        after: &DeclarationRecord,
        evicts: bool,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) {
        if self.declarations.awaits(object.name(), after.generation) {
            self.apply(object, after, evicts, now, context);
        } else if after.removing {
            self.refuse_and_evict_later(object, after, evicts, now);
        }
    }

    /// Lets a change take effect.
    fn apply(
        &mut self,
        object: &ObjectRef,
        after: &DeclarationRecord,
        evicts: bool,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) {
        let event = self.declarations.take_effect(object.name(), after);
        if after.removing {
            // The semaphore stays closed until a later declaration, which may have been requested already, takes effect.
            self.update_object(object, after);
            object.set_tracking(|tracking| tracking.awaited = true);
            self.refuse_and_evict_later(object, after, evicts, now);
            self.backlog.usage_dropped_later(SEMAPHORES, object);
            self.run_backlog(context);
            return;
        }
        let was_paused = object.withheld() == Withheld::ALL;
        // If its removal was requested since, the semaphore stays closed. If a later request has added or removed slot numbers,
        // the object has the capacity of that request already.
        let is_updated =
            !self.declarations.is_removing(object.name()) && self.slots.is_numbered(object) == after.numbered;
        let slots_out = if is_updated { self.update_object(object, after) } else { Vec::new() };
        if let Some(event) = event {
            self.publish(SEMAPHORES, object, event, None, None, after.capacity);
        }
        if is_updated {
            self.publish_service(object, (was_paused, &slots_out), after);
        }
        if self.waiting(SEMAPHORES, object) > 0 {
            self.refuse_waiters_later(object, None);
            self.backlog.serve_later(SEMAPHORES, object);
        }
        self.run_backlog(context);
    }

    /// Applies a declaration to its semaphore. Returns the slots that were out of service before.
    pub(super) fn update_object(&mut self, object: &ObjectRef, declaration: &DeclarationRecord) -> Vec<u16> {
        let slots_out = self.slots.set_out(object, &declaration.service.slots_out);
        let withheld = self.slots.withheld(object, declaration.service.paused, declaration.usable());
        object.declare(declaration.lifecycle(), declaration.usable(), withheld);
        slots_out
    }

    /// Publishes the events of a change of service: the semaphore is paused or resumed, slots are taken out of service or put
    /// back. `was_paused` and `were_out` are the state before.
    fn publish_service(
        &self,
        object: &ObjectRef,
        (was_paused, were_out): (bool, &[u16]),
        after: &DeclarationRecord,
    ) {
        let publish = |kind, number| self.publish(SEMAPHORES, object, kind, None, None, number);
        let Service { paused, slots_out } = &after.service;
        match (was_paused, paused) {
            (false, true) => publish(EventKind::Paused, 0),
            (true, false) => publish(EventKind::Resumed, 0),
            _ => {}
        }
        for slot in slots_out.iter().filter(|slot| were_out.binary_search(slot).is_err()) {
            publish(EventKind::SlotOut, (*slot).into());
        }
        for slot in were_out.iter().filter(|slot| !after.is_out(**slot)) {
            publish(EventKind::SlotIn, (*slot).into());
        }
    }
}

/// Returns a claim that creates a semaphore of this capacity. A claim requires at least 1; the declaration sets the capacity
/// afterwards.
pub(super) fn claim_of(capacity: u32) -> Claim {
    Claim { resources: 1, maximum: capacity.max(1) }
}

impl Ledger {
    /// Declares a semaphore as the configuration says.
    fn configure(
        &mut self,
        declare: &Declaration<'_>,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) -> Result<(), Refusal> {
        let present = self.declarations.get(declare.name);
        let is_done = |present: &DeclarationRecord| {
            present.is_declared_as(declare) && present.origin == Origin::Configuration && !present.removing
        };
        if present.is_some_and(is_done) {
            return Ok(());
        }
        self.check_counter(declare.name, context)?;
        self.check_numbering(declare, present, context)?;
        let object = self.object_to_declare(declare, context)?;
        let generation = self
            .next_id()
            .inspect_err(|_| self.release_undeclared(std::slice::from_ref(&object), context))?;
        let after =
            self.successor(&object, DeclarationRecord::new(declare, generation, Origin::Configuration));
        self.declare_at_once(&object, after, now, context);
        Ok(())
    }

    /// Removes semaphores that the configuration declared and no longer declares, each when its last holder has left. One
    /// step visits some, in the order of names after `after`. Returns the last one that was visited; `None`: all were visited.
    fn remove_unconfigured(
        &mut self,
        configured: &BTreeSet<&[u8]>,
        after: Option<&ObjectRef>,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) -> Option<ObjectRef> {
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.name()));
        let some: Vec<_> = self
            .declarations
            .from(from)
            .take(STEP_ENTRIES)
            .map(|(object, declaration)| (object.clone(), declaration.clone()))
            .collect();
        let last = some.last().map(|(object, _)| object.clone());
        for (object, declaration) in some {
            let is_configured = configured.contains(object.name());
            if declaration.origin == Origin::Configuration && !declaration.removing && !is_configured {
                // If no id is left, the generation stays, and the semaphore is removed nevertheless.
                let generation = self.next_id().unwrap_or(declaration.generation);
                let after = DeclarationRecord {
                    removing: true,
                    evicted_grace_ms: None,
                    generation,
                    service: Service::default(),
                    ..declaration
                };
                self.declare_at_once(&object, after, now, context);
            }
        }
        last
    }

    /// Makes a change that takes effect at once, without a commit: it is on disk already, in the configuration. An earlier change
    /// of the semaphore that is not committed yet no longer takes effect.
    fn declare_at_once(
        &mut self,
        object: &ObjectRef,
        after: DeclarationRecord,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) {
        if !after.removing {
            self.slots.set_numbered(object, after.numbered);
        }
        self.put_declaration(object, &after);
        self.journal.end_unit();
        self.apply(object, &after, false, now, context);
    }
}
