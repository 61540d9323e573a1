//! The invariants of the ledger, checked all at once: those of each part, and those across parts.

use std::collections::BTreeMap;

use super::backlog::NameRef;
use super::state::Ledger;
use crate::object::ObjectRef;
use crate::registry::Registry;
use crate::semaphore::{Lifecycle, Withheld};
use crate::state::Core;
use signalbox_model::{ConnectionId, GrantId, Namespace};

impl Core {
    /// Checks the ledger's invariants, and that it agrees with the objects. For tests: it visits everything at once.
    pub fn check_ledger(&self) -> Result<(), String> {
        let ledger = &*self.ledger();
        let registries = self.registries();
        ledger.sessions.check()?;
        ledger.grants.check()?;
        ledger.queues.check()?;
        ledger.watches.check()?;
        ledger
            .idle_waiters
            .check(|connection: ConnectionId| ledger.sessions.mailbox(connection).is_some())?;
        ledger.slots.check()?;
        ledger.check_clients()?;
        let granted = ledger.check_grants()?;
        ledger.check_declarations(registries[Namespace::Semaphores as usize])?;
        for namespace in Namespace::ALL {
            ledger.check_names(namespace, registries[namespace as usize], &granted[namespace as usize])?;
        }
        Ok(())
    }
}

impl Ledger {
    /// Checks that each grant belongs to its session, and is in the queues that follow from its phase. Returns the
    /// resources granted of each name.
    fn check_grants(&self) -> Result<[BTreeMap<&[u8], u64>; Namespace::ALL.len()], String> {
        let mut granted: [BTreeMap<&[u8], u64>; Namespace::ALL.len()] = Default::default();
        for (id, grant) in self.grants.iter() {
            let session = self.sessions.get(grant.session);
            if !session.is_some_and(|session| session.has_grant(id)) {
                return Err(format!("session {} does not know its grant {id}", grant.session));
            }
            if grant.is_waiting() != grant.awaited().is_some() {
                return Err(format!("grant {id} waits for nothing, or is held and lacks a name"));
            }
            for (index, part) in grant.parts().iter().enumerate() {
                let Some((namespace, object)) = part.object() else { continue };
                let is_taken = index < grant.taken().len();
                if self.queues.contains(namespace, object, id) != (is_taken, !is_taken) {
                    return Err(format!("grant {id} is not in the queues that follow from its phase"));
                }
                if is_taken {
                    let sum = granted[namespace as usize].entry(object.name()).or_default();
                    *sum += u64::from(part.claim.resources);
                }
            }
        }
        let owned: usize = self.sessions.iter().map(|(_, state)| state.grant_count()).sum();
        if owned as u64 != self.grants.held() + self.grants.waiting() {
            return Err(format!("sessions have {owned} grants, and the ledger has others"));
        }
        let waiting: u64 = self.sessions.iter().map(|(_, state)| u64::from(state.waiting())).sum();
        if waiting != self.grants.waiting() {
            return Err(format!("sessions have {waiting} waiters, and the ledger has others"));
        }
        Ok(granted)
    }

    /// Checks that the objects of a namespace agree with the ledger, and that no head of a queue waits although it fits
    /// (invariant 4).
    fn check_names(
        &self,
        namespace: Namespace,
        registry: &Registry,
        granted: &BTreeMap<&[u8], u64>,
    ) -> Result<(), String> {
        for object in self.queues.objects(namespace) {
            let registered = registry.find(object.name(), ObjectRef::address);
            if registered != Some(object.address()) {
                return Err(format!("{:?} was collected and is in use", object.name().escape_ascii()));
            }
            if let Some(id) = self.queues.first_done(namespace, object)
                && !self.backlog.will_tell_done(namespace, object)
            {
                return Err(format!("waiter {id} is not told that its work is done"));
            }
            if let Some(head) = self.queues.head(namespace, object) {
                self.check_head(namespace, object, head)?;
            }
        }
        for object in registry.all() {
            let (counted, is_queued) = object.ledger_marks();
            let sum = granted.get(object.name()).copied().unwrap_or(0);
            let name = object.name().escape_ascii();
            if u64::from(counted) != sum {
                return Err(format!("{name} counts {counted} as granted, and {sum} are"));
            }
            if is_queued != (self.waiting(namespace, &object) > 0) {
                return Err(format!("{name} is marked as queued: {is_queued}"));
            }
        }
        Ok(())
    }

    fn check_head(&self, namespace: Namespace, object: &ObjectRef, head: GrantId) -> Result<(), String> {
        let part = self.grants.get(head).and_then(|grant| grant.awaited());
        let part = part.ok_or_else(|| format!("waiter {head} is in a queue and does not exist"))?;
        let is_slot_free = part.slot.is_none_or(|slot| self.slots.is_available(object, slot));
        if self.places.is_held_back(head) {
            let name = NameRef::new(namespace, object);
            let is_served = self.places.will_serve(&name);
            return is_served.then_some(()).ok_or_else(|| format!("waiter {head} is held back forever"));
        }
        if is_slot_free && object.fits(part.claim) && !self.backlog.will_serve(namespace, object) {
            let name = object.name().escape_ascii();
            return Err(format!("waiter {head} is at the head of {name:?} and fits"));
        }
        Ok(())
    }

    /// Checks that the names with a declaration are those whose objects have the lifecycle of a declared semaphore, and
    /// that each object is as declared, unless a change of its declaration is not committed yet.
    fn check_declarations(&self, registry: &Registry) -> Result<(), String> {
        for (object, declaration) in self.declarations.iter() {
            let name = object.name().escape_ascii();
            let registered = registry.find(object.name(), ObjectRef::address);
            if registered != Some(object.address()) {
                return Err(format!("{name} is declared and was collected"));
            }
            if object.lifecycle() == Lifecycle::Numbered && !self.slots.is_numbered(object) {
                return Err(format!("{name} grants slots and has none"));
            }
            if !declaration.removing && !self.declarations.is_pending(object.name()) {
                let is_as_declared = object.capacity() == Some(declaration.capacity)
                    && self.slots.is_numbered(object) == declaration.numbered
                    && (object.withheld() == Withheld::ALL) == declaration.service.paused
                    && *self.slots.out(object) == *declaration.service.slots_out;
                if !is_as_declared {
                    return Err(format!("{name} is not as it was declared"));
                }
                if object.withheld() != self.slots.present_withheld(object) {
                    return Err(format!("{name} withholds {:?}", object.withheld()));
                }
            }
        }
        let is_declared = |object: &&ObjectRef| object.lifecycle() != Lifecycle::Implicit;
        let declared = registry.all().iter().filter(is_declared).count();
        if declared != self.declarations.len() {
            return Err(format!(
                "{declared} names say that they are declared, and {} are",
                self.declarations.len()
            ));
        }
        Ok(())
    }
}
