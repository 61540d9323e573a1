//! Export and import: the records as text, to inspect, to archive, and to create a new data directory from.
//!
//! An export has one JSON object per line: a header with the format, the records in the order of keys, and a last line
//! with their number, which shows that the export is complete. Numbers that need 64 bits are strings, because many JSON
//! parsers would round them. Names and labels are strings if they are printable UTF-8; otherwise they are hexadecimal,
//! under another key. **An export contains the keys of sessions, which let anyone attach to them, and the key of places:
//! keep it secret.**

mod sysv;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::check::{contradictions, open_for_reading};
use super::directory::{Directory, unusable};
use super::engine::{FileStorage, Opened, Options, file_backend, open_file};
use super::flush_mark::Trust;
use super::reader::each_record;
use super::record::{FORMAT, describe};
use super::{CommitError, Storage, StorageError};
use signalbox_core::{
    AnswerRecord, Change, DeclarationRecord, GrantRecord, Origin, PartRecord, Record, Service, SessionRecord,
};
use signalbox_model::UnixSeconds;
use signalbox_model::{
    DeclaredState, Generation, GrantId, Namespace, PlaceKey, RequestId, SessionId, SessionKey, from_hex,
};
use sysv::{AdjustmentsLine, ProcessLine, ResultLine, SetLine};

/// Why records were not imported. Nothing was changed.
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

/// Writes all records of the data directory of a server that is not running. It does not change the directory. Records
/// that cannot be decoded are omitted, and if the latest changes cannot be read, the records before them are written;
/// one sentence about each omission is returned. Fails if the rest of the file cannot be read; then the last line is
/// missing.
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
        Ok(record) => export.add(&record),
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

    /// Writes a record. They come in the order of keys.
    pub fn add(&mut self, record: &Record) {
        if self.written.is_ok() {
            self.records += 1;
            self.written = write_line(self.writer, &Line::from(record));
        }
    }

    /// Whether an error occurred, so that nothing more is written.
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

/// Creates a data directory with the records of an export, all of them or none. The directory must be empty, or is
/// created. Returns the number of records.
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
        FileStorage::open_on(path, Box::new(medium), Options::default())?.commit(&changes)?;
        Ok::<_, ImportError>(())
    })?;
    Ok(count)
}

/// Reads an export. Its records do not contradict each other.
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
                let record = Record::try_from(line).map_err(wrong)?;
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

/// A line of an export.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Export {
        format: u32,
    },
    Mark {
        id: U64Text,
    },
    Declaration {
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        name_hex: Option<String>,
        capacity: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        label: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        label_hex: Option<String>,
        numbered: bool,
        generation: U64Text,
        created: U64Text,
        origin: OriginLine,
        removing: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        evicted_grace_ms: Option<u32>,
        paused: bool,
        slots_out: Vec<u16>,
    },
    Session {
        session: u64,
        key_hex: String,
        ttl_ms: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        label: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        label_hex: Option<String>,
        revoked_grace_ms: Option<u32>,
    },
    Grant {
        grant: U64Text,
        session: u64,
        request: U64Text,
        since: u64,
        revoked_grace_ms: Option<u32>,
        parts: Vec<PartLine>,
    },
    Answer {
        session: u64,
        request: U64Text,
        answer: Vec<DeclaredStateLine>,
    },
    SysvSet(SetLine),
    SysvProcess(ProcessLine),
    SysvAdjustments(AdjustmentsLine),
    SysvResult(ResultLine),
    PlaceKey {
        key_hex: String,
    },
    End {
        records: u64,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OriginLine {
    Request,
    Configuration,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NamespaceLine {
    Counters,
    Semaphores,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PartLine {
    namespace: NamespaceLine,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
    place: u8,
    resources: u32,
    capacity: u32,
    slots: Vec<u16>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeclaredStateLine {
    generation: U64Text,
    capacity: u32,
    in_use: u32,
}

/// A 64-bit number as a string.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
struct U64Text(u64);

impl From<U64Text> for String {
    fn from(number: U64Text) -> Self {
        number.0.to_string()
    }
}

impl TryFrom<String> for U64Text {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| format!("\"{text}\" is not an unsigned 64-bit number"))
    }
}

impl From<&Record> for Line {
    fn from(record: &Record) -> Self {
        match record {
            Record::Mark(id) => Self::Mark { id: U64Text(*id) },
            Record::Declaration(declaration) => {
                let (name, name_hex) = to_text(&declaration.name);
                let (label, label_hex) = to_text(&declaration.label);
                Self::Declaration {
                    name,
                    name_hex,
                    capacity: declaration.capacity,
                    label,
                    label_hex,
                    numbered: declaration.numbered,
                    generation: U64Text(declaration.generation),
                    created: U64Text(declaration.created),
                    origin: match declaration.origin {
                        Origin::Request => OriginLine::Request,
                        Origin::Configuration => OriginLine::Configuration,
                    },
                    removing: declaration.removing,
                    evicted_grace_ms: declaration.evicted_grace_ms,
                    paused: declaration.service.paused,
                    slots_out: declaration.service.slots_out.to_vec(),
                }
            }
            Record::Session(session) => {
                let (label, label_hex) = to_text(&session.label);
                Self::Session {
                    session: session.session.number(),
                    key_hex: to_hex(&session.key.0),
                    ttl_ms: session.ttl_ms,
                    label,
                    label_hex,
                    revoked_grace_ms: session.revoked_grace_ms,
                }
            }
            Record::Grant(grant) => Self::Grant {
                grant: U64Text(grant.grant.0),
                session: grant.session.number(),
                request: U64Text(grant.request.0),
                since: grant.since.0,
                revoked_grace_ms: grant.revoked_grace_ms,
                parts: grant.parts.iter().map(PartLine::from).collect(),
            },
            Record::Answer(answer) => {
                let line = |state: &DeclaredState| DeclaredStateLine {
                    generation: U64Text(state.generation.0),
                    capacity: state.capacity,
                    in_use: state.in_use,
                };
                Self::Answer {
                    session: answer.session.number(),
                    request: U64Text(answer.request.0),
                    answer: answer.answer.iter().map(line).collect(),
                }
            }
            Record::Sysv(record) => Self::from(record),
            Record::PlaceKey(key) => Self::PlaceKey { key_hex: to_hex(&key.0) },
        }
    }
}

impl From<&PartRecord> for PartLine {
    fn from(part: &PartRecord) -> Self {
        let (name, name_hex) = to_text(&part.name);
        Self {
            namespace: match part.namespace {
                Namespace::Counters => NamespaceLine::Counters,
                Namespace::Semaphores => NamespaceLine::Semaphores,
            },
            name,
            name_hex,
            place: part.position,
            resources: part.resources,
            capacity: part.capacity,
            slots: part.slots.to_vec(),
        }
    }
}

impl TryFrom<Line> for Record {
    type Error = String;

    fn try_from(line: Line) -> Result<Self, String> {
        Ok(match line {
            Line::Mark { id } => Self::Mark(id.0),
            Line::Declaration {
                name,
                name_hex,
                capacity,
                label,
                label_hex,
                numbered,
                generation,
                created,
                origin,
                removing,
                evicted_grace_ms,
                paused,
                slots_out,
            } => Self::Declaration(DeclarationRecord {
                name: name_bytes(name, name_hex)?,
                capacity,
                label: to_bytes("label", label, label_hex)?,
                numbered,
                generation: generation.0,
                created: created.0,
                origin: match origin {
                    OriginLine::Request => Origin::Request,
                    OriginLine::Configuration => Origin::Configuration,
                },
                removing,
                evicted_grace_ms,
                service: Service { paused, slots_out: slots_out.into() },
            }),
            Line::Session { session, key_hex, ttl_ms, label, label_hex, revoked_grace_ms } => {
                Self::Session(SessionRecord {
                    session: session_id(session)?,
                    key: secret(&key_hex)?,
                    ttl_ms,
                    label: to_bytes("label", label, label_hex)?,
                    revoked_grace_ms,
                })
            }
            Line::Grant { grant, session, request, since, revoked_grace_ms, parts } => {
                Self::Grant(GrantRecord {
                    grant: GrantId(grant.0),
                    session: session_id(session)?,
                    request: RequestId(request.0),
                    since: UnixSeconds(since),
                    revoked_grace_ms,
                    parts: parts.into_iter().map(PartRecord::try_from).collect::<Result<_, _>>()?,
                })
            }
            Line::Answer { session, request, answer } => {
                let state = |line: DeclaredStateLine| DeclaredState {
                    generation: Generation(line.generation.0),
                    capacity: line.capacity,
                    in_use: line.in_use,
                };
                Self::Answer(AnswerRecord {
                    session: session_id(session)?,
                    request: RequestId(request.0),
                    answer: answer.into_iter().map(state).collect(),
                })
            }
            Line::SysvSet(line) => Self::Sysv(line.try_into()?),
            Line::SysvProcess(line) => Self::Sysv(line.try_into()?),
            Line::SysvAdjustments(line) => Self::Sysv(line.try_into()?),
            Line::SysvResult(line) => Self::Sysv(line.try_into()?),
            Line::PlaceKey { key_hex } => Self::PlaceKey(PlaceKey(secret(&key_hex)?.0)),
            Line::Export { .. } | Line::End { .. } => return Err("this line is not a record".to_owned()),
        })
    }
}

impl TryFrom<PartLine> for PartRecord {
    type Error = String;

    fn try_from(part: PartLine) -> Result<Self, String> {
        Ok(Self {
            namespace: match part.namespace {
                NamespaceLine::Counters => Namespace::Counters,
                NamespaceLine::Semaphores => Namespace::Semaphores,
            },
            name: name_bytes(part.name, part.name_hex)?,
            position: part.place,
            resources: part.resources,
            capacity: part.capacity,
            slots: part.slots.into(),
        })
    }
}

fn secret(digits: &str) -> Result<SessionKey, String> {
    let key = from_hex(digits).and_then(|key| key.try_into().ok());
    key.map(SessionKey).ok_or_else(|| "key_hex must have 32 hexadecimal digits".to_owned())
}

fn session_id(number: u64) -> Result<SessionId, String> {
    SessionId::from_number(number).ok_or_else(|| "the number of a session must not be 0".to_owned())
}

/// Bytes as printable text, or otherwise as hexadecimal digits.
fn to_text(bytes: &[u8]) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => (Some(text.to_owned()), None),
        _ => (None, Some(to_hex(bytes))),
    }
}

fn to_bytes(what: &str, text: Option<String>, hex: Option<String>) -> Result<Box<[u8]>, String> {
    match (text, hex) {
        (Some(text), None) => Ok(text.into_bytes().into()),
        (None, Some(hex)) => from_hex(&hex)
            .map(Into::into)
            .ok_or_else(|| format!("{what}_hex must consist of two hexadecimal digits per byte")),
        _ => Err(format!("the line must have either {what} or {what}_hex")),
    }
}

fn name_bytes(text: Option<String>, hex: Option<String>) -> Result<Box<[u8]>, String> {
    let name = to_bytes("name", text, hex)?;
    if (1..=usize::from(u16::MAX)).contains(&name.len()) {
        Ok(name)
    } else {
        Err("a name must have 1 to 65535 bytes".to_owned())
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut digits, byte| {
        write!(digits, "{byte:02x}").expect("writing to a string never fails");
        digits
    })
}
