//! The operations of [`Core`] for a store: it restores records, hands out batches of changes, and learns what became of
//! them.
//!
//! The ledger and the semaphore sets have a journal each, because they have a lock each. A batch has changes of one of them,
//! in turn; neither refers to records of the other.

use crate::durable::{Change, Record};
use crate::journal::BatchLimit;
use crate::state::Core;
use crate::sync::Ordering;
use crate::time::{Moment, MonotonicMs};
use signalbox_model::PlaceKey;
use std::sync::Arc;
use std::task::Waker;

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
            let taken = match is_of_sets {
                true => self.sysv().journal.take_batch(limit),
                false => self.ledger().journal.take_batch(limit),
            };
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
                self.sysv().journal.set_failing(true);
                self.ledger().store_failed(step, now.monotonic, context)
            }
            CommitOutcome::Stored => {
                self.sets_are_next.store(!is_of_sets, Ordering::Relaxed);
                if is_of_sets {
                    self.ledger().journal.set_failing(false);
                    self.sysv().stored(step)
                } else {
                    self.sysv().journal.set_failing(false);
                    self.ledger().stored(step, now.monotonic, context)
                }
            }
        }
    }

    /// Whether every change is stored.
    pub fn is_stored(&self) -> bool {
        self.ledger().journal.is_idle() && self.sysv().journal.is_idle()
    }
}
