//! What writes what is to outlive the process.
//!
//! It takes what the core has come to want kept, all of it together, has the store make it durable, and tells the core;
//! what comes meanwhile waits for the next turn. So one flush to disk serves everybody who asked in its time.
//!
//! Where the store fails, the core takes back what it could not keep, and the writer tries again after a pause. After a
//! flush that failed the store refuses everything, and so it goes on until the daemon is started anew: what is on disk
//! then is not known, and nothing more is promised.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Wake, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use thiserror::Error;
use tracing::{error, info};

use super::Server;
use crate::config::DeclareConfig;
use crate::core::{Declare, Refusal};
use crate::storage::{CommitError, Storage, StorageError};

/// How long the store is left alone after it failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Answers of one step, after which others may do something.
const STEP_ANSWERS: usize = 64;

/// How long the thread has to store what is left when the server stops. A disk that hangs may take for
/// ever, and who started the server waits for 10 s (`etc/signalbox.service`).
const END_MAX: Duration = Duration::from_secs(1);

/// Session numbers of a run start at its epoch, shifted by so many bits, so that no run gives out those of another.
const SESSION_EPOCH_SHIFT: u32 = 32;

/// Why what was kept could not be brought back.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// It cannot be read.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// It contradicts itself.
    #[error("what was kept does not fit together: {0}; run `signalbox data check`, and restore a backup")]
    Contradiction(String),
    /// Nothing can be written.
    #[error("the data directory cannot be written: {0}")]
    Commit(#[from] CommitError),
}

impl Server {
    /// Brings back what a store kept, before anybody connects, and has a journal kept of what is to be stored from now
    /// on by [`Server::store`]; `taker` is woken when there is something.
    pub fn restore(&self, storage: &mut dyn Storage, taker: Waker) -> Result<(), RestoreError> {
        let now = self.moment();
        let mut contradiction = None;
        storage.load(&mut |record| {
            if contradiction.is_none() {
                contradiction = self.core.restore(record, now).err();
            }
        })?;
        if let Some(contradiction) = contradiction {
            return Err(RestoreError::Contradiction(contradiction));
        }
        self.core.start_sessions_after(storage.epoch() << SESSION_EPOCH_SHIFT);
        self.core.keep_journal(taker, self.moment());
        self.durable.store(true, Ordering::Relaxed);
        // Ids have to be reserved on disk before one is given out.
        while self.store(storage)? {}
        Ok(())
    }

    /// Stores what has come together, and has those answered who wait for it. Tells whether there was anything. Where it
    /// cannot be stored, that is taken back, and what stands is said again next time.
    pub fn store(&self, storage: &mut dyn Storage) -> Result<bool, CommitError> {
        let Some(batch) = self.core.take_batch() else { return Ok(false) };
        let stored = storage.commit(&batch.changes);
        match &stored {
            Ok(()) => {
                self.stored.commits.add(1);
                self.stored.changes.add(batch.changes.len() as u64);
            }
            Err(_) => self.stored.failures.add(1),
        }
        while self.core.settle(&batch, stored.is_ok(), STEP_ANSWERS, self.moment()) {
            std::thread::yield_now();
        }
        stored.map(|()| true)
    }

    /// Takes on the semaphores that the configuration declares.
    pub(super) fn declare_configured(&self, declared: &[DeclareConfig]) {
        let wanted: Vec<_> = declared
            .iter()
            .map(|declare| Declare {
                name: declare.name.as_bytes(),
                capacity: declare.capacity,
                numbered: declare.slots,
                label: declare.label.as_bytes(),
            })
            .collect();
        for (name, refusal) in self.core.declare_configured(&wanted, self.moment()) {
            let name = name.escape_ascii();
            match refusal {
                Refusal::InUse => error!(
                    %name,
                    "semaphore.declare: whether slots are numbered cannot change while the semaphore is held; \
                     it stays as it was"
                ),
                Refusal::TooManyNames => {
                    error!(%name, "semaphore.declare: there are semaphore.max_names of them already; raise it");
                }
                other => error!(%name, refusal = ?other, "semaphore.declare: the semaphore stays as it was"),
            }
        }
    }
}

/// A thread that stores.
#[derive(Debug)]
pub(super) struct Writer {
    bell: Arc<Bell>,
    thread: JoinHandle<()>,
}

/// What the thread waits for.
#[derive(Debug, Default)]
pub(super) struct Bell {
    is_rung: Mutex<bool>,
    ringing: Condvar,
    is_ending: AtomicBool,
}

impl Bell {
    fn ring(&self) {
        *self.is_rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ringing.notify_one();
    }

    fn wait(&self) {
        let is_rung = self.is_rung.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_rung =
            self.ringing.wait_while(is_rung, |is_rung| !*is_rung).unwrap_or_else(PoisonError::into_inner);
        *is_rung = false;
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

impl Writer {
    /// Brings back what the store kept, and starts the thread.
    pub(super) fn start(server: &Arc<Server>, storage: impl Storage + 'static) -> Result<Self, WriterError> {
        let mut storage = storage;
        let bell = Arc::new(Bell::default());
        server.restore(&mut storage, Waker::from(Arc::clone(&bell)))?;
        let (server, its_bell) = (Arc::clone(server), Arc::clone(&bell));
        let run = move || {
            // What is stored is not known then, and nobody who waits for it could be answered: the process ends, and what
            // is on disk is brought back by the next. The panic was logged by the hook that the daemon sets.
            let written = catch_unwind(AssertUnwindSafe(|| write(&server, &mut storage, &its_bell)));
            if written.is_err() {
                error!("the thread that stores has panicked, so the server ends; please report this");
                std::process::abort();
            }
        };
        let thread = std::thread::Builder::new().name("store".to_owned()).spawn(run)?;
        Ok(Self { bell, thread })
    }

    /// Has the thread store what there is and end, and waits for that, if not for ever.
    pub(super) fn end(self) {
        self.bell.is_ending.store(true, Ordering::Release);
        self.bell.ring();
        let deadline = Instant::now() + END_MAX;
        while !self.thread.is_finished() {
            if Instant::now() > deadline {
                error!(
                    "the disk has not taken what was left for {} s, and the server ends without it; nobody was told \
                     that it is stored",
                    END_MAX.as_secs()
                );
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Why the thread was not started.
#[derive(Debug, Error)]
pub(super) enum WriterError {
    #[error(transparent)]
    Restore(#[from] RestoreError),
    #[error(transparent)]
    Thread(#[from] io::Error),
}

fn write(server: &Server, storage: &mut dyn Storage, bell: &Bell) {
    // What was logged last: a flush that fails on a full disk is another thing than the full disk.
    let mut failure = None;
    loop {
        match server.store(storage) {
            Ok(is_more) => {
                if is_more && failure.take().is_some() {
                    info!("the store works again");
                }
                if !is_more {
                    if bell.is_ending() {
                        return;
                    }
                    bell.wait();
                }
            }
            Err(error) => {
                let text = error.to_string();
                if failure.as_ref() != Some(&text) {
                    error!(%error, "grants of leased sessions and declared semaphores cannot be stored");
                    failure = Some(text);
                }
                if bell.is_ending() {
                    return;
                }
                std::thread::sleep(PAUSE);
            }
        }
    }
}
