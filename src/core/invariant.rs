//! What happens when the core finds itself wrong: the process ends at once.
//!
//! Wrong counts are worse than a restart: after a restart what connections held is gone with them, and what leased
//! sessions held is as it was stored, which is what clients are written for; a count that drifted stays wrong for ever.

use std::fmt;
use std::io::Write;

use super::sync::{Mutex, MutexGuard};

/// Aborts the process unless the condition holds; the text says what was expected.
macro_rules! invariant {
    ($condition:expr, $($expected:tt)+) => {
        if !$condition {
            $crate::core::invariant::broken(format_args!($($expected)+));
        }
    };
}
pub(super) use invariant;

/// Ends the process. Written to standard error directly, since nothing above the core can be trusted to run.
#[cold]
pub(super) fn broken(expected: fmt::Arguments<'_>) -> ! {
    if cfg!(shuttle) {
        // The explorer tells the schedule of a panic; of a process that ended it could not.
        panic!("expected that {expected}");
    }
    let _ = writeln!(
        std::io::stderr(),
        "signalbox: the core's own books do not add up: expected that {expected}. Ending at once, so that nobody \
         is granted what is not there. Please report this with the lines above it."
    );
    std::process::abort();
}

/// Locks a mutex of the core. One that a panic left locked guards a half-made change.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(_) => broken(format_args!("no thread ever panics while it changes an object")),
    }
}
