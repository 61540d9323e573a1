//! Records as bytes, the way a store keeps them for as long as anybody has the file.
//!
//! A key begins with a byte that says what it is of, so that everything lies in one table; ids in it are big-endian, so
//! that the order of bytes is the order of numbers. A session therefore comes before its grants and answers. A value has
//! its numbers first, then lengths, then bytes, all numbers big-endian; what stands in the key is not in the value.
//!
//! | key | value |
//! |---|---|
//! | 1 | id u64 |
//! | 2, name | capacity u32, numbered u8, generation u64, created u64, origin u8 (0 request, 1 configuration), removing u8, whether evicted u8, grace u32, label length u32, label |
//! | 3, session u64 | key 16 bytes, time to live u32, whether revoked u8, grace u32, label length u32, label |
//! | 4, grant u64 | session u64, request u64, since u64, whether revoked u8, grace u32, number of parts u32, parts |
//! | 5, session u64, request u64 | number of answers u32, answers: generation u64, capacity u32, in use u32 |
//!
//! A part is: namespace u8 (0 counters, 1 semaphores), place u8, resources u32, capacity u32, number of slots u32, name
//! length u32, slots u16 each, name. Keys that begin with 0 are the store's own.

use thiserror::Error;

use crate::core::{
    AnswerRecord, DeclarationRecord, DeclaredState, GrantId, GrantRecord, Key, Namespace, Origin, PartRecord,
    Record, RequestId, SessionId, SessionKey, SessionRecord, UnixSeconds,
};

const MARK: u8 = 1;
const DECLARATION: u8 = 2;
const SESSION: u8 = 3;
const GRANT: u8 = 4;
const ANSWER: u8 = 5;

/// Bytes of a store that are no record.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the record of {key} {problem}")]
pub struct DecodeError {
    /// What the bytes are kept under, in words.
    pub key: String,
    /// What is wrong with them, as the end of a sentence.
    pub problem: &'static str,
}

/// The bytes that a record is kept under.
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
    }
    bytes
}

/// The bytes that are kept of a record under its key.
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
            for settled in &answer.answer {
                put_u64(&mut bytes, settled.generation);
                put_u32(&mut bytes, settled.capacity);
                put_u32(&mut bytes, settled.in_use);
            }
        }
    }
    bytes
}

fn put_part(bytes: &mut Vec<u8>, part: &PartRecord) {
    bytes.push(match part.namespace {
        Namespace::Counters => 0,
        Namespace::Semaphores => 1,
    });
    bytes.push(part.place);
    put_u32(bytes, part.resources);
    put_u32(bytes, part.capacity);
    put_length(bytes, part.slots.len());
    put_length(bytes, part.name.len());
    for slot in &part.slots {
        bytes.extend_from_slice(&slot.to_be_bytes());
    }
    bytes.extend_from_slice(&part.name);
}

fn put_u32(bytes: &mut Vec<u8>, number: u32) {
    bytes.extend_from_slice(&number.to_be_bytes());
}

fn put_u64(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_be_bytes());
}

fn put_length(bytes: &mut Vec<u8>, length: usize) {
    put_u32(bytes, u32::try_from(length).expect("what came in a frame is shorter than four gigabytes"));
}

fn put_grace(bytes: &mut Vec<u8>, grace_ms: Option<u32>) {
    bytes.push(grace_ms.is_some().into());
    put_u32(bytes, grace_ms.unwrap_or(0));
}

/// The key that was kept as these bytes.
pub fn decode_key(bytes: &[u8]) -> Result<Key, DecodeError> {
    let unnamed = |problem| DecodeError { key: format!("the key {}", bytes.escape_ascii()), problem };
    let mut left = Bytes(bytes);
    let key = match left.u8() {
        Ok(MARK) => Ok(Key::Mark),
        Ok(DECLARATION) if left.0.is_empty() => Err("has a name without bytes"),
        Ok(DECLARATION) => Ok(Key::Declaration(std::mem::take(&mut left.0).into())),
        Ok(SESSION) => left.session().map(Key::Session),
        Ok(GRANT) => left.u64().map(|id| Key::Grant(GrantId(id))),
        Ok(ANSWER) => left.session().and_then(|session| Ok(Key::Answer(session, RequestId(left.u64()?)))),
        _ => Err("is of a kind that does not exist"),
    };
    let key = key.map_err(unnamed)?;
    left.end().map_err(unnamed)?;
    Ok(key)
}

/// The record that was kept as this value under this key. Every byte of both has to be accounted for.
pub fn decode(key: &[u8], value: &[u8]) -> Result<Record, DecodeError> {
    let key = decode_key(key)?;
    let mut left = Bytes(value);
    let record = match &key {
        Key::Mark => left.u64().map(Record::Mark),
        Key::Declaration(name) => left.declaration(name.clone()).map(Record::Declaration),
        Key::Session(session) => left.session_record(*session).map(Record::Session),
        Key::Grant(grant) => left.grant(*grant).map(Record::Grant),
        Key::Answer(session, request) => left.answer(*session, *request).map(Record::Answer),
    };
    let record = record.and_then(|record| left.end().map(|()| record));
    record.map_err(|problem| DecodeError { key: in_words(&key), problem })
}

/// What a key stands for, as people say it.
pub(super) fn in_words(key: &Key) -> String {
    match key {
        Key::Mark => "the mark of ids".to_owned(),
        Key::Declaration(name) => format!("the declared semaphore \"{}\"", name.escape_ascii()),
        Key::Session(session) => format!("session {session}"),
        Key::Grant(grant) => format!("grant {grant}"),
        Key::Answer(session, request) => format!("the answer to request {} of session {session}", request.0),
    }
}

/// Bytes that were not yet read.
struct Bytes<'a>(&'a [u8]);

type Read<T> = Result<T, &'static str>;

impl Bytes<'_> {
    fn declaration(&mut self, name: Box<[u8]>) -> Read<DeclarationRecord> {
        Ok(DeclarationRecord {
            name,
            capacity: self.u32()?,
            numbered: self.boolean()?,
            generation: self.u64()?,
            created: self.u64()?,
            origin: match self.u8()? {
                0 => Origin::Request,
                1 => Origin::Configuration,
                _ => return Err("has an origin that does not exist"),
            },
            removing: self.boolean()?,
            evicted_grace_ms: self.grace()?,
            label: self.lengthy()?,
        })
    }

    fn session_record(&mut self, session: SessionId) -> Read<SessionRecord> {
        Ok(SessionRecord {
            session,
            key: SessionKey(self.array()?),
            ttl_ms: self.u32()?,
            revoked_grace_ms: self.grace()?,
            label: self.lengthy()?,
        })
    }

    fn grant(&mut self, grant: GrantId) -> Read<GrantRecord> {
        let session = self.session()?;
        let request = RequestId(self.u64()?);
        let since = UnixSeconds(self.u64()?);
        let revoked_grace_ms = self.grace()?;
        let parts = self.u32()?;
        let parts = (0..parts).map(|_| self.part()).collect::<Read<_>>()?;
        Ok(GrantRecord { grant, session, request, since, revoked_grace_ms, parts })
    }

    fn part(&mut self) -> Read<PartRecord> {
        let namespace = match self.u8()? {
            0 => Namespace::Counters,
            1 => Namespace::Semaphores,
            _ => return Err("has a namespace that does not exist"),
        };
        let place = self.u8()?;
        let resources = self.u32()?;
        let capacity = self.u32()?;
        let slots = self.u32()?;
        let name_length = self.u32()?;
        let slots = (0..slots).map(|_| self.array().map(u16::from_be_bytes)).collect::<Read<_>>()?;
        let name = self.take(name_length)?.into();
        Ok(PartRecord { namespace, name, place, resources, capacity, slots })
    }

    fn answer(&mut self, session: SessionId, request: RequestId) -> Read<AnswerRecord> {
        let count = self.u32()?;
        let settled =
            |_| Ok(DeclaredState { generation: self.u64()?, capacity: self.u32()?, in_use: self.u32()? });
        let answer = (0..count).map(settled).collect::<Read<_>>()?;
        Ok(AnswerRecord { session, request, answer })
    }

    fn session(&mut self) -> Read<SessionId> {
        SessionId::from_number(self.u64()?).ok_or("names session 0, which no session is")
    }

    fn grace(&mut self) -> Read<Option<u32>> {
        let is_revoked = self.boolean()?;
        let grace_ms = self.u32()?;
        if !is_revoked && grace_ms > 0 {
            return Err("has the grace of a revocation that was not");
        }
        Ok(is_revoked.then_some(grace_ms))
    }

    fn lengthy(&mut self) -> Read<Box<[u8]>> {
        let length = self.u32()?;
        Ok(self.take(length)?.into())
    }

    fn boolean(&mut self) -> Read<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("has neither yes nor no where one of them belongs"),
        }
    }

    fn u8(&mut self) -> Read<u8> {
        self.array().map(u8::from_be_bytes)
    }

    fn u32(&mut self) -> Read<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Read<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk().ok_or(TOO_SHORT)?;
        self.0 = rest;
        Ok(*first)
    }

    fn take(&mut self, length: u32) -> Read<&[u8]> {
        let (first, rest) = self.0.split_at_checked(length as usize).ok_or(TOO_SHORT)?;
        self.0 = rest;
        Ok(first)
    }

    fn end(&self) -> Read<()> {
        if self.0.is_empty() { Ok(()) } else { Err("is longer than what it says") }
    }
}

const TOO_SHORT: &str = "ends before it is complete";
