//! Declared semaphores: an administrator says how much there is, and it stays until he says otherwise.
//!
//! What was asked for is planned at once, so that the next request sees it, and is done when it is stored: only then do
//! waiters get what was added, or are told that they wait in vain. A semaphore that is to be removed grants nothing from the
//! moment it was asked for.
//!
//! Invariant: a name has a declaration exactly while its object says so, so that no sweep takes it.

use std::ops::Bound;

use super::declaration::{Before, Declaration, Declare, Declared, IfExists, Removal, Resizing};
use super::grant::{Part, Target};
use super::journal::Then;
use super::slots::SLOTS_MAX;
use super::{Call, Done, GrantId, Ledger, Namespace, ObjectRef, Outcome, Refusal, Remembered, World};
use crate::core::Claim;
use crate::core::durable::{Change, DeclarationRecord, Origin, Record};
use crate::core::mailbox::EventKind;
use crate::core::semaphore::Standing;

/// A listing of declared semaphores at work, some a step, in the order of their names.
#[derive(Debug)]
pub struct DeclaredListing {
    prefix: Box<[u8]>,
    after: Option<Box<[u8]>>,
}

/// Entries of one step of a listing, and bytes of their names and labels.
pub(super) const STEP_ENTRIES: usize = 128;
const STEP_BYTES: usize = 64 * 1024;

pub(super) const SEMAPHORES: Namespace = Namespace::Semaphores;

impl DeclaredListing {
    pub(in crate::core) fn new(prefix: &[u8]) -> Self {
        Self { prefix: prefix.into(), after: None }
    }
}

impl Ledger {
    /// Declares semaphores, all or none of them (`docs/protocol.md`, "Declare"). No name is declared twice.
    pub(in crate::core) fn declare(
        &mut self,
        call: Call,
        wanted: &[Declare<'_>],
        if_exists: IfExists,
        world: World<'_>,
    ) -> Outcome {
        self.change(call, world, |ledger, _| {
            ledger.check_declares(wanted, if_exists, world)?;
            let objects = ledger.objects_for(wanted, world)?;
            let generations = wanted.iter().map(|_| ledger.next_id()).collect::<Result<Vec<_>, _>>();
            let generations = generations.inspect_err(|_| ledger.give_up(&objects, world))?;
            let mut is_changed = false;
            let mut settled = Vec::with_capacity(wanted.len());
            for ((declare, object), generation) in wanted.iter().zip(&objects).zip(generations) {
                let present = ledger.declarations.get(declare.name).filter(|declared| !declared.removing);
                let stays = |present: &&Declaration| if_exists == IfExists::Keep || present.says(declare);
                if let Some(present) = present.filter(stays) {
                    settled.push(present.settled(object));
                    continue;
                }
                let after = ledger.following(object, Declaration::new(declare, generation, Origin::Request));
                settled.push(after.settled(object));
                ledger.plan(object, after, false, world);
                is_changed = true;
            }
            // What is so already may be on its way to the store, and come to nothing.
            let is_durable = is_changed || !ledger.is_stored();
            Ok(Done { outcome: Remembered::settled(settled), is_durable })
        })
    }

    /// Refuses what cannot be declared as it is wanted, before anything is changed.
    fn check_declares(
        &self,
        wanted: &[Declare<'_>],
        if_exists: IfExists,
        world: World<'_>,
    ) -> Result<(), Refusal> {
        for declare in wanted {
            if declare.numbered && declare.capacity > SLOTS_MAX {
                return Err(Refusal::OutOfRange);
            }
            let declared = self.declarations.get(declare.name);
            match declared.filter(|declared| !declared.removing) {
                Some(_) if if_exists == IfExists::Fail => return Err(Refusal::AlreadyExists),
                Some(_) if if_exists == IfExists::Keep => continue,
                Some(present) => {
                    if present.says(declare) {
                        continue;
                    }
                    present.check(None)?;
                }
                None => {}
            }
            check_unused(declare, declared, world)?;
        }
        Ok(())
    }

    /// The objects of names that are to be declared, all or none.
    fn objects_for(&self, wanted: &[Declare<'_>], world: World<'_>) -> Result<Vec<ObjectRef>, Refusal> {
        let mut objects = Vec::with_capacity(wanted.len());
        for declare in wanted {
            let object = self.object_for(declare, world).inspect_err(|_| self.give_up(&objects, world))?;
            objects.push(object);
        }
        Ok(objects)
    }

    /// The object of a name that is to be declared: what stands there, or a new one. It counts as declared from when it
    /// is found: a sweep may come at any moment, and takes what nothing refers to.
    pub(super) fn object_for(&self, declare: &Declare<'_>, world: World<'_>) -> Result<ObjectRef, Refusal> {
        let registry = world.registries[SEMAPHORES as usize];
        let keep = |object: &ObjectRef| {
            if object.standing() == Standing::Made {
                object.stand(Standing::Declared);
            }
            object.clone()
        };
        registry.find_or_make(SEMAPHORES, declare.name, claim_of(declare.capacity), world.interval, keep)
    }

    /// Lets go of objects that are not declared after all, and of those that nobody uses.
    pub(super) fn give_up(&self, objects: &[ObjectRef], world: World<'_>) {
        for object in objects {
            if self.declarations.get(object.name()).is_none() {
                object.stand(Standing::Made);
                world.registries[SEMAPHORES as usize].collect(object, world.interval);
            }
        }
    }

    /// A declaration with what it has of the one before it: from which id on grants are of the semaphore that is declared
    /// now, and whether those of one that was removed at once are still to be taken from their holders.
    pub(super) fn following(&self, object: &ObjectRef, mut after: Declaration) -> Declaration {
        let present = self.declarations.get(object.name());
        match present {
            Some(present) if !present.removing => after.created = present.created,
            Some(_) => {}
            // What was taken while nobody had declared it is of the same semaphore.
            None => after.created = 0,
        }
        after.evicted_grace_ms = present.and_then(|present| present.evicted_grace_ms);
        after
    }

    /// Changes the capacity of a declared semaphore (`docs/protocol.md`, "Resize").
    pub(in crate::core) fn resize(
        &mut self,
        call: Call,
        name: &[u8],
        resizing: Resizing,
        generation: Option<u64>,
        world: World<'_>,
    ) -> Outcome {
        self.change(call, world, |ledger, _| {
            let (object, declaration) = ledger.declarations.entry(name).ok_or(Refusal::NotFound)?;
            declaration.check(generation)?;
            if declaration.removing {
                return Err(Refusal::Removed);
            }
            let (object, mut after) = (object.clone(), declaration.clone());
            after.capacity = match resizing {
                Resizing::To(capacity) => capacity,
                Resizing::Grow(by) => after.capacity.checked_add(by).ok_or(Refusal::OutOfRange)?,
                Resizing::Shrink(by) => after.capacity.saturating_sub(by),
            };
            if after.numbered && after.capacity > SLOTS_MAX {
                return Err(Refusal::OutOfRange);
            }
            after.generation = ledger.next_id()?;
            let settled = after.settled(&object);
            ledger.plan(&object, after, false, world);
            Ok(Done { outcome: Remembered::settled([settled]), is_durable: true })
        })
    }

    /// Removes a declared semaphore (`docs/protocol.md`, "Remove").
    pub(in crate::core) fn remove(
        &mut self,
        call: Call,
        name: &[u8],
        removal: Removal,
        generation: Option<u64>,
        world: World<'_>,
    ) -> Outcome {
        self.change(call, world, |ledger, _| {
            let (object, declaration) = ledger.declarations.entry(name).ok_or(Refusal::NotFound)?;
            declaration.check(generation)?;
            let is_held = object.consumption() > 0 || ledger.waiting(SEMAPHORES, object) > 0;
            if removal == Removal::IfIdle && is_held {
                return Err(Refusal::InUse);
            }
            let (object, mut after) = (object.clone(), declaration.clone());
            after.generation = ledger.next_id()?;
            match removal {
                Removal::Now { grace_ms } => after.evicted_grace_ms = Some(grace_ms),
                // That of one before it is not for its own holders.
                _ if !after.removing => after.evicted_grace_ms = None,
                _ => {}
            }
            after.removing = true;
            ledger.plan(&object, after, matches!(removal, Removal::Now { .. }), world);
            Ok(Done { outcome: Remembered::settled([]), is_durable: true })
        })
    }

    /// Takes up what is to become of a semaphore, and does it when it is stored; `evicts` says that it is taken from its
    /// holders.
    fn plan(&mut self, object: &ObjectRef, after: Declaration, evicts: bool, world: World<'_>) {
        let before = self.before(object);
        if after.removing {
            if object.standing() != Standing::Removing {
                object.declare(Standing::Closing, 0);
            }
        } else {
            self.number(object, after.numbered);
            match &before {
                Before::Undeclared { capacity } => {
                    object.declare(after.standing(), capacity.unwrap_or(after.usable()));
                }
                // It stays closed until this is stored.
                Before::Declared(before) if before.removing => {}
                Before::Declared(_) => object.stand(after.standing()),
            }
        }
        self.put_declaration(object, &after);
        if self.journal.is_some() {
            self.then(Then::Declared { object: object.clone(), before, after: Box::new(after), evicts });
        } else {
            self.apply(object, &before, &after, evicts, world);
        }
    }

    /// What a semaphore is before it is declared.
    pub(super) fn before(&self, object: &ObjectRef) -> Before {
        match self.declarations.get(object.name()) {
            Some(before) => Before::Declared(Box::new(before.clone())),
            None if object.consumption() == 0 && self.waiting(SEMAPHORES, object) == 0 => {
                Before::Undeclared { capacity: None }
            }
            None => Before::Undeclared { capacity: object.capacity() },
        }
    }

    /// Gives the resources of a semaphore numbers from now on, or none.
    pub(super) fn number(&mut self, object: &ObjectRef, numbered: bool) {
        if numbered {
            self.slots.entry(object.address()).or_default();
        } else {
            self.slots.remove(&object.address());
        }
    }

    pub(super) fn put_declaration(&mut self, object: &ObjectRef, after: &Declaration) {
        self.note(Change::Put(Record::Declaration(after.record(object.name()))));
        self.declarations.put(object, after.clone());
    }

    /// Does what was planned.
    pub(super) fn apply(
        &mut self,
        object: &ObjectRef,
        before: &Before,
        after: &Declaration,
        evicts: bool,
        world: World<'_>,
    ) {
        if after.removing {
            object.declare(Standing::Removing, 0);
            object.supervise(|supervision| supervision.awaited = true);
            self.dismiss(object, after, evicts, world);
            self.note_lessened(SEMAPHORES, object);
            // What those had set aside who wait in vain is for the next.
            self.serve(world);
            return;
        }
        let is_resized =
            matches!(before, Before::Undeclared { .. }) || object.capacity() != Some(after.capacity);
        // One whose removal was asked for since stays closed.
        if self.declarations.get(object.name()).is_none_or(|present| !present.removing) {
            object.declare(after.standing(), after.capacity);
        }
        if is_resized {
            self.tell_name(SEMAPHORES, object, EventKind::Resized, None, None, after.capacity);
        }
        if self.waiting(SEMAPHORES, object) > 0 {
            self.prune_later(object, None);
            self.prune(world);
            self.serve_later(SEMAPHORES, object);
        }
        self.serve(world);
    }

    /// Makes a semaphore what it was before, since what it was to become could not be stored.
    pub(super) fn take_back_declaration(
        &mut self,
        object: &ObjectRef,
        before: Before,
        after: &Declaration,
        world: World<'_>,
    ) {
        // Whoever changed it since did so for good.
        if self.declarations.get(object.name()).is_none_or(|present| present.generation != after.generation) {
            return;
        }
        match before {
            Before::Declared(before) => {
                object.declare(before.standing(), before.usable());
                self.number(object, before.numbered);
                if before.removing {
                    // Its last holder may have left meanwhile, or leave without telling the ledger.
                    object.supervise(|supervision| supervision.awaited = true);
                    self.note_lessened(SEMAPHORES, object);
                }
                self.declarations.put(object, *before);
            }
            Before::Undeclared { capacity } => {
                // Who waits for what only the declaration made, waits in vain. Who holds it since, may as well have made it.
                let made = if object.consumption() == 0 { 0 } else { after.capacity };
                object.declare(Standing::Made, capacity.unwrap_or(made));
                self.forget_declaration(object, world);
            }
        }
        // While it was to be removed, nobody was told that he waits in vain.
        self.prune_later(object, None);
        self.serve_later(SEMAPHORES, object);
    }

    /// Forgets what was declared of a semaphore, and the semaphore where nobody uses it.
    pub(super) fn forget_declaration(&mut self, object: &ObjectRef, world: World<'_>) {
        self.declarations.remove(object);
        self.slots.remove(&object.address());
        world.registries[SEMAPHORES as usize].collect(object, world.interval);
    }

    /// Brings back what was declared before the process was started.
    pub(super) fn restore_declaration(
        &mut self,
        record: DeclarationRecord,
        world: World<'_>,
    ) -> Result<(), String> {
        if record.numbered && record.capacity > SLOTS_MAX {
            let (name, capacity) = (record.name.escape_ascii(), record.capacity);
            return Err(format!(
                "{name} has {capacity} slots, and there are no more than {SLOTS_MAX} of one semaphore"
            ));
        }
        let registry = world.registries[SEMAPHORES as usize];
        let object = registry.restore(SEMAPHORES, &record.name, claim_of(record.capacity), world.interval);
        let declaration = Declaration::of(record);
        object.declare(declaration.standing(), declaration.usable());
        if declaration.removing {
            object.supervise(|supervision| supervision.awaited = true);
        }
        self.number(&object, declaration.numbered);
        self.declarations.put(&object, declaration);
        Ok(())
    }

    /// Whether a semaphore was removed and declared anew since an id was given out.
    pub(super) fn is_created_after(&self, namespace: Namespace, name: &[u8], id: GrantId) -> bool {
        let declared = self.declarations.get(name).filter(|_| namespace == SEMAPHORES);
        declared.is_some_and(|declared| declared.created > id.0)
    }

    /// The next declared semaphores of a listing; none at its end.
    pub(in crate::core) fn list_declared(&self, listing: &mut DeclaredListing) -> Vec<Declared> {
        let from = match &listing.after {
            Some(after) => Bound::Excluded(&after[..]),
            None => Bound::Included(&listing.prefix[..]),
        };
        let mut bytes = 0;
        let has_room = |(object, declaration): &(&ObjectRef, &Declaration)| {
            let is_first = bytes == 0;
            bytes += object.name().len() + declaration.label.len();
            is_first || bytes <= STEP_BYTES
        };
        let listed: Vec<_> = self
            .declarations
            .from(from)
            .take_while(|(object, _)| object.name().starts_with(&listing.prefix))
            .take(STEP_ENTRIES)
            .take_while(has_room)
            .map(|(object, declaration)| Declared {
                record: declaration.record(object.name()),
                in_use: object.consumption(),
                waiting: self.waiting(SEMAPHORES, object) as u32,
            })
            .collect();
        if let Some(last) = listed.last() {
            listing.after = Some(last.record.name.clone());
        }
        listed
    }

    /// Whether a grant outlives what it was granted of: its slot is above the capacity, or its semaphore is being
    /// removed, or was removed and declared anew.
    pub(super) fn is_retiring(&self, id: GrantId) -> bool {
        let Some(grant) = self.grants.get(&id) else { return false };
        grant.parts().iter().any(|part| {
            let Some(object) = part.object().filter(|_| part.namespace == SEMAPHORES) else { return false };
            let Some(declaration) = self.declarations.get(object.name()) else { return false };
            declaration.removing
                || id.0 < declaration.created
                || self.slots_of(id, part).iter().any(|slot| u32::from(*slot) >= declaration.capacity)
        })
    }

    /// The numbers that a grant has of one of its names.
    pub(super) fn slots_of(&self, id: GrantId, part: &Part) -> &[u16] {
        let Target::Now(object) = &part.target else { return &[] };
        self.slots.get(&object.address()).map_or(&[], |slots| slots.of(id))
    }

    /// Whether a number of a semaphore is held.
    pub(super) fn is_slot_held(&self, object: &ObjectRef, number: u16) -> bool {
        self.slots.get(&object.address()).is_some_and(|slots| slots.is_held(number))
    }
}

/// A claim that makes a semaphore of this capacity, or of one, as a claim has to have some: what it is declared with says
/// how many.
fn claim_of(capacity: u32) -> Claim {
    Claim { resources: 1, maximum: capacity.max(1) }
}

/// Refuses to give numbers to a semaphore, or to take them from it, while it is held: of what is in use, nobody could
/// say which numbers it has.
pub(super) fn check_unused(
    declare: &Declare<'_>,
    present: Option<&Declaration>,
    world: World<'_>,
) -> Result<(), Refusal> {
    let was_numbered = present.is_some_and(|present| present.numbered);
    let in_use = world.registries[SEMAPHORES as usize].find(declare.name, |object| object.consumption());
    if was_numbered != declare.numbered && in_use.unwrap_or(0) > 0 {
        return Err(Refusal::InUse);
    }
    Ok(())
}
