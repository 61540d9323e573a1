//! Durable storage: a [`Storage`] stores the core's records and loads them after a restart.
//!
//! [`FileStorage`] stores the records in one file through an embedded engine (`docs/decisions/0010`), and [`MemoryStorage`]
//! stores them in memory. Only [`record`] knows the bytes of a record. [`check`](fn@check), [`export`](fn@export) and
//! [`import`](fn@import) work on a data directory that no server uses.
//!
//! Nothing here logs or depends on the server: everything worth reporting is returned.

#![warn(clippy::unwrap_used)]

mod backend;
mod check;
mod directory;
mod engine;
mod error;
mod export;
mod flush_mark;
mod reader;
pub mod record;
mod store;

pub use check::{Counts, Report, check, contradictions};
pub use directory::FILE_NAME;
pub use engine::{FileStorage, Medium};
pub use error::{CommitError, StorageError};
pub use export::{ExportWriter, ImportError, export, import, read_export};
pub use record::FORMAT;

pub use signalbox_core::Record;
pub use store::{Memory, MemoryStorage, Snapshot, Storage};
