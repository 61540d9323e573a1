//! The data directory: who may use it, and how the file in it comes to be.
//!
//! Whoever uses the directory holds a lock on a file of its own, which stays: the data's file may be opened anew after a
//! failure without anybody slipping in between, and two servers that start at once cannot both make one. The data's file
//! is made under another name and renamed when it is complete and on disk, so that one that is there is never half made.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::StorageError;

/// The name of the file with the data, in the data directory.
pub const FILE_NAME: &str = "signalbox.redb";
const NEW_FILE_NAME: &str = "signalbox.redb.new";
const LOCK_FILE_NAME: &str = "signalbox.lock";

/// A data directory that nobody else uses while this value lives.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// Released when it is closed, however the process ends.
    _lock: Option<File>,
}

impl Directory {
    /// Takes a directory for writing. It is made if need be, for nobody but the user who runs this.
    pub(super) fn take(path: &Path) -> Result<Self, StorageError> {
        make(path).map_err(unusable(path))?;
        let lock_path = path.join(LOCK_FILE_NAME);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(&lock_path).map_err(unusable(&lock_path))?;
        locked(path, lock.try_lock())?;
        Ok(Self { path: path.to_owned(), _lock: Some(lock) })
    }

    /// Takes a directory for reading, beside others who do. Nothing is made.
    pub(super) fn look(path: &Path) -> Result<Self, StorageError> {
        let lock_path = path.join(LOCK_FILE_NAME);
        let lock = match File::open(&lock_path) {
            Ok(lock) => Some(lock),
            // A copy of the data's file alone: a server would have made the lock.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(unusable(&lock_path)(error)),
        };
        if let Some(lock) = &lock {
            locked(path, lock.try_lock_shared())?;
        }
        let directory = Self { path: path.to_owned(), _lock: lock };
        if directory.has_file()? {
            Ok(directory)
        } else {
            Err(StorageError::Missing { path: directory.file() })
        }
    }

    /// The file with the data.
    pub(super) fn file(&self) -> PathBuf {
        self.path.join(FILE_NAME)
    }

    /// Whether there is a file with data, whatever is in it.
    pub(super) fn has_file(&self) -> Result<bool, StorageError> {
        let file = self.file();
        // Not following a link: one that leads nowhere is somebody's file all the same.
        match fs::symlink_metadata(&file) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(unusable(&file)(error)),
        }
    }

    /// Whether there is nothing but what this module makes itself.
    pub(super) fn is_empty(&self) -> Result<bool, StorageError> {
        for entry in fs::read_dir(&self.path).map_err(unusable(&self.path))? {
            let name = entry.map_err(unusable(&self.path))?.file_name();
            if name != LOCK_FILE_NAME && name != NEW_FILE_NAME {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes the file with the data: `fill` gets a new file to write and flush, which then takes its place.
    pub(super) fn make_file<E: From<StorageError>>(
        &self,
        fill: impl FnOnce(&Path, File) -> Result<(), E>,
    ) -> Result<(), E> {
        let new = self.path.join(NEW_FILE_NAME);
        // Left by somebody who did not come to the end. The lock is ours, so nobody writes it.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unusable(&new)(error).into()),
            _ => {}
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&new);
        fill(&new, file.map_err(unusable(&new))?)?;
        fs::rename(&new, self.file()).map_err(unusable(&new))?;
        let flushed = flush(&self.path);
        Ok(flushed.map_err(|source| StorageError::NotFlushed { path: self.path.clone(), source })?)
    }
}

/// An error of the system as one of the store.
pub(super) fn unusable(path: &Path) -> impl FnOnce(io::Error) -> StorageError {
    move |source| StorageError::Unusable { path: path.to_owned(), source }
}

/// Makes a directory where there is none, in one that is there.
fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => flush(path.parent().filter(|parent| *parent != "").unwrap_or(Path::new("."))),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Has the system write the names in a directory to disk.
fn flush(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn locked(path: &Path, outcome: Result<(), TryLockError>) -> Result<(), StorageError> {
    match outcome {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(StorageError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => Err(unusable(path)(source)),
    }
}
