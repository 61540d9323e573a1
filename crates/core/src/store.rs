//! The operations of [`Core`] for a store: it restores records, hands out batches of changes, and learns what became of
//! them.
//!
//! The ledger and the semaphore sets have a journal each, because they have a lock each. A batch has changes of one of them,
//! in turn; neither refers to records of the other.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::task::Waker;

use super::Core;
use super::durable::{Change, Record};
use super::ids::PlaceKey;
use super::invariant::lock;
use super::journal::{Journal, UNIT_MAX};
use super::sync::{Mutex, MutexGuard, Ordering};
use super::time::{Moment, MonotonicMs};

/// What may have a journal: the ledger and the semaphore sets.
pub(super) trait Journaled {
    /// What happens when a change is committed.
    type Then;

    fn journal(&self) -> Option<&Journal<Self::Then>>;

    fn journal_mut(&mut self) -> Option<&mut Journal<Self::Then>>;

    /// Ends a unit of the journal.
    fn end_unit(&mut self) {
        if let Some(journal) = self.journal_mut() {
            journal.end_unit();
        }
    }

    /// Takes changes to commit. `None`: there are none, or the batch before is not complete.
    fn take_batch(&mut self, limit: BatchLimit) -> Option<Arc<Vec<Change>>> {
        self.journal_mut()?.take_batch(limit)
    }

    /// Whether every change is committed.
    fn is_stored(&self) -> bool {
        self.journal().is_none_or(Journal::is_idle)
    }

    /// Whether the store could not commit the last batch that it had.
    fn is_store_failing(&self) -> bool {
        self.journal().is_some_and(Journal::is_failing)
    }

    /// The store could not commit a batch, or has committed one.
    fn set_store_failing(&mut self, is_failing: bool) {
        if let Some(journal) = self.journal_mut() {
            journal.set_failing(is_failing);
        }
    }

    /// The batch in flight is committed: has `step` of its consequences made at most. Returns whether there are more.
    fn complete_batch(&mut self, step: usize, mut committed: impl FnMut(&mut Self, Self::Then)) -> bool {
        self.set_store_failing(false);
        for _ in 0..step {
            let next = self.journal_mut().and_then(Journal::next_committed);
            let Some(then) = next else { break };
            committed(self, then);
        }
        let Some(journal) = self.journal_mut() else { return false };
        let is_done = journal.finish_batch();
        journal.wake_taker();
        !is_done
    }
}

/// A hold of the lock of what has a journal. What it changes is one unit, unless it ends units in between.
pub(super) struct Step<'a, T: Journaled>(MutexGuard<'a, T>);

impl<'a, T: Journaled> Step<'a, T> {
    pub(super) fn begin(mutex: &'a Mutex<T>) -> Self {
        Self(lock(mutex))
    }
}

impl<T: Journaled> Deref for Step<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Journaled> DerefMut for Step<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: Journaled> Drop for Step<'_, T> {
    fn drop(&mut self) {
        self.0.end_unit();
    }
}

/// How much one batch may have, unless one unit alone has more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimit {
    /// Changes.
    pub changes: usize,
    /// The size of the changes in bytes, about: that of their texts, and some for each.
    pub bytes: usize,
}

impl BatchLimit {
    /// No limit.
    pub const NONE: Self = Self { changes: usize::MAX, bytes: usize::MAX };
    /// The most that one unit has. A store must accept that much.
    pub const UNIT: Self = UNIT_MAX;

    /// Whether it permits so much.
    pub(super) fn has_room_for(self, changes: usize, bytes: usize) -> bool {
        changes <= self.changes && bytes <= self.bytes
    }
}

/// Changes that belong together: a store commits all of them or none.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The changes, in order.
    pub changes: Arc<Vec<Change>>,
    is_of_sets: bool,
}

/// The outcome of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// The store has it.
    Stored,
    /// The store could not commit it now, and may have it or not. It must get the same batch again before any other.
    Failed,
}

impl Core {
    /// Restores a record of a store, before anything else is done. Records come in the order of their keys, and leases
    /// start again now. An error describes a contradiction between records.
    pub fn restore(&self, record: Record, now: Moment) -> Result<(), String> {
        if let Record::Session(record) = &record {
            self.start_sessions_after(record.session.number());
        }
        match record {
            Record::Sysv(record) => self.sysv().restore(record, now),
            record => self.ledger().restore(record, now.monotonic, self.context(now.unix)),
        }
    }

    /// Everything is restored: keeps a journal of changes for a store from now on; `taker` is woken when there are some.
    /// Places of waiting requests are proven with this key, which is stored, unless one was restored; without a key, requests
    /// are told none. [`Self::begin_serving`] comes when the first batch is stored.
    pub fn keep_journal(&self, taker: Waker, key: Option<PlaceKey>) {
        self.sysv().keep_journal(taker.clone());
        self.ledger().keep_journal(taker, key);
    }

    /// The server begins to serve what was restored at this time: leases start again, grace periods go on, the reconnect
    /// window opens, and removals go on.
    pub fn begin_serving(&self, restored: MonotonicMs, now: Moment) {
        let late_ms = restored.age_ms(now.monotonic);
        self.sysv().begin_serving(late_ms);
        self.ledger().begin_serving(late_ms, now.monotonic, self.context(now.unix));
    }

    /// Takes the batch that failed last, or else the oldest changes within a limit of the ledger or of the semaphore sets, in
    /// turn. `None`: there are none, or the batch before is not complete.
    pub fn take_batch(&self, limit: BatchLimit) -> Option<Batch> {
        let take = |is_of_sets| {
            let taken =
                if is_of_sets { self.sysv().take_batch(limit) } else { self.ledger().take_batch(limit) };
            taken.map(|changes| Batch { changes, is_of_sets })
        };
        let first = self.sets_are_next.load(Ordering::Relaxed);
        let batch = take(first).or_else(|| take(!first))?;
        // Until it is stored, it stays the turn of its journal.
        self.sets_are_next.store(batch.is_of_sets, Ordering::Relaxed);
        Some(batch)
    }

    /// The outcome of a batch is known. If it is stored, requests that waited for that are answered. If it failed, all
    /// requests that wait for the store are answered: grants and sessions that were not stored end. In both cases `step` of
    /// them at most. Returns whether there is more to do.
    pub fn complete(&self, batch: &Batch, outcome: CommitOutcome, step: usize, now: Moment) -> bool {
        let context = self.context(now.unix);
        let is_of_sets = batch.is_of_sets;
        match outcome {
            CommitOutcome::Failed => {
                self.sysv().set_store_failing(true);
                self.ledger().store_failed(step, now.monotonic, context)
            }
            CommitOutcome::Stored => {
                self.sets_are_next.store(!is_of_sets, Ordering::Relaxed);
                if is_of_sets {
                    self.ledger().set_store_failing(false);
                    self.sysv().stored(step)
                } else {
                    self.sysv().set_store_failing(false);
                    self.ledger().stored(step, now.monotonic, context)
                }
            }
        }
    }

    /// Whether every change is stored.
    pub fn is_stored(&self) -> bool {
        self.ledger().is_stored() && self.sysv().is_stored()
    }
}
