//! What the configuration declares. The configuration owns that, and it is never rolled back: the file has it.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::declarations::{Before, Declaration, Declare};
use super::listing::STEP_ENTRIES;
use super::on_commit::OnCommit;
use super::{Ledger, LedgerContext};
use crate::core::Refusal;
use crate::core::durable::{Origin, Service};
use crate::core::object::ObjectRef;
use crate::core::time::MonotonicMs;

impl Ledger {
    /// Declares a semaphore as the configuration says.
    pub(in crate::core) fn configure(
        &mut self,
        declare: &Declare<'_>,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) -> Result<(), Refusal> {
        let present = self.declarations.get(declare.name);
        let is_done = |present: &Declaration| {
            present.says(declare) && present.origin == Origin::Configuration && !present.removing
        };
        if present.is_some_and(is_done) {
            return Ok(());
        }
        self.check_numbering(declare, present, context)?;
        let object = self.object_to_declare(declare, context)?;
        let generation = self
            .next_id()
            .inspect_err(|_| self.release_undeclared(std::slice::from_ref(&object), context))?;
        let after = self.successor(&object, Declaration::new(declare, generation, Origin::Configuration));
        self.declare_at_once(&object, after, now, context);
        Ok(())
    }

    /// Removes semaphores that the configuration declared and does not declare any more, each with its last holder: some a
    /// step, in the order of names after `after`. Returns the last that was visited; `None`: that was all.
    pub(in crate::core) fn remove_unconfigured(
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
                // Where no id is left, the generation stays: the removal counts all the same.
                let generation = self.next_id().unwrap_or(declaration.generation);
                let after = Declaration {
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

    /// Makes a change that needs no commit: it is on disk already, in the configuration. A change of the semaphore that is
    /// pending is superseded; of a removal, what concerns its holders and waiters remains. What of the semaphore is out of
    /// service is as requested, unless the request cannot be committed.
    fn declare_at_once(
        &mut self,
        object: &ObjectRef,
        after: Declaration,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) {
        let before = self.before(object);
        if let Some(journal) = &mut self.journal {
            journal.replace_on_commit(|then| match then {
                OnCommit::Declared { object: other, before, after, evicts } if other == *object => {
                    superseded(other, before, after, evicts)
                }
                then => Some(then),
            });
        }
        if !after.removing {
            self.slots.set_numbered(object, after.numbered);
        }
        self.put_declaration(object, &after);
        self.apply(object, &before, &after, false, now, context);
    }

    /// A removal could not be committed that the configuration has superseded: grants from before are grants of the
    /// semaphore that the configuration declares.
    pub(super) fn roll_back_dismissal(&mut self, object: &ObjectRef, before: &Before) {
        if let Some(present) = self.declarations.get(object.name())
            && let Before::Declared(before) = before
            && !before.removing
        {
            let (created, evicted_grace_ms) = (before.created, before.evicted_grace_ms);
            let restored = Declaration { created, evicted_grace_ms, ..present.clone() };
            self.put_declaration(object, &restored);
            self.roll_back_service(object, before.service.clone());
        }
    }
}

/// What remains of a pending change of a semaphore that the configuration declares.
fn superseded(object: ObjectRef, before: Before, after: Box<Declaration>, evicts: bool) -> Option<OnCommit> {
    match before {
        before if after.removing => Some(OnCommit::Dismissed { object, before, removal: after, evicts }),
        Before::Declared(before) if !before.removing && before.service != after.service => {
            Some(OnCommit::Superseded { object, service: before.service })
        }
        Before::Declared(_) | Before::Undeclared { .. } => None,
    }
}
