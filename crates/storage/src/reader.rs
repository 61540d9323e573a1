//! Reading all records of a file: at once, or as a snapshot while the file is written.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::{Database, OwnedRange, ReadableDatabase, TableDefinition};

use super::error::{StorageError, catch_panics};
use super::record::{DecodeError, decode};
use super::store::Snapshot;
use signalbox_core::Record;

pub(super) const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("signalbox");

/// The first byte of the keys that are not records.
pub(super) const METADATA: u8 = 0;

/// The records of a file as they were when this was opened, in the order of keys. The engine keeps their pages until this
/// is dropped.
struct Reader {
    path: PathBuf,
    entries: OwnedRange<&'static [u8], &'static [u8]>,
}

impl Reader {
    fn open(path: &Path, database: &Database) -> Result<Self, StorageError> {
        let open = || {
            let table = database.begin_read()?.open_table(TABLE)?;
            Ok::<_, redb::Error>(table.range_owned::<&[u8]>(..)?)
        };
        Ok(Self { path: path.to_owned(), entries: catch_panics(path, open)? })
    }

    /// Returns the next record, or the error of decoding it; `None` at the end.
    fn next(&mut self) -> Result<Option<Result<Record, DecodeError>>, StorageError> {
        let next = || loop {
            let Some(entry) = self.entries.next() else { return Ok::<_, redb::Error>(None) };
            let (key, value) = entry?;
            let (key, value) = (key.value(), value.value());
            if key.first() != Some(&METADATA) {
                return Ok(Some(decode(key, value)));
            }
        };
        catch_panics(&self.path, next)
    }
}

/// Passes every record, or the error of decoding it, to `each` in the order of keys.
pub(super) fn each_record(
    path: &Path,
    database: &Database,
    each: &mut dyn FnMut(Result<Record, DecodeError>),
) -> Result<(), StorageError> {
    let mut reader = Reader::open(path, database)?;
    while let Some(record) = reader.next()? {
        each(record);
    }
    Ok(())
}

/// A snapshot of a file that is open for writing.
pub(super) struct FileSnapshot {
    reader: Reader,
    /// Whether the file was closed, after a failure or for the first commit. It may have been opened and written again
    /// since, over the pages of this snapshot.
    is_closed: Arc<AtomicBool>,
}

impl FileSnapshot {
    pub(super) fn open(
        path: &Path,
        database: &Database,
        is_closed: Arc<AtomicBool>,
    ) -> Result<Self, StorageError> {
        Ok(Self { reader: Reader::open(path, database)?, is_closed })
    }
}

impl Snapshot for FileSnapshot {
    fn read(
        mut self: Box<Self>,
        each: &mut dyn FnMut(Record) -> ControlFlow<()>,
    ) -> Result<(), StorageError> {
        loop {
            let next = self.reader.next();
            let path = || self.reader.path.clone();
            // Checked after the read: the pages of the snapshot were kept at least until the file was closed.
            if self.is_closed.load(Ordering::Acquire) {
                let source = io::Error::other("it was closed after a failed write");
                return Err(StorageError::Unusable { path: path(), source });
            }
            match next? {
                None => return Ok(()),
                Some(Ok(record)) => {
                    if each(record).is_break() {
                        return Ok(());
                    }
                }
                Some(Err(error)) => {
                    return Err(StorageError::Damaged { path: path(), problem: error.to_string() });
                }
            }
        }
    }

    fn directory(&self) -> Option<&Path> {
        self.reader.path.parent()
    }
}
