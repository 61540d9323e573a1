//! The ledger after a restart: records of the store become sessions, grants, replies and declarations again.

use std::collections::BTreeSet;

use super::declare::claim_of;
use super::grants::{Grant, Kind, Part, Target};
use super::removal::SEMAPHORES;
use super::sessions::CachedReply;
use super::state::{Ledger, LedgerContext};
use crate::claim::Claim;
use crate::durable::{AnswerRecord, DeclarationRecord, GrantRecord, PartRecord, Record, SessionRecord};
use crate::object::ObjectRef;
use crate::outcome::Opened;
use crate::semaphore::SLOTS_MAX;
use crate::state::Core;
use crate::time::{Moment, MonotonicMs};
use signalbox_model::GrantId;

/// The highest reservation that a server can have made: above it, there would soon be no ids left.
const RESERVATION_MAX: u64 = u64::MAX - (1 << 40);

impl Core {
    /// Restores a record of a store, before anything else is done. Records come in the order of their keys. Leases
    /// start again in [`Self::begin_serving`]. An error describes a contradiction between records.
    pub fn restore(&self, record: Record, now: Moment) -> Result<(), String> {
        let context = self.context(now.unix);
        match record {
            Record::Mark(up_to) if up_to > RESERVATION_MAX => {
                return Err(format!("no id can be above {up_to}"));
            }
            Record::Mark(up_to) => self.ledger().ids.start_after(up_to),
            Record::Declaration(record) => self.ledger().restore_declaration(record, context)?,
            Record::Session(record) => {
                self.start_sessions_after(record.session.number());
                self.ledger().restore_session(record, now.monotonic);
            }
            Record::Grant(record) => self.ledger().restore_grant(record, now.monotonic, context)?,
            Record::Answer(record) => self.ledger().restore_answer(record)?,
            Record::PlaceKey(key) => _ = self.ledger().places.set_key_once(key),
            Record::Sysv(record) => self.sysv().restore(record, now)?,
        }
        Ok(())
    }

    /// Begins to serve what was restored at the time `restored`: leases and the reconnect window start now, the rest of
    /// the grace periods of revocations remains, and removals continue, with grace periods that start again.
    pub fn begin_serving(&self, restored: MonotonicMs, now: Moment) {
        let late_ms = restored.age_ms(now.monotonic);
        self.sysv().begin_serving(late_ms);
        let ledger = &mut *self.ledger();
        ledger.sessions.begin_serving(late_ms, now.monotonic);
        ledger.grants.begin_serving(late_ms);
        ledger.open_reconnect_window(now.monotonic);
        ledger.resume_removals(now.monotonic, self.context(now.unix));
    }
}

impl Ledger {
    fn restore_declaration(
        &mut self,
        record: DeclarationRecord,
        context: LedgerContext<'_>,
    ) -> Result<(), String> {
        if record.numbered && record.capacity > SLOTS_MAX {
            let (name, capacity) = (record.name.escape_ascii(), record.capacity);
            return Err(format!("{name} has {capacity} slots, and a semaphore has {SLOTS_MAX} at most"));
        }
        let is_ascending = record.service.slots_out.is_sorted_by(|one, next| one < next);
        if !is_ascending || (!record.numbered && !record.service.slots_out.is_empty()) {
            let name = record.name.escape_ascii();
            return Err(format!("{name} has slots out of service that it cannot have"));
        }
        let claim = claim_of(record.capacity);
        let object = context.registry(SEMAPHORES).restore(SEMAPHORES, &record.name, claim, context.interval);
        self.slots.set_numbered(&object, record.numbered);
        self.update_object(&object, &record);
        if record.removing {
            object.set_tracking(|tracking| tracking.awaited = true);
        }
        self.declarations.put(&object, record.clone());
        self.declarations.take_effect(object.name(), &record);
        Ok(())
    }

    fn restore_session(&mut self, record: SessionRecord, now: MonotonicMs) {
        let SessionRecord { session, key, ttl_ms, label, revoked_grace_ms } = record;
        let revoked = revoked_grace_ms.map(|grace_ms| now.after(grace_ms));
        self.sessions.add_leased(Opened { session, key, ttl_ms }, &label, None, revoked, now);
    }

    fn restore_grant(
        &mut self,
        record: GrantRecord,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) -> Result<(), String> {
        let id = record.grant;
        if self.sessions.get(record.session).is_none() {
            return Err(format!("grant {id} belongs to session {}, which does not exist", record.session));
        }
        if record.parts.is_empty() || self.grants.get(id).is_some() {
            return Err(format!("grant {id} has no name, or exists twice"));
        }
        let positions: BTreeSet<_> = record.parts.iter().map(|part| usize::from(part.position)).collect();
        if positions.len() != record.parts.len()
            || positions.last().is_none_or(|last| *last >= positions.len())
        {
            return Err(format!("the names of grant {id} are not in order"));
        }
        let mut parts = Vec::with_capacity(record.parts.len());
        for part in &record.parts {
            let object = self.restore_part(id, part, context)?;
            parts.push(Part {
                target: Target::Now(object),
                kind: Kind::Of(part.namespace),
                position: part.position,
                claim: Claim { resources: part.resources, maximum: part.capacity },
                slot: None,
                is_shared: true,
            });
        }
        let revoked = record.revoked_grace_ms.map(|grace_ms| now.after(grace_ms));
        let grant = Grant::held(record.session, record.request, parts, record.since, revoked);
        let reply = CachedReply::Granted(Box::new(grant.cached(id, &self.slots)));
        self.add_bytes(record.session, grant.bytes());
        self.grants.insert(id, grant);
        self.sessions.existing_mut(record.session).add_grant(id);
        self.cache(record.session, record.request, reply);
        self.ids.start_after(id.0);
        Ok(())
    }

    /// Restores a grant's resources of one name.
    fn restore_part(
        &mut self,
        id: GrantId,
        part: &PartRecord,
        context: LedgerContext<'_>,
    ) -> Result<ObjectRef, String> {
        let name = part.name.escape_ascii();
        let claim = Claim { resources: part.resources, maximum: part.capacity.max(1) };
        let registry = context.registry(part.namespace);
        let object = registry.restore(part.namespace, &part.name, claim, context.interval);
        let is_taken = object.restore_grant(part.resources, context.interval);
        is_taken.ok_or_else(|| format!("with grant {id}, more of {name} is held than a name can have"))?;
        if !part.slots.is_empty() {
            let are_taken = self.slots.restore(&object, id, &part.slots);
            are_taken.ok_or_else(|| format!("grant {id} has slots of {name} that it cannot have"))?;
            object.withhold(self.slots.present_withheld(&object));
        }
        self.queues.add_grant(part.namespace, &object, id);
        Ok(object)
    }

    fn restore_answer(&mut self, record: AnswerRecord) -> Result<(), String> {
        if self.sessions.get(record.session).is_none() {
            return Err(format!("an answer belongs to session {}, which does not exist", record.session));
        }
        let reply = CachedReply::declared(record.answer);
        self.cache(record.session, record.request, reply);
        Ok(())
    }
}
