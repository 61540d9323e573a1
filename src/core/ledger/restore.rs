//! What was kept by a store, brought back when the process is started.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::grant::{Grant, Part, Parts, Phase, Target};
use super::owner::{Lease, Owner, OwnerKind};
use super::{Ledger, NameEntry, Remembered, RememberedGrant, World};
use crate::core::Claim;
use crate::core::durable::{AnswerRecord, GrantRecord, Record, SessionRecord};

/// A mark above which there would soon be no ids left, so that it cannot be one.
const MARK_MAX: u64 = u64::MAX - (1 << 40);

impl Ledger {
    /// Brings a record back, in the order of their keys. Leases begin anew now. An error says what does not fit what was
    /// brought back before.
    pub(in crate::core) fn restore(&mut self, record: Record, world: World<'_>) -> Result<(), String> {
        match record {
            Record::Mark(mark) if mark > MARK_MAX => return Err(format!("no id can be above {mark}")),
            Record::Mark(mark) => self.start_after(mark),
            Record::Declaration(record) => self.restore_declaration(record, world)?,
            Record::Session(record) => self.restore_session(record, world),
            Record::Grant(record) => self.restore_grant(record, world)?,
            Record::Answer(record) => self.restore_answer(record)?,
        }
        Ok(())
    }

    /// Does what is due now that everything is back: leases begin now, however long that took.
    pub(in crate::core) fn end_restore(&mut self, world: World<'_>) {
        for owner in self.owners.values() {
            if let OwnerKind::Leased { lease, .. } = &owner.kind {
                lease.renew(world.now.monotonic_ms);
            }
        }
        self.finish_removals(world);
    }

    fn restore_session(&mut self, record: SessionRecord, world: World<'_>) {
        let now_ms = world.now.monotonic_ms;
        let lease = Arc::new(Lease::new(record.ttl_ms, now_ms));
        let mut owner = Owner::leased(record.key, lease, None, &record.label);
        owner.revoked_ms = record.revoked_grace_ms.map(|grace_ms| now_ms + u64::from(grace_ms));
        self.owners.insert(record.session, Box::new(owner));
        self.stats.sessions += 1;
        let ends_ms = self.session_ends_ms(record.session).unwrap_or(now_ms);
        self.end_session_at(ends_ms, record.session);
    }

    fn restore_grant(&mut self, record: GrantRecord, world: World<'_>) -> Result<(), String> {
        let id = record.grant;
        if !self.owners.contains_key(&record.session) {
            return Err(format!("grant {id} is of session {}, which is not there", record.session));
        }
        if record.parts.is_empty() || self.grants.contains_key(&id) {
            return Err(format!("grant {id} is of no name, or there twice"));
        }
        let places: BTreeSet<_> = record.parts.iter().map(|part| usize::from(part.place)).collect();
        if places.len() != record.parts.len() || places.last().is_none_or(|last| *last >= places.len()) {
            return Err(format!("the names of grant {id} have no order"));
        }
        let mut parts = Vec::with_capacity(record.parts.len());
        for kept in &record.parts {
            let name = kept.name.escape_ascii();
            let claim = Claim { resources: kept.resources, maximum: kept.capacity.max(1) };
            let registry = world.registries[kept.namespace as usize];
            let object = registry.restore(kept.namespace, &kept.name, claim, world.interval);
            let is_taken = object.take_again(kept.resources, world.interval);
            is_taken.ok_or_else(|| format!("with grant {id}, more of {name} is held than there can be"))?;
            if !kept.slots.is_empty() {
                let slots = self.slots.get_mut(&object.address());
                let are_taken = slots.and_then(|slots| slots.take_again(id, &kept.slots));
                are_taken.ok_or_else(|| format!("grant {id} has slots of {name} that it cannot have"))?;
            }
            let entry = self.names[kept.namespace as usize].entry(object.address());
            entry.or_insert_with(|| NameEntry::of(&object)).held.insert(id);
            let claim = Claim { resources: kept.resources, maximum: kept.capacity };
            parts.push(Part {
                target: Target::Now(object),
                namespace: kept.namespace,
                place: kept.place,
                claim,
            });
        }
        let revoked_ms = record.revoked_grace_ms.map(|grace_ms| world.now.monotonic_ms + u64::from(grace_ms));
        let phase = Phase::Held { since: record.since.into(), revoked_ms };
        let grant =
            Grant { session: record.session, request: record.request, parts: Parts::taken(parts), phase };
        let remembered = RememberedGrant::of(id, &grant, |part| self.slots_of(id, part));
        self.grants.insert(id, Box::new(grant));
        if let Some(owner) = self.owners.get_mut(&record.session) {
            owner.grants.insert(id, ());
        }
        self.stats.grants += 1;
        self.last_id = self.last_id.max(id.0);
        if let Some(at_ms) = revoked_ms {
            self.end_grant_at(at_ms, id);
        }
        self.remember(record.session, record.request, Remembered::Granted(Box::new(remembered)));
        Ok(())
    }

    fn restore_answer(&mut self, record: AnswerRecord) -> Result<(), String> {
        if !self.owners.contains_key(&record.session) {
            return Err(format!("an answer is of session {}, which is not there", record.session));
        }
        self.remember(record.session, record.request, Remembered::settled(record.answer));
        Ok(())
    }
}
