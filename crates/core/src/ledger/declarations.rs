//! Declared semaphores: their declarations, and the changes that can be requested.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Bound;

use crate::durable::{DeclarationRecord, Origin, Service};
use crate::object::ObjectRef;
use crate::semaphore::{Lifecycle, SLOTS_MAX};
use signalbox_model::{
    Declaration, DeclaredState, EventKind, Generation, GrantId, Refusal, Resizing, ServiceChange,
};

/// All declared semaphores, in the order of their names.
#[derive(Debug, Default)]
pub(super) struct Declarations(BTreeMap<Box<[u8]>, Entry>);

#[derive(Debug)]
struct Entry {
    object: ObjectRef,
    declaration: DeclarationRecord,
    /// The generation of the last change that has taken effect. No earlier change takes effect after it.
    effective: u64,
    /// The capacity that is in effect; `None`: no declaration has taken effect, or a removal has.
    capacity: Option<u32>,
}

impl DeclarationRecord {
    pub(super) fn new(declare: &Declaration<'_>, generation: u64, origin: Origin) -> Self {
        Self {
            name: declare.name.into(),
            label: declare.label.into(),
            generation,
            created: generation,
            capacity: declare.capacity,
            numbered: declare.numbered,
            origin,
            removing: false,
            evicted_grace_ms: None,
            service: Service::default(),
        }
    }

    /// The lifecycle of the object once the declaration is committed.
    pub(super) fn lifecycle(&self) -> Lifecycle {
        match (self.removing, self.numbered) {
            (true, _) => Lifecycle::Removing,
            (false, true) => Lifecycle::Numbered,
            (false, false) => Lifecycle::Declared,
        }
    }

    /// The most that may be in use.
    pub(super) fn usable(&self) -> u32 {
        if self.removing { 0 } else { self.capacity }
    }

    /// Returns whether a slot is out of service.
    pub(super) fn is_out(&self, slot: u16) -> bool {
        self.service.slots_out.binary_search(&slot).is_ok()
    }

    /// Returns whether it equals what a request declares.
    pub(super) fn is_declared_as(&self, declare: &Declaration<'_>) -> bool {
        self.capacity == declare.capacity
            && self.numbered == declare.numbered
            && *self.label == *declare.label
    }

    /// Returns its state for the answer to a request.
    pub(super) fn state(&self, object: &ObjectRef) -> DeclaredState {
        DeclaredState {
            generation: Generation(self.generation),
            capacity: self.capacity,
            in_use: object.consumption(),
        }
    }

    /// Changes the capacity. Fails with [`Refusal::OutOfRange`] if the semaphore cannot have the new one.
    pub(super) fn resize(&mut self, how: Resizing) -> Result<(), Refusal> {
        let capacity = match how {
            Resizing::To(capacity) => Some(capacity),
            Resizing::GrowBy(by) => self.capacity.checked_add(by),
            Resizing::ShrinkBy(by) => self.capacity.checked_sub(by),
        };
        let is_possible = |capacity: &u32| !self.numbered || *capacity <= SLOTS_MAX;
        self.capacity = capacity.filter(is_possible).ok_or(Refusal::OutOfRange)?;
        Ok(())
    }

    /// Pauses or resumes the semaphore, or takes a slot out of service or puts it back. Fails with
    /// [`Refusal::NoSuchSlot`].
    pub(super) fn change_service(&mut self, how: ServiceChange) -> Result<(), Refusal> {
        match how {
            ServiceChange::Pause => self.service.paused = true,
            ServiceChange::Resume => self.service.paused = false,
            ServiceChange::SlotOut(slot) | ServiceChange::SlotIn(slot) => {
                let is_slot = self.numbered && u32::from(slot) < self.capacity;
                if !is_slot && !self.is_out(slot) {
                    return Err(Refusal::NoSuchSlot);
                }
                let mut slots: Vec<_> = mem::take(&mut self.service.slots_out).into();
                match (slots.binary_search(&slot), how) {
                    (Err(index), ServiceChange::SlotOut(_)) => slots.insert(index, slot),
                    (Ok(index), ServiceChange::SlotIn(_)) => drop(slots.remove(index)),
                    _ => {}
                }
                self.service.slots_out = slots.into();
            }
        }
        Ok(())
    }

    /// Refuses a request to change a semaphore of the configuration, or one that expects another generation.
    pub(super) fn check_change(&self, expected: Option<Generation>) -> Result<(), Refusal> {
        // A semaphore that the configuration no longer declares is being removed, and a request may remove it sooner.
        if self.origin == Origin::Configuration && !self.removing {
            return Err(Refusal::NotPermitted);
        }
        self.check_generation(expected)
    }

    /// Refuses a request that expects another generation.
    pub(super) fn check_generation(&self, expected: Option<Generation>) -> Result<(), Refusal> {
        if expected.is_some_and(|expected| expected.0 != self.generation) {
            return Err(Refusal::GenerationDiffers);
        }
        Ok(())
    }
}

impl Declarations {
    pub(super) fn get(&self, name: &[u8]) -> Option<&DeclarationRecord> {
        self.0.get(name).map(|entry| &entry.declaration)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn entry(&self, name: &[u8]) -> Option<(&ObjectRef, &DeclarationRecord)> {
        self.0.get(name).map(|entry| (&entry.object, &entry.declaration))
    }

    /// Returns whether a semaphore was removed and declared again since this id was allocated.
    pub(super) fn is_declared_after(&self, name: &[u8], id: GrantId) -> bool {
        self.get(name).is_some_and(|declaration| declaration.created > id.0)
    }

    pub(super) fn is_removing(&self, name: &[u8]) -> bool {
        self.get(name).is_some_and(|declaration| declaration.removing)
    }

    /// Returns whether a change of a semaphore has yet to take effect.
    pub(super) fn is_pending(&self, name: &[u8]) -> bool {
        self.0.get(name).is_some_and(|entry| entry.effective < entry.declaration.generation)
    }

    /// Returns whether the change of a semaphore with this generation has yet to take effect.
    pub(super) fn awaits(&self, name: &[u8], generation: u64) -> bool {
        self.0.get(name).is_some_and(|entry| entry.effective < generation)
    }

    /// Lets a change take effect. Returns its event, if it declares the semaphore or changes its capacity.
    pub(super) fn take_effect(&mut self, name: &[u8], change: &DeclarationRecord) -> Option<EventKind> {
        let entry = self.0.get_mut(name)?;
        entry.effective = change.generation;
        let capacity = (!change.removing).then_some(change.capacity);
        match (mem::replace(&mut entry.capacity, capacity), capacity) {
            (None, Some(_)) => Some(EventKind::Declared),
            (before, Some(_)) if before != capacity => Some(EventKind::Resized),
            _ => None,
        }
    }

    /// Sets the declaration of a semaphore. [`Self::take_effect`] lets it take effect later.
    pub(super) fn put(&mut self, object: &ObjectRef, declaration: DeclarationRecord) {
        match self.0.get_mut(object.name()) {
            Some(entry) => entry.declaration = declaration,
            None => {
                let effective = declaration.generation.saturating_sub(1);
                let entry = Entry { object: object.clone(), declaration, effective, capacity: None };
                self.0.insert(object.name().into(), entry);
            }
        }
    }

    pub(super) fn remove(&mut self, object: &ObjectRef) {
        self.0.remove(object.name());
    }

    /// The declared semaphores from this name on.
    pub(super) fn from(&self, from: Bound<&[u8]>) -> impl Iterator<Item = (&ObjectRef, &DeclarationRecord)> {
        let all = self.0.range::<[u8], _>((from, Bound::Unbounded));
        all.map(|(_, entry)| (&entry.object, &entry.declaration))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ObjectRef, &DeclarationRecord)> {
        self.0.values().map(|entry| (&entry.object, &entry.declaration))
    }
}
