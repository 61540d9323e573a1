//! The errors of opening, reading and writing a store. Every message states what to do if anything can be done.
//!
//! The engine panics on some kinds of damage, because it treats them as its own bugs. For an operator they are ordinary
//! errors, so nothing is printed or logged about the panic itself.

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::{Path, PathBuf};
use std::sync::Once;

use thiserror::Error;

/// An error in opening or reading a store.
#[derive(Debug, Error)]
pub enum StorageError {
    /// The directory or the file cannot be used.
    #[error(
        "{}: {source}; check that the server's user can create, read and write it, and that the disk has free space",
        path.display()
    )]
    Unusable {
        /// The directory or the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// There is no store.
    #[error(
        "{}: the file does not exist, so this is not a data directory of signalbox; specify the server's data \
         directory",
        .0.display()
    )]
    Missing(PathBuf),
    /// Another process, or another part of this process, has it open.
    #[error(
        "{}: a server has this data directory open; stop that server, or choose another directory", .0.display()
    )]
    InUse(PathBuf),
    /// A newer program wrote it.
    #[error(
        "{}: the data has format {found}, but this version of signalbox supports format {known}; update \
         signalbox, or restore a backup that was made before the newer version ran",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The format of its data.
        found: u32,
        /// The format that this program supports.
        known: u32,
    },
    /// The file is damaged or is not a store. It was not changed.
    #[error(
        "{}: the file is damaged or is not a data file of signalbox: {problem}; restore a backup, save the readable \
         records with \"signalbox data export\", or move the file away to start without records",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// etcd has refused a call, or has records that cannot be read.
    #[error("etcd: {0}")]
    Etcd(String),
    /// Flushing written data to the disk failed.
    #[error(
        "{}: flushing the file to the disk failed: {source}; check the disk, then restart the server",
        path.display()
    )]
    NotFlushed {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// An error in making changes durable.
#[derive(Debug, Error)]
pub enum CommitError {
    /// Another owner has opened the store. Nothing was changed, and this owner can never commit again.
    #[error(
        "another server has opened the data directory (epoch {newest}; this server has epoch {own}); stop one of the \
         two servers"
    )]
    Superseded {
        /// The epoch of this owner.
        own: u64,
        /// The epoch of the latest owner.
        newest: u64,
    },
    /// This node no longer leads its cluster. None of the changes are stored, unless they were stored before that
    /// and the answer was lost; this owner can never commit again.
    #[error("this node led the cluster with epoch {epoch}, and no longer leads it: {reason}")]
    LeadershipLost {
        /// The epoch of this owner.
        epoch: u32,
        /// The reason why the node no longer leads.
        reason: String,
    },
    /// Flushing to disk failed, now or earlier. It is unknown whether these changes are on disk, and this process
    /// cannot find out: the system may have dropped the data that it could not write, and would report success for
    /// another flush. The store refuses everything from now on.
    #[error("{0}; until then, the server cannot store changes")]
    NotFlushed(StorageError),
    /// Another failure: the disk is full, or a file cannot be read or written. The changes may be stored or not, all of
    /// them or none: the next commit must have the same changes.
    #[error("the changes were not stored: {0}")]
    NotStored(StorageError),
}

impl CommitError {
    /// Returns whether this owner has lost the store. If so, requests that depend on it must no longer be answered.
    pub fn is_ownership_lost(&self) -> bool {
        matches!(self, Self::Superseded { .. } | Self::LeadershipLost { .. })
    }
}

thread_local! {
    /// Whether this thread is in a call whose panic is expected.
    static IS_EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function. If it panics, returns `None`, and the message of the panic is not printed.
pub(super) fn catch<T>(call: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_EXPECTED.get() {
                report(panic);
            }
        }));
    });
    let was_expected = IS_EXPECTED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    IS_EXPECTED.set(was_expected);
    result.ok()
}

/// A part of the engine's message about a commit that has the flush mark and cannot be read.
const COMPLETE_BUT_UNREADABLE: &str = "despite 2-phase commit";

/// Calls the engine on a file. A panic means that the file is damaged.
pub(super) fn catch_panics<T, E: Into<redb::Error>>(
    path: &Path,
    call: impl FnOnce() -> Result<T, E>,
) -> Result<T, StorageError> {
    match catch(call) {
        Some(result) => result.map_err(|error| engine_error(path, error)),
        None => {
            let problem = "parts of it contradict each other".to_owned();
            Err(StorageError::Damaged { path: path.to_owned(), problem })
        }
    }
}

/// Converts an error of the engine.
pub(super) fn engine_error<E: Into<redb::Error>>(path: &Path, error: E) -> StorageError {
    let path = path.to_owned();
    match error.into() {
        redb::Error::Io(source)
            if !matches!(source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            StorageError::Unusable { path, source }
        }
        redb::Error::PreviousIo => {
            let source = io::Error::other("an earlier read or write failed");
            StorageError::Unusable { path, source }
        }
        redb::Error::DatabaseAlreadyOpen => StorageError::InUse(path),
        redb::Error::Corrupted(problem) if problem.contains(COMPLETE_BUT_UNREADABLE) => {
            let problem = "the latest changes, which were stored completely, cannot be read".to_owned();
            StorageError::Damaged { path, problem }
        }
        other => StorageError::Damaged { path, problem: other.to_string() },
    }
}
