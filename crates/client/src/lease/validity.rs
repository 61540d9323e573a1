//! For how long a client may treat its leases and permits as valid. Every thread can read these values.
//!
//! Invariants:
//! - A lease that any thread has found to be over stays over. Until then, its end only moves later.
//! - A permit that is lost stays lost, for the reason that was given first.
//! - A permit whose grace period any thread has found to be over stays so. Until then, the server's last word on its end counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::clock::{Clock, Moment};
use crate::Lost;
use crate::maker::Maker;
use signalbox_model::Milliseconds;

/// For how long a client may rely on a time that the server promised, counted from when the request was sent.
pub(super) fn safe_duration(time: Milliseconds) -> Duration {
    let time = Duration::from(time);
    time.saturating_sub(safety_margin(time))
}

/// How much earlier than the server a client considers a lease to be over. Leases are counted from when the request
/// was sent, so the margin only has to cover clocks that run at different rates: up to 4 %.
fn safety_margin(ttl: Duration) -> Duration {
    ttl / 25
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

impl LeaseState {
    const ENDED: u64 = 0;
    const PENDING: u64 = 1;
    const ABANDONED: u64 = 2;
    /// The first number that stands for a moment, in nanoseconds of the clock.
    const VALID_MIN: u64 = 3;

    fn encode(self) -> u64 {
        match self {
            Self::Ended => Self::ENDED,
            Self::Pending => Self::PENDING,
            Self::Abandoned => Self::ABANDONED,
            Self::ValidUntil(moment) => nanos(moment).max(Self::VALID_MIN),
        }
    }

    fn decode(number: u64) -> Self {
        match number {
            Self::ENDED => Self::Ended,
            Self::PENDING => Self::Pending,
            Self::ABANDONED => Self::Abandoned,
            nanos => Self::ValidUntil(Moment(Duration::from_nanos(nanos))),
        }
    }
}

/// The validity of a session's lease, as far as the client knows.
#[derive(Debug)]
pub(super) struct LeaseValidity {
    /// A [`LeaseState`] in one number, so that permits can read it without a lock.
    state: AtomicU64,
    clock: Arc<dyn Clock>,
    maker: Maker,
}

impl LeaseValidity {
    /// A lease whose session has not been opened yet.
    pub(super) fn pending(clock: Arc<dyn Clock>) -> Self {
        let state = AtomicU64::new(LeaseState::Pending.encode());
        Self { state, clock, maker: Maker::this_process() }
    }

    /// The process that has the session.
    pub(super) fn maker(&self) -> Maker {
        self.maker
    }

    fn state(&self) -> LeaseState {
        LeaseState::decode(self.state.load(Ordering::Acquire))
    }

    /// The session was opened: the lease is valid until this moment.
    pub(super) fn begin(&self, until: Moment) {
        self.state.store(LeaseState::ValidUntil(until).encode(), Ordering::Release);
    }

    /// Moves the end of the lease to this moment, unless it is later already. `false` if the lease is over.
    pub(super) fn renew(&self, until: Moment) -> bool {
        let now = self.clock.now();
        let until = LeaseState::ValidUntil(until).encode();
        let renewed = |old: u64| match LeaseState::decode(old) {
            LeaseState::ValidUntil(end) if end > now => Some(old.max(until)),
            _ => None,
        };
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, renewed).is_ok()
    }

    /// The session is lost or closed.
    pub(super) fn end(&self) {
        self.state.store(LeaseState::Ended.encode(), Ordering::Release);
    }

    /// The driver was dropped with its runtime, so that nothing renews the lease.
    pub(super) fn abandon(&self) {
        self.state.store(LeaseState::Abandoned.encode(), Ordering::Release);
    }

    /// Whether the lease is over. A pending lease is not.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state(), LeaseState::Ended | LeaseState::Abandoned)
    }

    /// Whether the driver was dropped with its runtime.
    pub(super) fn is_abandoned(&self) -> bool {
        self.state() == LeaseState::Abandoned
    }

    /// The end of the lease of a session that was opened; `None` if the lease is over.
    pub(super) fn until(&self) -> Option<Moment> {
        match self.state() {
            LeaseState::ValidUntil(until) => Some(until),
            LeaseState::Pending | LeaseState::Ended | LeaseState::Abandoned => None,
        }
    }

    /// How long the lease is still valid; `None` if it is over. A lease that is found to have run out is over for
    /// good, even if another thread is about to process the answer that would have renewed it.
    fn remaining(&self) -> Option<Duration> {
        loop {
            let until = self.until()?;
            let remaining = until.since(self.clock.now());
            if !remaining.is_zero() {
                return Some(remaining);
            }
            let (old, ended) = (LeaseState::ValidUntil(until).encode(), LeaseState::Ended.encode());
            // A failure means that the lease was renewed in time or ended, so it is read again.
            if self.state.compare_exchange(old, ended, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return None;
            }
        }
    }
}

/// Whether a permit is being revoked, and until when it is held then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RevocationState {
    NotRevoked,
    /// The grace period runs until this moment at least.
    HeldUntil(Moment),
    /// The grace period was found to be over.
    TakenAway,
}

impl RevocationState {
    const TAKEN_AWAY: u64 = 0;
    const NOT_REVOKED: u64 = u64::MAX;

    fn encode(self) -> u64 {
        match self {
            Self::TakenAway => Self::TAKEN_AWAY,
            Self::NotRevoked => Self::NOT_REVOKED,
            Self::HeldUntil(moment) => nanos(moment).clamp(Self::TAKEN_AWAY + 1, Self::NOT_REVOKED - 1),
        }
    }

    fn decode(number: u64) -> Self {
        match number {
            Self::TAKEN_AWAY => Self::TakenAway,
            Self::NOT_REVOKED => Self::NotRevoked,
            nanos => Self::HeldUntil(Moment(Duration::from_nanos(nanos))),
        }
    }
}

/// The validity of one permit: that of its session's lease, unless the permit is lost or revoked before.
#[derive(Debug)]
pub(super) struct PermitValidity {
    lease: Arc<LeaseValidity>,
    /// A [`RevocationState`] in one number, so that permits can read it without a lock.
    revocation: AtomicU64,
    lost: watch::Sender<Option<Lost>>,
    is_revocation_announced: watch::Sender<bool>,
}

impl PermitValidity {
    pub(super) fn new(lease: Arc<LeaseValidity>) -> Self {
        Self {
            lease,
            revocation: AtomicU64::new(RevocationState::NotRevoked.encode()),
            lost: watch::Sender::new(None),
            is_revocation_announced: watch::Sender::new(false),
        }
    }

    /// How long the permit is held at least; `None` if it is lost.
    pub(super) fn remaining(&self) -> Option<Duration> {
        if !self.lease.maker.is_this_process() || self.lost.borrow().is_some() {
            return None;
        }
        let of_lease = self.lease.remaining()?;
        loop {
            let old = self.revocation.load(Ordering::Acquire);
            let until = match RevocationState::decode(old) {
                RevocationState::NotRevoked => return Some(of_lease),
                RevocationState::HeldUntil(until) => until,
                RevocationState::TakenAway => return None,
            };
            let remaining = of_lease.min(until.since(self.lease.clock.now()));
            if !remaining.is_zero() {
                return Some(remaining);
            }
            // A failure means that the end was moved, so it is read again.
            let over = RevocationState::TakenAway.encode();
            if self.revocation.compare_exchange(old, over, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return None;
            }
        }
    }

    /// The permit is being revoked, and held until this moment, unless its grace period is over already.
    pub(super) fn revoke_at(&self, moment: Moment) {
        let now = self.lease.clock.now();
        let moved = |old: u64| match RevocationState::decode(old) {
            RevocationState::TakenAway => None,
            RevocationState::HeldUntil(end) if end <= now => Some(RevocationState::TakenAway.encode()),
            RevocationState::HeldUntil(_) | RevocationState::NotRevoked => {
                Some(RevocationState::HeldUntil(moment).encode())
            }
        };
        let _ = self.revocation.fetch_update(Ordering::AcqRel, Ordering::Acquire, moved);
        if RevocationState::decode(self.revocation.load(Ordering::Acquire)) == RevocationState::TakenAway {
            self.mark_lost(Lost::Revoked);
        }
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

fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.0.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
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
        assert_eq!(permit.remaining(), Some(Duration::from_secs(7)), "the last word counts");
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
}
