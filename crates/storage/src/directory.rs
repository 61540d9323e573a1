//! The data directory: its lock, and the creation of the data file.
//!
//! A process that uses the directory holds a lock on a separate file, which is never removed. So the data file can be
//! reopened after a failure without another process opening it in between, and two servers that start at once cannot
//! both create it. The data file is created under another name and renamed when it is complete and flushed, so that an
//! existing data file is never incomplete.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::StorageError;

/// The name of the file with the data, in the data directory.
pub const FILE_NAME: &str = "signalbox.redb";
const NEW_FILE_NAME: &str = "signalbox.redb.new";
const LOCK_FILE_NAME: &str = "signalbox.lock";

/// A data directory that this process has locked, exclusively or shared, while this value exists.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// Unlocked when this value is dropped, or by the kernel when the process ends.
    lock: Option<File>,
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A process that another thread starts has the file open too until it executes its program, so closing is not enough.
        if let Some(lock) = &self.lock {
            let _ = lock.unlock();
        }
    }
}

impl Directory {
    /// Opens a directory for writing and locks it. A missing directory is created, with access for the current user
    /// only.
    pub(super) fn open_exclusive(path: &Path) -> Result<Self, StorageError> {
        create_directory(path).map_err(unusable(path))?;
        let lock_path = path.join(LOCK_FILE_NAME);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(&lock_path).map_err(unusable(&lock_path))?;
        check_lock(path, lock.try_lock())?;
        Ok(Self { path: path.to_owned(), lock: Some(lock) })
    }

    /// Opens a directory for reading; other readers may have it open too. Nothing is created.
    pub(super) fn open_shared(path: &Path) -> Result<Self, StorageError> {
        let lock_path = path.join(LOCK_FILE_NAME);
        let lock = match File::open(&lock_path) {
            Ok(lock) => Some(lock),
            // No server has used this directory, since it has no lock file: the data file in it is a copy.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(unusable(&lock_path)(error)),
        };
        if let Some(lock) = &lock {
            check_lock(path, lock.try_lock_shared())?;
        }
        let directory = Self { path: path.to_owned(), lock };
        if directory.has_file()? { Ok(directory) } else { Err(StorageError::Missing(directory.file())) }
    }

    pub(super) fn file(&self) -> PathBuf {
        self.path.join(FILE_NAME)
    }

    /// Returns whether the data file exists, whatever its content.
    pub(super) fn has_file(&self) -> Result<bool, StorageError> {
        let file = self.file();
        // Symbolic links are not followed: a broken link also means that a data file is expected here.
        match fs::symlink_metadata(&file) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(unusable(&file)(error)),
        }
    }

    /// Returns whether the directory has no files except those that this module creates before the data file.
    pub(super) fn is_empty(&self) -> Result<bool, StorageError> {
        for entry in fs::read_dir(&self.path).map_err(unusable(&self.path))? {
            let name = entry.map_err(unusable(&self.path))?.file_name();
            if name != LOCK_FILE_NAME && name != NEW_FILE_NAME {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Creates the data file: `fill` writes and flushes a new file, which is then renamed.
    pub(super) fn create_file<E: From<StorageError>>(
        &self,
        fill: impl FnOnce(&Path, File) -> Result<(), E>,
    ) -> Result<(), E> {
        let new = self.path.join(NEW_FILE_NAME);
        // A process that was interrupted may have left this file. No other process writes it, because this one has the
        // lock.
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

/// Converts an error of the operating system.
pub(super) fn unusable(path: &Path) -> impl FnOnce(io::Error) -> StorageError {
    move |source| StorageError::Unusable { path: path.to_owned(), source }
}

/// Creates a directory if it does not exist; its parent must exist.
fn create_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => flush(path.parent().filter(|parent| *parent != "").unwrap_or(Path::new("."))),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Flushes the entries of a directory to disk.
fn flush(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn check_lock(path: &Path, outcome: Result<(), TryLockError>) -> Result<(), StorageError> {
    match outcome {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(StorageError::InUse(path.to_owned())),
        Err(TryLockError::Error(source)) => Err(unusable(path)(source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_ends_with_its_owner_while_another_process_has_the_file_open() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::open_exclusive(scratch.path()).unwrap();
        let inherited = directory.lock.as_ref().unwrap().try_clone().unwrap();
        assert!(matches!(Directory::open_exclusive(scratch.path()), Err(StorageError::InUse { .. })));
        drop(directory);
        Directory::open_exclusive(scratch.path()).unwrap();
        drop(inherited);
    }
}
