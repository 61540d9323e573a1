//! What stores records: [`Storage`], and [`Snapshot`] of all of them.

use std::ops::ControlFlow;
use std::path::Path;

use signalbox_core::{BatchLimit, Change, Record};

use super::error::{CommitError, StorageError};

/// The durable records of one scope, owned under one epoch.
///
/// The epoch is a fencing token: opening a store increments the stored epoch. Only the owner with the highest epoch may
/// commit; commits of earlier owners fail.
pub trait Storage: Send {
    /// The epoch under which this owner commits; it is higher than that of every earlier owner.
    fn epoch(&self) -> u64;

    /// How much one batch should have.
    fn batch_limit(&self) -> BatchLimit {
        // With more changes, the requests of the batch would wait too long for their answers.
        BatchLimit { changes: 32_768, bytes: 16 << 20 }
    }

    /// Passes every stored record to `each` in the order of keys, so that a session comes before its grants. Fails if
    /// anything cannot be read; the records passed until then are incomplete.
    fn load(&mut self, each: &mut dyn FnMut(Record)) -> Result<(), StorageError>;

    /// All records as they are now, with everything that was committed before. Another thread may read them while this
    /// owner commits.
    fn snapshot(&mut self) -> Result<Box<dyn Snapshot>, StorageError>;

    /// Makes changes durable, in the order given: when this returns, all of them are stored, or none. After a failure
    /// (see [`CommitError`]), the next commit must have the same changes.
    fn commit(&mut self, changes: &[Change]) -> Result<(), CommitError>;
}

/// The records of a store as they were at one moment. The store keeps them until this is dropped.
pub trait Snapshot: Send {
    /// Passes every record to `each` until it breaks, those of one kind after those of another, so that a session comes
    /// before its grants. Fails if anything cannot be read; the records passed until then are incomplete.
    fn read(self: Box<Self>, each: &mut dyn FnMut(Record) -> ControlFlow<()>) -> Result<(), StorageError>;

    /// The directory of the store, if the store's file grows while a snapshot exists.
    fn directory(&self) -> Option<&Path> {
        None
    }
}
