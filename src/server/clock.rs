//! The server's clock. It is a parameter, so that tests and simulations can use their own.

use std::fmt;

use std::sync::Arc;

use nix::time::{ClockId, clock_gettime};

use signalbox_model::{UnixMilliseconds, UnixSeconds};

/// A clock of Unix time. It may be set back and forth, so waits and leases use monotonic time instead.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> UnixMilliseconds + Send + Sync>);

impl Clock {
    /// Returns the clock of the system. It reports times before 1970 as 1970.
    pub fn system() -> Self {
        // The coarse clock, because it is read before every run of requests. It is late by a few milliseconds at most.
        Self(Arc::new(|| {
            let now =
                clock_gettime(ClockId::CLOCK_REALTIME_COARSE).expect("Linux has had this clock since 2.6.32");
            let (seconds, ns) = (u64::try_from(now.tv_sec()).unwrap_or(0), now.tv_nsec() as u64);
            UnixMilliseconds(seconds * 1000 + ns / 1_000_000)
        }))
    }

    /// Returns a clock that reads the time from a function, with a resolution of one second.
    pub fn from_fn(read: impl Fn() -> UnixSeconds + Send + Sync + 'static) -> Self {
        Self(Arc::new(move || read().into()))
    }

    /// Returns the time now, in seconds.
    pub fn now(&self) -> UnixSeconds {
        self.now_ms().into()
    }

    /// Returns the time now, accurate to a few milliseconds.
    pub fn now_ms(&self) -> UnixMilliseconds {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}
