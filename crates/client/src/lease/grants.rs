//! The grants of a session that permits hold, and for how long a client may treat them and the lease as valid. Every thread can
//! read the validity.
//!
//! The server announces when a revoked grant ends, by notices and by the answer to VerifyGrant. Announcements arrive in order, so
//! the last one counts: a later revocation may bring the end forward.
//!
//! Invariants:
//! - A lease that any thread has found to be over stays over. Until then, its end only moves later.
//! - A permit that is lost stays lost, for the reason that was given first.
//! - A permit whose grace period any thread has found to be over stays so.
//! - The validity of a permit ends when its own grace period or that of the session ends, whichever is earlier.
//! - Each grant in `permits` belongs to a permit, or to a caller that is about to receive one.
//! - A grant in `revocations` is in `permits`.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tracing::warn;

use super::clock::{Clock, Moment};
use crate::Lost;
use crate::maker::Maker;
use signalbox_model::{GrantId, Milliseconds};

/// For how long a client may rely on a time that the server promised, counted from when the request was sent.
pub(super) fn safe_duration(time: Milliseconds) -> Duration {
    let time = Duration::from(time);
    // Clocks may run at rates that differ by up to 4 %.
    time.saturating_sub(time / 25)
}

/// The state of a session's lease, as the client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaseState {
    /// The session has not been opened yet.
    Pending,
    /// The lease is valid until this moment at least.
    ValidUntil(Moment),
    /// The session is lost or closed.
    Ended,
    /// The driver was dropped with its runtime. Another driver would be dropped too.
    Abandoned,
}

/// The validity of a session's lease, as far as the client knows.
#[derive(Debug)]
pub(super) struct LeaseValidity {
    /// Locked for a few instructions, and only by the process that has the session: in its forks, the lock may stay locked.
    state: Mutex<LeaseState>,
    clock: Arc<dyn Clock>,
    maker: Maker,
}

impl LeaseValidity {
    /// A lease whose session has not been opened yet.
    pub(super) fn pending(clock: Arc<dyn Clock>) -> Self {
        Self { state: Mutex::new(LeaseState::Pending), clock, maker: Maker::this_process() }
    }

    /// The process that has the session.
    pub(super) fn maker(&self) -> Maker {
        self.maker
    }

    fn state(&self) -> MutexGuard<'_, LeaseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session was opened: the lease is valid until this moment.
    pub(super) fn begin(&self, until: Moment) {
        *self.state() = LeaseState::ValidUntil(until);
    }

    /// Moves the end of the lease to this moment, unless it is later already. `false` if the lease is over.
    pub(super) fn renew(&self, until: Moment) -> bool {
        let mut state = self.state();
        match *state {
            LeaseState::ValidUntil(end) if end > self.clock.now() => {
                *state = LeaseState::ValidUntil(end.max(until));
                true
            }
            _ => false,
        }
    }

    /// The session is lost or closed.
    pub(super) fn end(&self) {
        *self.state() = LeaseState::Ended;
    }

    /// The driver was dropped with its runtime, so that nothing renews the lease.
    pub(super) fn abandon(&self) {
        *self.state() = LeaseState::Abandoned;
    }

    /// Whether the lease is over. A pending lease is not.
    pub(super) fn is_over(&self) -> bool {
        matches!(*self.state(), LeaseState::Ended | LeaseState::Abandoned)
    }

    /// Whether the driver was dropped with its runtime.
    pub(super) fn is_abandoned(&self) -> bool {
        *self.state() == LeaseState::Abandoned
    }

    /// The end of the lease of a session that was opened; `None` if the lease is over.
    pub(super) fn until(&self) -> Option<Moment> {
        match *self.state() {
            LeaseState::ValidUntil(until) => Some(until),
            LeaseState::Pending | LeaseState::Ended | LeaseState::Abandoned => None,
        }
    }

    /// How long the lease is still valid; `None` if it is over. A lease that is found to have run out is over for
    /// good, even if another thread is about to process the answer that would have renewed it.
    fn remaining(&self) -> Option<Duration> {
        let mut state = self.state();
        let LeaseState::ValidUntil(until) = *state else { return None };
        let remaining = until.since(self.clock.now());
        if remaining.is_zero() {
            *state = LeaseState::Ended;
            return None;
        }
        Some(remaining)
    }
}

/// Whether a permit is being revoked, and until when it is held then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RevocationState {
    NotRevoked,
    /// The grace period runs until this moment at least.
    HeldUntil(Moment),
    /// The grace period was found to be over.
    Over,
}

/// The validity of one permit: that of its session's lease, unless the permit is lost or revoked before.
#[derive(Debug)]
pub(super) struct PermitValidity {
    lease: Arc<LeaseValidity>,
    /// Locked as the state of the lease is.
    revocation: Mutex<RevocationState>,
    lost: watch::Sender<Option<Lost>>,
    is_revocation_announced: watch::Sender<bool>,
}

impl PermitValidity {
    pub(super) fn new(lease: Arc<LeaseValidity>) -> Self {
        Self {
            lease,
            revocation: Mutex::new(RevocationState::NotRevoked),
            lost: watch::Sender::new(None),
            is_revocation_announced: watch::Sender::new(false),
        }
    }

    /// The state of the revocation; a grace period that is over by now has ended for good.
    fn revocation_state(&self, now: Moment) -> MutexGuard<'_, RevocationState> {
        let mut state = self.revocation.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, RevocationState::HeldUntil(end) if end <= now) {
            *state = RevocationState::Over;
        }
        state
    }

    /// How long the permit is held at least; `None` if it is lost.
    pub(super) fn remaining(&self) -> Option<Duration> {
        if !self.lease.maker.is_this_process() || self.lost.borrow().is_some() {
            return None;
        }
        let (of_lease, now) = (self.lease.remaining()?, self.lease.clock.now());
        match *self.revocation_state(now) {
            RevocationState::NotRevoked => Some(of_lease),
            RevocationState::HeldUntil(until) => Some(of_lease.min(until.since(now))),
            RevocationState::Over => None,
        }
    }

    /// The permit is being revoked, and held until this moment, unless its grace period is over already.
    pub(super) fn revoke_at(&self, moment: Moment) {
        let mut state = self.revocation_state(self.lease.clock.now());
        match *state {
            RevocationState::Over => self.mark_lost(Lost::Revoked),
            RevocationState::HeldUntil(_) | RevocationState::NotRevoked => {
                *state = RevocationState::HeldUntil(moment);
            }
        }
        drop(state);
        self.is_revocation_announced.send_if_modified(|is_announced| !std::mem::replace(is_announced, true));
    }

    /// The permit is lost for this reason, unless it was lost before.
    pub(super) fn mark_lost(&self, reason: Lost) {
        self.lost.send_if_modified(|lost| {
            let is_first = lost.is_none();
            lost.get_or_insert(reason);
            is_first
        });
    }

    /// Resolves when the permit is lost.
    pub(super) async fn lost(&self) -> Lost {
        if !self.lease.maker.is_this_process() {
            return Lost::Forked;
        }
        let mut lost = self.lost.subscribe();
        let lost = lost.wait_for(Option::is_some).await.expect("`self` keeps the sender");
        lost.expect("the wait ends at the first reason")
    }

    /// Resolves when the permit is being revoked.
    pub(super) async fn revocation(&self) {
        let mut is_announced = self.is_revocation_announced.subscribe();
        is_announced.wait_for(|is_announced| *is_announced).await.expect("`self` keeps the sender");
    }
}

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
            // No server uses a grant id twice. If one does, the first permit must not stay valid forever.
            other.mark_lost(Lost::Expired);
        }
        self.announce_revocation(grant);
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
            self.announce_revocation(grant);
        }
    }

    /// The session is being revoked, and exists until this moment at least.
    pub(super) fn session_revoked(&mut self, at: Moment) {
        self.session_revocation = Some(at);
        self.permits.keys().for_each(|grant| self.announce_revocation(*grant));
    }

    /// Tells a permit when its grace period or that of the session ends, if it or the session is being revoked.
    fn announce_revocation(&self, grant: GrantId) {
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
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::Sleep;

    #[derive(Debug, Default)]
    struct TestClock(AtomicU64);

    impl Clock for TestClock {
        fn now(&self) -> Moment {
            Moment(Duration::from_secs(self.0.load(Ordering::Relaxed)))
        }

        fn sleep_until(&self, _: Moment) -> Sleep {
            Box::pin(std::future::pending())
        }
    }

    fn seconds(number: u64) -> Moment {
        Moment(Duration::from_secs(number))
    }

    fn lease_until(end: u64) -> (Arc<TestClock>, Arc<LeaseValidity>) {
        let clock = Arc::new(TestClock::default());
        let lease = Arc::new(LeaseValidity::pending(Arc::clone(&clock) as Arc<dyn Clock>));
        assert_eq!((lease.until(), lease.is_over()), (None, false));
        lease.begin(seconds(end));
        (clock, lease)
    }

    #[test]
    fn a_renewal_never_shortens_a_lease() {
        let (_, lease) = lease_until(10);
        assert!(lease.renew(seconds(20)));
        assert!(lease.renew(seconds(15)));
        assert_eq!(lease.until(), Some(seconds(20)));
    }

    #[test]
    fn a_lease_that_was_seen_to_be_over_stays_over() {
        let (clock, lease) = lease_until(10);
        let permit = PermitValidity::new(Arc::clone(&lease));
        assert_eq!(permit.remaining(), Some(Duration::from_secs(10)));
        clock.0.store(10, Ordering::Relaxed);
        assert!(!lease.renew(seconds(20)), "it is over, although no thread has seen it");
        assert_eq!(permit.remaining(), None);
        clock.0.store(9, Ordering::Relaxed);
        assert!(!lease.renew(seconds(20)));
        assert_eq!((permit.remaining(), lease.is_over(), lease.is_abandoned()), (None, true, false));
    }

    #[test]
    fn a_revoked_permit_ends_before_its_lease() {
        let (clock, lease) = lease_until(10);
        let permit = PermitValidity::new(Arc::clone(&lease));
        permit.revoke_at(seconds(5));
        assert_eq!(permit.remaining(), Some(Duration::from_secs(5)));
        permit.revoke_at(seconds(7));
        assert_eq!(permit.remaining(), Some(Duration::from_secs(7)), "the last announcement counts");
        clock.0.store(7, Ordering::Relaxed);
        assert_eq!(permit.remaining(), None);
        assert!(!lease.is_over());
    }

    #[test]
    fn a_grace_period_that_is_over_stays_over() {
        let (clock, lease) = lease_until(10);
        let (seen, unseen) = (PermitValidity::new(Arc::clone(&lease)), PermitValidity::new(lease));
        [&seen, &unseen].into_iter().for_each(|permit| permit.revoke_at(seconds(5)));
        clock.0.store(5, Ordering::Relaxed);
        assert_eq!(seen.remaining(), None);
        [&seen, &unseen].into_iter().for_each(|permit| permit.revoke_at(seconds(9)));
        assert_eq!([&seen, &unseen].map(PermitValidity::remaining), [None, None]);
        assert_eq!([&seen, &unseen].map(|permit| *permit.lost.borrow()), [Some(Lost::Revoked); 2]);
    }

    const GRANTS: [GrantId; 2] = [GrantId(1), GrantId(2)];

    #[test]
    fn the_last_announcement_of_an_end_counts_and_the_end_of_a_session_ends_all() {
        let lease = lease_until(200).1;
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
