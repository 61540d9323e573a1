//! The operations of [`Core`] for a store: it restores records, hands out batches of changes, and learns what became of
//! them.
//!
//! The ledger and the semaphore sets have a journal each, because they have a lock each. A batch has changes of both, so
//! that one flush serves both; neither refers to records of the other.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::task::Waker;

use super::Core;
use super::durable::{Change, Record};
use super::ids::PlaceKey;
use super::invariant::lock;
use super::ledger::CommitOutcome;
use super::sync::{Mutex, MutexGuard};
use super::time::Moment;

/// What has a journal.
pub(super) trait Journaled {
    /// Ends a step: a batch may end here.
    fn end_step(&mut self);
}

/// A hold of the lock of what has a journal. The step ends when the lock is released, so a batch never has half of one.
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
        self.0.end_step();
    }
}

/// How much one batch of a journal may have, unless one step alone has more.
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
}

/// Changes that belong together: a store commits all of them or none.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The changes, in order.
    pub changes: Arc<Vec<Change>>,
    /// The number of the ledger's batch, if it has changes.
    ledger: Option<u64>,
    /// The number of the batch of the semaphore sets, if they have changes.
    sysv: Option<u64>,
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

    /// As [`Self::keep_journal_and_places`], but waiting requests are told no places unless a key of places was restored.
    pub fn keep_journal(&self, taker: Waker, now: Moment) {
        self.keep_journal_with(taker, None, now);
    }

    /// Everything is restored: does what is due, and keeps a journal of changes for a store from now on; `taker` is woken
    /// when there are some. Places of waiting requests are proven with this key, which is stored, unless one was restored.
    pub fn keep_journal_and_places(&self, taker: Waker, key: PlaceKey, now: Moment) {
        self.keep_journal_with(taker, Some(key), now);
    }

    fn keep_journal_with(&self, taker: Waker, key: Option<PlaceKey>, now: Moment) {
        self.sysv().keep_journal(taker.clone());
        let mut ledger = self.ledger();
        ledger.keep_journal(taker, key);
        ledger.end_restore(now.monotonic, self.context(now.unix));
    }

    /// Takes the oldest changes: half of what the limit permits from the ledger and half from the semaphore sets, unless one
    /// step alone has more. `None`: there are none, or the batch before is not complete.
    pub fn take_batch(&self, limit: BatchLimit) -> Option<Batch> {
        let half = BatchLimit { changes: limit.changes.div_ceil(2), bytes: limit.bytes / 2 };
        let ledger = self.ledger().take_batch(half);
        let sysv = self.sysv().take_batch(half);
        let numbers = (ledger.as_ref().map(|batch| batch.number), sysv.as_ref().map(|batch| batch.number));
        let changes = match (ledger, sysv) {
            (None, None) => return None,
            (Some(one), None) | (None, Some(one)) => one.changes,
            (Some(one), Some(other)) => {
                Arc::new(one.changes.iter().chain(&*other.changes).cloned().collect())
            }
        };
        Some(Batch { changes, ledger: numbers.0, sysv: numbers.1 })
    }

    /// The outcome of a batch is known. If it is stored, requests that waited for that are answered, `step` of them at
    /// most. Otherwise the ledger's changes are rolled back with everything after them, and those of semaphore sets are
    /// taken again with the next batch. Returns whether there is more to do.
    pub fn complete(&self, batch: &Batch, outcome: CommitOutcome, step: usize, now: Moment) -> bool {
        let ledger =
            |number| self.ledger().complete(number, outcome, step, now.monotonic, self.context(now.unix));
        let sysv = |number| self.sysv().complete(number, outcome, step);
        batch.ledger.is_some_and(ledger) | batch.sysv.is_some_and(sysv)
    }

    /// Whether every change is stored.
    pub fn is_stored(&self) -> bool {
        self.ledger().is_stored() && self.sysv().is_stored()
    }
}
