//! How much a session is used, which decides when a client opens another one.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Requests and permits of a session from which on a client opens another one. A server remembers 1,024 answers from
/// the oldest unanswered request on, so while one request waits long, the number of later ones is limited. Concurrent
/// acquires count once here before the driver receives them, and each needs two request numbers with its release: so
/// the limit is less than half of 1,024. The rest is a reserve for threads that check the load at the same time.
const LOAD_MAX: usize = 480;

/// The load of a session, shared by its users and its driver.
#[derive(Debug, Default)]
pub(super) struct SessionLoad {
    /// Acquires that wait, and permits: each needs one more request to release it.
    acquires_and_permits: AtomicUsize,
    /// Request numbers from the oldest unanswered request on.
    window: AtomicUsize,
    /// Whether the session is being handed over.
    is_isolated: AtomicBool,
}

impl SessionLoad {
    /// An acquire was started.
    pub(super) fn add(&self) {
        self.acquires_and_permits.fetch_add(1, Ordering::Relaxed);
    }

    /// An acquire failed, or a permit was released.
    pub(super) fn remove(&self) {
        self.acquires_and_permits.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn set_window(&self, window: usize) {
        self.window.store(window, Ordering::Relaxed);
    }

    /// The session takes no acquire from here on.
    pub(super) fn isolate(&self) {
        self.is_isolated.store(true, Ordering::Relaxed);
    }

    /// Whether the session can take another acquire.
    pub(super) fn has_room(&self) -> bool {
        if self.is_isolated.load(Ordering::Relaxed) {
            return false;
        }
        let acquires_and_permits = self.acquires_and_permits.load(Ordering::Relaxed);
        acquires_and_permits + self.window.load(Ordering::Relaxed) < LOAD_MAX
    }
}
