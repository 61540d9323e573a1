//! What the configuration declares: it owns that, and has it for good, as it is on disk already.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::declaration::{Before, Declaration, Declare};
use super::declared::{STEP_ENTRIES, check_unused};
use super::{Ledger, ObjectRef, Refusal, World};
use crate::core::durable::Origin;

impl Ledger {
    /// Takes on what the configuration declares of a name.
    pub(in crate::core) fn configure(
        &mut self,
        declare: &Declare<'_>,
        world: World<'_>,
    ) -> Result<(), Refusal> {
        let present = self.declarations.get(declare.name);
        let is_done = |present: &Declaration| {
            present.says(declare) && present.origin == Origin::Configuration && !present.removing
        };
        if present.is_some_and(is_done) {
            return Ok(());
        }
        check_unused(declare, present, world)?;
        let object = self.object_for(declare, world)?;
        let generation =
            self.next_id().inspect_err(|_| self.give_up(std::slice::from_ref(&object), world))?;
        let after = self.following(&object, Declaration::new(declare, generation, Origin::Configuration));
        self.settle_at_once(&object, after, world);
        Ok(())
    }

    /// Has what the configuration declared and declares no more go with its last holder, some a step, in the order of
    /// names, from those after `after` on. Gives the last that was looked at; `None`: that was all.
    pub(in crate::core) fn retire(
        &mut self,
        configured: &BTreeSet<&[u8]>,
        after: Option<&ObjectRef>,
        world: World<'_>,
    ) -> Option<ObjectRef> {
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.name()));
        let some: Vec<_> = self
            .declarations
            .from(from)
            .take(STEP_ENTRIES)
            .map(|(object, declaration)| (object.clone(), declaration.origin, declaration.removing))
            .collect();
        for (object, origin, removing) in &some {
            if *origin == Origin::Configuration && !removing && !configured.contains(object.name()) {
                self.retire_one(object, world);
            }
        }
        some.into_iter().last().map(|(last, ..)| last)
    }

    fn retire_one(&mut self, object: &ObjectRef, world: World<'_>) {
        let Some(mut after) = self.declarations.get(object.name()).cloned() else { return };
        (after.removing, after.evicted_grace_ms) = (true, None);
        if let Ok(generation) = self.next_id() {
            after.generation = generation;
        }
        self.settle_at_once(object, after, world);
    }

    /// Does for good what the configuration says: it is on disk already, in the configuration.
    fn settle_at_once(&mut self, object: &ObjectRef, after: Declaration, world: World<'_>) {
        let before = self.before(object);
        if let Some(journal) = &mut self.journal {
            journal.supersede(object);
        }
        if !after.removing {
            self.number(object, after.numbered);
        }
        self.put_declaration(object, &after);
        self.apply(object, &before, &after, false, world);
    }

    /// A removal could not be stored that the configuration has superseded: who held the semaphore before has a full hold
    /// of what the configuration declares.
    pub(super) fn take_back_dismissal(&mut self, object: &ObjectRef, before: &Before) {
        if let Some(present) = self.declarations.get(object.name())
            && let Before::Declared(before) = before
            && !before.removing
        {
            let (created, evicted_grace_ms) = (before.created, before.evicted_grace_ms);
            let restored = Declaration { created, evicted_grace_ms, ..present.clone() };
            self.put_declaration(object, &restored);
        }
    }
}
