//! What the configuration declares. The configuration owns that, and its changes need no commit: the file has them.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::declarations::Declared;
use super::listing::STEP_ENTRIES;
use super::state::{Ledger, LedgerContext};
use crate::durable::{Origin, Service};
use crate::journal::Journaled;
use crate::object::ObjectRef;
use crate::time::MonotonicMs;
use signalbox_model::{Declaration, Refusal};

impl Ledger {
    /// Declares a semaphore as the configuration says.
    pub(crate) fn configure(
        &mut self,
        declare: &Declaration<'_>,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) -> Result<(), Refusal> {
        let present = self.declarations.get(declare.name);
        let is_done = |present: &Declared| {
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
        let after = self.successor(&object, Declared::new(declare, generation, Origin::Configuration));
        self.declare_at_once(&object, after, now, context);
        Ok(())
    }

    /// Removes semaphores that the configuration declared and does not declare any more, each with its last holder: some a
    /// step, in the order of names after `after`. Returns the last that was visited; `None`: that was all.
    pub(crate) fn remove_unconfigured(
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
                let after = Declared {
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

    /// Makes a change that takes effect at once, without a commit: it is on disk already, in the configuration. A change of
    /// the semaphore that was requested before, and is not committed yet, takes no effect any more.
    fn declare_at_once(
        &mut self,
        object: &ObjectRef,
        after: Declared,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) {
        if !after.removing {
            self.slots.set_numbered(object, after.numbered);
        }
        self.put_declaration(object, &after);
        self.end_unit();
        self.apply(object, &after, false, now, context);
    }
}
