//! The thread that reads what the other nodes of a cluster do.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use super::clock::BootTime;
use super::coordinator::Coordinator;
use super::keys::Keys;
use super::members::{Members, Reading};

/// The time between two readings while a new leader waits for them.
const HURRIED_PERIOD: Duration = Duration::from_millis(10);

/// The last reading. The thread ends when the last clone of this is dropped.
#[derive(Clone, Debug)]
pub struct Observatory(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    thread: Thread,
}

#[derive(Debug, Default)]
struct Shared {
    members: Mutex<Members>,
    is_hurried: AtomicBool,
    is_over: AtomicBool,
}

impl Observatory {
    /// Starts the thread, which reads the nodes of the cluster once in each period. It has its own connection to etcd.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn start(
        mut coordinator: impl Coordinator + 'static,
        keys: Keys,
        period: Duration,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let observed = Arc::clone(&shared);
        let observe = move || {
            while !observed.is_over.load(Ordering::Relaxed) {
                // An etcd that does not answer is noticed by the leadership, too, which logs it.
                if let Ok(reading) = Reading::read(&mut coordinator, &keys) {
                    observed.members().update(reading, BootTime::now());
                }
                let is_hurried = observed.is_hurried.load(Ordering::Relaxed);
                thread::park_timeout(if is_hurried { HURRIED_PERIOD } else { period });
            }
        };
        let thread = thread::Builder::new().name("observatory".to_owned()).spawn(observe)?.thread().clone();
        Ok(Self(Arc::new(Handle { shared, thread })))
    }

    /// The nodes as they were read last.
    pub fn members(&self) -> MutexGuard<'_, Members> {
        self.0.shared.members()
    }

    /// Has the thread read as often as it can, until [`Self::relax`].
    pub fn hurry(&self) {
        self.0.shared.is_hurried.store(true, Ordering::Relaxed);
        self.0.thread.unpark();
    }

    /// Has the thread read once in each period again.
    pub fn relax(&self) {
        self.0.shared.is_hurried.store(false, Ordering::Relaxed);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

impl Shared {
    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
