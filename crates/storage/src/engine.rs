//! The store on disk: one file, managed by redb.
//!
//! One table has everything, so that a commit writes few pages: the records (see `record`) and, under keys that start
//! with 0, the format of the data and the epoch of the latest owner. Every commit is flushed before it returns. After a
//! crash of the process or the machine, the engine repairs the file when it is opened. A file that was closed properly
//! is verified as a whole when it is opened; that costs no more than reading it, and the server reads it anyway.
//!
//! Invariants: until the first commit, the file is unchanged, so a server that refuses its records leaves them as they
//! are. What the engine writes until then, to repair the file and to note that it is open, stays in memory. The first
//! commit reopens the file for writing, and also stores the new epoch. The engine never rolls back a commit that was
//! acknowledged (`flush_mark`).
//!
//! After a failure the engine refuses everything until it is closed and reopened, which the next commit does. The
//! engine may fail after the changes are on disk; that makes no difference, because the next commit has the same
//! changes.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::backends::FileBackend;
use redb::{
    Builder, Database, Durability, ReadableDatabase, ReadableTable, StorageBackend, WriteTransaction,
};

use super::backend::{CopyOnWrite, FlushFailure, FlushGuard};
use super::directory::{Directory, unusable};
use super::error::{CommitError, StorageError, catch, catch_panics, engine_error};
use super::flush_mark::{FlushMark, FlushMarks, Trust};
use super::reader::{FileSnapshot, METADATA, TABLE};
use super::record::{FORMAT, encode_key, encode_value};
use super::store::{Snapshot, Storage};
use signalbox_core::{Change, Record};

const FORMAT_KEY: &[u8] = &[METADATA, b'f'];
const EPOCH_KEY: &[u8] = &[METADATA, b'e'];

/// Memory for the engine's cache of pages, in bytes. The records are read once, and a commit accesses a small part of them.
const CACHE_BYTES: usize = 16 << 20;

/// Opens the bytes that the engine works on: at the start, for the first commit, and after each failure.
pub type Medium = Box<dyn FnMut() -> io::Result<Box<dyn StorageBackend>> + Send>;

/// A store in a file.
pub struct FileStorage {
    // Declared before the directory, so that the database is closed before the directory is unlocked.
    opened: Option<OpenedFile>,
    _directory: Option<Directory>,
    path: PathBuf,
    medium: Medium,
    flush_failure: FlushFailure,
    epoch: u64,
    /// Whether a successful commit has stored the epoch.
    is_epoch_stored: bool,
    was_repaired: bool,
}

struct OpenedFile {
    database: Database,
    /// Whether what the engine writes stays in memory, because nothing was committed yet.
    is_copy: bool,
    /// Set when this is dropped. Afterwards, the file may be opened and written again, over the pages of a snapshot.
    is_closed: Arc<AtomicBool>,
}

impl Drop for OpenedFile {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Release);
    }
}

impl std::fmt::Debug for FileStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileStorage")
            .field("path", &self.path)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl FileStorage {
    /// Opens the store in a data directory under a new epoch. A missing directory is created, but not its parent; a
    /// directory without data gets an empty store. A file with data is not changed until the first commit. No other
    /// process can open it until this value is dropped.
    pub fn open(directory: &Path) -> Result<Self, StorageError> {
        let directory = Directory::open_exclusive(directory)?;
        if !directory.has_file()? {
            directory.create_file(|path, file| {
                Self::create_on(path, file_backend(file).map_err(unusable(path))?)
            })?;
        }
        let path = directory.file();
        let medium = {
            let path = path.clone();
            move || open_file(&path, true)
        };
        let mut storage = Self::open_on(&path, Box::new(medium))?;
        storage._directory = Some(directory);
        Ok(storage)
    }

    /// Opens the store on a medium under a new epoch. `path` is its name in error messages. The medium is responsible
    /// for excluding other users.
    pub fn open_on(path: &Path, medium: Medium) -> Result<Self, StorageError> {
        let mut storage = Self {
            opened: None,
            _directory: None,
            path: path.to_owned(),
            medium,
            flush_failure: FlushFailure::default(),
            epoch: 0,
            is_epoch_stored: false,
            was_repaired: false,
        };
        let (opened, was_repaired) = storage.open_file(true)?;
        storage.was_repaired = was_repaired;
        let opened = storage.verified(opened, was_repaired)?;
        let latest = || stored_epoch(&opened.database.begin_read()?.open_table(TABLE)?);
        storage.epoch = latest().map_err(|error| storage.error(error))? + 1;
        storage.opened = Some(opened);
        Ok(storage)
    }

    /// Creates an empty store on an empty medium. `path` is its name in error messages.
    pub fn create_on(path: &Path, medium: Box<dyn StorageBackend>) -> Result<(), StorageError> {
        let flush_failure = FlushFailure::default();
        let fill = || {
            let medium = Box::new(FlushGuard::new(medium, flush_failure.clone()));
            let medium = FlushMarks::new(medium, Trust::CurrentCommit);
            let database = Builder::new().create_with_backend(medium)?;
            let transaction = begin(&database)?;
            {
                let mut table = transaction.open_table(TABLE)?;
                table.insert(FORMAT_KEY, FORMAT.to_be_bytes().as_slice())?;
                table.insert(EPOCH_KEY, 0_u64.to_be_bytes().as_slice())?;
            }
            transaction.commit()?;
            Ok(())
        };
        fill().map_err(|error: redb::Error| {
            prefer_flush_failure(&flush_failure, path, engine_error(path, error))
        })
    }

    /// Returns whether the file had to be repaired when it was opened, because it had not been closed properly.
    pub fn was_repaired(&self) -> bool {
        self.was_repaired
    }

    /// Opens the file for writing or, if `is_copy`, so that what the engine writes stays in memory. Returns whether the
    /// file needed a repair.
    fn open_file(&mut self, is_copy: bool) -> Result<(OpenedFile, bool), StorageError> {
        let inner = (self.medium)().map_err(unusable(&self.path))?;
        let guard = FlushGuard::new(inner, self.flush_failure.clone());
        let medium: Box<dyn StorageBackend> = if is_copy {
            Box::new(CopyOnWrite::new(Arc::new(guard)).map_err(unusable(&self.path))?)
        } else {
            Box::new(guard)
        };
        let opened = open_engine(&self.path, medium, Trust::CurrentCommit);
        let Opened { database, was_repaired } = opened.map_err(|error| self.prefer_flush_failure(error))?;
        Ok((OpenedFile { database, is_copy, is_closed: Arc::default() }, was_repaired))
    }

    /// Verifies a file that was just opened, unless a repair has verified it.
    fn verified(&self, mut opened: OpenedFile, was_repaired: bool) -> Result<OpenedFile, StorageError> {
        if !was_repaired && let Err(error) = verify(&self.path, &mut opened.database) {
            // After a panic, the engine may panic again when it is closed.
            let _ = catch(|| drop(opened));
            return Err(self.prefer_flush_failure(error));
        }
        Ok(opened)
    }

    /// Takes the file, open for writing. It is reopened if it is a copy, which was verified already, or if a failure
    /// closed it. Fails if a flush has failed.
    fn take_opened(&mut self) -> Result<OpenedFile, CommitError> {
        if let Some(source) = self.flush_failure.get() {
            self.opened = None;
            return Err(CommitError::NotFlushed(StorageError::NotFlushed {
                path: self.path.clone(),
                source,
            }));
        }
        match self.opened.take() {
            Some(opened) if !opened.is_copy => Ok(opened),
            Some(copy) => {
                drop(copy);
                Ok(self.open_file(false).map_err(commit_error)?.0)
            }
            None => {
                let (opened, was_repaired) = self.open_file(false).map_err(commit_error)?;
                self.verified(opened, was_repaired).map_err(commit_error)
            }
        }
    }

    /// Makes changes in one transaction; the first one also stores the epoch. Returns the epoch that the file had
    /// before. If that shows another owner, nothing is written.
    fn transact(&self, opened: &OpenedFile, changes: &[Change]) -> Result<u64, redb::Error> {
        let transaction = begin(&opened.database)?;
        let newest = {
            let mut table = transaction.open_table(TABLE)?;
            let newest = stored_epoch(&table)?;
            if !self.is_own(newest) {
                return Ok(newest);
            }
            if newest != self.epoch {
                table.insert(EPOCH_KEY, self.epoch.to_be_bytes().as_slice())?;
            }
            for change in changes {
                match change {
                    Change::Put(record) => {
                        let (key, value) = (encode_key(&record.key()), encode_value(record));
                        table.insert(key.as_slice(), value.as_slice())?;
                    }
                    Change::Delete(key) => _ = table.remove(encode_key(key).as_slice())?,
                }
            }
            newest
        };
        transaction.commit()?;
        Ok(newest)
    }

    /// Returns whether a file with the epoch `newest` has no later owner. The first commit stores this owner's epoch;
    /// the epoch may be in the file even if that commit failed.
    fn is_own(&self, newest: u64) -> bool {
        newest == self.epoch || (!self.is_epoch_stored && newest + 1 == self.epoch)
    }

    fn error(&self, error: redb::Error) -> StorageError {
        self.prefer_flush_failure(engine_error(&self.path, error))
    }

    fn prefer_flush_failure(&self, error: StorageError) -> StorageError {
        prefer_flush_failure(&self.flush_failure, &self.path, error)
    }
}

impl Storage for FileStorage {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn load(&mut self, each: &mut dyn FnMut(Record)) -> Result<(), StorageError> {
        if self.opened.is_none() {
            let (opened, was_repaired) = self.open_file(true)?;
            self.opened = Some(self.verified(opened, was_repaired)?);
        }
        let read = self.snapshot()?.read(&mut |record| {
            each(record);
            ControlFlow::Continue(())
        });
        if read.is_err() {
            self.opened = None;
        }
        read
    }

    fn snapshot(&mut self) -> Result<Box<dyn Snapshot>, StorageError> {
        let Some(opened) = &self.opened else {
            let source = io::Error::other("a write failed, and the file is not open again yet");
            return Err(StorageError::Unusable { path: self.path.clone(), source });
        };
        Ok(Box::new(FileSnapshot::open(&self.path, &opened.database, Arc::clone(&opened.is_closed))?))
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), CommitError> {
        let opened = self.take_opened()?;
        // After a failure the file is closed.
        let newest = self.transact(&opened, changes).map_err(|error| commit_error(self.error(error)))?;
        self.opened = Some(opened);
        if !self.is_own(newest) {
            return Err(CommitError::Superseded { own: self.epoch, newest });
        }
        self.is_epoch_stored = true;
        Ok(())
    }
}

/// The result of opening the engine on a file.
pub(super) struct Opened {
    pub(super) database: Database,
    pub(super) was_repaired: bool,
}

/// Opens a file for the engine. A missing file is not created.
pub(super) fn open_file(path: &Path, writable: bool) -> io::Result<Box<dyn StorageBackend>> {
    file_backend(OpenOptions::new().read(true).write(writable).open(path)?)
}

/// Wraps an open file for the engine.
pub(super) fn file_backend(file: File) -> io::Result<Box<dyn StorageBackend>> {
    let backend = FileBackend::new(file).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(Box::new(backend))
}

/// Opens the engine on an existing store, and checks that this program supports its format. The engine writes to it.
pub(super) fn open_engine(
    path: &Path,
    inner: Box<dyn StorageBackend>,
    trust: Trust,
) -> Result<Opened, StorageError> {
    let damaged =
        |problem: &str| StorageError::Damaged { path: path.to_owned(), problem: problem.to_owned() };
    // The engine would create a new store in an empty file.
    if inner.len().map_err(unusable(path))? == 0 {
        return Err(damaged("the file is empty"));
    }
    let mark = FlushMark::of(&*inner).map_err(unusable(path))?;
    if mark == FlushMark::Damaged && trust == Trust::CurrentCommit {
        return Err(damaged("a bit of its header has changed"));
    }
    let was_repaired = Arc::new(AtomicBool::new(false));
    let note = {
        let was_repaired = Arc::clone(&was_repaired);
        move |_: &mut redb::RepairSession| was_repaired.store(true, Ordering::Relaxed)
    };
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES).set_repair_callback(note);
    let medium = FlushMarks::new(inner, trust);
    let database = catch_panics(path, || builder.create_with_backend(medium))?;
    let format = catch_panics(path, || stored_format(&database))?;
    match format {
        Some(FORMAT) => {}
        Some(found) if found > FORMAT => {
            return Err(StorageError::Newer { path: path.to_owned(), found, known: FORMAT });
        }
        Some(_) | None => return Err(damaged("it has no valid format number")),
    }
    Ok(Opened { database, was_repaired: was_repaired.load(Ordering::Relaxed) })
}

/// Checks all checksums of a file.
pub(super) fn verify(path: &Path, database: &mut Database) -> Result<(), StorageError> {
    // The engine may repair its list of free pages here, which has no data.
    catch_panics(path, || database.check_integrity()).map(|_| ())
}

/// Replaces an error by the failed flush that caused it, if there was one.
fn prefer_flush_failure(flush_failure: &FlushFailure, path: &Path, error: StorageError) -> StorageError {
    match flush_failure.get() {
        Some(source) => StorageError::NotFlushed { path: path.to_owned(), source },
        None => error,
    }
}

fn commit_error(error: StorageError) -> CommitError {
    match error {
        StorageError::NotFlushed { .. } => CommitError::NotFlushed(error),
        _ => CommitError::NotStored(error),
    }
}

fn begin(database: &Database) -> Result<WriteTransaction, redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate).map_err(redb::Error::from)?;
    Ok(transaction)
}

fn stored_format(database: &Database) -> Result<Option<u32>, redb::Error> {
    let format = database.begin_read()?.open_table(TABLE)?.get(FORMAT_KEY)?;
    Ok(format.and_then(|format| format.value().try_into().ok()).map(u32::from_be_bytes))
}

fn stored_epoch(table: &impl ReadableTable<&'static [u8], &'static [u8]>) -> Result<u64, redb::Error> {
    let epoch = table.get(EPOCH_KEY)?.and_then(|epoch| epoch.value().try_into().ok()).map(u64::from_be_bytes);
    epoch.ok_or_else(|| redb::Error::Corrupted("it has no valid epoch".to_owned()))
}
