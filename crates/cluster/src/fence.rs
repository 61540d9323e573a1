//! The fence: after the deadline of its leadership, a node writes nothing to a client and starts no commit.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::clock::BootTime;

/// The deadline of a leadership, which its threads share.
#[derive(Clone)]
pub struct Fence(Arc<Shared>);

struct Shared {
    /// In nanoseconds since the machine was started.
    deadline: AtomicU64,
    clock: Box<dyn Fn() -> BootTime + Send + Sync>,
}

impl Fence {
    /// A fence whose deadline has passed, by a clock that goes on while the machine is suspended.
    pub fn new(clock: impl Fn() -> BootTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(Shared { deadline: AtomicU64::new(0), clock: Box::new(clock) }))
    }

    /// Sets the deadline: a renewal has succeeded.
    pub fn set(&self, deadline: BootTime) {
        let nanoseconds = u64::try_from(deadline.0.as_nanos()).unwrap_or(u64::MAX);
        self.0.deadline.store(nanoseconds, Ordering::Release);
    }

    /// The deadline; `None`: there was none yet, or it was taken back.
    pub fn deadline(&self) -> Option<BootTime> {
        let deadline = self.0.deadline.load(Ordering::Acquire);
        (deadline > 0).then(|| BootTime(Duration::from_nanos(deadline)))
    }

    /// Whether the deadline has passed.
    pub fn is_past(&self) -> bool {
        let deadline = Duration::from_nanos(self.0.deadline.load(Ordering::Acquire));
        self.now().0 >= deadline
    }

    /// The present, by its clock.
    pub fn now(&self) -> BootTime {
        (self.0.clock)()
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("deadline", &self.0.deadline).finish_non_exhaustive()
    }
}
