//! A test server that can crash at any time, with a store that a thread or the test itself writes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Wake, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use signalbox::config::Config;
use signalbox::server::Server;
use signalbox_storage::{Memory, MemoryStorage, Storage};

use super::failing::{FailingStorage, Faults};
use super::{TestServer, eventually};

/// The writer's delay before it retries after a failure: short, because tests wait for it.
const PAUSE: Duration = Duration::from_millis(5);

/// A server with an in-memory store. Dropping it is a crash: everything that is not stored is lost.
pub struct StoredServer {
    pub server: TestServer,
    pub memory: Memory,
    pub faults: Faults,
    writer: Option<Writer>,
}

/// The writer of the store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// A thread, as soon as there are changes.
    Thread,
    /// The test, with [`StoredServer::store`].
    Test,
}

struct Writer {
    storage: Arc<Mutex<FailingStorage<MemoryStorage>>>,
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Bell {
    is_rung: Mutex<bool>,
    ringing: Condvar,
    is_over: AtomicBool,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.is_rung.lock().unwrap() = true;
        self.ringing.notify_one();
    }
}

impl StoredServer {
    /// A server that restores the records of this memory, and stores changes in a thread.
    pub fn start(memory: &Memory) -> Self {
        Self::start_with(memory, By::Thread, |_| {})
    }

    pub fn start_with(memory: &Memory, by: By, change: impl FnOnce(&mut Config)) -> Self {
        let faults = Faults::default();
        let bell = Arc::new(Bell::default());
        let mut storage = FailingStorage::new(memory.open(), faults.clone());
        let mut writer = None;
        let server = TestServer::start_prepared(change, |server| {
            server.restore(&mut storage, Waker::from(Arc::clone(&bell))).unwrap();
            let storage = Arc::new(Mutex::new(storage));
            let thread = (by == By::Thread).then(|| {
                let (server, storage, bell) = (Arc::clone(server), Arc::clone(&storage), Arc::clone(&bell));
                std::thread::spawn(move || write(&server, &storage, &bell))
            });
            writer = Some(Writer { storage, bell, thread });
        });
        Self { server, memory: memory.clone(), faults, writer }
    }

    /// Stores one batch. Returns whether it was stored, or `None` if there was nothing to store.
    pub fn store(&self) -> Option<bool> {
        let writer = self.writer.as_ref().unwrap();
        let mut storage = writer.storage.lock().unwrap();
        self.server.server.store(&mut *storage).map_or(Some(false), |is_more| is_more.then_some(true))
    }

    /// Waits for changes and stores one batch. Returns whether it was stored.
    pub fn store_next(&self) -> bool {
        let mut stored = None;
        eventually("there is something to store", || {
            stored = self.store();
            stored.is_some()
        });
        stored.unwrap()
    }

    /// Crashes the server, and starts another one on the same memory.
    pub fn crash(self) -> Self {
        let memory = self.memory.clone();
        drop(self);
        Self::start(&memory)
    }

    pub fn check_ledger(&self) {
        self.server.server.core().check_ledger().unwrap();
    }

    pub fn check(&self) {
        self.check_ledger();
        self.server.assert_books_balance();
    }
}

impl Drop for StoredServer {
    fn drop(&mut self) {
        let Some(Writer { bell, thread, .. }) = self.writer.take() else { return };
        bell.is_over.store(true, Ordering::Relaxed);
        bell.wake();
        if let Some(thread) = thread {
            let outcome = thread.join();
            assert!(outcome.is_ok() || std::thread::panicking(), "the writer panicked");
        }
    }
}

fn write(server: &Server, storage: &Mutex<FailingStorage<MemoryStorage>>, bell: &Bell) {
    while !bell.is_over.load(Ordering::Relaxed) {
        let stored = server.store(&mut *storage.lock().unwrap() as &mut dyn Storage);
        match stored {
            Ok(true) => {}
            Ok(false) => {
                let mut is_rung = bell.is_rung.lock().unwrap();
                while !std::mem::take(&mut *is_rung) {
                    is_rung = bell.ringing.wait(is_rung).unwrap();
                }
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}
