//! Plain operations on tracked names: names that requests wait for or that a watch covers.

use super::state::Ledger;
use crate::claim::Claim;
use crate::object::ObjectRef;
use crate::session::Session;
use crate::state::Core;
use signalbox_model::{ConnectionId, EventKind, Namespace, Refusal, UnixSeconds};

impl Core {
    /// Executes a plain Acquire of a tracked name.
    #[cold]
    pub(crate) fn acquire_tracked(
        &self,
        namespace: Namespace,
        name: &[u8],
        claim: Claim,
        session: &mut Session,
        now: UnixSeconds,
    ) -> Result<(), Refusal> {
        session.note_tracked();
        let ledger = self.ledger();
        let registry = self.registry(namespace);
        let found = registry.find(name, ObjectRef::clone);
        // It must not overtake the queue.
        if found.is_some_and(|object| ledger.waiting(namespace, &object) > 0) {
            return Err(Refusal::NotAvailable);
        }
        let done = registry.acquire_tracked(namespace, name, claim, session, self.interval(now));
        if let Some(object) = registry.find(name, ObjectRef::clone) {
            if done.is_ok() {
                let id = Some(session.id().session());
                ledger.publish(namespace, &object, EventKind::Granted, None, id, claim.resources());
            }
            ledger.untrack_unwatched(namespace, &object);
        }
        done
    }

    /// Executes a plain Release of a tracked name.
    #[cold]
    pub(crate) fn release_tracked(
        &self,
        namespace: Namespace,
        name: &[u8],
        resources: u32,
        session: &mut Session,
        now: UnixSeconds,
    ) -> Result<(), Refusal> {
        session.note_tracked();
        let mut ledger = self.ledger();
        let registry = self.registry(namespace);
        let found = registry.find(name, ObjectRef::clone);
        registry.release_tracked(namespace, name, resources, session, self.interval(now))?;
        if let Some(object) = found {
            self.after_release(&mut ledger, namespace, &object, session.id(), resources, now);
        }
        Ok(())
    }

    /// Releases what a connection that has ended holds of a tracked name.
    #[cold]
    pub(crate) fn release_all_tracked(&self, object: &ObjectRef, holder: ConnectionId, now: UnixSeconds) {
        let mut ledger = self.ledger();
        let resources = object.release_all_tracked(holder, self.interval(now));
        self.after_release(&mut ledger, object.namespace(), object, holder, resources, now);
    }

    fn after_release(
        &self,
        ledger: &mut Ledger,
        namespace: Namespace,
        object: &ObjectRef,
        holder: ConnectionId,
        resources: u32,
        now: UnixSeconds,
    ) {
        ledger.publish(namespace, object, EventKind::Released, None, Some(holder.session()), resources);
        if object.is_awaited() {
            ledger.backlog.usage_dropped_later(namespace, object);
        }
        if ledger.waiting(namespace, object) > 0 {
            ledger.backlog.serve_later(namespace, object);
        }
        ledger.run_backlog(self.context(now));
        ledger.untrack_unwatched(namespace, object);
    }
}
