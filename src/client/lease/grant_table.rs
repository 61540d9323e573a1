//! The grants of a session that permits hold, and which of them are being revoked.
//!
//! The server announces revocations by notices, whose delay is unknown, and a notice that went to a lost connection
//! never arrives. So a grant is unverified after a notice, and all are after a disconnect, until VerifyGrant is
//! answered.
//!
//! Invariants:
//! - Each grant in `permits` belongs to a permit, or to a caller that is about to receive one.
//! - A grant in `revocations` is in `permits`.
//! - The validity of a permit ends when its own grace period or that of the session ends, whichever is earlier.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::clock::Moment;
use super::revocation::{GraceEnd, NoticeCount};
use super::validity::{LeaseValidity, PermitValidity};
use crate::client::Lost;
use crate::protocol::GrantId;

#[derive(Debug)]
pub(super) struct GrantTable {
    permits: HashMap<GrantId, Arc<PermitValidity>>,
    /// The ends of the grace periods of grants that are being revoked.
    revocations: BTreeMap<GrantId, GraceEnd>,
    /// The end of the session's grace period, if it is being revoked.
    session_revocation: Option<GraceEnd>,
    notices: NoticeCount,
    unverified: BTreeSet<GrantId>,
    /// When the unverified grants are verified next.
    verify_at: Moment,
}

impl GrantTable {
    pub(super) fn new(now: Moment) -> Self {
        Self {
            permits: HashMap::new(),
            revocations: BTreeMap::new(),
            session_revocation: None,
            notices: NoticeCount::default(),
            unverified: BTreeSet::new(),
            verify_at: now,
        }
    }

    /// Adds a grant, and returns the validity of its permit.
    pub(super) fn insert(
        &mut self,
        grant: GrantId,
        lease: &Arc<LeaseValidity>,
        now: Moment,
    ) -> Arc<PermitValidity> {
        let validity = Arc::new(PermitValidity::new(Arc::clone(lease)));
        if let Some(other) = self.permits.insert(grant, Arc::clone(&validity)) {
            // No server uses a grant id twice. If one does, the first permit must not stay valid for ever.
            other.mark_lost(Lost::Expired);
        }
        if self.session_revocation.is_some() {
            self.limit(grant);
            self.verify(grant, now);
        }
        validity
    }

    /// Removes a grant that is being released.
    pub(super) fn remove(&mut self, grant: GrantId) {
        self.permits.remove(&grant);
        self.revocations.remove(&grant);
        self.unverified.remove(&grant);
    }

    /// The session has ended: all permits are lost for this reason.
    pub(super) fn lose_all(&mut self, reason: Lost) {
        self.permits.keys().for_each(|grant| self.announce(*grant));
        self.permits.drain().for_each(|(_, validity)| validity.mark_lost(reason));
        self.revocations.clear();
    }

    /// A notice says that a grant is being revoked, and ends at this moment at the earliest. `false` if no permit has
    /// it.
    pub(super) fn revocation_noticed(&mut self, grant: GrantId, at: Moment, now: Moment) -> bool {
        self.notices = self.notices.next();
        if !self.permits.contains_key(&grant) {
            return false;
        }
        let before = self.revocations.get(&grant).copied();
        self.revocations.insert(grant, GraceEnd::after_notice(before, at, self.notices));
        self.limit(grant);
        self.verify(grant, now);
        true
    }

    /// A notice says that the session is being revoked, with all that it holds, and ends at this moment at the earliest.
    pub(super) fn session_revocation_noticed(&mut self, at: Moment, now: Moment) {
        self.notices = self.notices.next();
        self.session_revocation = Some(GraceEnd::after_notice(self.session_revocation, at, self.notices));
        self.limit_all();
        self.verify_all(now);
    }

    /// The server says that a grant is being revoked, by itself or with its session, and that it is held until this
    /// moment at least. It was asked after this many notices.
    pub(super) fn revocation_proven(&mut self, grant: GrantId, at: Moment, asked_after: NoticeCount) {
        let is_answered = |end: GraceEnd| end.is_answered_after(asked_after);
        if let Some(session) = self.session_revocation
            && is_answered(session)
        {
            // The grant may end before the session, so what is known already may be later.
            self.session_revocation = Some(GraceEnd::Proven { at: at.max(session.at()) });
            self.limit_all();
        }
        if self.permits.contains_key(&grant) && self.revocations.get(&grant).copied().is_none_or(is_answered)
        {
            self.revocations.insert(grant, GraceEnd::Proven { at });
            self.limit(grant);
            self.verified(grant, asked_after);
        }
    }

    /// The server says that a grant is not being revoked, or does not say until when it is held. It was asked after
    /// this many notices.
    pub(super) fn verified(&mut self, grant: GrantId, asked_after: NoticeCount) {
        if asked_after == self.notices {
            self.unverified.remove(&grant);
        }
        self.announce(grant);
    }

    /// The connection was lost, and with it the answers that would prove how long the grants are held.
    pub(super) fn disconnected(&mut self) {
        self.permits.keys().for_each(|grant| self.announce(*grant));
    }

    /// Informs the holder of a revocation, if there is one.
    pub(super) fn announce(&self, grant: GrantId) {
        if let Some(validity) = self.permits.get(&grant)
            && (self.revocations.contains_key(&grant) || self.session_revocation.is_some())
        {
            validity.announce_revocation();
        }
    }

    /// Ends a permit when its grace period or that of the session ends.
    fn limit(&self, grant: GrantId) {
        let ends = self.revocations.get(&grant).into_iter().chain(&self.session_revocation);
        if let (Some(at), Some(validity)) = (ends.map(|end| end.at()).min(), self.permits.get(&grant)) {
            validity.revoke_at(at);
        }
    }

    fn limit_all(&self) {
        self.permits.keys().for_each(|grant| self.limit(*grant));
    }

    /// When the revocation of the session takes effect.
    pub(super) fn session_revoked_at(&self) -> Option<Moment> {
        self.session_revocation.map(GraceEnd::at)
    }

    /// When the next revocation takes effect, of a grant or of the session.
    pub(super) fn next_revocation(&self) -> Option<Moment> {
        self.revocations.values().chain(&self.session_revocation).map(|end| end.at()).min()
    }

    /// Marks the permits as lost whose revocation has taken effect.
    pub(super) fn apply_revocations(&mut self, now: Moment) {
        let is_over = |(_, end): &(&GrantId, &GraceEnd)| end.at() <= now;
        let over: Vec<_> = self.revocations.iter().filter(is_over).map(|(grant, _)| *grant).collect();
        over.into_iter().for_each(|grant| self.taken_away(grant));
    }

    /// Verifies a grant that may be revoked.
    pub(super) fn verify(&mut self, grant: GrantId, now: Moment) {
        self.unverified.insert(grant);
        self.verify_at = now;
    }

    /// Verifies all grants, over a new connection: it receives no notices of the connection before.
    pub(super) fn verify_all(&mut self, now: Moment) {
        self.unverified = self.permits.keys().copied().collect();
        self.verify_at = now;
    }

    /// The grant is not held any more: its grace period is over, or VerifyGrant says so.
    pub(super) fn taken_away(&mut self, grant: GrantId) {
        if let Some(validity) = self.permits.get(&grant) {
            self.announce(grant);
            validity.mark_lost(Lost::Revoked);
            self.unverified.remove(&grant);
            self.revocations.remove(&grant);
        }
    }

    /// After how many notices a question is sent now.
    pub(super) fn notices(&self) -> NoticeCount {
        self.notices
    }

    /// When grants have to be verified next.
    pub(super) fn next_verification(&self) -> Option<Moment> {
        (!self.unverified.is_empty()).then_some(self.verify_at)
    }

    /// The grants to verify now. Those that stay unverified are due again at `next`.
    pub(super) fn due_for_verification(
        &mut self,
        now: Moment,
        next: Moment,
    ) -> impl Iterator<Item = GrantId> {
        let is_due = now >= self.verify_at;
        if is_due {
            self.verify_at = next;
        }
        self.unverified.iter().copied().filter(move |_| is_due)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::client::BootClock;

    const NOW: Moment = seconds(100);
    const GRANTS: [GrantId; 2] = [GrantId(1), GrantId(2)];

    const fn seconds(number: u64) -> Moment {
        Moment(Duration::from_secs(number))
    }

    /// A table with two grants.
    fn table() -> GrantTable {
        let lease = Arc::new(LeaseValidity::pending(Arc::new(BootClock)));
        let mut table = GrantTable::new(NOW);
        GRANTS.iter().for_each(|grant| drop(table.insert(*grant, &lease, NOW)));
        table
    }

    fn due(table: &mut GrantTable, now: u64) -> Vec<GrantId> {
        table.due_for_verification(seconds(now), seconds(now + 5)).collect()
    }

    #[test]
    fn a_revoked_grant_that_is_released_before_the_answer_is_not_asked_for_again() {
        let mut table = table();
        assert!(table.revocation_noticed(GRANTS[0], seconds(110), NOW));
        let asked_after = table.notices();
        assert_eq!(due(&mut table, 100), [GRANTS[0]]);
        table.remove(GRANTS[0]);
        assert_eq!((table.next_verification(), table.next_revocation()), (None, None));
        // The answer finds nothing.
        table.revocation_proven(GRANTS[0], seconds(120), asked_after);
        assert_eq!((table.next_verification(), table.next_revocation()), (None, None));
    }

    #[test]
    fn an_answer_to_a_question_from_before_a_notice_leaves_the_grant_unverified() {
        let mut table = table();
        let asked_after = table.notices();
        assert!(table.revocation_noticed(GRANTS[0], seconds(110), NOW));
        table.verified(GRANTS[0], asked_after);
        table.revocation_proven(GRANTS[0], seconds(120), asked_after);
        assert_eq!((table.next_verification(), table.next_revocation()), (Some(NOW), Some(seconds(110))));
        let asked_after = table.notices();
        table.revocation_proven(GRANTS[0], seconds(120), asked_after);
        assert_eq!((table.next_verification(), table.next_revocation()), (None, Some(seconds(120))));
        table.verified(GRANTS[1], asked_after);
        assert_eq!(table.next_revocation(), Some(seconds(120)), "another grant is not concerned");
    }

    #[test]
    fn what_stays_unverified_is_due_again_later() {
        let mut table = table();
        table.verify_all(NOW);
        assert_eq!((due(&mut table, 99), due(&mut table, 100)), (vec![], GRANTS.to_vec()));
        table.verified(GRANTS[0], table.notices());
        assert_eq!((due(&mut table, 104), due(&mut table, 105)), (vec![], vec![GRANTS[1]]));
    }

    #[test]
    fn the_end_of_a_grant_leaves_nothing_to_ask_and_the_end_of_a_session_comes_first() {
        let mut table = table();
        table.session_revocation_noticed(seconds(130), NOW);
        for (grant, end) in GRANTS.into_iter().zip([110, 120]) {
            assert!(table.revocation_noticed(grant, seconds(end), NOW));
        }
        table.apply_revocations(seconds(110));
        assert_eq!((table.next_revocation(), due(&mut table, 110)), (Some(seconds(120)), vec![GRANTS[1]]));
        table.apply_revocations(seconds(120));
        assert_eq!((table.next_verification(), table.next_revocation()), (None, Some(seconds(130))));
        // A grant that comes during the revocation is asked for.
        let lease = Arc::new(LeaseValidity::pending(Arc::new(BootClock)));
        drop(table.insert(GrantId(3), &lease, seconds(121)));
        assert_eq!(due(&mut table, 121), [GrantId(3)]);
        // A second notice never delays the end.
        table.session_revocation_noticed(seconds(140), seconds(121));
        assert_eq!(table.session_revoked_at(), Some(seconds(130)));
        assert!(!table.revocation_noticed(GrantId(4), seconds(125), seconds(121)), "no permit has it");
    }
}
