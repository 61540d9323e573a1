//! What a program may believe of its leases, in values that every thread can read: how long a session's lease is good
//! for, and what became of each permit.
//!
//! Invariant: a lease that was once seen to be over stays so, whoever saw it. The time until which it is good only
//! grows before that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::clock::{Clock, Moment};
use crate::client::Lost;

/// [`Lease::until`] of one that is over.
const OVER: u64 = 0;

/// A session's lease, as the client believes in it.
#[derive(Debug)]
pub(super) struct Lease {
    /// In nanoseconds of the clock.
    until: AtomicU64,
    clock: Arc<dyn Clock>,
    /// Acquires that are asked for, and permits: each will need one more request to give it back.
    pub(super) load: AtomicUsize,
    /// Requests from the oldest unanswered one on.
    pub(super) window: AtomicUsize,
    /// Whether its driver was dropped before its time: the runtime has ended, and another driver would fare no better.
    pub(super) is_abandoned: AtomicBool,
}

impl Lease {
    /// A lease that is not there yet.
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            until: AtomicU64::new(1),
            clock,
            load: AtomicUsize::new(0),
            window: AtomicUsize::new(0),
            is_abandoned: AtomicBool::new(false),
        }
    }

    /// Until when it is good; `None` where it is over.
    pub(super) fn until(&self) -> Option<Moment> {
        match self.until.load(Ordering::Acquire) {
            OVER => None,
            nanos => Some(Moment(Duration::from_nanos(nanos))),
        }
    }

    /// The first time until which it is good; from here on it can run out.
    pub(super) fn begin(&self, until: Moment) {
        self.until.store(nanos(until), Ordering::Release);
    }

    /// Makes it good for longer. `false` where it is over already.
    pub(super) fn extend(&self, until: Moment) -> bool {
        let now = nanos(self.clock.now());
        let longer = |old: u64| (old != OVER && old > now).then(|| old.max(nanos(until)));
        self.until.fetch_update(Ordering::AcqRel, Ordering::Acquire, longer).is_ok()
    }

    pub(super) fn end(&self) {
        self.until.store(OVER, Ordering::Release);
    }

    /// How long what it covers is good for, if at all. A lease that is found to have run out is over for good, even
    /// if the answer that would have renewed it is on its way through another thread.
    fn left(&self) -> Option<Duration> {
        let until = self.until()?;
        let left = until.since(self.clock.now());
        if left.is_zero() {
            let old = nanos(until);
            // Where this fails, somebody renewed it in time or ended it.
            return match self.until.compare_exchange(old, OVER, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => None,
                Err(_) => self.left(),
            };
        }
        Some(left)
    }
}

/// What became of one permit.
#[derive(Debug)]
pub(super) struct Standing {
    lease: Arc<Lease>,
    /// From when on it is revoked, in nanoseconds of the clock.
    cut_off: AtomicU64,
    lost: watch::Sender<Option<Lost>>,
    notice: watch::Sender<bool>,
}

impl Standing {
    pub(super) fn new(lease: Arc<Lease>) -> Self {
        Self {
            lease,
            cut_off: AtomicU64::new(u64::MAX),
            lost: watch::Sender::new(None),
            notice: watch::Sender::new(false),
        }
    }

    /// How long it is held at least; `None` where it is lost.
    pub(super) fn left(&self) -> Option<Duration> {
        if self.lost.borrow().is_some() {
            return None;
        }
        let left = self.lease.left()?;
        let cut_off = Moment(Duration::from_nanos(self.cut_off.load(Ordering::Acquire)));
        let left = left.min(cut_off.since(self.lease.clock.now()));
        (!left.is_zero()).then_some(left)
    }

    /// It will be revoked at that moment.
    pub(super) fn revoke_at(&self, moment: Moment) {
        self.cut_off.fetch_min(nanos(moment), Ordering::AcqRel);
        self.notice.send_replace(true);
    }

    /// It is lost for this reason, unless it was before.
    pub(super) fn lose(&self, reason: Lost) {
        self.lost.send_if_modified(|lost| {
            let is_first = lost.is_none();
            lost.get_or_insert(reason);
            is_first
        });
    }

    /// Resolves when it is lost.
    pub(super) async fn lost(&self) -> Lost {
        let mut lost = self.lost.subscribe();
        let lost = lost.wait_for(Option::is_some).await.expect("the sender lives in what self holds");
        lost.expect("waited for just this")
    }

    /// Resolves when it is going to be revoked.
    pub(super) async fn revocation(&self) {
        let mut notice = self.notice.subscribe();
        notice.wait_for(|told| *told).await.expect("the sender lives in what self holds");
    }
}

fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.0.as_nanos()).unwrap_or(u64::MAX)
}
