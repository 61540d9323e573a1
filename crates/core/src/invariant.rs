//! The check of internal invariants. A violation aborts the process at once.
//!
//! Wrong counts are worse than a restart. After a restart, the holdings of connections are gone with the connections,
//! and the grants of leased sessions are as they were stored; clients are written for both. A wrong count stays wrong
//! forever.

use std::fmt;
use std::io::Write;

use crate::sync::{Mutex, MutexGuard};

/// Aborts the process unless the condition holds; the text states what was expected.
macro_rules! invariant {
    ($condition:expr, $($expected:tt)+) => {
        if !$condition {
            $crate::invariant::broken(format_args!($($expected)+));
        }
    };
}
pub(super) use invariant;

/// Aborts the process. It writes to standard error directly, because nothing outside the core can be trusted to run.
#[cold]
pub(super) fn broken(expected: fmt::Arguments<'_>) -> ! {
    if cfg!(shuttle) {
        // Shuttle reports the schedule that led to a panic; it could not report one that aborted the process.
        panic!("expected that {expected}");
    }
    let _ = writeln!(
        std::io::stderr(),
        "signalbox: internal error: the accounting of resources is inconsistent: expected that {expected}. The process \
         aborts so that no resource is granted twice. Please report this message with the log lines above it."
    );
    std::process::abort();
}

/// Locks a mutex of the core. Aborts the process if it is poisoned: a panic has left a change incomplete.
#[inline]
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(_) => broken(format_args!("no thread panics while it changes the core's state")),
    }
}
