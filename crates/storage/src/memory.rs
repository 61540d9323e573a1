//! A store in memory, for servers without a data directory, and for tests and simulations.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{CommitError, Snapshot, Storage, StorageError};
use signalbox_core::{Change, Key, Record};

/// Memory that replaces a disk: it outlives the stores that are opened on it, as a disk outlives processes. Clones
/// share the same memory.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Mutex<Contents>>);

#[derive(Debug, Default)]
struct Contents {
    epoch: u64,
    records: BTreeMap<Key, Record>,
}

impl Memory {
    /// Opens the records under a new epoch. Earlier owners can no longer commit.
    pub fn open(&self) -> MemoryStorage {
        let mut contents = self.contents();
        contents.epoch += 1;
        MemoryStorage { epoch: contents.epoch, memory: self.clone() }
    }

    /// The stored records, in the order of keys.
    pub fn records(&self) -> Vec<Record> {
        self.contents().records.values().cloned().collect()
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An owner of records in memory.
#[derive(Debug)]
pub struct MemoryStorage {
    epoch: u64,
    memory: Memory,
}

impl Storage for MemoryStorage {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn load(&mut self, each: &mut dyn FnMut(Record)) -> Result<(), StorageError> {
        self.memory.records().into_iter().for_each(each);
        Ok(())
    }

    fn snapshot(&mut self) -> Result<Box<dyn Snapshot>, StorageError> {
        Ok(Box::new(MemorySnapshot(self.memory.records())))
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), CommitError> {
        let mut contents = self.memory.contents();
        if contents.epoch != self.epoch {
            return Err(CommitError::Superseded { own: self.epoch, newest: contents.epoch });
        }
        for change in changes {
            match change {
                Change::Put(record) => contents.records.insert(record.key(), record.clone()),
                Change::Delete(key) => contents.records.remove(key),
            };
        }
        Ok(())
    }
}

/// A copy of the records.
#[derive(Debug)]
struct MemorySnapshot(Vec<Record>);

impl Snapshot for MemorySnapshot {
    fn read(self: Box<Self>, each: &mut dyn FnMut(Record) -> ControlFlow<()>) -> Result<(), StorageError> {
        // Whether it breaks or ends, there is nothing more to do.
        let _ = self.0.into_iter().try_for_each(each);
        Ok(())
    }
}
