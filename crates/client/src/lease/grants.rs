//! The grants that the permits of a session hold, and how long a client may treat them and the lease as valid. Every
//! thread can read the validity.
//!
//! The server announces when a revoked grant ends, by notices and by the answer to VerifyGrant. Announcements arrive in order, so
//! the last one counts: a later revocation may bring the end forward.
//!
//! Invariants:
//! - A lease that any thread has found to be over stays over. Until then, its end only moves later.
//! - A permit that is lost stays lost, for the reason that was given first.
//! - A grace period that any thread has found to be over stays over.
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
use crate::creator::Creator;
use signalbox_model::{GrantId, Milliseconds};

/// Returns how long a client may rely on a time that the server promised, counted from the sending of the request.
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

/// The validity of a session's lease, which every thread can read.
#[derive(Debug)]
pub(super) struct LeaseValidity {
    /// Locked for a few instructions, and only by the process that has the session: in its forks, the lock may stay locked.
    state: Mutex<LeaseState>,
    clock: Arc<dyn Clock>,
    creator: Creator,
}

impl LeaseValidity {
    /// Creates the lease of a session that has not been opened yet.
    pub(super) fn pending(clock: Arc<dyn Clock>) -> Self {
        Self { state: Mutex::new(LeaseState::Pending), clock, creator: Creator::this_process() }
    }

    /// Returns the process that has the session.
    pub(super) fn creator(&self) -> Creator {
        self.creator
    }

    fn state(&self) -> MutexGuard<'_, LeaseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the lease of a session that was opened. It is valid until this moment.
    pub(super) fn begin(&self, until: Moment) {
        *self.state() = LeaseState::ValidUntil(until);
    }

    /// Moves the end of the lease to this moment, unless it is already later. Returns `false` if the lease is over.
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

    /// Ends the lease: the session is lost or closed.
    pub(super) fn end(&self) {
        *self.state() = LeaseState::Ended;
    }

    /// Ends the lease: the driver was dropped with its runtime, so nothing renews it.
    pub(super) fn abandon(&self) {
        *self.state() = LeaseState::Abandoned;
    }

    /// Returns whether the lease has ended or was found to be over. This does not look at the clock. A pending lease is
    /// not over.
    pub(super) fn is_over(&self) -> bool {
        matches!(*self.state(), LeaseState::Ended | LeaseState::Abandoned)
    }

    /// Returns whether the driver was dropped with its runtime.
    pub(super) fn is_abandoned(&self) -> bool {
        *self.state() == LeaseState::Abandoned
    }

    /// Returns the end of the lease, which may have passed; `None` if the session was not opened, or the lease has ended
    /// or was found to be over.
    pub(super) fn until(&self) -> Option<Moment> {
        match *self.state() {
            LeaseState::ValidUntil(until) => Some(until),
            LeaseState::Pending | LeaseState::Ended | LeaseState::Abandoned => None,
        }
    }

    /// Returns how long the lease is still valid; `None` if it is over or pending. A lease that is found to be over stays
    /// over, even if another thread is about to process an answer that would have renewed it.
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

/// The state of a permit's revocation.
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
    /// Locked like the state of the lease.
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

    /// Locks the state of the revocation. A grace period that is over becomes [`RevocationState::Over`].
    fn revocation_state(&self, now: Moment) -> MutexGuard<'_, RevocationState> {
        let mut state = self.revocation.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, RevocationState::HeldUntil(end) if end <= now) {
            *state = RevocationState::Over;
        }
        state
    }

    /// Returns the least time for which the permit is still held; `None` if it is lost.
    pub(super) fn remaining(&self) -> Option<Duration> {
        if !self.lease.creator.is_this_process() || self.lost.borrow().is_some() {
            return None;
        }
        let (of_lease, now) = (self.lease.remaining()?, self.lease.clock.now());
        match *self.revocation_state(now) {
            RevocationState::NotRevoked => Some(of_lease),
            RevocationState::HeldUntil(until) => Some(of_lease.min(until.since(now))),
            RevocationState::Over => None,
        }
    }

    /// Announces that the permit is being revoked. It is held until this moment; if its grace period is already over,
    /// it is marked as lost instead.
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

    /// Marks the permit as lost for this reason, unless it is already lost.
    pub(super) fn mark_lost(&self, reason: Lost) {
        self.lost.send_if_modified(|lost| {
            let is_first = lost.is_none();
            lost.get_or_insert(reason);
            is_first
        });
    }

    /// Waits until the permit is lost, and returns why.
    pub(super) async fn lost(&self) -> Lost {
        if !self.lease.creator.is_this_process() {
            return Lost::Forked;
        }
        let mut lost = self.lost.subscribe();
        let lost = lost.wait_for(Option::is_some).await.expect("`self` keeps the sender");
        lost.expect("the wait ends at the first reason")
    }

    /// Waits until the permit is being revoked.
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

    /// Returns the grants that permits hold.
    pub(super) fn held(&self) -> impl Iterator<Item = GrantId> {
        self.permits.keys().copied()
    }

    /// Marks all permits as lost for this reason, because the session ends.
    pub(super) fn lose_all(&mut self, reason: Lost) {
        self.permits.drain().for_each(|(_, validity)| validity.mark_lost(reason));
        self.revocations.clear();
    }

    /// Notes that a grant is being revoked and is held until this moment at least.
    pub(super) fn revoked(&mut self, grant: GrantId, at: Moment) {
        if self.permits.contains_key(&grant) {
            warn!(grant = grant.0, "a permit is being revoked");
            self.revocations.insert(grant, at);
            self.announce_revocation(grant);
        }
    }

    /// Notes that the session is being revoked and exists until this moment at least.
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

    /// Returns when the revocation of the session takes effect; `None`: it is not being revoked.
    pub(super) fn session_revoked_at(&self) -> Option<Moment> {
        self.session_revocation
    }

    /// Returns when the next revocation of a grant or of the session takes effect; `None`: none is pending.
    pub(super) fn next_revocation(&self) -> Option<Moment> {
        self.revocations.values().chain(&self.session_revocation).min().copied()
    }

    /// Marks the permits whose revocation has taken effect as lost.
    pub(super) fn apply_revocations(&mut self, now: Moment) {
        let over: Vec<_> =
            self.revocations.iter().filter(|(_, at)| **at <= now).map(|(grant, _)| *grant).collect();
        over.into_iter().for_each(|grant| self.mark_lost(grant));
    }

    /// Marks the permit of a revoked grant as lost: its grace period is over, or the server answers that it is not
    /// held.
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

    #[tokio::test]
    async fn the_first_reason_of_a_loss_stays() {
        let permit = PermitValidity::new(lease_until(10).1);
        permit.mark_lost(Lost::Revoked);
        permit.mark_lost(Lost::Stopped);
        assert_eq!(permit.lost().await, Lost::Revoked);
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
