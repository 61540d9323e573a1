//! Export and import: the records as text, to inspect, to archive, and to create a new data directory from.
//!
//! An export has one JSON object per line: a header with the format, the records in the order of keys, and a last line
//! with their number, which shows that the export is complete. Numbers that need 64 bits are strings, because many JSON
//! parsers would round them. Names and labels are strings if they are printable UTF-8; otherwise they are hexadecimal,
//! under another key. **An export contains the keys of sessions, which let anyone attach to them, and the key of places:
//! keep it secret.**

use std::collections::BTreeSet;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::check::{contradictions, open_for_reading};
use super::directory::{Directory, unusable};
use super::engine::{FileStorage, Opened, file_backend, open_file};
use super::flush_mark::Trust;
use super::reader::each_record;
use super::record::{FORMAT, describe};
use super::{CommitError, Storage, StorageError};
use signalbox_core::{
    AdjustmentsRecord, AnswerRecord, Change, DeclarationRecord, GrantRecord, ProcessRecord, Record,
    ResultRecord, SessionRecord, SetRecord, SysvRecord,
};
use signalbox_model::PlaceKey;

/// An error that prevented an import. Nothing was changed.
#[derive(Debug, Error)]
pub enum ImportError {
    /// The data directory cannot be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The records cannot be written.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The text cannot be read.
    #[error("the export cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// The directory is not empty.
    #[error("{}: the directory is not empty; import into a new directory", .0.display())]
    NotEmpty(PathBuf),
    /// A line is not a valid line of an export.
    #[error("line {line}: {problem}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong, and what is expected.
        problem: String,
    },
    /// The records contradict each other.
    #[error("{0}; correct the export, or create it again")]
    Contradiction(String),
}

/// Writes all records of the data directory of a server that is not running. It does not change the directory. A record
/// that cannot be decoded is omitted. If the current commit cannot be read, the records of the commit before it are
/// written. Returns one sentence about each of these problems. Fails on any other error; the export then has no last
/// line.
pub fn export(directory: &Path, writer: &mut dyn Write) -> Result<Vec<String>, StorageError> {
    let directory = Directory::open_shared(directory)?;
    let path = directory.file();
    let mut problems = Vec::new();
    let Opened { database, .. } = match open_for_reading(&path, Trust::CurrentCommit) {
        Err(damaged @ StorageError::Damaged { .. }) => {
            let Ok(opened) = open_for_reading(&path, Trust::AnyCommit) else { return Err(damaged) };
            problems.push(format!("{damaged}; the latest changes may be missing from the export"));
            opened
        }
        opened => opened?,
    };
    let mut export = ExportWriter::begin(writer);
    each_record(&path, &database, &mut |record| match record {
        Ok(record) => export.add(record),
        Err(error) => problems.push(format!("{error}; the record was omitted")),
    })?;
    export.end()?;
    Ok(problems)
}

/// Writes an export, record by record.
pub struct ExportWriter<'a> {
    writer: &'a mut dyn Write,
    records: u64,
    /// After an error, nothing more is written.
    written: io::Result<()>,
}

impl<'a> ExportWriter<'a> {
    /// Writes the first line.
    pub fn begin(writer: &'a mut dyn Write) -> Self {
        let written = write_line(writer, &Line::Export { format: FORMAT });
        Self { writer, records: 0, written }
    }

    /// Writes a record. Records must be added in the order of keys.
    pub fn add(&mut self, record: Record) {
        if self.written.is_ok() {
            self.records += 1;
            self.written = write_line(self.writer, &Line::from(record));
        }
    }

    /// Returns whether an error occurred, so that nothing more is written.
    pub fn has_failed(&self) -> bool {
        self.written.is_err()
    }

    /// Writes the last line. Fails if anything could not be written.
    pub fn end(self) -> Result<(), StorageError> {
        let Self { writer, records, written } = self;
        let written = written.and_then(|()| write_line(writer, &Line::End { records }));
        let written = written.and_then(|()| writer.flush());
        written.map_err(|source| StorageError::Unusable { path: PathBuf::from("the export"), source })
    }
}

/// Creates a data directory with the records of an export, all of them or none. The directory must be empty or missing;
/// a missing one is created. Returns the number of records.
pub fn import(directory: &Path, reader: &mut dyn BufRead) -> Result<u64, ImportError> {
    let records = read_export(reader)?;
    let directory_lock = Directory::open_exclusive(directory)?;
    if !directory_lock.is_empty()? {
        return Err(ImportError::NotEmpty(directory.to_owned()));
    }
    let count = records.len() as u64;
    let changes: Vec<_> = records.into_iter().map(Change::Put).collect();
    directory_lock.create_file(|path, file| {
        FileStorage::create_on(path, file_backend(file).map_err(unusable(path))?)?;
        let medium = {
            let path = path.to_owned();
            move || open_file(&path, true)
        };
        FileStorage::open_on(path, Box::new(medium))?.commit(&changes)?;
        Ok::<_, ImportError>(())
    })?;
    Ok(count)
}

/// Reads an export. Fails if a line is missing or malformed, or if the records contradict each other.
pub fn read_export(reader: &mut dyn BufRead) -> Result<Vec<Record>, ImportError> {
    let records = read_lines(reader)?;
    match contradictions(&records).into_iter().next() {
        Some(problem) => Err(ImportError::Contradiction(problem)),
        None => Ok(records),
    }
}

fn read_lines(reader: &mut dyn BufRead) -> Result<Vec<Record>, ImportError> {
    let mut records = Vec::new();
    let mut keys = BTreeSet::new();
    let mut has_started = false;
    let mut end = None;
    let mut number = 0;
    for line in reader.split(b'\n') {
        number += 1;
        let wrong = |problem: String| ImportError::Line { line: number, problem };
        if end.is_some() {
            return Err(wrong("unexpected data after the last line of the export".to_owned()));
        }
        let line: Line = serde_json::from_slice(&line?)
            .map_err(|error| wrong(format!("this is not a line of an export: {error}")))?;
        match line {
            Line::Export { format: FORMAT } if !has_started => has_started = true,
            Line::Export { format } if !has_started => {
                return Err(wrong(format!(
                    "the export has format {format}, but this version of signalbox supports format {FORMAT}; \
                     use the version that created the export"
                )));
            }
            Line::Export { .. } => return Err(wrong("a second export starts here".to_owned())),
            _ if !has_started => {
                return Err(wrong("the first line must state the format of the export".to_owned()));
            }
            Line::End { records } => end = Some(records),
            line => {
                let record = line.record().expect("the first and the last line are handled above");
                if !keys.insert(record.key()) {
                    return Err(wrong(format!("{} occurs a second time", describe(&record.key()))));
                }
                records.push(record);
            }
        }
    }
    let wrong = |problem: String| ImportError::Line { line: number + 1, problem };
    match end {
        None => Err(wrong("the export is incomplete: its last line is missing".to_owned())),
        Some(count) if count != records.len() as u64 => {
            Err(wrong(format!("the export has {} records, but its last line states {count}", records.len())))
        }
        Some(_) => Ok(records),
    }
}

fn write_line(writer: &mut dyn Write, line: &Line) -> io::Result<()> {
    serde_json::to_writer(&mut *writer, line)?;
    writer.write_all(b"\n")
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Export {
        format: u32,
    },
    Mark {
        #[serde(with = "signalbox_model::json::decimal")]
        id: u64,
    },
    Declaration(DeclarationRecord),
    Session(SessionRecord),
    Grant(GrantRecord),
    Answer(AnswerRecord),
    SysvSet(SetRecord),
    SysvProcess(ProcessRecord),
    SysvAdjustments(AdjustmentsRecord),
    SysvResult(ResultRecord),
    PlaceKey {
        #[serde(rename = "key_hex")]
        key: PlaceKey,
    },
    End {
        records: u64,
    },
}

impl From<Record> for Line {
    fn from(record: Record) -> Self {
        match record {
            Record::Mark(id) => Self::Mark { id },
            Record::Declaration(record) => Self::Declaration(record),
            Record::Session(record) => Self::Session(record),
            Record::Grant(record) => Self::Grant(record),
            Record::Answer(record) => Self::Answer(record),
            Record::Sysv(SysvRecord::Set(record)) => Self::SysvSet(record),
            Record::Sysv(SysvRecord::Process(record)) => Self::SysvProcess(record),
            Record::Sysv(SysvRecord::Adjustments(record)) => Self::SysvAdjustments(record),
            Record::Sysv(SysvRecord::Result(record)) => Self::SysvResult(record),
            Record::PlaceKey(key) => Self::PlaceKey { key },
        }
    }
}

impl Line {
    /// The record of the line; `None` if it is the first or the last line.
    fn record(self) -> Option<Record> {
        Some(match self {
            Self::Export { .. } | Self::End { .. } => return None,
            Self::Mark { id } => Record::Mark(id),
            Self::Declaration(record) => Record::Declaration(record),
            Self::Session(record) => Record::Session(record),
            Self::Grant(record) => Record::Grant(record),
            Self::Answer(record) => Record::Answer(record),
            Self::SysvSet(record) => Record::Sysv(SysvRecord::Set(record)),
            Self::SysvProcess(record) => Record::Sysv(SysvRecord::Process(record)),
            Self::SysvAdjustments(record) => Record::Sysv(SysvRecord::Adjustments(record)),
            Self::SysvResult(record) => Record::Sysv(SysvRecord::Result(record)),
            Self::PlaceKey { key } => Record::PlaceKey(key),
        })
    }
}
