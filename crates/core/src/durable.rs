//! Records: the facts that outlive the process. A store keeps them and returns them at the next start.
//!
//! The core lists changes in order; a store keeps the last record that was put under each key, until that key is deleted.
//! Everything else (what connections hold, waiters, watches) ends with the process.
//!
//! The feature `serde` gives records the form that they have in exports.

use crate::semaphore::SLOTS_MAX;
use crate::sysv::{SysvKey, SysvRecord};
use signalbox_model::UnixSeconds;
use signalbox_model::{DeclaredState, GrantId, Namespace, PlaceKey, RequestId, SessionId, SessionKey};

/// One change of the records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Stores a record, in place of the one under the same key.
    Put(Record),
    /// Deletes the record under a key, if there is one.
    Delete(Key),
}

impl Change {
    /// Returns the approximate size of the change in bytes.
    pub(super) fn size(&self) -> usize {
        /// The size of a change without its texts.
        const FIXED: usize = 64;
        let texts = match self {
            Self::Delete(Key::Declaration(name)) => name.len(),
            Self::Delete(_) => 0,
            Self::Put(Record::Declaration(of)) => {
                // Many slots are stored with one bit for each possible slot.
                of.name.len() + of.label.len() + (2 * of.service.slots_out.len()).min(SLOTS_MAX as usize / 8)
            }
            Self::Put(Record::Session(of)) => of.label.len(),
            Self::Put(Record::Grant(of)) => {
                of.parts.iter().map(|part| FIXED + part.name.len() + 2 * part.slots.len()).sum()
            }
            Self::Put(Record::Answer(of)) => of.answer.len() * size_of::<DeclaredState>(),
            Self::Put(Record::Sysv(of)) => of.size(),
            Self::Put(Record::Mark(_) | Record::PlaceKey(_)) => 0,
        };
        FIXED + texts
    }
}

/// The key of a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// The highest reserved id; there is one such record.
    Mark,
    /// A declared semaphore, by its name.
    Declaration(Box<[u8]>),
    /// A leased session.
    Session(SessionId),
    /// A grant of a leased session.
    Grant(GrantId),
    /// The answer to a request of a leased session, by its number.
    Answer(SessionId, RequestId),
    /// A fact about System V semaphore sets.
    Sysv(SysvKey),
    /// The key that proves places; there is one such record.
    PlaceKey,
}

/// One fact that outlives the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The highest id that a grant or a generation may have so far.
    Mark(u64),
    /// A declared semaphore.
    Declaration(DeclarationRecord),
    /// A leased session.
    Session(SessionRecord),
    /// A grant of a leased session.
    Grant(GrantRecord),
    /// The answer to a request of a leased session, so that a repeated request changes nothing.
    Answer(AnswerRecord),
    /// A fact about System V semaphore sets.
    Sysv(SysvRecord),
    /// The key with which places of waiting requests are proven.
    PlaceKey(PlaceKey),
}

/// A declared semaphore.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct DeclarationRecord {
    /// Its name.
    #[cfg_attr(feature = "serde", serde(flatten, with = "signalbox_model::json::name"))]
    pub name: Box<[u8]>,
    /// Its capacity.
    pub capacity: u32,
    /// Its label for people; may be empty.
    #[cfg_attr(feature = "serde", serde(flatten, with = "signalbox_model::json::label"))]
    pub label: Box<[u8]>,
    /// Whether its resources are numbered slots.
    pub numbered: bool,
    /// The number of its last change: its generation.
    #[cfg_attr(feature = "serde", serde(with = "signalbox_model::json::decimal"))]
    pub generation: u64,
    /// Grants with lower ids are of a semaphore of this name that was removed.
    #[cfg_attr(feature = "serde", serde(with = "signalbox_model::json::decimal"))]
    pub created: u64,
    /// Its origin.
    pub origin: Origin,
    /// Whether it is being removed: it grants nothing, and ends with its last holder.
    pub removing: bool,
    /// The grace period in milliseconds after which its holders lose it, if it is removed at once. If it was declared
    /// again since then, it applies only to grants with ids below `created`.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub evicted_grace_ms: Option<u32>,
    /// The pause and the slots that are out of service; neither while the semaphore is being removed.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub service: Service,
}

/// The temporary changes by an administrator: a pause, and slots that are out of service. They are not part of the
/// declaration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Service {
    /// Whether it is paused: it grants nothing, and its waiters keep their places.
    pub paused: bool,
    /// The slots that are not granted, in ascending order; none if the resources are not numbered. A slot may be above
    /// the capacity since a shrink: it is still out of service when the capacity covers it again.
    pub slots_out: Box<[u16]>,
}

/// The origin of a declaration, which decides who may change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Origin {
    /// A request.
    Request,
    /// The configuration.
    Configuration,
}

/// A leased session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct SessionRecord {
    /// Its number.
    pub session: SessionId,
    /// Its secret.
    #[cfg_attr(feature = "serde", serde(rename = "key_hex"))]
    pub key: SessionKey,
    /// Its time to live in milliseconds.
    pub ttl_ms: u32,
    /// Its label in listings.
    #[cfg_attr(feature = "serde", serde(flatten, with = "signalbox_model::json::label"))]
    pub label: Box<[u8]>,
    /// The rest of its grace period in milliseconds, if it was revoked.
    pub revoked_grace_ms: Option<u32>,
}

/// A grant of a leased session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct GrantRecord {
    /// The grant's id.
    pub grant: GrantId,
    /// The session that holds it.
    pub session: SessionId,
    /// The number of the request that asked for it.
    pub request: RequestId,
    /// When it was granted.
    pub since: UnixSeconds,
    /// The rest of its grace period in milliseconds, if it was revoked.
    pub revoked_grace_ms: Option<u32>,
    /// Its names, in the order in which they were taken.
    pub parts: Box<[PartRecord]>,
}

/// One name of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct PartRecord {
    /// The namespace of the name.
    pub namespace: Namespace,
    /// The name's bytes.
    #[cfg_attr(feature = "serde", serde(flatten, with = "signalbox_model::json::name"))]
    pub name: Box<[u8]>,
    /// The position in the request.
    #[cfg_attr(feature = "serde", serde(rename = "place"))]
    pub position: u8,
    /// The resources taken.
    pub resources: u32,
    /// The semaphore's capacity, or the maximum that the request stated for the counter.
    pub capacity: u32,
    /// Its slots, if the semaphore has numbered ones.
    pub slots: Box<[u16]>,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct AnswerRecord {
    /// The session of the request.
    pub session: SessionId,
    /// The request's number.
    pub request: RequestId,
    /// The states of the declared semaphores, in the order of the request.
    pub answer: Box<[DeclaredState]>,
}

impl Record {
    /// The key of the record.
    pub fn key(&self) -> Key {
        match self {
            Self::Mark(_) => Key::Mark,
            Self::Declaration(declaration) => Key::Declaration(declaration.name.clone()),
            Self::Session(session) => Key::Session(session.session),
            Self::Grant(grant) => Key::Grant(grant.grant),
            Self::Answer(answer) => Key::Answer(answer.session, answer.request),
            Self::Sysv(record) => Key::Sysv(record.key()),
            Self::PlaceKey(_) => Key::PlaceKey,
        }
    }
}
