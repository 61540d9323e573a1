//! A queue of changes for a store: what is pending, and the one batch that is in flight.
//!
//! Changes come in **units**: a store has all changes of a unit, or none. Besides the changes, the journal keeps,
//! in the same order, the consequences of their commit. It interprets neither: the ledger (`ledger/commit.rs`) and
//! the semaphore sets (`sysv/storing.rs`) have a journal each, and complete their batches.
//!
//! A batch that could not be committed stays as it is, and is taken again before anything else. So it makes no
//! difference whether the store has it from the failed attempt.
//!
//! Invariants: at most one batch is in flight; a batch has whole units; a unit is within [`UNIT_MAX`], whatever clients
//! do, so that every store accepts it.

use crate::durable::Change;
use crate::invariant::lock;
use crate::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::task::Waker;

/// The limit of a unit: what etcd accepts in one transaction.
pub(super) const UNIT_MAX: BatchLimit = BatchLimit { changes: 4_000, bytes: 1 << 20 };

/// A queue of changes, with a `T` for each consequence of their commit. Without a store, it stays empty.
#[derive(Debug)]
pub(super) struct Journal<T> {
    /// Woken when there is something to take and no batch is in flight; `None`: there is no store.
    taker: Option<Waker>,
    /// Finished units that no batch has taken.
    units: VecDeque<Unit<T>>,
    /// The unit that is being made.
    current: Unit<T>,
    in_flight: Option<InFlight<T>>,
    /// Whether the store failed to commit its last batch.
    is_failing: bool,
}

#[derive(Debug)]
struct Unit<T> {
    changes: Vec<Change>,
    /// The approximate size of the changes in bytes.
    bytes: usize,
    on_commit: Vec<T>,
}

#[derive(Debug)]
struct InFlight<T> {
    changes: Arc<Vec<Change>>,
    on_commit: VecDeque<T>,
    /// Whether the store has taken it. `false`: the store could not commit it, and takes it again next.
    is_taken: bool,
}

impl<T> Default for Unit<T> {
    fn default() -> Self {
        Self { changes: Vec::new(), bytes: 0, on_commit: Vec::new() }
    }
}

impl<T> Unit<T> {
    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.on_commit.is_empty()
    }
}

impl<T> Default for Journal<T> {
    fn default() -> Self {
        let (units, current) = (VecDeque::new(), Unit::default());
        Self { taker: None, units, current, in_flight: None, is_failing: false }
    }
}

impl<T> Journal<T> {
    /// Keeps changes for a store from now on. `taker` is woken when there are some.
    pub(super) fn keep_for(&mut self, taker: Waker) {
        self.taker = Some(taker);
    }

    pub(super) fn has_store(&self) -> bool {
        self.taker.is_some()
    }

    /// Adds a change to the current unit, if there is a store.
    pub(super) fn add(&mut self, change: Change) {
        if !self.has_store() {
            return;
        }
        self.current.bytes += change.size();
        self.current.changes.push(change);
        self.wake_taker();
    }

    /// Adds a consequence of the commit of everything so far. Requires a store.
    pub(super) fn on_commit(&mut self, then: T) {
        self.current.on_commit.push(then);
        self.wake_taker();
    }

    /// Ends the current unit: a batch may end here.
    pub(super) fn end_unit(&mut self) {
        debug_assert!(
            UNIT_MAX.has_room_for(self.current.changes.len(), self.current.bytes),
            "a unit has {} changes with {} bytes",
            self.current.changes.len(),
            self.current.bytes
        );
        if !self.current.is_empty() {
            self.units.push_back(std::mem::take(&mut self.current));
        }
    }

    /// Returns whether the current unit has reached a quarter of [`UNIT_MAX`]: changes that need not be stored together
    /// then go into another unit.
    pub(super) fn is_unit_large(&self) -> bool {
        self.current.changes.len() >= UNIT_MAX.changes / 4 || self.current.bytes >= UNIT_MAX.bytes / 4
    }

    /// Wakes the taker if there is something to take, unless a batch is in flight: the taker asks by itself after each
    /// batch.
    pub(super) fn wake_taker(&self) {
        if let Some(taker) = self.taker.as_ref().filter(|_| self.in_flight.is_none() && !self.is_idle()) {
            taker.wake_by_ref();
        }
    }

    /// Takes the batch that could not be committed, or else whole units that are within the limit together, but at least
    /// one unit. `None`: there is nothing to take, or a batch is in flight.
    pub(super) fn take_batch(&mut self, limit: BatchLimit) -> Option<Arc<Vec<Change>>> {
        self.end_unit();
        if let Some(in_flight) = &mut self.in_flight {
            let is_failed = !std::mem::replace(&mut in_flight.is_taken, true);
            return is_failed.then(|| Arc::clone(&in_flight.changes));
        }
        let Unit { mut changes, mut bytes, on_commit } = self.units.pop_front()?;
        let mut on_commit = VecDeque::from(on_commit);
        while let Some(next) = self
            .units
            .pop_front_if(|next| limit.has_room_for(changes.len() + next.changes.len(), bytes + next.bytes))
        {
            bytes += next.bytes;
            changes.extend(next.changes);
            on_commit.extend(next.on_commit);
        }
        let changes = Arc::new(changes);
        self.in_flight = Some(InFlight { changes: Arc::clone(&changes), on_commit, is_taken: true });
        Some(changes)
    }

    /// Takes the next consequence of the commit of the batch in flight.
    pub(super) fn next_committed(&mut self) -> Option<T> {
        self.in_flight.as_mut()?.on_commit.pop_front()
    }

    /// Ends the batch in flight if its commit has no further consequences. Returns whether no batch is in flight.
    pub(super) fn finish_batch(&mut self) -> bool {
        let is_done = self.in_flight.as_ref().is_none_or(|in_flight| in_flight.on_commit.is_empty());
        if is_done {
            self.in_flight = None;
        }
        is_done
    }

    /// Sets whether the store failed to commit its last batch. If it did, a batch in flight is taken again.
    pub(super) fn set_failing(&mut self, is_failing: bool) {
        self.is_failing = is_failing;
        if is_failing && let Some(in_flight) = &mut self.in_flight {
            in_flight.is_taken = false;
        }
    }

    pub(super) fn is_failing(&self) -> bool {
        self.is_failing
    }

    /// Takes out, in order, at most `most` consequences that no longer wait for the commit: those that `is_over`
    /// selects.
    pub(super) fn take_out(&mut self, most: usize, is_over: impl Fn(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        if let Some(in_flight) = &mut self.in_flight {
            for then in std::mem::take(&mut in_flight.on_commit) {
                if taken.len() < most && is_over(&then) {
                    taken.push(then);
                } else {
                    in_flight.on_commit.push_back(then);
                }
            }
        }
        for unit in self.units.iter_mut().chain([&mut self.current]) {
            let left = most - taken.len();
            taken.extend(unit.on_commit.extract_if(.., |then| is_over(then)).take(left));
        }
        taken
    }

    /// Returns whether no change and no consequence is pending or in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.units.is_empty() && self.current.is_empty()
    }
}

/// The limit of a batch, unless one unit alone has more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimit {
    /// The number of changes.
    pub changes: usize,
    /// The approximate size of the changes in bytes.
    pub bytes: usize,
}

impl BatchLimit {
    /// No limit.
    pub const NONE: Self = Self { changes: usize::MAX, bytes: usize::MAX };
    /// The limit of a unit. A store must accept that much.
    pub const UNIT: Self = UNIT_MAX;

    pub(super) fn has_room_for(self, changes: usize, bytes: usize) -> bool {
        changes <= self.changes && bytes <= self.bytes
    }
}

/// The owner of a journal: the ledger or the semaphore sets.
pub(super) trait Journaled {
    /// A consequence of a commit.
    type Then;

    fn journal(&mut self) -> &mut Journal<Self::Then>;

    /// Completes the batch in flight, which is committed: passes at most `step` of its consequences to `committed`.
    /// Returns whether there are more.
    fn complete_batch(&mut self, step: usize, mut committed: impl FnMut(&mut Self, Self::Then)) -> bool {
        self.journal().set_failing(false);
        for _ in 0..step {
            let Some(then) = self.journal().next_committed() else { break };
            committed(self, then);
        }
        let journal = self.journal();
        let is_done = journal.finish_batch();
        journal.wake_taker();
        !is_done
    }
}

/// A guard of the lock of a [`Journaled`]. The changes made under it are one unit, unless units are ended in between.
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
        self.0.journal().end_unit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::Record;

    /// A journal of units with this many changes each. What happens on commit is the number of the unit.
    fn journal(units: &[u64]) -> Journal<usize> {
        let mut journal = Journal::default();
        journal.keep_for(Waker::noop().clone());
        for (number, changes) in units.iter().enumerate() {
            for change in 0..*changes {
                journal.add(Change::Put(Record::Mark(change)));
            }
            journal.on_commit(number);
            journal.end_unit();
        }
        journal
    }

    /// The changes of each batch, and what happens on its commit.
    fn batches(mut journal: Journal<usize>, changes: usize) -> Vec<(usize, Vec<usize>)> {
        let limit = BatchLimit { changes, ..BatchLimit::NONE };
        let mut batches = Vec::new();
        while let Some(batch) = journal.take_batch(limit) {
            assert!(journal.take_batch(limit).is_none(), "one batch is in flight");
            assert!(!journal.is_idle());
            let then = std::iter::from_fn(|| journal.next_committed()).collect();
            assert!(journal.finish_batch());
            batches.push((batch.len(), then));
        }
        assert!(journal.is_idle());
        batches
    }

    #[test]
    fn a_batch_has_whole_units_up_to_the_limit() {
        assert_eq!(batches(journal(&[2, 1, 3, 0, 1]), 3), [(3, vec![0, 1]), (3, vec![2, 3]), (1, vec![4])]);
        assert_eq!(batches(journal(&[2, 1, 3]), usize::MAX), [(6, vec![0, 1, 2])]);
        assert_eq!(batches(journal(&[1, 5, 1]), 2), [(1, vec![0]), (5, vec![1]), (1, vec![2])]);
    }

    #[test]
    fn a_batch_has_whole_units_up_to_the_limit_of_bytes() {
        let mut journal = journal(&[2, 1, 3]);
        let bytes = 3 * Change::Put(Record::Mark(0)).size();
        assert_eq!(journal.take_batch(BatchLimit { bytes, ..BatchLimit::NONE }).unwrap().len(), 3);
    }

    #[test]
    fn a_batch_that_failed_is_taken_again_unchanged_before_everything_after_it() {
        let mut journal = journal(&[2, 1]);
        let limit = BatchLimit { changes: 2, ..BatchLimit::NONE };
        let batch = journal.take_batch(limit).unwrap();
        journal.set_failing(true);
        assert_eq!(journal.take_batch(BatchLimit::NONE), Some(batch));
        journal.set_failing(true);
        assert_eq!(batches(journal, 2), [(2, vec![0]), (1, vec![1])]);
    }

    #[test]
    fn what_no_longer_waits_is_taken_out_in_order() {
        let mut journal = journal(&[1, 1, 1, 1, 1]);
        journal.take_batch(BatchLimit { changes: 2, ..BatchLimit::NONE });
        assert_eq!(journal.take_out(2, |unit| unit % 2 == 0), [0, 2]);
        assert_eq!(journal.take_out(2, |unit| unit % 2 == 0), [4]);
        let in_flight = journal.in_flight.iter().flat_map(|in_flight| &in_flight.on_commit);
        let later = journal.units.iter().chain([&journal.current]).flat_map(|unit| &unit.on_commit);
        assert_eq!(in_flight.chain(later).collect::<Vec<_>>(), [&1, &3]);
    }
}
