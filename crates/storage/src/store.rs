//! The interface of a store, [`Storage`] and [`Snapshot`], and a store in memory, for tests and simulations.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use signalbox_core::{BatchLimit, Change, Key, Record};

use super::error::{CommitError, StorageError};

/// A store of durable records, owned under one epoch.
///
/// The epoch is a fencing token: opening a store increments the stored epoch. Only the owner with the highest epoch may
/// commit; commits of earlier owners fail.
pub trait Storage: Send {
    /// The epoch under which this owner commits; it is higher than that of every earlier owner.
    fn epoch(&self) -> u64;

    /// The most changes and bytes that one batch should have.
    fn batch_limit(&self) -> BatchLimit {
        // With more changes, the requests of the batch would wait too long for their answers.
        BatchLimit { changes: 32_768, bytes: 16 << 20 }
    }

    /// Passes every stored record to `each` in the order of keys, so that a session comes before its grants. Fails if
    /// anything cannot be read; the records passed until then are incomplete.
    fn load(&mut self, each: &mut dyn FnMut(Record)) -> Result<(), StorageError>;

    /// Returns all records as they are now, with everything that was committed before. Another thread may read them
    /// while this owner commits.
    fn snapshot(&mut self) -> Result<Box<dyn Snapshot>, StorageError>;

    /// Makes changes durable, in the order given: when this returns, all of them are stored, or none. After a failure
    /// (see [`CommitError`]), the next commit must have the same changes.
    fn commit(&mut self, changes: &[Change]) -> Result<(), CommitError>;
}

/// The records of a store as they were at one moment. The store keeps them until this is dropped.
pub trait Snapshot: Send {
    /// Passes every record to `each` until that returns a break, grouped by kind, so that a session comes before its
    /// grants. Fails if anything cannot be read; the records passed until then are incomplete.
    fn read(self: Box<Self>, each: &mut dyn FnMut(Record) -> ControlFlow<()>) -> Result<(), StorageError>;

    /// The directory of the store, if the store's file grows while a snapshot exists. A slow reader should first copy
    /// the snapshot to a file there.
    fn directory(&self) -> Option<&Path> {
        None
    }
}

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

#[derive(Debug)]
struct MemorySnapshot(Vec<Record>);

impl Snapshot for MemorySnapshot {
    fn read(self: Box<Self>, each: &mut dyn FnMut(Record) -> ControlFlow<()>) -> Result<(), StorageError> {
        // If `each` breaks, the rest is not needed.
        let _ = self.0.into_iter().try_for_each(each);
        Ok(())
    }
}
