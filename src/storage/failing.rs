//! A store that fails when it is told to, for tests of what others do about it.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{CommitError, Storage, StorageError};
use crate::core::{Change, Record};

/// How a commit fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// As on a full disk: nothing of it is kept, and the next commit may succeed.
    Full,
    /// As when flushing fails: everything is refused from then on. A process that starts anew finds the changes, or does
    /// not, as it is said here.
    Flush {
        /// Whether the changes came to the disk all the same.
        kept: bool,
    },
}

/// Says which commits fail. Clones speak for the same store.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Plan>>);

#[derive(Debug, Default)]
struct Plan {
    commits: u64,
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

    /// Fails nothing more. A store that failed to flush stays as it is; one that is put on afterwards works.
    pub fn stop(&self) {
        let mut plan = self.plan();
        plan.once = None;
        plan.always = None;
    }

    /// Commits that were tried so far, those that failed among them.
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

/// Another store, with the failures that [`Faults`] says.
#[derive(Debug)]
pub struct FailingStorage<S> {
    inner: S,
    faults: Faults,
    has_failed_to_flush: bool,
}

impl<S: Storage> FailingStorage<S> {
    /// Puts failures before a store.
    pub fn new(inner: S, faults: Faults) -> Self {
        Self { inner, faults, has_failed_to_flush: false }
    }

    /// The store without the failures, as a process finds it that starts anew.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: Storage> Storage for FailingStorage<S> {
    fn epoch(&self) -> u64 {
        self.inner.epoch()
    }

    fn load(&mut self, each: &mut dyn FnMut(Record)) -> Result<(), StorageError> {
        if self.has_failed_to_flush {
            return Err(not_flushed());
        }
        self.inner.load(each)
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), CommitError> {
        if self.has_failed_to_flush {
            return Err(CommitError::NotFlushed(not_flushed()));
        }
        match self.faults.next() {
            None => self.inner.commit(changes),
            Some(Fault::Full) => {
                let source = io::ErrorKind::StorageFull.into();
                Err(CommitError::NotStored(StorageError::Unusable { path: place(), source }))
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
    StorageError::NotFlushed { path: place(), source: io::Error::other("a test asked for it") }
}

fn place() -> PathBuf {
    PathBuf::from("a store that fails on demand")
}
