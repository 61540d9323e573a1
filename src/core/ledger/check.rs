//! The ledger's invariants, asked all at once.

use std::collections::BTreeMap;

use super::slots::Slots;
use super::{GrantId, Ledger, Namespace, ObjectRef, Phase};
use crate::core::registry::Registry;
use crate::core::semaphore::Standing;

impl Ledger {
    /// Says which invariant does not hold, if any.
    pub(in crate::core) fn check(&self, registries: [&Registry; Namespace::ALL.len()]) -> Result<(), String> {
        let mut taken: [BTreeMap<&[u8], u64>; Namespace::ALL.len()] = Default::default();
        let (mut waiters, mut grants) = (0, 0);
        for (id, grant) in &self.grants {
            let owner =
                self.owners.get(&grant.session).ok_or_else(|| format!("grant {id} has no session"))?;
            if owner.grants.get(*id).is_none() {
                return Err(format!("session {} does not know its grant {id} once", grant.session));
            }
            match grant.phase {
                Phase::Waiting { .. } => waiters += 1,
                Phase::Held { .. } => grants += 1,
            }
            if grant.is_waiting() != grant.awaited().is_some() {
                return Err(format!("grant {id} waits for nothing, or is held and lacks a part"));
            }
            for (index, part) in grant.parts().iter().enumerate() {
                let Some(object) = part.object() else { continue };
                let entry = self.names[part.namespace as usize].get(&object.address());
                let entry = entry.ok_or_else(|| format!("grant {id} has a part that is not in the books"))?;
                let is_taken = index < grant.taken();
                if entry.held.contains(id) != is_taken || entry.queue.contains(id) == is_taken {
                    return Err(format!("grant {id} stands where it should not"));
                }
                if is_taken {
                    let sum = taken[part.namespace as usize].entry(object.name()).or_default();
                    *sum += u64::from(part.claim.resources);
                }
            }
        }
        if (waiters, grants) != (self.stats.waiters, self.stats.grants) {
            return Err(format!("there are {waiters} waiters and {grants} grants, and {:?}", self.stats));
        }
        if let Some((_, id)) = self.grant_ends.iter().find(|(_, id)| !self.grants.contains_key(id)) {
            return Err(format!("grant {id} is gone and still due to end"));
        }
        if let Some((_, gone)) = self.session_ends.iter().find(|(_, id)| !self.owners.contains_key(id)) {
            return Err(format!("session {gone} is gone and still due to end"));
        }
        if self.session_ends.len() > self.owners.len() {
            return Err("a session is due to end twice".to_owned());
        }
        self.watches.check()?;
        self.idles.check(|connection| self.owners.contains_key(&connection))?;
        self.check_declarations(registries[Namespace::Semaphores as usize])?;
        for namespace in Namespace::ALL {
            for entry in self.names[namespace as usize].values() {
                let object = &entry.object;
                let registered = registries[namespace as usize].find(object.name(), ObjectRef::clone);
                if registered.map(|registered| registered.address()) != Some(object.address()) {
                    return Err(format!(
                        "{:?} was collected and is not done with",
                        object.name().escape_ascii()
                    ));
                }
                self.check_queue(namespace, object, entry.queue.first().copied())?;
            }
            for object in registries[namespace as usize].all() {
                let (granted, is_queued) = object.ledger_marks();
                let sum = taken[namespace as usize].get(object.name()).copied().unwrap_or(0);
                let name = object.name().escape_ascii().to_string();
                if u64::from(granted) != sum {
                    return Err(format!("{name} counts {granted} as granted, and {sum} are"));
                }
                if is_queued != (self.waiting(namespace, &object) > 0) {
                    return Err(format!("{name} is marked as queued: {is_queued}"));
                }
            }
        }
        Ok(())
    }

    /// A name has a declaration exactly while its object says so, and each number of a slot is one grant's.
    fn check_declarations(&self, registry: &Registry) -> Result<(), String> {
        for (object, declaration) in self.declarations.iter() {
            let name = object.name().escape_ascii();
            let registered = registry.find(object.name(), ObjectRef::clone);
            if registered.map(|registered| registered.address()) != Some(object.address()) {
                return Err(format!("{name} is declared and was collected"));
            }
            if !declaration.removing && self.is_stored() {
                let is_as_declared = object.capacity() == Some(declaration.capacity)
                    && self.slots.contains_key(&object.address()) == declaration.numbered;
                if !is_as_declared {
                    return Err(format!("{name} is not as it was declared"));
                }
            }
        }
        let is_declared = |object: &ObjectRef| object.standing() != Standing::Made;
        let declared = registry.all().iter().filter(|object| is_declared(object)).count();
        if declared != self.declarations.len() {
            return Err(format!(
                "{declared} names say that they are declared, and {} are",
                self.declarations.len()
            ));
        }
        self.slots.values().try_for_each(Slots::check)
    }

    /// A head that fits is not left waiting (invariant 4).
    fn check_queue(
        &self,
        namespace: Namespace,
        object: &ObjectRef,
        head: Option<GrantId>,
    ) -> Result<(), String> {
        let Some(id) = head else { return Ok(()) };
        let is_due = self.unserved.iter().any(|(unserved, name)| *unserved == namespace && name == object);
        let awaited = self.grants.get(&id).and_then(|grant| grant.awaited());
        let claim = awaited.map(|part| part.claim).ok_or_else(|| format!("waiter {id} is gone"))?;
        if !is_due && object.fits(claim) {
            return Err(format!("waiter {id} is at the head of {:?} and fits", object.name().escape_ascii()));
        }
        Ok(())
    }
}
