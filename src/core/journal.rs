//! A queue of changes for a store: what is pending, and the one batch that is in flight.
//!
//! With the changes it keeps, in the same order, what happens when they are committed. It knows nothing about either: the
//! ledger (`ledger/commit.rs`) and the semaphore sets (`sysv/storing.rs`) have one each, and complete their batches.
//!
//! Invariants: at most one batch is in flight; a batch ends at the end of a step, so it has all changes of a request or
//! none; batches have consecutive numbers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use crate::core::durable::Change;
use crate::core::store::BatchLimit;

/// Changes of one journal that belong together: a store commits all of them or none.
#[derive(Clone, Debug)]
pub(super) struct JournalBatch {
    pub(super) number: u64,
    /// The changes, in order.
    pub(super) changes: Arc<Vec<Change>>,
}

/// A queue of changes, with a `T` for each thing that happens on commit.
#[derive(Debug)]
pub(super) struct Journal<T> {
    /// Woken when there is something to take and no batch is in flight.
    taker: Waker,
    last_batch: u64,
    /// Finished steps that no batch has taken.
    steps: VecDeque<Step<T>>,
    /// The step that is being made.
    current: Step<T>,
    in_flight: Option<InFlight<T>>,
}

/// What one hold of the ledger's lock has added.
#[derive(Debug)]
struct Step<T> {
    changes: Vec<Change>,
    on_commit: Vec<T>,
}

#[derive(Debug)]
struct InFlight<T> {
    batch: JournalBatch,
    on_commit: VecDeque<T>,
}

/// Everything that a failed batch leaves behind, and that was added after it.
#[derive(Debug)]
pub(super) struct Failed<T> {
    pub(super) changes: Vec<Change>,
    pub(super) on_commit: Vec<T>,
}

impl<T> Default for Step<T> {
    fn default() -> Self {
        Self { changes: Vec::new(), on_commit: Vec::new() }
    }
}

impl<T> Step<T> {
    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.on_commit.is_empty()
    }
}

impl<T> Journal<T> {
    pub(super) fn new(taker: Waker) -> Self {
        Self { taker, last_batch: 0, steps: VecDeque::new(), current: Step::default(), in_flight: None }
    }

    /// Adds a change to the current step.
    pub(super) fn add(&mut self, change: Change) {
        self.current.changes.push(change);
        self.wake_taker();
    }

    /// Adds what happens when everything so far is committed.
    pub(super) fn on_commit(&mut self, then: T) {
        self.current.on_commit.push(then);
        self.wake_taker();
    }

    /// Ends the current step: a batch may end here.
    pub(super) fn end_step(&mut self) {
        if !self.current.is_empty() {
            self.steps.push_back(std::mem::take(&mut self.current));
        }
    }

    /// Wakes the taker if there is something to take. The taker asks by itself after each batch.
    pub(super) fn wake_taker(&self) {
        if self.in_flight.is_none() && !self.is_idle() {
            self.taker.wake_by_ref();
        }
    }

    /// Takes whole steps that are within the limit together, but at least one step. `None`: there is nothing to take, or
    /// a batch is in flight.
    pub(super) fn take_batch(&mut self, limit: BatchLimit) -> Option<JournalBatch> {
        self.end_step();
        if self.in_flight.is_some() {
            return None;
        }
        let first = self.steps.pop_front()?;
        let size_of = |step: &[Change]| step.iter().map(Change::size).sum::<usize>();
        let mut size = size_of(&first.changes);
        let (mut changes, mut on_commit) = (first.changes, VecDeque::from(first.on_commit));
        while let Some(next) = self.steps.pop_front_if(|next| {
            changes.len() + next.changes.len() <= limit.changes
                && size + size_of(&next.changes) <= limit.bytes
        }) {
            size += size_of(&next.changes);
            changes.extend(next.changes);
            on_commit.extend(next.on_commit);
        }
        self.last_batch += 1;
        let batch = JournalBatch { number: self.last_batch, changes: Arc::new(changes) };
        self.in_flight = Some(InFlight { batch: batch.clone(), on_commit });
        Some(batch)
    }

    /// Whether this batch is in flight.
    pub(super) fn is_in_flight(&self, number: u64) -> bool {
        self.in_flight.as_ref().is_some_and(|in_flight| in_flight.batch.number == number)
    }

    /// The next thing that happens because the batch in flight is committed.
    pub(super) fn next_committed(&mut self) -> Option<T> {
        self.in_flight.as_mut()?.on_commit.pop_front()
    }

    /// Ends the batch in flight if everything has happened that its commit causes. Returns whether it has.
    pub(super) fn finish_batch(&mut self) -> bool {
        let is_done = self.in_flight.as_ref().is_none_or(|in_flight| in_flight.on_commit.is_empty());
        if is_done {
            self.in_flight = None;
        }
        is_done
    }

    /// Puts the batch in flight, which could not be committed, back before everything that was added after it.
    pub(super) fn retry(&mut self) {
        if let Some(InFlight { batch, on_commit }) = self.in_flight.take() {
            let changes = Arc::unwrap_or_clone(batch.changes);
            self.steps.push_front(Step { changes, on_commit: on_commit.into() });
        }
    }

    /// Takes out the batch in flight, which could not be committed, and everything after it.
    pub(super) fn fail(&mut self) -> Failed<T> {
        self.end_step();
        let (mut changes, mut on_commit) = (Vec::new(), Vec::new());
        if let Some(in_flight) = self.in_flight.take() {
            changes.extend(in_flight.batch.changes.iter().cloned());
            on_commit.extend(in_flight.on_commit);
        }
        for step in self.steps.drain(..) {
            changes.extend(step.changes);
            on_commit.extend(step.on_commit);
        }
        Failed { changes, on_commit }
    }

    /// Drops the changes that are pending, and keeps what happens on commit.
    pub(super) fn drop_pending_changes(&mut self) {
        self.current.changes.clear();
        self.steps.iter_mut().for_each(|step| step.changes.clear());
    }

    /// Whether everything is committed and complete.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.steps.is_empty() && self.current.is_empty()
    }

    /// Everything that happens on commit, in order.
    pub(super) fn all_on_commit(&self) -> impl Iterator<Item = &T> {
        let in_flight = self.in_flight.iter().flat_map(|in_flight| &in_flight.on_commit);
        in_flight.chain(self.steps.iter().chain([&self.current]).flat_map(|step| &step.on_commit))
    }

    /// Replaces everything that happens on commit; `None` drops it.
    pub(super) fn replace_on_commit(&mut self, mut replace: impl FnMut(T) -> Option<T>) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.on_commit =
                std::mem::take(&mut in_flight.on_commit).into_iter().filter_map(&mut replace).collect();
        }
        for step in self.steps.iter_mut().chain([&mut self.current]) {
            step.on_commit =
                std::mem::take(&mut step.on_commit).into_iter().filter_map(&mut replace).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::durable::Record;

    /// A journal of steps with this many changes each. What happens on commit is the number of the step.
    fn journal(steps: &[u64]) -> Journal<usize> {
        let mut journal = Journal::new(Waker::noop().clone());
        for (number, changes) in steps.iter().enumerate() {
            for change in 0..*changes {
                journal.add(Change::Put(Record::Mark(change)));
            }
            journal.on_commit(number);
            journal.end_step();
        }
        journal
    }

    #[test]
    fn a_batch_that_is_retried_comes_before_everything_after_it() {
        let mut journal = journal(&[2, 1]);
        journal.take_batch(BatchLimit { changes: 2, ..BatchLimit::NONE }).unwrap();
        journal.retry();
        assert_eq!(batches_after(journal, 2, 1), [(2, vec![0]), (1, vec![1])]);
    }

    /// The changes of each batch, and what happens on its commit.
    fn batches(journal: Journal<usize>, changes: usize) -> Vec<(usize, Vec<usize>)> {
        batches_after(journal, changes, 0)
    }

    /// As [`batches`], when batches up to a number were taken before.
    fn batches_after(mut journal: Journal<usize>, changes: usize, last: u64) -> Vec<(usize, Vec<usize>)> {
        let limit = BatchLimit { changes, ..BatchLimit::NONE };
        let mut batches = Vec::new();
        while let Some(batch) = journal.take_batch(limit) {
            assert_eq!(batch.number, last + batches.len() as u64 + 1, "numbers are consecutive");
            assert!(journal.take_batch(limit).is_none(), "one batch is in flight");
            assert!(!journal.is_idle());
            let then = std::iter::from_fn(|| journal.next_committed()).collect();
            assert!(journal.finish_batch());
            batches.push((batch.changes.len(), then));
        }
        assert!(journal.is_idle());
        batches
    }

    #[test]
    fn a_batch_has_whole_steps_up_to_the_limit() {
        assert_eq!(batches(journal(&[2, 1, 3, 0, 1]), 3), [(3, vec![0, 1]), (3, vec![2, 3]), (1, vec![4])]);
        assert_eq!(batches(journal(&[2, 1, 3]), usize::MAX), [(6, vec![0, 1, 2])]);
    }

    #[test]
    fn a_batch_has_whole_steps_up_to_the_limit_of_bytes() {
        let mut journal = journal(&[2, 1, 3]);
        let bytes = 3 * Change::Put(Record::Mark(0)).size();
        let batch = journal.take_batch(BatchLimit { bytes, ..BatchLimit::NONE }).unwrap();
        assert_eq!(batch.changes.len(), 3);
    }

    #[test]
    fn a_step_with_more_changes_than_the_limit_is_a_batch_of_its_own() {
        assert_eq!(batches(journal(&[1, 5, 1]), 2), [(1, vec![0]), (5, vec![1]), (1, vec![2])]);
    }

    #[test]
    fn a_failed_batch_is_returned_with_everything_after_it_in_order() {
        let mut journal = journal(&[1, 1, 1]);
        let batch = journal.take_batch(BatchLimit { changes: 2, ..BatchLimit::NONE }).unwrap();
        assert!(journal.is_in_flight(batch.number));
        assert_eq!(journal.next_committed(), Some(0));
        let failed = journal.fail();
        assert_eq!((failed.changes.len(), failed.on_commit), (3, vec![1, 2]));
        assert!(journal.is_idle() && !journal.is_in_flight(batch.number));
    }
}
