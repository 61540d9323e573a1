//! The ledger's durable facts, as records.

use super::grants::{Grant, Part};
use super::state::Ledger;
use crate::durable::{Change, GrantRecord, PartRecord, Record, SessionRecord};
use crate::time::MonotonicMs;
use signalbox_model::{GrantId, SessionId};

impl Ledger {
    /// Stores a durable grant that was not revoked.
    pub(super) fn store_new_grant(&mut self, id: GrantId) {
        let record = self.grant_record(id, self.grants.existing(id));
        self.journal.add(Change::Put(Record::Grant(record)));
    }

    /// Stores a held grant as it is now, if it is durable.
    pub(super) fn store_grant(&mut self, id: GrantId, now: MonotonicMs) {
        let grant = self.grants.existing(id);
        if self.is_durable(grant.session) {
            let revoked_grace_ms = grant.revoked().map(|at| now.until(at));
            let record = GrantRecord { revoked_grace_ms, ..self.grant_record(id, grant) };
            self.journal.add(Change::Put(Record::Grant(record)));
        }
    }

    /// Stores a leased session that the store does not have yet, in the same unit as the change that depends on it.
    /// Returns whether the session was new to the store.
    pub(super) fn store_unstored(&mut self, session: SessionId, now: MonotonicMs) -> bool {
        let is_new = self.journal.has_store() && self.sessions.existing_mut(session).take_unstored();
        if is_new {
            self.store_session(session, now);
        }
        is_new
    }

    /// Stores a leased session as it is now.
    pub(super) fn store_session(&mut self, session: SessionId, now: MonotonicMs) {
        if let Some(record) = self.session_record(session, now) {
            self.journal.add(Change::Put(Record::Session(record)));
        }
    }

    /// The record of a held grant, without its revocation.
    fn grant_record(&self, id: GrantId, grant: &Grant) -> GrantRecord {
        let part = |part: &Part| {
            let (namespace, object) = part.object()?;
            Some(PartRecord {
                namespace,
                name: object.name().into(),
                position: part.position,
                resources: part.claim.resources,
                capacity: part.claim.maximum,
                slots: self.slots.of(object, id).into(),
            })
        };
        GrantRecord {
            grant: id,
            session: grant.session,
            request: grant.request,
            since: grant.since(),
            revoked_grace_ms: None,
            parts: grant.parts().iter().filter_map(part).collect(),
        }
    }

    fn session_record(&self, session: SessionId, now: MonotonicMs) -> Option<SessionRecord> {
        let state = self.sessions.get(session)?;
        let (key, lease) = state.lease()?;
        Some(SessionRecord {
            session,
            key: *key,
            ttl_ms: lease.ttl_ms(),
            label: state.label().into(),
            revoked_grace_ms: state.revoked().map(|at| now.until(at)),
        })
    }
}
