//! Why a store cannot be opened, read or written. Every error is a sentence that says what to do, where anything can be
//! done.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a store cannot be opened or read.
#[derive(Debug, Error)]
pub enum StorageError {
    /// The directory or the file cannot be used.
    #[error(
        "{}: {source}; see that it can be made, read and written by the server's user, and that the disk has room",
        path.display()
    )]
    Unusable {
        /// The directory or the file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is no store.
    #[error("{}: there is no such file, so this is no data directory of signalbox; name the right one", path.display())]
    Missing {
        /// The file that would be there.
        path: PathBuf,
    },
    /// Another process has it open, or another part of this one.
    #[error(
        "{}: a server has this data directory open; stop that server, or choose another directory", path.display()
    )]
    InUse {
        /// The data directory.
        path: PathBuf,
    },
    /// A newer program wrote it.
    #[error(
        "{}: the data is of format {found}, and this program knows none above {known}; update signalbox, or restore a \
         backup from before the newer version ran",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The format of its data.
        found: u32,
        /// The newest format that this program knows.
        known: u32,
    },
    /// It is damaged, or is something else. Nothing of it was changed.
    #[error(
        "{}: the file is damaged, or not signalbox's: {problem}; restore a backup, save what can be read by `signalbox \
         data export`, or move the file away to start empty",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Writing to the disk what had been written to the file failed.
    #[error(
        "{}: the system could not flush the file to its disk: {source}; look after the disk, then start the server anew",
        path.display()
    )]
    NotFlushed {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// Why changes were not made durable.
#[derive(Debug, Error)]
pub enum CommitError {
    /// Somebody else opened the store since. Nothing was changed, and this owner can never change anything again.
    #[error(
        "the data was opened by another server since (epoch {newest}, this one has {own}); stop one of the two"
    )]
    Superseded {
        /// The epoch of the one who asked.
        own: u64,
        /// The epoch of the last one who opened the store.
        newest: u64,
    },
    /// Flushing to disk failed, now or before. Whether these changes are on disk is not known, nor can it be found out
    /// in this process: the system may have dropped what it could not write, and would say that all is well if asked
    /// again. The store refuses everything from now on.
    #[error("{0}; until then nothing can be stored")]
    NotFlushed(StorageError),
    /// Something else failed: the disk is full, or a file cannot be read or written. None of the changes are kept, and
    /// a later commit may succeed. Only where the process ends before one does, the changes may be found at the next start,
    /// like those of a commit that was in progress.
    #[error("nothing was stored: {0}")]
    NotStored(StorageError),
}
