//! A signal that wakes a thread when it has work, and asks it to end.

use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Wake;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::lock;

/// The signal that a thread waits for.
#[derive(Debug, Default)]
pub(super) struct Bell {
    is_rung: Mutex<bool>,
    ringing: Condvar,
    is_ending: AtomicBool,
}

impl Bell {
    /// Wakes the thread; if it is not waiting, its next wait ends at once.
    pub(super) fn ring(&self) {
        *lock(&self.is_rung) = true;
        self.ringing.notify_one();
    }

    /// Waits until the bell has rung since the last wait.
    pub(super) fn wait(&self) {
        let is_rung = lock(&self.is_rung);
        let mut is_rung =
            self.ringing.wait_while(is_rung, |is_rung| !*is_rung).unwrap_or_else(PoisonError::into_inner);
        *is_rung = false;
    }

    /// Returns whether the thread must end once its work is done.
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// Asks the thread to end, and waits for that, for `wait_max` at most. Returns whether it has ended.
    pub(super) fn end(&self, thread: &JoinHandle<()>, wait_max: Duration) -> bool {
        self.is_ending.store(true, Ordering::Release);
        self.ring();
        wait_for_end(slice::from_ref(thread), wait_max)
    }
}

/// Waits until all threads have ended, for `wait_max` at most. Returns whether they have.
pub(super) fn wait_for_end(threads: &[JoinHandle<()>], wait_max: Duration) -> bool {
    let deadline = Instant::now() + wait_max;
    while threads.iter().any(|thread| !thread.is_finished()) {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}
