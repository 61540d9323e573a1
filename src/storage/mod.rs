//! What outlives the process, on disk: a [`Storage`] keeps the core's durable records and gives them back.
//!
//! The interface is small, so that more than one thing can stand behind it: [`FileStorage`] keeps one file by an
//! embedded engine (`docs/decisions/0010`), [`MemoryStorage`] keeps memory, and [`FailingStorage`] fails on demand. Bytes
//! of a record are the business of [`record`] alone. [`check`](fn@check), [`export`](fn@export) and
//! [`import`](fn@import) work on a data directory that no server uses.
//!
//! Nothing here logs or knows the server: what is worth telling is returned.

mod backend;
mod check;
mod directory;
mod engine;
mod error;
mod export;
mod failing;
mod memory;
pub mod record;

pub use check::{Counts, Report, check, disagreements};
pub use directory::FILE_NAME;
pub use engine::{FORMAT, FileStorage, Medium, Options};
pub use error::{CommitError, StorageError};
pub use export::{ImportError, export, import};
pub use failing::{FailingStorage, Fault, Faults};
pub use memory::{Memory, MemoryStorage};

use crate::core::{Change, Record};

/// The durable records of one scope, owned under one epoch.
///
/// Opening takes a new epoch, which is kept: it grows by one with every opening. Whoever opened last owns the records;
/// commits of earlier owners fail from then on.
pub trait Storage: Send {
    /// The epoch under which this owner commits; above that of every owner before.
    fn epoch(&self) -> u64;

    /// Gives every record that is kept, in the order of keys, so that a session comes before its grants. Fails where
    /// something that is kept cannot be read; what came before then is not all there is.
    fn load(&mut self, each: &mut dyn FnMut(Record)) -> Result<(), StorageError>;

    /// Makes changes durable, in the order given: all of them, when this returns, or none. What follows from a failure
    /// depends on its kind; see [`CommitError`].
    fn commit(&mut self, changes: &[Change]) -> Result<(), CommitError>;
}

impl<S: Storage + ?Sized> Storage for Box<S> {
    fn epoch(&self) -> u64 {
        (**self).epoch()
    }

    fn load(&mut self, each: &mut dyn FnMut(Record)) -> Result<(), StorageError> {
        (**self).load(each)
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), CommitError> {
        (**self).commit(changes)
    }
}
