//! All grants and waiters, and when they end.
//!
//! Invariants: a waiter whose request was answered "waiting" has exactly one deadline, when its wait ends; a held grant has
//! exactly one if it was revoked, and none otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::grant::{Grant, Waiting};
use crate::invariant::broken;
use crate::time::MonotonicMs;
use signalbox_model::GrantId;
use signalbox_model::UnixSeconds;

#[derive(Debug, Default)]
pub(super) struct Grants {
    all: BTreeMap<GrantId, Box<Grant>>,
    deadlines: BTreeSet<(MonotonicMs, GrantId)>,
    waiting: u64,
}

impl Grants {
    /// Adds a waiter or a grant. A grant that was revoked gets its deadline.
    pub(super) fn insert(&mut self, id: GrantId, grant: Grant) {
        self.waiting += u64::from(grant.is_waiting());
        if let Some(at) = grant.revoked() {
            self.deadlines.insert((at, id));
        }
        self.all.insert(id, Box::new(grant));
    }

    pub(super) fn remove(&mut self, id: GrantId) -> Option<Grant> {
        let grant = *self.all.remove(&id)?;
        self.waiting -= u64::from(grant.is_waiting());
        if let Some(at) = grant.waiter().map(|waiter| waiter.until).or(grant.revoked()) {
            self.deadlines.remove(&(at, id));
        }
        Some(grant)
    }

    /// A grant that a client names.
    pub(super) fn get(&self, id: GrantId) -> Option<&Grant> {
        self.all.get(&id).map(AsRef::as_ref)
    }

    /// A grant that a queue, a session or a caller refers to.
    pub(super) fn known(&self, id: GrantId) -> &Grant {
        match self.all.get(&id) {
            Some(grant) => grant,
            None => unknown(id),
        }
    }

    /// As [`Self::known`], to change it.
    pub(super) fn known_mut(&mut self, id: GrantId) -> &mut Grant {
        match self.all.get_mut(&id) {
            Some(grant) => grant,
            None => unknown(id),
        }
    }

    /// A waiter's wait ends when it is due: its request is answered "waiting".
    pub(super) fn set_wait_deadline(&mut self, id: GrantId) {
        let Some(waiting) = self.known(id).waiter() else {
            broken(format_args!("grant {id} waits if its request is answered so"))
        };
        self.deadlines.insert((waiting.until, id));
    }

    /// Turns a waiter into a held grant.
    pub(super) fn hold(&mut self, id: GrantId, since: UnixSeconds) -> Waiting {
        let Some(waiting) = self.known_mut(id).hold(since) else {
            broken(format_args!("grant {id} waits until it is granted"))
        };
        self.deadlines.remove(&(waiting.until, id));
        self.waiting -= 1;
        waiting
    }

    /// Gives a held grant that was not revoked another id.
    pub(super) fn renumber(&mut self, from: GrantId, to: GrantId) {
        let Some(grant) = self.all.remove(&from) else { unknown(from) };
        self.all.insert(to, grant);
    }

    /// Sets when a held grant ends. A second revocation may bring the end forward and never delays it. Returns when
    /// it ends.
    pub(super) fn revoke_at(&mut self, id: GrantId, at: MonotonicMs) -> MonotonicMs {
        let grant = self.known_mut(id);
        let before = grant.revoked();
        let at = before.map_or(at, |before| before.min(at));
        grant.set_revoked(at);
        if let Some(before) = before {
            self.deadlines.remove(&(before, id));
        }
        self.deadlines.insert((at, id));
        at
    }

    /// Has the grants that were revoked end so much later: they were restored so long before. None waits.
    pub(super) fn begin_serving(&mut self, late_ms: u64) {
        for (at, id) in std::mem::take(&mut self.deadlines) {
            let at = MonotonicMs(at.0 + late_ms);
            self.known_mut(id).set_revoked(at);
            self.deadlines.insert((at, id));
        }
    }

    /// The first grant whose deadline has passed.
    pub(super) fn first_due(&self, now: MonotonicMs) -> Option<GrantId> {
        self.deadlines.first().filter(|(at, _)| *at <= now).map(|(_, id)| *id)
    }

    pub(super) fn next_deadline(&self) -> Option<MonotonicMs> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting
    }

    /// How many are held.
    pub(super) fn held(&self) -> u64 {
        self.all.len() as u64 - self.waiting
    }

    /// The grants and waiters with higher ids than this one.
    pub(super) fn ids_after(&self, id: GrantId) -> impl Iterator<Item = GrantId> {
        self.all.range((Bound::Excluded(id), Bound::Unbounded)).map(|(id, _)| *id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (GrantId, &Grant)> {
        self.all.iter().map(|(id, grant)| (*id, grant.as_ref()))
    }

    /// Describes the invariant that does not hold, if there is one.
    pub(super) fn check(&self) -> Result<(), String> {
        let deadline = |(id, grant): (GrantId, &Grant)| {
            let at = grant.waiter().map(|waiter| waiter.until).or(grant.revoked())?;
            Some((at, id))
        };
        let expected: BTreeSet<_> = self.iter().filter_map(deadline).collect();
        if expected != self.deadlines {
            let wrong = expected.symmetric_difference(&self.deadlines).next();
            return Err(format!("deadline {wrong:?} of a grant is missing or left over"));
        }
        let waiting = self.all.values().filter(|grant| grant.is_waiting()).count() as u64;
        if waiting != self.waiting {
            return Err(format!("{waiting} waiters are counted as {}", self.waiting));
        }
        Ok(())
    }
}

#[cold]
fn unknown(id: GrantId) -> ! {
    broken(format_args!("grant {id} exists as long as a queue or a session refers to it"))
}
