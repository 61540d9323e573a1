//! Pause, Resume and slots out of service: what an administrator does with a declared semaphore for a while. It is not part
//! of the declaration, so it is permitted for semaphores of the configuration too.
//!
//! A change takes effect when it is committed, as a Resize does.
//!
//! Invariant: what is withheld of a semaphore's capacity is all of it while the semaphore is paused, and else its slots
//! that are out of service and not taken, as the changes say that have taken effect.

use super::removal::SEMAPHORES;
use super::replies::Changed;
use super::state::{Ledger, LedgerContext};
use crate::durable::{DeclarationRecord, Service};
use crate::object::ObjectRef;
use crate::semaphore::{Lifecycle, Withheld};
use crate::time::MonotonicMs;
use signalbox_model::{EventKind, Generation, Refusal, ServiceChange, SessionId};

impl Ledger {
    /// Pauses or resumes a declared semaphore, or takes a slot of it out of service or puts it back, if it has the
    /// expected generation (`docs/protocol.md`, "Pause" and "SetSlot").
    pub(super) fn change_service(
        &mut self,
        session: SessionId,
        name: &[u8],
        (how, expected): (ServiceChange, Option<Generation>),
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) -> Result<Changed, Refusal> {
        let check = |declared: &DeclarationRecord| declared.check_generation(expected);
        let set_service = |after: &mut DeclarationRecord| {
            after.service = service_after(after, how)?;
            Ok(())
        };
        self.alter(session, name, check, set_service, now, context)
    }

    /// Applies a declaration to its semaphore. Returns the slots that were out of service before.
    pub(super) fn update_object(&mut self, object: &ObjectRef, declaration: &DeclarationRecord) -> Vec<u16> {
        let slots_out = self.slots.set_out(object, &declaration.service.slots_out);
        let withheld = self.withheld(object, declaration.service.paused, declaration.usable());
        object.declare(declaration.lifecycle(), declaration.usable(), withheld);
        slots_out
    }

    /// The part of a semaphore's capacity that its present slots withhold.
    pub(super) fn present_withheld(&self, object: &ObjectRef) -> Withheld {
        let is_paused = object.withheld() == Withheld::ALL;
        self.withheld(object, is_paused, object.capacity().unwrap_or(0))
    }

    pub(super) fn withheld(&self, object: &ObjectRef, is_paused: bool, capacity: u32) -> Withheld {
        if is_paused { Withheld::ALL } else { Withheld::slots(self.slots.withheld(object, capacity)) }
    }

    /// Publishes what has changed since a semaphore was paused or not, and these slots of it were out of service.
    pub(super) fn publish_service(
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

    /// Whether a semaphore will never have a slot, unless it is changed.
    pub(super) fn lacks_slot(&self, object: &ObjectRef, slot: u16) -> bool {
        match object.lifecycle() {
            // Until the removal is committed, nothing is refused because of it.
            Lifecycle::Closing => false,
            Lifecycle::Numbered => object.capacity().is_none_or(|capacity| capacity <= slot.into()),
            Lifecycle::Implicit | Lifecycle::Declared | Lifecycle::Removing => true,
        }
    }
}

/// What of a semaphore is out of service after a change.
fn service_after(declaration: &DeclarationRecord, change: ServiceChange) -> Result<Service, Refusal> {
    let mut service = declaration.service.clone();
    match change {
        ServiceChange::Pause => service.paused = true,
        ServiceChange::Resume => service.paused = false,
        ServiceChange::SlotOut(slot) | ServiceChange::SlotIn(slot) => {
            let is_slot = declaration.numbered && u32::from(slot) < declaration.capacity;
            if !is_slot && !declaration.is_out(slot) {
                return Err(Refusal::NoSuchSlot);
            }
            let mut slots: Vec<_> = service.slots_out.into();
            match (slots.binary_search(&slot), change) {
                (Err(index), ServiceChange::SlotOut(_)) => slots.insert(index, slot),
                (Ok(index), ServiceChange::SlotIn(_)) => drop(slots.remove(index)),
                _ => {}
            }
            service.slots_out = slots.into();
        }
    }
    Ok(service)
}
