//! Publishes changes to watches.

use super::grant::Part;
use super::state::Ledger;
use crate::object::ObjectRef;
use signalbox_model::{Event, EventKind, GrantId, Namespace, SessionId};

/// Watches that are informed for as much work as a name of a grant is.
const WATCHES_OF_WORK: usize = 8;

impl Ledger {
    /// Publishes an event of a name to the watches that cover it.
    pub(crate) fn publish(
        &self,
        namespace: Namespace,
        object: &ObjectRef,
        kind: EventKind,
        grant: Option<GrantId>,
        session: Option<SessionId>,
        resources: u32,
    ) {
        if self.watches.is_empty() {
            return;
        }
        let mut event = None;
        for (token, watch) in self.watches.covering(namespace, object.name()) {
            let event = event.get_or_insert_with(|| Event {
                kind,
                namespace,
                name: object.name().into(),
                grant,
                session: session.map(SessionId::number),
                resources,
                in_use: object.consumption(),
                waiting: self.waiting(namespace, object),
            });
            watch.send(token, event.clone());
        }
    }

    /// Publishes an event of every name of a grant.
    pub(super) fn publish_grant(&self, id: GrantId, kind: EventKind) {
        if self.watches.is_empty() {
            return;
        }
        let grant = self.grants.known(id);
        for part in grant.parts() {
            self.publish_part(id, grant.session, part, kind);
        }
    }

    /// Publishes an event of one name of a grant, unless the turn of that name has not come.
    pub(super) fn publish_part(&self, id: GrantId, session: SessionId, part: &Part, kind: EventKind) {
        if let Some(object) = part.object() {
            self.publish(part.namespace, object, kind, Some(id), Some(session), part.claim.resources);
        }
    }

    /// How many requests wait for a name.
    pub(crate) fn waiting(&self, namespace: Namespace, object: &ObjectRef) -> u32 {
        // A waiter takes more than a byte, so there are less than 2^32 of them.
        self.queues.waiting(namespace, object) as u32
    }

    /// The work of granting or releasing a grant, in names. To inform many watches is work as well.
    pub(super) fn work_of(&self, id: GrantId) -> usize {
        let parts = self.grants.known(id).parts();
        if self.watches.is_empty() {
            return parts.len();
        }
        let informed = |part: &Part| {
            part.object().map_or(0, |object| self.watches.count_covering(part.namespace, object.name()))
        };
        parts.iter().map(|part| 1 + informed(part) / WATCHES_OF_WORK).sum()
    }

    /// Plain operations on a name bypass the ledger again if no watch covers it any more.
    pub(crate) fn untrack_unwatched(&self, namespace: Namespace, object: &ObjectRef) {
        if self.watches.covering(namespace, object.name()).next().is_none() {
            object.set_tracking(|tracking| tracking.watched = false);
        }
    }
}
