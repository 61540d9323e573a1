//! System calls that fail, one after the other, at every point of a history.

use signalbox_core::Change;
use signalbox_storage::{CommitError, Storage, StorageError};

use crate::disk::{Call, Disk, Fault};
use crate::loaded;
use crate::records::{Life, State, apply};

/// The outcome of a history.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Unharmed,
    /// Some commits were not stored, and later ones were.
    Continued,
    /// A flush failed, which ended the history.
    NotFlushed,
    NotOpened,
}

const COMMITS: usize = 12;
const SEED: u64 = 3;

/// Commits to a disk with this fault, and checks the disk afterwards.
fn run_history(fault: Fault, seed: u64) -> Outcome {
    let case = format!("{fault:?}");
    let disk = Disk::laid_out();
    let mut life = Life::new(seed);
    let history: Vec<_> = (0..COMMITS).map(|_| life.changes()).collect();
    disk.set_fault(Some(fault));
    let mut storage = match disk.open() {
        Ok(storage) => storage,
        Err(error) => {
            let has_failed_to_flush = disk.failed().contains(&Call::Sync);
            assert_eq!(
                matches!(error, StorageError::NotFlushed { .. }),
                has_failed_to_flush,
                "{case}: {error}"
            );
            assert!(has_failed_to_flush || matches!(error, StorageError::Unusable { .. }), "{case}: {error}");
            disk.set_fault(None);
            assert_eq!(loaded(&mut disk.open().unwrap()), State::new(), "{case}");
            return Outcome::NotOpened;
        }
    };
    let mut state = State::new();
    let mut outcome = Outcome::Unharmed;
    // The changes that failed last are committed again before any others.
    let mut in_doubt: Option<&[Change]> = None;
    let mut ahead = history.iter();
    for _ in 0..COMMITS {
        let changes = in_doubt.or_else(|| ahead.next().map(|changes| &changes[..])).unwrap();
        match storage.commit(changes) {
            Ok(()) => {
                assert_ne!(outcome, Outcome::NotFlushed, "{case}: nothing is stored after a failed flush");
                in_doubt = None;
                apply(&mut state, changes);
            }
            Err(CommitError::NotStored(error)) => {
                assert!(!disk.failed().contains(&Call::Sync), "{case}: {error}");
                assert!(matches!(error, StorageError::Unusable { .. }), "{case}: {error}");
                (in_doubt, outcome) = (Some(changes), Outcome::Continued);
            }
            Err(CommitError::NotFlushed(error)) => {
                assert!(disk.failed().contains(&Call::Sync), "{case}: {error}");
                (in_doubt, outcome) = (Some(changes), Outcome::NotFlushed);
            }
            Err(error) => panic!("{case}: {error}"),
        }
    }
    let has_failed_to_flush = disk.failed().contains(&Call::Sync);
    assert_eq!(outcome == Outcome::NotFlushed, has_failed_to_flush, "{case}: a failed flush is reported");
    if outcome == Outcome::Continued {
        // The disk has space again.
        disk.set_fault(None);
        for changes in [in_doubt.take(), ahead.next().map(|changes| &changes[..])].into_iter().flatten() {
            storage.commit(changes).unwrap_or_else(|error| panic!("{case}: {error}"));
            apply(&mut state, changes);
        }
    }
    drop(storage);
    disk.set_fault(None);
    let found = loaded(&mut disk.open().unwrap());
    // The last failed commit may be on the disk if nothing was stored since, and the process has ended.
    let with = |changes: &[Change]| {
        let mut state = state.clone();
        apply(&mut state, changes);
        state
    };
    assert!(found == state || in_doubt.map(with) == Some(found), "{case}");
    outcome
}

/// Lets each `step`th call of a history fail, with the calls that follow it. Counts the histories that continued,
/// those that ended by a failed flush, and those that did not begin.
fn fail_calls(calls: u64, is_done: bool, step: usize) -> [usize; 3] {
    let mut counts = [0; 3];
    for nth in (1..=calls_of_a_history()).step_by(step) {
        match run_history(Fault { nth, calls, is_done }, SEED) {
            Outcome::Unharmed => {}
            Outcome::Continued => counts[0] += 1,
            Outcome::NotFlushed => counts[1] += 1,
            Outcome::NotOpened => counts[2] += 1,
        }
    }
    counts
}

fn calls_of_a_history() -> u64 {
    let disk = Disk::laid_out();
    disk.set_fault(None);
    let mut life = Life::new(SEED);
    let mut storage = disk.open().unwrap();
    (0..COMMITS).for_each(|_| storage.commit(&life.changes()).unwrap());
    drop(storage);
    disk.calls()
}

#[test]
fn every_call_may_fail_once() {
    for is_done in [false, true] {
        let [continued, not_flushed, not_opened] = fail_calls(1, is_done, 1);
        assert!(continued > 0 && not_flushed > 0 && not_opened > 0, "{continued} {not_flushed} {not_opened}");
    }
}

#[test]
fn a_disk_may_be_full_for_a_time() {
    for calls in [2, 3, 5, 9] {
        for is_done in [false, true] {
            let [continued, not_flushed, _] = fail_calls(calls, is_done, 5);
            assert!(continued > 0 || not_flushed > 0, "{calls}: {continued} {not_flushed}");
        }
    }
}

#[test]
fn a_failed_commit_that_reached_the_disk_is_made_again() {
    let mut reached = 0;
    for nth in 1.. {
        let disk = Disk::laid_out();
        let mut life = Life::new(SEED);
        let mut storage = disk.open().unwrap();
        let (failing, later) = (life.changes(), life.changes());
        disk.set_fault(Some(Fault { nth, calls: 1_000, is_done: true }));
        let outcome = storage.commit(&failing);
        let failed = disk.failed();
        disk.set_fault(None);
        match outcome {
            Ok(()) => break,
            Err(CommitError::NotFlushed(_)) => continue,
            Err(error) => assert!(matches!(error, CommitError::NotStored(_)), "{error}"),
        }
        assert!(!failed.contains(&Call::Sync));
        let mut state = State::new();
        reached += usize::from(loaded(&mut Disk::with(disk.bytes()).open().unwrap()) != state);
        for changes in [&failing, &later] {
            storage.commit(changes).unwrap();
            apply(&mut state, changes);
        }
        assert!(loaded(&mut storage) == state, "from call {nth} on");
    }
    assert!(reached > 0, "some failure comes after the changes were written");
}
