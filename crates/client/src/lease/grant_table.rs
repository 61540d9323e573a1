//! The grants of a session that permits hold, and which of them are being revoked.
//!
//! The server announces when a revoked grant ends, by notices and by the answer to VerifyGrant. Announcements arrive in order, so
//! the last one counts: a later revocation may bring the end forward.
//!
//! Invariants:
//! - Each grant in `permits` belongs to a permit, or to a caller that is about to receive one.
//! - A grant in `revocations` is in `permits`.
//! - The validity of a permit ends when its own grace period or that of the session ends, whichever is earlier.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tracing::warn;

use super::clock::Moment;
use super::validity::{LeaseValidity, PermitValidity};
use crate::Lost;
use signalbox_model::GrantId;

#[derive(Debug, Default)]
pub(super) struct GrantTable {
    permits: HashMap<GrantId, Arc<PermitValidity>>,
    /// The ends of the grace periods of grants that are being revoked.
    revocations: BTreeMap<GrantId, Moment>,
    /// The end of the session's grace period, if it is being revoked.
    session_revocation: Option<Moment>,
}

impl GrantTable {
    /// Adds a grant, and returns the validity of its permit.
    pub(super) fn insert(&mut self, grant: GrantId, lease: &Arc<LeaseValidity>) -> Arc<PermitValidity> {
        let validity = Arc::new(PermitValidity::new(Arc::clone(lease)));
        if let Some(other) = self.permits.insert(grant, Arc::clone(&validity)) {
            // No server uses a grant id twice. If one does, the first permit must not stay valid for ever.
            other.mark_lost(Lost::Expired);
        }
        self.limit(grant);
        validity
    }

    /// Removes a grant that is being released.
    pub(super) fn remove(&mut self, grant: GrantId) {
        self.permits.remove(&grant);
        self.revocations.remove(&grant);
    }

    /// The grants that permits hold.
    pub(super) fn held(&self) -> impl Iterator<Item = GrantId> {
        self.permits.keys().copied()
    }

    /// The session has ended: all permits are lost for this reason.
    pub(super) fn lose_all(&mut self, reason: Lost) {
        self.permits.drain().for_each(|(_, validity)| validity.mark_lost(reason));
        self.revocations.clear();
    }

    /// A grant is being revoked, and held until this moment at least.
    pub(super) fn revoked(&mut self, grant: GrantId, at: Moment) {
        if self.permits.contains_key(&grant) {
            warn!(grant = grant.0, "a permit is being revoked");
            self.revocations.insert(grant, at);
            self.limit(grant);
        }
    }

    /// The session is being revoked, and exists until this moment at least.
    pub(super) fn session_revoked(&mut self, at: Moment) {
        self.session_revocation = Some(at);
        self.permits.keys().for_each(|grant| self.limit(*grant));
    }

    /// Ends a permit when its grace period or that of the session ends.
    fn limit(&self, grant: GrantId) {
        let ends = self.revocations.get(&grant).into_iter().chain(&self.session_revocation);
        if let (Some(at), Some(validity)) = (ends.min(), self.permits.get(&grant)) {
            validity.revoke_at(*at);
        }
    }

    /// When the revocation of the session takes effect; `None`: it was not revoked.
    pub(super) fn session_revoked_at(&self) -> Option<Moment> {
        self.session_revocation
    }

    /// When the next revocation takes effect, of a grant or of the session; `None`: none is pending.
    pub(super) fn next_revocation(&self) -> Option<Moment> {
        self.revocations.values().chain(&self.session_revocation).min().copied()
    }

    /// Marks the permits as lost whose revocation has taken effect.
    pub(super) fn apply_revocations(&mut self, now: Moment) {
        let over: Vec<_> =
            self.revocations.iter().filter(|(_, at)| **at <= now).map(|(grant, _)| *grant).collect();
        over.into_iter().for_each(|grant| self.mark_lost(grant));
    }

    /// A revoked grant is no longer held: its grace period is over, or VerifyGrant says so.
    pub(super) fn mark_lost(&mut self, grant: GrantId) {
        if let Some(validity) = self.permits.get(&grant) {
            validity.mark_lost(Lost::Revoked);
            self.revocations.remove(&grant);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::BootClock;

    const GRANTS: [GrantId; 2] = [GrantId(1), GrantId(2)];

    const fn seconds(number: u64) -> Moment {
        Moment(Duration::from_secs(number))
    }

    #[test]
    fn the_last_announcement_of_an_end_counts_and_the_end_of_a_session_ends_all() {
        let lease = Arc::new(LeaseValidity::pending(Arc::new(BootClock)));
        let mut table = GrantTable::default();
        GRANTS.iter().for_each(|grant| drop(table.insert(*grant, &lease)));
        for (end, expected) in [(120, 120), (110, 110), (111, 111)] {
            table.revoked(GRANTS[0], seconds(end));
            assert_eq!(table.next_revocation(), Some(seconds(expected)));
        }
        table.session_revoked(seconds(130));
        table.revoked(GrantId(3), seconds(100));
        assert_eq!(table.next_revocation(), Some(seconds(111)), "no permit has the third");
        table.apply_revocations(seconds(111));
        assert_eq!(table.next_revocation(), Some(seconds(130)));
        table.revoked(GRANTS[1], seconds(120));
        table.remove(GRANTS[1]);
        assert_eq!(
            (table.next_revocation(), table.session_revoked_at()),
            (Some(seconds(130)), Some(seconds(130)))
        );
    }
}
