//! The end of a waiter or of a grant: what it has taken is returned, and those it concerns are informed.
//!
//! These are steps of an operation. The caller runs the backlog afterwards, so that the resources are granted to others.

use super::backlog::{NameRef, Task};
use super::cached_reply::CachedReply;
use super::grant::{Grant, Part};
use super::state::{Ledger, LedgerContext};
use crate::durable::{Change, Key};
use crate::invariant::{broken, invariant};
use crate::journal::Journaled;
use crate::object::ObjectRef;
use signalbox_model::{EventKind, GrantId, Namespace, Refusal, SessionId};

impl Ledger {
    /// Ends a waiter without a grant: what it has taken is returned, and its request is refused.
    pub(super) fn refuse_waiter(&mut self, id: GrantId, refusal: Refusal, context: LedgerContext<'_>) {
        let grant = self.remove_grant(id);
        for part in grant.taken() {
            self.return_part(id, part, context);
            self.publish_part(id, grant.session, part, EventKind::Left);
        }
        // It has an object as long as it is in a queue. One that is refused before that is in none.
        if let Some(part) = grant.awaited()
            && let Some(object) = part.object()
        {
            if self.queues.remove_waiter(part.namespace, object, id) {
                self.serve_later(part.namespace, object);
            }
            self.publish_part(id, grant.session, part, EventKind::Left);
        }
        let (session, request) = (grant.session, grant.request);
        let waiting = grant.into_waiter();
        invariant!(waiting.is_some(), "grant {id} waits when its request is refused");
        if let Some(reply_to) = waiting.and_then(|waiting| waiting.reply_to) {
            self.sessions.known_mut(session).remove_token(reply_to.token, id);
            reply_to.send(Err(refusal));
        }
        self.cache(session, request, CachedReply::Done(Err(refusal)));
    }

    /// Ends a held grant; `why` is the kind of the events.
    pub(super) fn end_grant(&mut self, id: GrantId, why: EventKind, context: LedgerContext<'_>) {
        let grant = self.remove_grant(id);
        if self.is_durable(grant.session) {
            self.store(Change::Delete(Key::Grant(id)));
            let refusal = match why {
                EventKind::Revoked => Refusal::Revoked,
                EventKind::Expired => Refusal::NoSuchSession,
                _ => Refusal::Canceled,
            };
            self.refuse_pending_grant(grant.session, grant.request, id, refusal);
            self.end_unit();
        }
        for part in grant.parts() {
            self.return_part(id, part, context);
            self.publish_part(id, grant.session, part, why);
        }
    }

    fn remove_grant(&mut self, id: GrantId) -> Grant {
        let Some(grant) = self.grants.remove(id) else { broken(format_args!("grant {id} ends once")) };
        let state = self.sessions.known_mut(grant.session);
        if grant.is_waiting() {
            state.remove_waiter(id);
            self.uncount_waiter(grant.session);
        } else {
            state.remove_grant(id);
        }
        self.subtract_bytes(grant.session, grant.bytes());
        self.note_if_unused(grant.session);
        grant
    }

    /// Returns what a grant has taken of one name.
    fn return_part(&mut self, id: GrantId, part: &Part, context: LedgerContext<'_>) {
        let namespace = part.namespace;
        let Some(object) = part.object() else {
            broken(format_args!("grant {id} has taken from objects only"))
        };
        let has_slots_out = self.slots.free(object, id);
        let withheld = has_slots_out.then(|| self.present_withheld(object));
        if object.release_grant(part.claim.resources, withheld, context.interval) {
            self.usage_dropped_later(namespace, object);
        }
        if self.queues.remove_grant(namespace, object, id) {
            self.serve_later(namespace, object);
        }
    }

    /// A connection released resources of a tracked name by plain means. The caller runs the backlog.
    pub(crate) fn released_plainly(
        &mut self,
        namespace: Namespace,
        object: &ObjectRef,
        session: SessionId,
        resources: u32,
    ) {
        self.publish(namespace, object, EventKind::Released, None, Some(session), resources);
        if object.is_awaited() {
            self.usage_dropped_later(namespace, object);
        }
        if self.waiting(namespace, object) > 0 {
            self.serve_later(namespace, object);
        }
    }

    /// Puts a queue into the backlog whose head may fit.
    pub(super) fn serve_later(&mut self, namespace: Namespace, object: &ObjectRef) {
        self.backlog.push(Task::ServeQueue(NameRef::new(namespace, object)));
    }

    /// Puts a name into the backlog of which less is in use.
    pub(super) fn usage_dropped_later(&mut self, namespace: Namespace, object: &ObjectRef) {
        self.backlog.push(Task::UsageDropped(NameRef::new(namespace, object)));
    }
}
