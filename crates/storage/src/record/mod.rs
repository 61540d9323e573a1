//! The encoding of records. It is a stable file format.
//!
//! A key starts with a byte for the kind of the record, so that one table has all records. Ids in keys are big-endian,
//! so that the order of the bytes is the order of the numbers, and a session comes before its grants and answers. A
//! value has its numbers first, then lengths, then bytes; all numbers are big-endian. A value does not repeat its key.
//!
//! | key | value |
//! |---|---|
//! | 1 | id u64 |
//! | 2, name | capacity u32, numbered u8, generation u64, created u64, origin u8 (0 request, 1 configuration), removing
//! u8, whether evicted u8, grace u32, label length u32, label, paused u8, number of slots out of service u32, these slots
//! u16 each; above 4,096 of them a bit for each possible slot, the lowest one first, 8,192 bytes |
//! | 3, session u64 | key 16 bytes, time to live u32, whether revoked u8, grace u32, label length u32, label |
//! | 4, grant u64 | session u64, request u64, since u64, whether revoked u8, grace u32, number of parts u32, parts |
//! | 5, session u64, request u64 | number of answers u32, answers: generation u64, capacity u32, in use u32 |
//! | 6 to 9 | facts about System V semaphore sets: see `sysv` |
//! | 10 | key of places 16 bytes |
//!
//! A part is: namespace u8 (0 counters, 1 semaphores), position u8, resources u32, capacity u32, number of slots u32, name
//! length u32, slots u16 each, name. Keys that start with 0 are metadata of the store.
//!
//! This is format [`FORMAT`]. A next format needs a number of its own, because a program refuses data of a format that it
//! does not know. The nodes of a cluster write the format that the cluster agreed on, which may be the one before, so a
//! program that writes a new format must read and write the one before as well.

mod bytes;
mod sysv;

use std::ops::RangeInclusive;

use thiserror::Error;

use bytes::{DecodeResult, Reader, put_length, put_u32, put_u64};
use signalbox_core::{
    AnswerRecord, DeclarationRecord, GrantRecord, Key, Origin, PartRecord, Record, Service, SessionRecord,
};
use signalbox_model::UnixSeconds;
use signalbox_model::{
    DeclaredState, Generation, GrantId, Namespace, PlaceKey, RequestId, SessionId, SessionKey,
};

/// The format of the data that this program reads and writes: the table, its keys and the bytes of records.
pub const FORMAT: u32 = 1;

/// The kinds of records: the first bytes of keys.
pub const KINDS: RangeInclusive<u8> = MARK..=PLACE_KEY;

const MARK: u8 = 1;
const DECLARATION: u8 = 2;
const SESSION: u8 = 3;
const GRANT: u8 = 4;
const ANSWER: u8 = 5;
// `sysv` has the kinds between.
const PLACE_KEY: u8 = 10;

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
    let mut bytes = Vec::new();
    match key {
        Key::Mark => bytes.push(MARK),
        Key::Declaration(name) => {
            bytes.push(DECLARATION);
            bytes.extend_from_slice(name);
        }
        Key::Session(session) => {
            bytes.push(SESSION);
            put_u64(&mut bytes, session.number());
        }
        Key::Grant(grant) => {
            bytes.push(GRANT);
            put_u64(&mut bytes, grant.0);
        }
        Key::Answer(session, request) => {
            bytes.push(ANSWER);
            put_u64(&mut bytes, session.number());
            put_u64(&mut bytes, request.0);
        }
        Key::Sysv(key) => sysv::put_key(&mut bytes, *key),
        Key::PlaceKey => bytes.push(PLACE_KEY),
    }
    bytes
}

/// Encodes the value of a record. It does not include the key.
pub fn encode_value(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    match record {
        Record::Mark(id) => put_u64(&mut bytes, *id),
        Record::Declaration(declaration) => {
            put_u32(&mut bytes, declaration.capacity);
            bytes.push(declaration.numbered.into());
            put_u64(&mut bytes, declaration.generation);
            put_u64(&mut bytes, declaration.created);
            bytes.push(match declaration.origin {
                Origin::Request => 0,
                Origin::Configuration => 1,
            });
            bytes.push(declaration.removing.into());
            put_grace(&mut bytes, declaration.evicted_grace_ms);
            put_length(&mut bytes, declaration.label.len());
            bytes.extend_from_slice(&declaration.label);
            bytes.push(declaration.service.paused.into());
            put_slots_out(&mut bytes, &declaration.service.slots_out);
        }
        Record::Session(session) => {
            bytes.extend_from_slice(&session.key.0);
            put_u32(&mut bytes, session.ttl_ms);
            put_grace(&mut bytes, session.revoked_grace_ms);
            put_length(&mut bytes, session.label.len());
            bytes.extend_from_slice(&session.label);
        }
        Record::Grant(grant) => {
            put_u64(&mut bytes, grant.session.number());
            put_u64(&mut bytes, grant.request.0);
            put_u64(&mut bytes, grant.since.0);
            put_grace(&mut bytes, grant.revoked_grace_ms);
            put_length(&mut bytes, grant.parts.len());
            for part in &grant.parts {
                put_part(&mut bytes, part);
            }
        }
        Record::Answer(answer) => {
            put_length(&mut bytes, answer.answer.len());
            for state in &answer.answer {
                put_u64(&mut bytes, state.generation.0);
                put_u32(&mut bytes, state.capacity);
                put_u32(&mut bytes, state.in_use);
            }
        }
        Record::Sysv(record) => sysv::put_value(&mut bytes, record),
        Record::PlaceKey(key) => bytes.extend_from_slice(&key.0),
    }
    bytes
}

fn put_part(bytes: &mut Vec<u8>, part: &PartRecord) {
    bytes.push(match part.namespace {
        Namespace::Counters => 0,
        Namespace::Semaphores => 1,
    });
    bytes.push(part.position);
    put_u32(bytes, part.resources);
    put_u32(bytes, part.capacity);
    put_length(bytes, part.slots.len());
    put_length(bytes, part.name.len());
    put_slots(bytes, &part.slots);
    bytes.extend_from_slice(&part.name);
}

fn put_slots(bytes: &mut Vec<u8>, slots: &[u16]) {
    slots.iter().for_each(|slot| bytes.extend_from_slice(&slot.to_be_bytes()));
}

/// Above this number, slots out of service take less as a bit for each possible slot. So many of them can be stored together.
const LISTED_SLOTS_MAX: usize = 4_096;

const SLOT_BITS_BYTES: usize = (1 << 16) / 8;

fn put_slots_out(bytes: &mut Vec<u8>, slots: &[u16]) {
    put_length(bytes, slots.len());
    if slots.len() <= LISTED_SLOTS_MAX {
        return put_slots(bytes, slots);
    }
    let mut bits = [0; SLOT_BITS_BYTES];
    for slot in slots {
        bits[usize::from(slot / 8)] |= 1 << (slot % 8);
    }
    bytes.extend_from_slice(&bits);
}

fn put_grace(bytes: &mut Vec<u8>, grace_ms: Option<u32>) {
    bytes.push(grace_ms.is_some().into());
    put_u32(bytes, grace_ms.unwrap_or(0));
}

/// Decodes a key.
pub fn decode_key(bytes: &[u8]) -> Result<Key, DecodeError> {
    let error = |problem| DecodeError { key: format!("the key {}", bytes.escape_ascii()), problem };
    let mut reader = Reader(bytes);
    let key = match reader.u8() {
        Ok(MARK) => Ok(Key::Mark),
        Ok(DECLARATION) if reader.0.is_empty() => Err("has an empty name"),
        Ok(DECLARATION) => Ok(Key::Declaration(std::mem::take(&mut reader.0).into())),
        Ok(SESSION) => reader.session().map(Key::Session),
        Ok(GRANT) => reader.u64().map(|id| Key::Grant(GrantId(id))),
        Ok(ANSWER) => reader.session().and_then(|session| Ok(Key::Answer(session, RequestId(reader.u64()?)))),
        Ok(kind @ sysv::FIRST_KIND..=sysv::LAST_KIND) => reader.sysv_key(kind).map(Key::Sysv),
        Ok(PLACE_KEY) => Ok(Key::PlaceKey),
        _ => Err("has an unknown kind"),
    };
    let key = key.map_err(error)?;
    reader.end().map_err(error)?;
    Ok(key)
}

/// Decodes a record. Extra bytes in the key or the value are an error.
pub fn decode(key: &[u8], value: &[u8]) -> Result<Record, DecodeError> {
    let key = decode_key(key)?;
    let mut reader = Reader(value);
    let record = match &key {
        Key::Mark => reader.u64().map(Record::Mark),
        Key::Declaration(name) => reader.declaration(name.clone()).map(Record::Declaration),
        Key::Session(session) => reader.session_record(*session).map(Record::Session),
        Key::Grant(grant) => reader.grant(*grant).map(Record::Grant),
        Key::Answer(session, request) => reader.answer(*session, *request).map(Record::Answer),
        Key::Sysv(key) => reader.sysv_record(*key).map(Record::Sysv),
        Key::PlaceKey => reader.array().map(|key| Record::PlaceKey(PlaceKey(key))),
    };
    let record = record.and_then(|record| reader.end().map(|()| record));
    record.map_err(|problem| DecodeError { key: describe(&key), problem })
}

/// A description of a key for messages.
pub(super) fn describe(key: &Key) -> String {
    match key {
        Key::Mark => "the highest reserved id".to_owned(),
        Key::Declaration(name) => format!("declared semaphore \"{}\"", name.escape_ascii()),
        Key::Session(session) => format!("session {session}"),
        Key::Grant(grant) => format!("grant {grant}"),
        Key::Answer(session, request) => format!("the answer to request {} of session {session}", request.0),
        Key::Sysv(key) => sysv::describe(*key),
        Key::PlaceKey => "the key of places".to_owned(),
    }
}

impl Reader<'_> {
    fn declaration(&mut self, name: Box<[u8]>) -> DecodeResult<DeclarationRecord> {
        Ok(DeclarationRecord {
            name,
            capacity: self.u32()?,
            numbered: self.boolean()?,
            generation: self.u64()?,
            created: self.u64()?,
            origin: match self.u8()? {
                0 => Origin::Request,
                1 => Origin::Configuration,
                _ => return Err("has an unknown origin"),
            },
            removing: self.boolean()?,
            evicted_grace_ms: self.grace()?,
            label: self.length_prefixed()?,
            service: self.service()?,
        })
    }

    fn service(&mut self) -> DecodeResult<Service> {
        Ok(Service { paused: self.boolean()?, slots_out: self.slots_out()? })
    }

    fn slots_out(&mut self) -> DecodeResult<Box<[u16]>> {
        let count = self.u32()?;
        if count as usize <= LISTED_SLOTS_MAX {
            return self.slots(count);
        }
        let bits: [u8; SLOT_BITS_BYTES] = self.array()?;
        let is_out = |slot: &u16| bits[usize::from(slot / 8)] & 1 << (slot % 8) != 0;
        let slots: Box<[u16]> = (0..=u16::MAX).filter(is_out).collect();
        if slots.len() == count as usize {
            Ok(slots)
        } else {
            Err("has another number of slots out of service")
        }
    }

    fn session_record(&mut self, session: SessionId) -> DecodeResult<SessionRecord> {
        Ok(SessionRecord {
            session,
            key: SessionKey(self.array()?),
            ttl_ms: self.u32()?,
            revoked_grace_ms: self.grace()?,
            label: self.length_prefixed()?,
        })
    }

    fn grant(&mut self, grant: GrantId) -> DecodeResult<GrantRecord> {
        let session = self.session()?;
        let request = RequestId(self.u64()?);
        let since = UnixSeconds(self.u64()?);
        let revoked_grace_ms = self.grace()?;
        let parts = self.u32()?;
        let parts = (0..parts).map(|_| self.part()).collect::<DecodeResult<_>>()?;
        Ok(GrantRecord { grant, session, request, since, revoked_grace_ms, parts })
    }

    fn part(&mut self) -> DecodeResult<PartRecord> {
        let namespace = match self.u8()? {
            0 => Namespace::Counters,
            1 => Namespace::Semaphores,
            _ => return Err("has an unknown namespace"),
        };
        let position = self.u8()?;
        let resources = self.u32()?;
        let capacity = self.u32()?;
        let slots = self.u32()?;
        let name_length = self.u32()?;
        let slots = self.slots(slots)?;
        let name = self.take(name_length)?.into();
        Ok(PartRecord { namespace, name, position, resources, capacity, slots })
    }

    fn slots(&mut self, count: u32) -> DecodeResult<Box<[u16]>> {
        (0..count).map(|_| self.array().map(u16::from_be_bytes)).collect()
    }

    fn answer(&mut self, session: SessionId, request: RequestId) -> DecodeResult<AnswerRecord> {
        let count = self.u32()?;
        let state = |_| {
            Ok(DeclaredState {
                generation: Generation(self.u64()?),
                capacity: self.u32()?,
                in_use: self.u32()?,
            })
        };
        let answer = (0..count).map(state).collect::<DecodeResult<_>>()?;
        Ok(AnswerRecord { session, request, answer })
    }
}
