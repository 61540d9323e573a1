//! A store in memory, for servers without a data directory that want one interface, and for tests and simulations.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{CommitError, Storage, StorageError};
use crate::core::{Change, Key, Record};

/// Memory that takes the place of a disk: it outlives the stores that are opened on it, as a disk outlives processes.
/// Clones are the same memory.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    epoch: u64,
    records: BTreeMap<Key, Record>,
}

impl Memory {
    /// Opens what is kept here under a new epoch. Owners before lose it by that.
    pub fn open(&self) -> MemoryStorage {
        let mut kept = self.kept();
        kept.epoch += 1;
        MemoryStorage { epoch: kept.epoch, memory: self.clone() }
    }

    /// What is kept, in the order of keys.
    pub fn records(&self) -> Vec<Record> {
        self.kept().records.values().cloned().collect()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
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

    fn commit(&mut self, changes: &[Change]) -> Result<(), CommitError> {
        let mut kept = self.memory.kept();
        if kept.epoch != self.epoch {
            return Err(CommitError::Superseded { own: self.epoch, newest: kept.epoch });
        }
        for change in changes {
            match change {
                Change::Put(record) => kept.records.insert(record.key(), record.clone()),
                Change::Delete(key) => kept.records.remove(key),
            };
        }
        Ok(())
    }
}
