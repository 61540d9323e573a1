//! The server's disk: its write times, its failures, and what may be missing on it.
//!
//! The server is a process that ends without warning: what was not written by then is lost.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Wake;
use std::time::Duration;

use signalbox::server::Server;
use signalbox_storage::{Memory, MemoryStorage};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::random::Random;
use crate::scene::Scene;
use crate::support::failing::{FailingStorage, Faults};

/// The pause after a failure, as in the daemon.
const PAUSE: Duration = Duration::from_secs(1);

/// What outlives the server, and the time that writes take.
pub struct Disk {
    pub memory: Memory,
    /// Which writes fail.
    pub faults: Faults,
    flush_ms_max: u64,
    /// How many of the shared semaphores are declared, with numbered slots: the first ones.
    pub numbered: usize,
    log: Mutex<Log>,
}

/// The results of the writes.
#[derive(Default)]
struct Log {
    failed_ms: Option<u64>,
    /// The first failure after the last success.
    behind_since_ms: Option<u64>,
    /// Lives of the server that ended while the disk was behind.
    ended_behind: BTreeSet<u64>,
}

/// Wakes the task that stores when the server has something to store.
#[derive(Default)]
pub struct Written(Notify);

impl Wake for Written {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

impl Disk {
    pub fn new(flush_ms_max: u64, numbered: usize) -> Self {
        Self {
            memory: Memory::default(),
            faults: Faults::default(),
            flush_ms_max,
            numbered,
            log: Mutex::default(),
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("nothing panics while it changes the log")
    }

    fn note(&self, is_stored: bool, now_ms: u64) {
        let mut log = self.log();
        if is_stored {
            if log.behind_since_ms.take().is_some() {
                log.failed_ms = Some(now_ms);
            }
        } else {
            log.failed_ms = Some(now_ms);
            log.behind_since_ms.get_or_insert(now_ms);
        }
    }

    /// A server starts after this life. Returns since when that life could store nothing: what it released since then
    /// is held again.
    pub fn begin_after(&self, life: u64) -> Option<u64> {
        let mut log = self.log();
        let behind_since_ms = log.behind_since_ms.take();
        log.ended_behind.extend(behind_since_ms.map(|_| life));
        behind_since_ms
    }

    /// Whether the last changes of a life may be missing, and changes that it could not store may be present.
    pub fn is_doubtful(&self, life: u64) -> bool {
        self.log().ended_behind.contains(&life)
    }

    /// Whether the store failed at or after this time.
    pub fn has_failed_since(&self, since_ms: u64) -> bool {
        let log = self.log();
        log.behind_since_ms.is_some() || log.failed_ms.is_some_and(|failed_ms| failed_ms >= since_ms)
    }
}

/// Stores pending changes, each batch after the time that the disk takes.
pub async fn store(
    scene: Arc<Scene>,
    server: Arc<Server>,
    storage: MemoryStorage,
    written: Arc<Written>,
    seed: u64,
) {
    let Some(disk) = &scene.disk else { return };
    let mut storage = FailingStorage::new(storage, disk.faults.clone());
    let mut random = Random::of(seed, 0);
    loop {
        sleep(Duration::from_millis(random.between(0, disk.flush_ms_max))).await;
        let stored = server.store(&mut storage);
        if let Ok(true) | Err(_) = stored {
            let mut state = scene.state();
            // Deferred answers are sent, and what could not be stored has ended.
            state.is_touched = true;
            disk.note(stored.is_ok(), state.now_ms);
        }
        match stored {
            Ok(true) => {}
            Ok(false) => written.0.notified().await,
            Err(error) => {
                scene.event("disk", format_args!("{error}"));
                sleep(PAUSE).await;
            }
        }
    }
}
