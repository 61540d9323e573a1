//! Who holds a name, and who waits for it.

use std::ops::Bound;
use std::vec::IntoIter;

use super::{GrantId, Ledger, Namespace, ObjectRef, SessionId};
use crate::core::UnixSeconds;
use crate::core::ledger::grant::Part;

/// A holder or a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The grant's id, and the waiter's; `None`: held by plain Acquires.
    pub grant: Option<GrantId>,
    /// Whose it is.
    pub session: SessionId,
    /// Since when; `None`: not known, as of what plain Acquires hold.
    pub since: Option<UnixSeconds>,
    /// How much of the name.
    pub resources: u32,
    /// A waiter's place in the queue, from 1; 0 of a holder.
    pub position: u32,
    /// The numbers of the slots that a grant has, from the lowest.
    pub slots: Box<[u16]>,
    /// What the session is called.
    pub label: Box<[u8]>,
    /// The own session of the connection that it has; `None`: none at the moment.
    pub connection: Option<SessionId>,
}

/// A listing at work: it takes some entries a step, so that a queue of a hundred thousand keeps nobody waiting. Who
/// comes or goes meanwhile may be listed or not.
#[derive(Debug)]
pub struct Listing {
    pub(super) namespace: Namespace,
    pub(super) name: Box<[u8]>,
    pub(super) waiters: bool,
    after: Option<GrantId>,
    position: u32,
    /// What plain Acquires hold and is still to be listed; `None`: not looked at yet.
    plain: Option<IntoIter<(SessionId, u32)>>,
}

/// Entries of one step.
const STEP_ENTRIES: usize = 128;

impl Listing {
    pub(in crate::core) fn new(namespace: Namespace, name: &[u8], waiters: bool) -> Self {
        let plain = waiters.then(|| Vec::new().into_iter());
        Self { namespace, name: name.into(), waiters, after: None, position: 0, plain }
    }

    /// Whether it lists who waits.
    pub fn is_of_waiters(&self) -> bool {
        self.waiters
    }

    pub(in crate::core) fn target(&self) -> (Namespace, &[u8]) {
        (self.namespace, &self.name)
    }
}

impl Ledger {
    /// The next entries of a listing; none at its end.
    pub(in crate::core) fn list(&self, listing: &mut Listing, object: &ObjectRef) -> Vec<Listed> {
        let plain = listing.plain.get_or_insert_with(|| object.holdings().into_iter());
        if plain.len() > 0 {
            return plain.take(STEP_ENTRIES).map(|held| self.listed_holding(held)).collect();
        }
        let Some(entry) = self.names[listing.namespace as usize].get(&object.address()) else {
            return Vec::new();
        };
        let ids = if listing.waiters { &entry.queue } else { &entry.held };
        let from = listing.after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut listed = Vec::new();
        for id in ids.range((from, Bound::Unbounded)).take(STEP_ENTRIES) {
            listing.after = Some(*id);
            listing.position += u32::from(listing.waiters);
            listed.extend(self.listed_grant(*id, listing.namespace, object, listing.position));
        }
        listed
    }

    fn listed_holding(&self, (session, resources): (SessionId, u32)) -> Listed {
        Listed {
            grant: None,
            session,
            since: None,
            resources,
            position: 0,
            slots: Box::default(),
            label: self.label(session),
            connection: Some(session),
        }
    }

    fn listed_grant(
        &self,
        id: GrantId,
        namespace: Namespace,
        object: &ObjectRef,
        position: u32,
    ) -> Option<Listed> {
        let grant = self.grants.get(&id)?;
        let is_of_name = |part: &&Part| part.namespace == namespace && part.object() == Some(object);
        let part = grant.parts().iter().find(is_of_name)?;
        Some(Listed {
            grant: Some(id),
            session: grant.session,
            since: Some(grant.since()),
            resources: part.claim.resources,
            position,
            slots: self.slots_of(id, part).into(),
            label: self.label(grant.session),
            connection: self.connection_of(grant.session),
        })
    }

    fn label(&self, session: SessionId) -> Box<[u8]> {
        self.owners.get(&session).map_or_else(Box::default, |owner| owner.label.clone())
    }
}
