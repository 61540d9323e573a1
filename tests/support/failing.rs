//! A store that fails on demand, for tests of how the server handles failures.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use signalbox_core::{BatchLimit, Change, Record};
use signalbox_storage::{CommitError, Snapshot, Storage, StorageError};

/// How a commit fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Like a full disk: nothing is stored, and the next commit may succeed.
    Full,
    /// Like a failed flush: everything is refused from then on. `kept` decides whether the next process finds the
    /// changes.
    Flush {
        /// Whether the changes reached the disk in spite of the failure.
        kept: bool,
    },
}

/// Selects the commits that fail. Clones control the same store.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Plan>>);

#[derive(Debug, Default)]
struct Plan {
    commits: u64,
    duration: Duration,
    once: Option<(u64, Fault)>,
    always: Option<Fault>,
}

impl Faults {
    /// Fails one commit: the `nth` from now on, counted from 1.
    pub fn fail_nth(&self, nth: u64, fault: Fault) {
        let mut plan = self.plan();
        plan.once = Some((plan.commits + nth, fault));
    }

    /// Fails every commit until [`stop`](Self::stop).
    pub fn fail_all(&self, fault: Fault) {
        self.plan().always = Some(fault);
    }

    /// Makes each commit take this long from now on.
    pub fn slow_down(&self, duration: Duration) {
        self.plan().duration = duration;
    }

    /// Stops failing commits. A store whose flush has failed still refuses everything; a store created afterwards
    /// works.
    pub fn stop(&self) {
        let mut plan = self.plan();
        plan.once = None;
        plan.always = None;
    }

    /// Commits attempted so far, including those that failed.
    pub fn commits(&self) -> u64 {
        self.plan().commits
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Fault> {
        let mut plan = self.plan();
        plan.commits += 1;
        let commit = plan.commits;
        plan.once.take_if(|(nth, _)| *nth == commit).map(|(_, fault)| fault).or(plan.always)
    }
}

/// A wrapper of another store, with the failures that [`Faults`] selects.
#[derive(Debug)]
pub struct FailingStorage<S> {
    inner: S,
    faults: Faults,
    has_failed_to_flush: bool,
}

impl<S: Storage> FailingStorage<S> {
    /// Wraps a store.
    pub fn new(inner: S, faults: Faults) -> Self {
        Self { inner, faults, has_failed_to_flush: false }
    }

    /// The store without the failures, as the next process finds it.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: Storage> Storage for FailingStorage<S> {
    fn epoch(&self) -> u64 {
        self.inner.epoch()
    }

    fn batch_limit(&self) -> BatchLimit {
        self.inner.batch_limit()
    }

    fn load(&mut self, each: &mut dyn FnMut(Record)) -> Result<(), StorageError> {
        if self.has_failed_to_flush {
            return Err(not_flushed());
        }
        self.inner.load(each)
    }

    fn snapshot(&mut self) -> Result<Box<dyn Snapshot>, StorageError> {
        if self.has_failed_to_flush {
            return Err(not_flushed());
        }
        self.inner.snapshot()
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), CommitError> {
        if self.has_failed_to_flush {
            return Err(CommitError::NotFlushed(not_flushed()));
        }
        let duration = self.faults.plan().duration;
        std::thread::sleep(duration);
        match self.faults.next() {
            None => self.inner.commit(changes),
            Some(Fault::Full) => {
                let source = io::ErrorKind::StorageFull.into();
                Err(CommitError::NotStored(StorageError::Unusable { path: path(), source }))
            }
            Some(Fault::Flush { kept }) => {
                self.has_failed_to_flush = true;
                if kept {
                    self.inner.commit(changes)?;
                }
                Err(CommitError::NotFlushed(not_flushed()))
            }
        }
    }
}

fn not_flushed() -> StorageError {
    StorageError::NotFlushed { path: path(), source: io::Error::other("injected by a test") }
}

fn path() -> PathBuf {
    PathBuf::from("a store that fails on demand")
}
