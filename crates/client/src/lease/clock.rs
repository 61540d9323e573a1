//! The clock that measures leases.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId as TimerClock, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::{ClockId, clock_gettime};
use std::os::fd::OwnedFd;
use tokio::io::unix::AsyncFd;

/// A point in time: the time since an origin that each clock defines.
///
/// ```
/// use signalbox_client::{BootClock, Clock, Moment};
/// use std::time::Duration;
///
/// let Moment(since_start) = BootClock.now();
/// assert!(since_start > Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub Duration);

impl Moment {
    /// Returns the moment that is later by `span`.
    pub(super) fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }

    /// Returns the time since an earlier moment; zero if that moment is later.
    pub(super) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The future that [`Clock::sleep_until`] returns.
///
#[doc = example!("", "let at_once: Sleep = Box::pin(std::future::ready(()));")]
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A clock that measures leases. It must be monotonic, and advance while the machine is suspended, because the leases
/// continue to run out at the server.
///
/// ```
/// use signalbox_client::{BootClock, Clock, Moment, Sleep};
///
/// /// Runs an hour ahead, which makes no difference: only differences are used.
/// #[derive(Debug)]
/// struct Ahead;
///
/// const HOUR: std::time::Duration = std::time::Duration::from_secs(3600);
///
/// impl Clock for Ahead {
///     fn now(&self) -> Moment {
///         Moment(BootClock.now().0 + HOUR)
///     }
///
///     fn sleep_until(&self, moment: Moment) -> Sleep {
///         BootClock.sleep_until(Moment(moment.0.saturating_sub(HOUR)))
///     }
/// }
/// ```
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> Moment;

    /// Waits until this moment, or shortly after. Called and awaited in the runtime that renews the leases.
    fn sleep_until(&self, moment: Moment) -> Sleep;
}

/// The kernel's monotonic clock that includes the time of suspension (`CLOCK_BOOTTIME`). Changes of the time of day do
/// not affect it.
///
/// ```
/// use signalbox_client::{BootClock, Clock};
///
/// let before = BootClock.now();
/// assert!(BootClock.now() >= before);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Moment {
        let now =
            clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every Linux that Rust supports has this clock");
        Moment(now.into())
    }

    fn sleep_until(&self, moment: Moment) -> Sleep {
        Box::pin(async move {
            // A timer of the same clock fires as soon as the machine resumes. If no file descriptor is left for one,
            // the runtime's timer is used for at most a second at a time, because it does not advance during
            // suspension.
            match timer(moment) {
                Ok(timer) => drop(timer.readable().await),
                Err(_) => tokio::time::sleep(moment.since(BootClock.now()).min(Duration::from_secs(1))).await,
            }
        })
    }
}

fn timer(moment: Moment) -> std::io::Result<AsyncFd<OwnedFd>> {
    let timer = TimerFd::new(TimerClock::CLOCK_BOOTTIME, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
    // Zero would disarm the timer.
    let at = TimeSpec::from(moment.0.max(Duration::from_nanos(1)));
    timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
    #[expect(
        deprecated,
        reason = "an owned descriptor meets the requirements, and the replacement is unsafe"
    )]
    AsyncFd::new(timer.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sleep_ends_at_its_moment_and_not_before() {
        let clock = BootClock;
        let until = clock.now().after(Duration::from_millis(20));
        clock.sleep_until(until).await;
        assert!(clock.now() >= until);
        clock.sleep_until(Moment(Duration::ZERO)).await;
    }
}
