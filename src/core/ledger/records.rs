//! What stands in the ledger, as it is kept on disk.

use super::{GrantId, Ledger, Phase, SessionId, World, left};
use crate::core::durable::{
    AnswerRecord, Change, DeclarationRecord, GrantRecord, Key, PartRecord, Record, SessionRecord,
};
use crate::core::ledger::owner::OwnerKind;

impl Ledger {
    /// Says what is to be on disk under a key.
    pub(super) fn present(&self, key: Key, world: World<'_>) -> Change {
        let record = match &key {
            Key::Mark => self.journal.as_ref().map(|journal| Record::Mark(journal.mark)),
            Key::Declaration(name) => self.declaration_record(name).map(Record::Declaration),
            Key::Session(session) => self.session_record(*session, world).map(Record::Session),
            Key::Grant(grant) => self.grant_record(*grant, world).map(Record::Grant),
            Key::Answer(session, request) => self.answer_record(*session, *request).map(Record::Answer),
        };
        record.map_or(Change::Delete(key), Change::Put)
    }

    pub(super) fn note_grant(&mut self, grant: GrantId, world: World<'_>) {
        if let Some(record) = self.grant_record(grant, world) {
            self.note(Change::Put(Record::Grant(record)));
        }
    }

    pub(super) fn note_session(&mut self, session: SessionId, world: World<'_>) {
        if let Some(record) = self.session_record(session, world) {
            self.note(Change::Put(Record::Session(record)));
        }
    }

    /// A grant as it is to be kept; `None`: it is not.
    fn grant_record(&self, id: GrantId, world: World<'_>) -> Option<GrantRecord> {
        let grant = self.grants.get(&id)?;
        let Phase::Held { revoked_ms, .. } = grant.phase else { return None };
        if !self.is_durable(grant.session) {
            return None;
        }
        let part = |part: &super::grant::Part| {
            let object = part.object()?;
            Some(PartRecord {
                namespace: part.namespace,
                name: object.name().into(),
                place: part.place,
                resources: part.claim.resources,
                capacity: part.claim.maximum,
                slots: self.slots_of(id, part).into(),
            })
        };
        Some(GrantRecord {
            grant: id,
            session: grant.session,
            request: grant.request,
            since: grant.since(),
            revoked_grace_ms: revoked_ms.map(|at_ms| left(at_ms, world.now.monotonic_ms)),
            parts: grant.parts().iter().filter_map(part).collect(),
        })
    }

    fn session_record(&self, session: SessionId, world: World<'_>) -> Option<SessionRecord> {
        let owner = self.owners.get(&session)?;
        let OwnerKind::Leased { key, lease, .. } = &owner.kind else { return None };
        Some(SessionRecord {
            session,
            key: *key,
            ttl_ms: lease.ttl_ms(),
            label: owner.label.clone(),
            revoked_grace_ms: owner.revoked_ms.map(|at_ms| left(at_ms, world.now.monotonic_ms)),
        })
    }

    fn declaration_record(&self, name: &[u8]) -> Option<DeclarationRecord> {
        self.declarations.get(name).map(|declaration| declaration.record(name))
    }

    fn answer_record(&self, session: SessionId, request: u64) -> Option<AnswerRecord> {
        self.owners.get(&session)?.requests.get(request)?.record(session, request)
    }
}
