//! The server's clock, handed in so that tests and simulations can have one of their own.

use std::fmt;

use nix::time::{ClockId, clock_gettime};

use crate::core::UnixSeconds;

/// Tells Unix time. It may be set back and forth; nothing but intervals of counters depends on it.
pub struct Clock(Box<dyn Fn() -> UnixSeconds + Send + Sync>);

impl Clock {
    /// The system's clock. A time before 1970 reads as 1970.
    pub fn system() -> Self {
        // It is behind by a tick of the kernel at most, a few milliseconds, and asked before every run of requests.
        Self::from_fn(|| {
            let now =
                clock_gettime(ClockId::CLOCK_REALTIME_COARSE).expect("Linux has had this clock since 2.6.32");
            UnixSeconds(u64::try_from(now.tv_sec()).unwrap_or(0))
        })
    }

    /// A clock that asks a function.
    pub fn from_fn(read: impl Fn() -> UnixSeconds + Send + Sync + 'static) -> Self {
        Self(Box::new(read))
    }

    /// The time now.
    pub fn now(&self) -> UnixSeconds {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}
