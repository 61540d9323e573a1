//! The encoding of records. It is a stable file format.
//!
//! A key starts with a byte for the kind of the record, so that one table has all records, and then has the fields that
//! identify the record. Ids in keys are big-endian, so that the order of the bytes is the order of the numbers, and a session
//! comes before its grants and answers. A value does not repeat its key: `values!` below has its fields, in their order.
//!
//! Numbers are big-endian and as wide as their types; ids and Unix times have 8 bytes, but ids of sets have 4. A list,
//! a label or the slots of a part begin with a length of 4 bytes; a name in a key takes the rest of the key. An
//! optional field begins with a byte that says whether it is present, and is 0 if it is not. `fields` has the layout of
//! everything else. Keys that start with 0 are metadata of the store.
//!
//! This is format [`FORMAT`]. A changed format needs a new number, because a program refuses data of a format that it
//! does not know. The nodes of a cluster write the format that the cluster agreed on, which may be the previous one, so
//! a program that writes a new format must read and write the previous one as well.

mod fields;

use std::ops::RangeInclusive;

use thiserror::Error;

use fields::{DecodeResult, Field};
use signalbox_core::{
    AdjustmentsRecord, AnswerRecord, DeclarationRecord, GrantRecord, Key, ProcessRecord, Record,
    ResultRecord, SemaphoreRecord, SessionRecord, SetRecord, SysvKey, SysvRecord,
};
use signalbox_model::sysv::{Ownership, ProcessId, SetId};
use signalbox_model::{DeclaredState, GrantId, RequestId, SessionId};

/// The format of the data that this program reads and writes: the table, its keys and the bytes of records.
pub const FORMAT: u32 = 1;

/// The kinds of records: the first bytes of keys.
pub const KINDS: RangeInclusive<u8> = MARK..=PLACE_KEY;

const MARK: u8 = 1;
const DECLARATION: u8 = 2;
const SESSION: u8 = 3;
const GRANT: u8 = 4;
const ANSWER: u8 = 5;
const SET: u8 = 6;
const PROCESS: u8 = 7;
const ADJUSTMENTS: u8 = 8;
const RESULT: u8 = 9;
const PLACE_KEY: u8 = 10;

/// A record whose value has the fields that its key does not have.
trait Value: Sized {
    type Key;

    fn put_value(&self, bytes: &mut Vec<u8>);

    fn take_value(key: Self::Key, bytes: &mut &[u8]) -> DecodeResult<Self>;
}

/// A value without a key is a field of another value.
impl<T: Value<Key = ()>> Field for T {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.put_value(bytes);
    }

    fn take(bytes: &mut &[u8]) -> DecodeResult<Self> {
        Self::take_value((), bytes)
    }
}

/// Defines the layout of values: for each record the fields of its key, and those of its value in their order.
macro_rules! values {
    ($($record:ident($($key:ident: $type:ty),*) { $($field:ident),* })*) => {$(
        impl Value for $record {
            type Key = ($($type,)*);

            fn put_value(&self, bytes: &mut Vec<u8>) {
                $(self.$field.put(bytes);)*
            }

            fn take_value(($($key,)*): Self::Key, bytes: &mut &[u8]) -> DecodeResult<Self> {
                // The order of the fields is that of the bytes.
                Ok(Self { $($key,)* $($field: Field::take(bytes)?),* })
            }
        }
    )*};
}

values! {
    DeclarationRecord(name: Box<[u8]>) {
        capacity, numbered, generation, created, origin, removing, evicted_grace_ms, label, service
    }
    SessionRecord(session: SessionId) { key, ttl_ms, revoked_grace_ms, label }
    GrantRecord(grant: GrantId) { session, request, since, revoked_grace_ms, parts }
    AnswerRecord(session: SessionId, request: RequestId) { answer }
    DeclaredState() { generation, capacity, in_use }
    SetRecord(set: SetId) {
        key, order, ownership, creator_uid, creator_gid, operated_at, changed_at, semaphores
    }
    Ownership() { uid, gid, mode }
    SemaphoreRecord() { value, pid, cleared }
    ProcessRecord(process: ProcessId) { key, ttl_ms, pid, uid, is_ending, groups, label }
    AdjustmentsRecord(process: ProcessId, set: SetId) { turn, clearances, adjustments }
    ResultRecord(process: ProcessId, request: RequestId) { answer }
}

/// The error of decoding a record.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the record of {key} {problem}")]
pub struct DecodeError {
    /// A description of the key.
    pub key: String,
    /// What is wrong with the record, as the end of a sentence.
    pub problem: &'static str,
}

/// Encodes a key.
pub fn encode_key(key: &Key) -> Vec<u8> {
    fn with(kind: u8, fields: impl Field) -> Vec<u8> {
        let mut bytes = vec![kind];
        fields.put(&mut bytes);
        bytes
    }
    match key {
        Key::Mark => vec![MARK],
        Key::Declaration(name) => [&[DECLARATION], &name[..]].concat(),
        Key::Session(session) => with(SESSION, *session),
        Key::Grant(grant) => with(GRANT, *grant),
        Key::Answer(session, request) => with(ANSWER, (*session, *request)),
        Key::Sysv(SysvKey::Set(set)) => with(SET, *set),
        Key::Sysv(SysvKey::Process(process)) => with(PROCESS, *process),
        Key::Sysv(SysvKey::Adjustments(process, set)) => with(ADJUSTMENTS, (*process, *set)),
        Key::Sysv(SysvKey::Result(process, request)) => with(RESULT, (*process, *request)),
        Key::PlaceKey => vec![PLACE_KEY],
    }
}

/// Encodes the value of a record. It does not include the key.
pub fn encode_value(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    match record {
        Record::Mark(id) => id.put(&mut bytes),
        Record::Declaration(record) => record.put_value(&mut bytes),
        Record::Session(record) => record.put_value(&mut bytes),
        Record::Grant(record) => record.put_value(&mut bytes),
        Record::Answer(record) => record.put_value(&mut bytes),
        Record::Sysv(SysvRecord::Set(record)) => record.put_value(&mut bytes),
        Record::Sysv(SysvRecord::Process(record)) => record.put_value(&mut bytes),
        Record::Sysv(SysvRecord::Adjustments(record)) => record.put_value(&mut bytes),
        Record::Sysv(SysvRecord::Result(record)) => record.put_value(&mut bytes),
        Record::PlaceKey(key) => key.put(&mut bytes),
    }
    bytes
}

/// Decodes a key.
pub fn decode_key(bytes: &[u8]) -> Result<Key, DecodeError> {
    let error = |problem| DecodeError { key: format!("the key {}", bytes.escape_ascii()), problem };
    let (kind, mut rest) = bytes.split_first().ok_or_else(|| error("has an unknown kind"))?;
    let fields = &mut rest;
    let key = match *kind {
        MARK => Ok(Key::Mark),
        DECLARATION if fields.is_empty() => Err("has an empty name"),
        DECLARATION => Ok(Key::Declaration(std::mem::take(fields).into())),
        SESSION => Field::take(fields).map(Key::Session),
        GRANT => Field::take(fields).map(Key::Grant),
        ANSWER => Field::take(fields).map(|(session, request)| Key::Answer(session, request)),
        SET => Field::take(fields).map(SysvKey::Set).map(Key::Sysv),
        PROCESS => Field::take(fields).map(SysvKey::Process).map(Key::Sysv),
        ADJUSTMENTS => {
            Field::take(fields).map(|(process, set)| Key::Sysv(SysvKey::Adjustments(process, set)))
        }
        RESULT => Field::take(fields).map(|(process, request)| Key::Sysv(SysvKey::Result(process, request))),
        PLACE_KEY => Ok(Key::PlaceKey),
        _ => Err("has an unknown kind"),
    };
    key.and_then(|key| end(rest).map(|()| key)).map_err(error)
}

/// Decodes a record. Extra bytes in the key or the value are an error.
pub fn decode(key: &[u8], mut value: &[u8]) -> Result<Record, DecodeError> {
    let key = decode_key(key)?;
    let error = |problem| DecodeError { key: describe(&key), problem };
    let bytes = &mut value;
    let record = match key.clone() {
        Key::Mark => Field::take(bytes).map(Record::Mark),
        Key::Declaration(name) => Value::take_value((name,), bytes).map(Record::Declaration),
        Key::Session(session) => Value::take_value((session,), bytes).map(Record::Session),
        Key::Grant(grant) => Value::take_value((grant,), bytes).map(Record::Grant),
        Key::Answer(session, request) => Value::take_value((session, request), bytes).map(Record::Answer),
        Key::Sysv(key) => {
            let record = match key {
                SysvKey::Set(set) => Value::take_value((set,), bytes).map(SysvRecord::Set),
                SysvKey::Process(process) => Value::take_value((process,), bytes).map(SysvRecord::Process),
                SysvKey::Adjustments(process, set) => {
                    Value::take_value((process, set), bytes).map(SysvRecord::Adjustments)
                }
                SysvKey::Result(process, request) => {
                    Value::take_value((process, request), bytes).map(SysvRecord::Result)
                }
            };
            record.map(Record::Sysv)
        }
        Key::PlaceKey => Field::take(bytes).map(Record::PlaceKey),
    };
    record.and_then(|record| end(value).map(|()| record)).map_err(error)
}

fn end(rest: &[u8]) -> DecodeResult<()> {
    if rest.is_empty() { Ok(()) } else { Err("has extra bytes at its end") }
}

/// Describes a key in messages.
pub(super) fn describe(key: &Key) -> String {
    match key {
        Key::Mark => "the highest reserved id".to_owned(),
        Key::Declaration(name) => format!("declared semaphore \"{}\"", name.escape_ascii()),
        Key::Session(session) => format!("session {session}"),
        Key::Grant(grant) => format!("grant {grant}"),
        Key::Answer(session, request) => format!("the answer to request {} of session {session}", request.0),
        Key::Sysv(SysvKey::Set(set)) => format!("semaphore set {set}"),
        Key::Sysv(SysvKey::Process(process)) => format!("process {process}"),
        Key::Sysv(SysvKey::Adjustments(process, set)) => {
            format!("the adjustments of semaphore set {set} by process {process}")
        }
        Key::Sysv(SysvKey::Result(process, request)) => {
            format!("the result of request {} of process {process}", request.0)
        }
        Key::PlaceKey => "the key of places".to_owned(),
    }
}
