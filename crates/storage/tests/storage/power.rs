//! Power loss: whatever part of the writes reached the disk, the store opens and has every acknowledged commit.

use signalbox_storage::Storage;

use crate::disk::{Disk, Operation};
use crate::loaded;
use crate::records::{Life, Random, State};

/// A history of commits on a disk that records them.
struct History {
    before: Vec<u8>,
    operations: Vec<Operation>,
    acknowledged: Vec<Acknowledged>,
}

/// An acknowledged state, and the number of operations before it.
struct Acknowledged {
    operations: usize,
    epoch: u64,
    state: State,
}

impl History {
    /// Commits, with an orderly end of the first process and an unclean end of the second, which the third repairs.
    fn new(seed: u64) -> Self {
        let disk = Disk::laid_out();
        let before = disk.bytes();
        disk.record();
        let mut life = Life::new(seed);
        let mut acknowledged = vec![Acknowledged { operations: 0, epoch: 0, state: State::new() }];
        for (process, commits) in [(1, 17), (2, 13), (3, 5)] {
            let mut storage = disk.open().unwrap();
            let epoch = storage.epoch();
            assert_eq!((epoch, storage.was_repaired()), (process, process == 3));
            for _ in 0..commits {
                storage.commit(&life.changes()).unwrap();
                acknowledged.push(Acknowledged {
                    operations: disk.operation_count(),
                    epoch,
                    state: life.state.clone(),
                });
            }
            if process == 2 {
                std::mem::forget(storage);
            }
        }
        Self { before, operations: disk.operations(), acknowledged }
    }

    /// The possible states after this many operations: the last acknowledged one, and the pending one.
    fn possible(&self, operations: usize) -> &[Acknowledged] {
        let last = self.acknowledged.iter().rposition(|last| last.operations <= operations).unwrap();
        &self.acknowledged[last..(last + 2).min(self.acknowledged.len())]
    }
}

/// How much of the unflushed data is on the disk.
#[derive(Clone, Copy, Debug)]
enum Reached {
    Nothing,
    Everything,
    Only(usize),
    AllBut(usize),
    /// A random part, with the last write torn.
    Some(u64),
}

/// The bytes of the disk after a power loss at this operation.
fn image(history: &History, operations: usize, reached: Reached) -> Vec<u8> {
    let done = &history.operations[..operations];
    let flushed =
        done.iter().rposition(|operation| matches!(operation, Operation::Sync)).map_or(0, |at| at + 1);
    let mut bytes = history.before.clone();
    done[..flushed].iter().for_each(|operation| operation.apply(&mut bytes));
    let pending = &done[flushed..];
    let mut coin = Random::new(if let Reached::Some(seed) = reached { seed } else { 0 });
    for (index, operation) in pending.iter().enumerate() {
        let is_there = match reached {
            Reached::Nothing => false,
            Reached::Everything => true,
            Reached::Only(only) => index == only,
            Reached::AllBut(lost) => index != lost,
            Reached::Some(_) => coin.below(2) == 0,
        };
        match operation {
            Operation::Write { offset, data }
                if index + 1 == pending.len() && matches!(reached, Reached::Some(_)) =>
            {
                for (sector, piece) in data.chunks(512).enumerate().filter(|_| coin.below(2) == 0) {
                    let offset = offset + sector * 512;
                    Operation::Write { offset, data: piece.to_vec() }.apply(&mut bytes);
                }
            }
            operation if is_there => operation.apply(&mut bytes),
            _ => {}
        }
    }
    bytes
}

#[test]
fn a_power_loss_keeps_acknowledged_commits_and_leaves_none_half_done() {
    let losses_max = std::env::var("SIGNALBOX_POWER_LOSSES").map_or(1_500, |losses| losses.parse().unwrap());
    let mut losses = 0;
    let mut in_progress = 0;
    for seed in 1.. {
        let history = History::new(seed);
        let mut random = Random::new(seed);
        let mut cases = Vec::new();
        let mut pending = 0;
        for operations in 0..=history.operations.len() {
            let is_sync = operations > 0 && matches!(history.operations[operations - 1], Operation::Sync);
            pending = if operations == 0 || is_sync { 0 } else { pending + 1 };
            cases.extend([Reached::Nothing, Reached::Everything].map(|reached| (operations, reached)));
            cases.extend((0..pending).map(|only| (operations, Reached::Only(only))));
            cases.extend((0..pending).map(|lost| (operations, Reached::AllBut(lost))));
            cases.extend((0..4).map(|_| (operations, Reached::Some(random.next()))));
        }
        // All operations, or a sample from the whole history.
        let wanted = losses_max - losses;
        while cases.len() > wanted {
            cases.swap_remove(random.below(cases.len() as u64) as usize);
        }
        for (operations, reached) in cases {
            losses += 1;
            let case = format!("seed {seed}, after {operations} operations, {reached:?}");
            let mut storage = Disk::with(image(&history, operations, reached))
                .open()
                .unwrap_or_else(|error| panic!("{case}: {error}"));
            let found = loaded(&mut storage);
            let possible = history.possible(operations);
            let is_possible = possible.iter().position(|possible| possible.state == found);
            assert!(is_possible.is_some(), "{case}: {} records are found", found.len());
            assert!(storage.epoch() > possible[0].epoch, "{case}: epoch {} comes again", storage.epoch());
            in_progress += usize::from(is_possible == Some(1));
        }
        if losses >= losses_max {
            break;
        }
    }
    assert!(losses < 1_000 || in_progress > 0, "some commit in progress is found, or the test proves little");
}
