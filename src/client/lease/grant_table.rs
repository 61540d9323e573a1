//! The grants of a session that permits hold, and which of them are being revoked.
//!
//! The server announces revocations by notices. A notice that went to a lost connection never arrives, so the grants
//! of that time are unverified until VerifyGrant is answered.
//!
//! Invariants:
//! - Each grant in `permits` belongs to a permit, or to a caller that is about to receive one.
//! - A grant in `unverified` is not known to be revoked.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::clock::Moment;
use super::validity::{LeaseValidity, PermitValidity};
use crate::client::Lost;
use crate::protocol::GrantId;

#[derive(Debug)]
pub(super) struct GrantTable {
    permits: HashMap<GrantId, Arc<PermitValidity>>,
    /// When revocations of grants take effect.
    revocations: Vec<(Moment, GrantId)>,
    session_revoked_at: Option<Moment>,
    unverified: BTreeSet<GrantId>,
    /// When the unverified grants are verified next.
    verify_at: Moment,
}

impl GrantTable {
    pub(super) fn new(now: Moment) -> Self {
        Self {
            permits: HashMap::new(),
            revocations: Vec::new(),
            session_revoked_at: None,
            unverified: BTreeSet::new(),
            verify_at: now,
        }
    }

    /// Adds a grant, and returns the validity of its permit.
    pub(super) fn insert(&mut self, grant: GrantId, lease: &Arc<LeaseValidity>) -> Arc<PermitValidity> {
        let validity = Arc::new(PermitValidity::new(Arc::clone(lease)));
        if let Some(at) = self.session_revoked_at {
            validity.revoke_at(at);
        }
        if let Some(other) = self.permits.insert(grant, Arc::clone(&validity)) {
            // No server uses a grant id twice. If one does, the first permit must not stay valid for ever.
            other.mark_lost(Lost::Expired);
        }
        validity
    }

    /// Removes a grant that is being released.
    pub(super) fn remove(&mut self, grant: GrantId) {
        self.permits.remove(&grant);
        self.unverified.remove(&grant);
    }

    /// The session has ended: all permits are lost for this reason.
    pub(super) fn lose_all(&mut self, reason: Lost) {
        self.permits.drain().for_each(|(_, validity)| validity.mark_lost(reason));
    }

    /// A notice, or the answer to VerifyGrant, says that a grant ends at this moment. `false` if no permit has it.
    pub(super) fn revoke(&mut self, grant: GrantId, at: Moment) -> bool {
        let Some(validity) = self.permits.get(&grant) else { return false };
        validity.revoke_at(at);
        self.revocations.push((at, grant));
        self.unverified.remove(&grant);
        true
    }

    /// The session is being revoked, with all that it holds.
    pub(super) fn revoke_session(&mut self, at: Moment) {
        self.permits.values().for_each(|validity| validity.revoke_at(at));
        self.session_revoked_at = Some(self.session_revoked_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// When the revocation of the session takes effect.
    pub(super) fn session_revoked_at(&self) -> Option<Moment> {
        self.session_revoked_at
    }

    /// When the next revocation takes effect, of a grant or of the session.
    pub(super) fn next_revocation(&self) -> Option<Moment> {
        self.revocations.iter().map(|(at, _)| *at).chain(self.session_revoked_at).min()
    }

    /// Marks the permits as lost whose revocation has taken effect.
    pub(super) fn apply_revocations(&mut self, now: Moment) {
        self.revocations.retain(|(at, grant)| {
            if now < *at {
                return true;
            }
            if let Some(validity) = self.permits.get(grant) {
                validity.mark_lost(Lost::Revoked);
            }
            false
        });
    }

    /// Verifies a grant whose revocation may have been announced to a lost connection.
    pub(super) fn verify(&mut self, grant: GrantId, now: Moment) {
        self.unverified.insert(grant);
        self.verify_at = now;
    }

    /// Verifies all grants, over a new connection: it receives no notices of the connection before.
    pub(super) fn verify_all(&mut self, now: Moment) {
        self.unverified = self.permits.keys().copied().collect();
        self.verify_at = now;
    }

    /// VerifyGrant says that the session does not hold the grant any more.
    pub(super) fn verified_as_lost(&mut self, grant: GrantId) {
        if let Some(validity) = self.permits.get(&grant) {
            validity.mark_lost(Lost::Revoked);
            self.unverified.remove(&grant);
        }
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
