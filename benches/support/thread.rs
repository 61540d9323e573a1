//! The CPU time of a thread.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// CPU time that the calling thread has used so far.
pub fn thread_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every thread has this clock").into()
}
