//! The store on disk: one file, kept by redb.
//!
//! Everything lies in one table, so that a commit writes few pages: the records (see `record`) and, under keys that begin
//! with 0, the format of the data and the epoch of the last owner. Every commit is flushed before it returns. An unclean
//! end of the process or the machine is repaired by the engine when the file is opened; a file that was closed properly is
//! checked as a whole then, which costs no more than reading it, and it is read anyway.
//!
//! After a failure the engine refuses everything until it is closed and opened again, so that is done here, within the
//! commit that failed or, where that fails too, before the next one. Invariant: what a commit said to have failed is not
//! in the file when the next one succeeds. That takes some care, as the engine may fail after the changes are on disk.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::backends::FileBackend;
use redb::{
    Builder, Database, Durability, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition,
    WriteTransaction,
};

use super::backend::{Flushes, Watched};
use super::directory::{Directory, unusable};
use super::record::{DecodeError, decode, encode_key, encode_value};
use super::{CommitError, Storage, StorageError};
use crate::core::{Change, Record};

/// The format of the data that this program writes: the table, its keys and the bytes of records.
pub const FORMAT: u32 = 1;

const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("signalbox");
const OWN_KEYS: u8 = 0;
const FORMAT_KEY: &[u8] = &[OWN_KEYS, b'f'];
const EPOCH_KEY: &[u8] = &[OWN_KEYS, b'e'];

/// How a store is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Memory for pages of the file, in bytes.
    pub cache_bytes: usize,
}

impl Default for Options {
    /// 16 MiB: the records are read once, and what a commit touches is a small part of them.
    fn default() -> Self {
        Self { cache_bytes: 16 << 20 }
    }
}

/// Opens the bytes that lie below the engine: once at the start, and again after each failure.
pub type Medium = Box<dyn FnMut() -> io::Result<Box<dyn StorageBackend>> + Send>;

/// A store in a file.
pub struct FileStorage {
    // The database is closed before the directory is let go.
    database: Option<Database>,
    _directory: Option<Directory>,
    path: PathBuf,
    medium: Medium,
    options: Options,
    flushes: Flushes,
    epoch: u64,
    was_repaired: bool,
    /// The commit that was said to have failed, while it is not known whether the file has it.
    unsettled: Option<Touched>,
}

/// What a commit does, by key.
type Touched = BTreeMap<Vec<u8>, Versions>;

/// The values of a key; `None` where it has none.
#[derive(Debug)]
struct Versions {
    before: Option<Vec<u8>>,
    after: Option<Vec<u8>>,
}

/// Why a transaction was not made.
enum Failure {
    Superseded {
        newest: u64,
    },
    /// It is not in the file.
    Before(StorageError),
    /// It may be in the file.
    During(StorageError),
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
    /// Opens the store in a data directory under a new epoch. A directory that is not there is made, in one that is; a
    /// directory without data gets an empty store. Nobody else can open it until this value is dropped.
    pub fn open(directory: &Path, options: Options) -> Result<Self, StorageError> {
        let directory = Directory::take(directory)?;
        if !directory.has_file()? {
            directory
                .make_file(|path, file| Self::lay_out(path, file_backend(file).map_err(unusable(path))?))?;
        }
        let path = directory.file();
        let medium = {
            let path = path.clone();
            move || open_file(&path, true)
        };
        let mut storage = Self::open_on(&path, Box::new(medium), options)?;
        storage._directory = Some(directory);
        Ok(storage)
    }

    /// Opens a store that was laid out on any medium, under a new epoch. `path` is what errors call it. Keeping others
    /// away is left to the medium.
    pub fn open_on(path: &Path, medium: Medium, options: Options) -> Result<Self, StorageError> {
        let mut storage = Self {
            database: None,
            _directory: None,
            path: path.to_owned(),
            medium,
            options,
            flushes: Flushes::default(),
            epoch: 0,
            was_repaired: false,
            unsettled: None,
        };
        let (database, was_repaired) = storage.open_database()?;
        storage.was_repaired = was_repaired;
        storage.epoch = storage.take_epoch(&database).map_err(|error| storage.error(error))?;
        storage.database = Some(database);
        Ok(storage)
    }

    /// Makes an empty store on a medium that is empty. `path` is what errors call it.
    pub fn lay_out(path: &Path, medium: Box<dyn StorageBackend>) -> Result<(), StorageError> {
        let flushes = Flushes::default();
        let fill = || {
            let medium = Watched::new(medium, flushes.clone());
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
        fill().map_err(|error: redb::Error| or_not_flushed(&flushes, path, engine_error(path, error)))
    }

    /// Whether the file had not been closed properly before it was opened, and was repaired.
    pub fn was_repaired(&self) -> bool {
        self.was_repaired
    }

    fn open_database(&mut self) -> Result<(Database, bool), StorageError> {
        let below = (self.medium)().map_err(unusable(&self.path))?;
        let watched = Watched::new(below, self.flushes.clone());
        let opened = open_engine(&self.path, watched, self.options).and_then(|mut opened| {
            // A repair has checked everything already.
            if !opened.was_repaired {
                verify(&self.path, &mut opened.database)?;
            }
            Ok(opened)
        });
        let opened = opened.map_err(|error| or_not_flushed(&self.flushes, &self.path, error))?;
        Ok((opened.database, opened.was_repaired))
    }

    fn take_epoch(&self, database: &Database) -> Result<u64, redb::Error> {
        let transaction = begin(database)?;
        let epoch = {
            let mut table = transaction.open_table(TABLE)?;
            let epoch = stored_epoch(&table)? + 1;
            table.insert(EPOCH_KEY, epoch.to_be_bytes().as_slice())?;
            epoch
        };
        transaction.commit()?;
        Ok(epoch)
    }

    /// Opens the file again if a failure closed it. Tells whether it has the commit that was said to have failed.
    fn reopen(&mut self) -> Result<bool, CommitError> {
        if let Some(source) = self.flushes.failure() {
            self.database = None;
            return Err(CommitError::NotFlushed(StorageError::NotFlushed {
                path: self.path.clone(),
                source,
            }));
        }
        let database = match self.database.take() {
            Some(database) => database,
            None => self.open_database().map_err(commit_error)?.0,
        };
        let (newest, is_there) =
            self.look_for_unsettled(&database).map_err(|e| commit_error(self.error(e)))?;
        self.database = Some(database);
        if newest == self.epoch {
            Ok(is_there)
        } else {
            Err(CommitError::Superseded { own: self.epoch, newest })
        }
    }

    /// The epoch in the file, and whether the unsettled commit is in it: since it is there as a whole or not at all, one
    /// key tells that it changed.
    fn look_for_unsettled(&self, database: &Database) -> Result<(u64, bool), redb::Error> {
        let Some(touched) = &self.unsettled else { return Ok((self.epoch, false)) };
        let table = database.begin_read()?.open_table(TABLE)?;
        let telling = touched.iter().find(|(_, versions)| versions.before != versions.after);
        let is_there = match telling {
            Some((key, versions)) => {
                let found = table.get(key.as_slice())?;
                found.as_ref().map(|value| value.value()) == versions.after.as_deref()
            }
            None => false,
        };
        Ok((stored_epoch(&table)?, is_there))
    }

    /// Undoes in the file what was said to have failed.
    fn take_back_unsettled(&mut self) -> Result<(), CommitError> {
        let Some(touched) = &self.unsettled else { return Ok(()) };
        let writes: Vec<_> =
            touched.iter().map(|(key, versions)| (key.clone(), versions.before.clone())).collect();
        self.transact(writes, &mut Touched::new()).map_err(|failure| {
            self.database = None;
            match failure {
                Failure::Superseded { newest } => CommitError::Superseded { own: self.epoch, newest },
                Failure::Before(error) | Failure::During(error) => commit_error(error),
            }
        })
    }

    /// Writes values, or deletes where there is none, in one transaction, and notes what it touches.
    fn transact(
        &self,
        writes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
        touched: &mut Touched,
    ) -> Result<(), Failure> {
        let database = self.database.as_ref().expect("every caller opened it");
        let before = |error| Failure::Before(self.error(error));
        let transaction = begin(database).map_err(before)?;
        let newest = self.write(&transaction, writes, touched).map_err(before)?;
        if newest != self.epoch {
            return Err(Failure::Superseded { newest });
        }
        transaction.commit().map_err(|error| Failure::During(self.error(error.into())))
    }

    /// Gives the epoch in the file. Where that is not this owner's, nothing is written.
    fn write(
        &self,
        transaction: &WriteTransaction,
        writes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
        touched: &mut Touched,
    ) -> Result<u64, redb::Error> {
        let mut table = transaction.open_table(TABLE)?;
        let newest = stored_epoch(&table)?;
        if newest != self.epoch {
            return Ok(newest);
        }
        for (key, after) in writes {
            let before = match &after {
                Some(value) => table.insert(key.as_slice(), value.as_slice())?,
                None => table.remove(key.as_slice())?,
            };
            let before = before.map(|value| value.value().to_vec());
            // Of a key that is written twice, the first value before and the last one after count.
            touched.entry(key).or_insert(Versions { before, after: None }).after = after;
        }
        Ok(newest)
    }

    fn error(&self, error: redb::Error) -> StorageError {
        or_not_flushed(&self.flushes, &self.path, engine_error(&self.path, error))
    }
}

impl Storage for FileStorage {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn load(&mut self, each: &mut dyn FnMut(Record)) -> Result<(), StorageError> {
        if self.database.is_none() {
            self.database = Some(self.open_database()?.0);
        }
        let database = self.database.as_ref().expect("it was just opened");
        let mut problem = None;
        let read = each_record(&self.path, database, &mut |record| match record {
            Ok(record) if problem.is_none() => each(record),
            Ok(_) => {}
            Err(error) => _ = problem.get_or_insert(error),
        });
        if let Err(error) = read {
            self.database = None;
            return Err(error);
        }
        match problem {
            None => Ok(()),
            Some(problem) => {
                Err(StorageError::Damaged { path: self.path.clone(), problem: problem.to_string() })
            }
        }
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), CommitError> {
        if self.reopen()? {
            self.take_back_unsettled()?;
        }
        self.unsettled = None;
        let writes = changes.iter().map(|change| match change {
            Change::Put(record) => (encode_key(&record.key()), Some(encode_value(record))),
            Change::Delete(key) => (encode_key(key), None),
        });
        let mut touched = Touched::new();
        let (error, touched) = match self.transact(writes.collect(), &mut touched) {
            Ok(()) => return Ok(()),
            Err(Failure::Superseded { newest }) => {
                return Err(CommitError::Superseded { own: self.epoch, newest });
            }
            Err(Failure::Before(error)) => (error, None),
            Err(Failure::During(error)) => (error, Some(touched)),
        };
        self.database = None;
        self.unsettled = touched;
        match self.reopen() {
            // It failed when the changes were on disk: they are durable, which is all that was asked for.
            Ok(true) => {
                self.unsettled = None;
                Ok(())
            }
            Err(failure @ (CommitError::NotFlushed(_) | CommitError::Superseded { .. })) => Err(failure),
            // Where it could not be opened, the next commit tries.
            Ok(false) | Err(CommitError::NotStored(_)) => Err(commit_error(error)),
        }
    }
}

/// What came of opening the engine on a file.
pub(super) struct Opened {
    pub(super) database: Database,
    pub(super) was_repaired: bool,
}

/// Opens a file for the engine. Nothing is made where there is none.
pub(super) fn open_file(path: &Path, writable: bool) -> io::Result<Box<dyn StorageBackend>> {
    file_backend(OpenOptions::new().read(true).write(writable).open(path)?)
}

/// An open file as the engine uses it.
pub(super) fn file_backend(file: File) -> io::Result<Box<dyn StorageBackend>> {
    let backend = FileBackend::new(file).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(Box::new(backend))
}

/// Opens the engine on bytes that are there, and looks whether they are of a format that this program knows.
pub(super) fn open_engine(
    path: &Path,
    below: impl StorageBackend,
    options: Options,
) -> Result<Opened, StorageError> {
    let damaged =
        |problem: &str| StorageError::Damaged { path: path.to_owned(), problem: problem.to_owned() };
    // The engine would make a new store there.
    if below.len().map_err(unusable(path))? == 0 {
        return Err(damaged("it is empty"));
    }
    let was_repaired = Arc::new(AtomicBool::new(false));
    let note = {
        let was_repaired = Arc::clone(&was_repaired);
        move |_: &mut redb::RepairSession| was_repaired.store(true, Ordering::Relaxed)
    };
    let mut builder = Builder::new();
    builder.set_cache_size(options.cache_bytes).set_repair_callback(note);
    let database = guarded(path, || builder.create_with_backend(below))?;
    let format = guarded(path, || stored_format(&database))?;
    // Older formats will be made into this one step by step here, in the order in which they came.
    match format {
        Some(FORMAT) => {}
        Some(found) if found > FORMAT => {
            return Err(StorageError::Newer { path: path.to_owned(), found, known: FORMAT });
        }
        Some(_) | None => return Err(damaged("it does not say of which format its data is")),
    }
    Ok(Opened { database, was_repaired: was_repaired.load(Ordering::Relaxed) })
}

/// Checks all checksums of a file.
pub(super) fn verify(path: &Path, database: &mut Database) -> Result<(), StorageError> {
    // What it repairs by itself is its list of free pages, which holds no data.
    guarded(path, || database.check_integrity()).map(|_| ())
}

/// Gives every record in the order of keys, or what is wrong with it.
pub(super) fn each_record(
    path: &Path,
    database: &Database,
    each: &mut dyn FnMut(Result<Record, DecodeError>),
) -> Result<(), StorageError> {
    let entries =
        || Ok::<_, redb::Error>(database.begin_read()?.open_table(TABLE)?.range_owned::<&[u8]>(..)?);
    let mut entries = guarded(path, entries)?;
    let mut next = || match entries.next() {
        None => Ok::<_, redb::Error>(None),
        Some(entry) => {
            let (key, value) = entry?;
            let (key, value) = (key.value(), value.value());
            Ok(Some((key.first() != Some(&OWN_KEYS)).then(|| decode(key, value))))
        }
    };
    while let Some(record) = guarded(path, &mut next)? {
        if let Some(record) = record {
            each(record);
        }
    }
    Ok(())
}

/// Asks the engine for something of a file that may be damaged: it takes some damage for a mistake of its own, and panics.
fn guarded<T, E: Into<redb::Error>>(
    path: &Path,
    ask: impl FnOnce() -> Result<T, E>,
) -> Result<T, StorageError> {
    match catch_unwind(AssertUnwindSafe(ask)) {
        Ok(answer) => answer.map_err(|error| engine_error(path, error)),
        Err(_) => {
            let problem = "its engine cannot make sense of it".to_owned();
            Err(StorageError::Damaged { path: path.to_owned(), problem })
        }
    }
}

/// An error of the engine in words of the store.
pub(super) fn engine_error<E: Into<redb::Error>>(path: &Path, error: E) -> StorageError {
    let path = path.to_owned();
    match error.into() {
        redb::Error::Io(source)
            if !matches!(source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            StorageError::Unusable { path, source }
        }
        redb::Error::PreviousIo => {
            let source = io::Error::other("reading or writing it failed before");
            StorageError::Unusable { path, source }
        }
        redb::Error::DatabaseAlreadyOpen => StorageError::InUse { path },
        other => StorageError::Damaged { path, problem: other.to_string() },
    }
}

/// The failed flush that lies behind an error, if one does.
fn or_not_flushed(flushes: &Flushes, path: &Path, error: StorageError) -> StorageError {
    match flushes.failure() {
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
    let table = database.begin_read()?.open_table(TABLE)?;
    let format = table.get(FORMAT_KEY)?;
    Ok(format.and_then(|format| format.value().try_into().ok()).map(u32::from_be_bytes))
}

fn stored_epoch(table: &impl ReadableTable<&'static [u8], &'static [u8]>) -> Result<u64, redb::Error> {
    let epoch = table.get(EPOCH_KEY)?.and_then(|epoch| epoch.value().try_into().ok()).map(u64::from_be_bytes);
    epoch.ok_or_else(|| redb::Error::Corrupted("it does not say under which epoch it is".to_owned()))
}
