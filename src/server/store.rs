//! The thread that commits changes to the store.
//!
//! It takes the pending changes as one batch, commits it, and reports the outcome to the core. Changes that come during a
//! commit wait for the next batch, so one flush to disk serves every request of that time.
//!
//! A batch that cannot be committed is committed again after a pause, until it is stored; the requests that wait for
//! the store are answered in the meantime, with `Not stored` unless they release or revoke something. After a flush
//! that failed, the store refuses everything until the daemon is restarted, because it is not known what is on disk.
//!
//! A server that no longer owns the store answers nothing that depends on it: the process ends.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use thiserror::Error;
use tracing::{error, info, warn};

use super::bell::Bell;
use super::lock;
use super::process::end_at_once;
use super::state::Server;
use crate::config::{Config, DeclareConfig};
use signalbox_core::{Batch, CommitOutcome};
use signalbox_model::{Declaration, PlaceKey, Refusal};
use signalbox_storage::{CommitError, Storage, StorageError};

/// The pause after a commit that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// The number of answers that are sent in one step. Between steps, the lock of the ledger is released.
const STEP_ANSWERS: usize = 64;

/// How long the thread may take to store the last changes when the server stops. A disk may hang forever, and the service
/// manager waits for 10 s (`etc/signalbox.service`).
const END_MAX: Duration = Duration::from_secs(1);

/// Session numbers of a run start at its epoch, shifted left by this number of bits, so that no two runs use the same ones.
const SESSION_EPOCH_SHIFT: u32 = 32;

/// The reason why the records of a store could not be restored.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// The store cannot be read.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The records contradict each other.
    #[error("the records contradict each other: {0}; run `signalbox data check`, and restore a backup")]
    Contradiction(String),
    /// The system has no source of randomness, from which the key of places is made.
    #[error("no key can be made: {0}; give the system a source of randomness")]
    Randomness(getrandom::Error),
    /// The store cannot be written.
    #[error("the records cannot be written: {0}")]
    Commit(#[from] CommitError),
    /// The store thread cannot be started.
    #[error("the store thread cannot be started: {0}")]
    Thread(io::Error),
}

impl Server {
    /// Restores the records of a store, before any client connects. From then on, changes are kept for [`Server::store`];
    /// `taker` is woken when there are some.
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
        self.exports.set_store(taker.clone());
        self.core.keep_journal(taker, Some(new_place_key().map_err(RestoreError::Randomness)?));
        self.durable.store(true, Ordering::Relaxed);
        // Ids must be reserved in the store before one is allocated. That may take long, and so may loading the
        // records, so the time is read again afterwards.
        while self.store(storage)? {}
        self.core.begin_serving(now.monotonic, self.moment());
        Ok(())
    }

    /// Makes the snapshots that exports wait for. Then commits the pending changes, or the oldest of very many, and
    /// answers the requests that wait for that. Returns whether there were any changes. Changes that were not stored
    /// are committed again by the next call, unless another server owns the store: then none of their requests is
    /// answered, and this process must end.
    pub fn store(&self, storage: &mut dyn Storage) -> Result<bool, CommitError> {
        self.exports.give_snapshots(storage);
        let Some(batch) = self.core.take_batch(storage.batch_limit()) else { return Ok(false) };
        let begun = Instant::now();
        let committed = storage.commit(&batch.changes);
        if committed.is_ok() {
            let elapsed = begun.elapsed();
            self.stored.times.note(elapsed);
            self.stored.time_us.add(elapsed.as_micros() as u64);
        }
        self.committed(&batch, committed)?;
        Ok(true)
    }

    /// Notes that a batch of the core was committed, or could not be, and answers the requests that wait for that.
    pub fn committed(&self, batch: &Batch, committed: Result<(), CommitError>) -> Result<(), CommitError> {
        self.stored.failures.add(u64::from(committed.is_err()));
        let outcome = match &committed {
            Ok(()) => {
                self.stored.commits.add(1);
                self.stored.changes.add(batch.changes.len() as u64);
                CommitOutcome::Stored
            }
            Err(error) if error.is_ownership_lost() => return committed,
            Err(_) => CommitOutcome::Failed,
        };
        while self.core.complete(batch, outcome, STEP_ANSWERS, self.moment()) {
            std::thread::yield_now();
        }
        committed
    }

    /// Declares the semaphores of the configuration in force. Logs those that cannot be declared, and returns their
    /// names. One whose counter is in use is declared when the counter is idle ([`Self::declare_idle`]).
    pub(super) fn declare_configured(&self) -> Vec<Box<[u8]>> {
        let mut later = lock(&self.declared_later);
        let refused = self.core.declare_configured(&declarations(&self.config()), self.moment());
        let is_later = |(_, refusal): &&(_, Refusal)| *refusal == Refusal::CounterInUse;
        *later = refused.iter().filter(is_later).map(|(name, _)| name.clone()).collect();
        for (name, refusal) in &refused {
            let name = name.escape_ascii();
            match refusal {
                Refusal::CounterInUse => warn!(
                    %name,
                    "semaphore.declare: clients hold or wait for the counter of this name; the semaphore is declared when \
                     that is idle"
                ),
                Refusal::InUse => error!(
                    %name,
                    "semaphore.declare: whether slots are numbered cannot change while the semaphore is held; \
                     it stays as it was"
                ),
                Refusal::TooManyNames => {
                    error!(%name, "semaphore.declare: there are semaphore.max_names of them already; raise it");
                }
                other => {
                    let reason = other.status().message();
                    error!(%name, reason, "semaphore.declare: the semaphore stays as it was");
                }
            }
        }
        refused.into_iter().map(|(name, _)| name).collect()
    }

    /// Declares the semaphores of the configuration whose counters have become idle.
    pub(super) fn declare_idle(&self) {
        let mut later = lock(&self.declared_later);
        if later.is_empty() {
            return;
        }
        let refused = self.core.declare_configured(&declarations(&self.config()), self.moment());
        later.retain(|name| {
            let is_refused = refused.iter().any(|(refused, _)| refused == name);
            if !is_refused {
                info!(name = %name.escape_ascii(), "semaphore.declare: the semaphore is declared now");
            }
            is_refused
        });
    }
}

fn declarations(config: &Config) -> Vec<Declaration<'_>> {
    config.semaphore.declare.iter().map(DeclareConfig::declaration).collect()
}

/// Returns a key for the places of waiting requests, for a store that has none yet.
pub(super) fn new_place_key() -> Result<PlaceKey, getrandom::Error> {
    let mut key = [0; 16];
    getrandom::fill(&mut key)?;
    Ok(PlaceKey(key))
}

#[derive(Debug)]
pub(super) struct Writer {
    bell: Arc<Bell>,
    thread: JoinHandle<()>,
}

impl Writer {
    /// Restores the records of the store, and starts the thread.
    pub(super) fn start(
        server: &Arc<Server>,
        mut storage: impl Storage + 'static,
    ) -> Result<Self, RestoreError> {
        let bell = Arc::new(Bell::default());
        server.restore(&mut storage, Waker::from(Arc::clone(&bell)))?;
        let (server, its_bell) = (Arc::clone(server), Arc::clone(&bell));
        let run = move || {
            // After a panic it is not known what is stored, and no request that waits for it can be answered: the process
            // ends, and the next one restores what is on disk. The hook that the daemon sets has logged the panic.
            let written = catch_unwind(AssertUnwindSafe(|| write(&server, &mut storage, &its_bell)));
            if written.is_err() {
                error!("the store thread has panicked, so the server ends; please report this");
                std::process::abort();
            }
        };
        let thread = std::thread::Builder::new().name("store".to_owned()).spawn(run);
        let thread = thread.map_err(RestoreError::Thread)?;
        Ok(Self { bell, thread })
    }

    /// Asks the thread to store the last changes and end, and waits for that, for [`END_MAX`] at most.
    pub(super) fn end(self) {
        if !self.bell.end(&self.thread, END_MAX) {
            error!(
                "the disk has not stored the last changes within {} s, and the server ends without them; no client was \
                 told that they are stored",
                END_MAX.as_secs()
            );
        }
    }
}

fn write(server: &Server, storage: &mut dyn Storage, bell: &Bell) {
    // The failure that was logged last: it is not logged again until another one occurs or the store works again.
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
            Err(error) if error.is_ownership_lost() => end_at_once(
                "this server no longer owns its records: it ends at once, and answers nothing more",
                error.to_string(),
            ),
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
