//! The clock that measures leaderships, the times that all nodes of a cluster have in common, and the fence, which
//! makes the deadline of a leadership known to all threads of a process.
//!
//! All times derive from the renew deadline. By its own clock, a leader serves for [`Timing::renew_deadline`] after it sent
//! its last successful renewal. By its own clock, another node waits for [`Timing::lease_duration`] after it saw that
//! renewal, and then takes over. The lease duration is at least a tenth longer, so two clocks may differ in rate by 5 %
//! with a margin; tests let them differ by 8 %.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A point in time of the clock that counts from the start of the machine and includes the time of suspension
/// (`CLOCK_BOOTTIME`). Changes of the time of day do not affect it. It means nothing on another machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(pub Duration);

impl BootTime {
    /// The present time of the kernel's clock.
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every Linux that Rust supports has it");
        Self(now.into())
    }

    /// The time that is later by `span`.
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }

    /// The time since an earlier point; zero if that point is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The times of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    renew_deadline: Duration,
}

impl Timing {
    /// The shortest renew deadline. It needs an etcd that elects a leader faster than with etcd's default settings
    /// (`docs/cluster.md`).
    pub const RENEW_DEADLINE_MIN: Duration = Duration::from_secs(2);
    /// The longest renew deadline.
    pub const RENEW_DEADLINE_MAX: Duration = Duration::from_secs(60);
    /// The times of the longest renew deadline.
    pub const LONGEST: Self = Self { renew_deadline: Self::RENEW_DEADLINE_MAX };

    /// The times that derive from a renew deadline; `None` if that is too short or too long.
    pub fn new(renew_deadline: Duration) -> Option<Self> {
        let range = Self::RENEW_DEADLINE_MIN..=Self::RENEW_DEADLINE_MAX;
        range.contains(&renew_deadline).then_some(Self { renew_deadline })
    }

    /// How long a leader may serve after it sent its last successful renewal.
    pub fn renew_deadline(self) -> Duration {
        self.renew_deadline
    }

    /// The time between two renewals.
    pub fn retry_period(self) -> Duration {
        (self.renew_deadline / 6).max(Duration::from_millis(250))
    }

    /// The time between two polls of a standby. It adds to how long clients wait after an orderly stop.
    pub fn poll_period(self) -> Duration {
        self.retry_period() / 2
    }

    /// The time between two polls of a standby that suspects that the leader has failed.
    pub fn fast_poll_period(self) -> Duration {
        self.retry_period() / 10
    }

    /// The longest time that one call to etcd may take. A request that one member of etcd loses can still be sent to
    /// another one within the renew deadline.
    pub fn request_timeout(self) -> Duration {
        (self.renew_deadline / 5).min(Duration::from_millis(500))
    }

    /// The longest time that a call to a healthy etcd takes.
    pub fn round_trip_max(self) -> Duration {
        self.renew_deadline / 20
    }

    /// How long a node waits after it saw the leader's last renewal, before it takes over.
    pub fn lease_duration(self) -> Duration {
        self.renew_deadline + self.renew_deadline / 10 + Duration::from_millis(100)
    }
}

/// The deadline of a leadership, which the threads of a process share. After it, the node writes nothing to a client and
/// starts no commit.
#[derive(Clone)]
pub struct Fence(Arc<Shared>);

struct Shared {
    /// In nanoseconds since the machine was started.
    deadline: AtomicU64,
    clock: Box<dyn Fn() -> BootTime + Send + Sync>,
}

impl Fence {
    /// Creates a fence whose deadline has passed. The clock must also count while the machine is suspended.
    pub fn new(clock: impl Fn() -> BootTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(Shared { deadline: AtomicU64::new(0), clock: Box::new(clock) }))
    }

    /// Sets the deadline.
    pub fn set(&self, deadline: BootTime) {
        let nanoseconds = u64::try_from(deadline.0.as_nanos()).unwrap_or(u64::MAX);
        self.0.deadline.store(nanoseconds, Ordering::Release);
    }

    /// The deadline; `None`: it is not set.
    pub fn deadline(&self) -> Option<BootTime> {
        let deadline = self.0.deadline.load(Ordering::Acquire);
        (deadline > 0).then(|| BootTime(Duration::from_nanos(deadline)))
    }

    /// Returns whether the deadline has passed.
    pub fn is_past(&self) -> bool {
        let deadline = Duration::from_nanos(self.0.deadline.load(Ordering::Acquire));
        self.now().0 >= deadline
    }

    /// The present time of its clock.
    pub fn now(&self) -> BootTime {
        (self.0.clock)()
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("deadline", &self.0.deadline).finish_non_exhaustive()
    }
}
