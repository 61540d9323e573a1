//! What outlives the process: the facts that a store is to keep, and gives back at the next start.
//!
//! The core says what changes, in order; a store keeps the last record put under each key. What is not here (what
//! connections hold, who waits, who watches) ends with the process.

use super::ledger::{GrantId, SessionKey};
use super::{Namespace, SessionId, UnixSeconds};

/// One step from what was kept to what is to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Keeps a record, in place of the one under the same key.
    Put(Record),
    /// Forgets the record under a key, if there is one.
    Delete(Key),
}

/// What a record is found by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// The mark of ids; there is one.
    Mark,
    /// A declared semaphore, by its name.
    Declaration(Box<[u8]>),
    /// A leased session.
    Session(SessionId),
    /// A grant of a leased session.
    Grant(GrantId),
    /// The answer to a request of a leased session, by its number.
    Answer(SessionId, u64),
}

/// One durable fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// No id above this one was given to a grant or a generation.
    Mark(u64),
    /// A semaphore that somebody declared.
    Declaration(DeclarationRecord),
    /// A leased session.
    Session(SessionRecord),
    /// What a leased session holds.
    Grant(GrantRecord),
    /// What came of a change that a leased session asked for, so that a repeated request makes none.
    Answer(AnswerRecord),
}

/// A declared semaphore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclarationRecord {
    /// Its name.
    pub name: Box<[u8]>,
    /// How many resources may be in use.
    pub capacity: u32,
    /// What people call it; may be empty.
    pub label: Box<[u8]>,
    /// Whether its resources are numbered slots.
    pub numbered: bool,
    /// The number of its last change.
    pub generation: u64,
    /// Grants with lower ids are of a semaphore of this name that was removed.
    pub created: u64,
    /// Whose it is.
    pub origin: Origin,
    /// Whether it goes with its last holder, and grants nothing until then.
    pub removing: bool,
    /// The grace in milliseconds after which its holders lose it, where it is removed at once; where it is declared anew
    /// since, those whose grants have ids below `created`.
    pub evicted_grace_ms: Option<u32>,
}

/// Who declared a semaphore, and so may change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A request.
    Request,
    /// The configuration.
    Configuration,
}

/// A leased session.
#[derive(Clone, Debug)]
pub struct SessionRecord {
    /// Its number.
    pub session: SessionId,
    /// Its secret.
    pub key: SessionKey,
    /// Its time to live in milliseconds.
    pub ttl_ms: u32,
    /// What listings call it.
    pub label: Box<[u8]>,
    /// The grace of its revocation in milliseconds, where it was revoked.
    pub revoked_grace_ms: Option<u32>,
}

/// What a leased session holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantRecord {
    /// The grant's id.
    pub grant: GrantId,
    /// Whose it is.
    pub session: SessionId,
    /// The number of the request that asked for it.
    pub request: u64,
    /// Since when it is held.
    pub since: UnixSeconds,
    /// The grace of its revocation in milliseconds, where it was revoked.
    pub revoked_grace_ms: Option<u32>,
    /// The names that it is of, in the order in which they were taken.
    pub parts: Box<[PartRecord]>,
}

/// One name of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartRecord {
    /// The kind of the name.
    pub namespace: Namespace,
    /// The name's bytes.
    pub name: Box<[u8]>,
    /// The place in the request.
    pub place: u8,
    /// How much of it.
    pub resources: u32,
    /// What it was taken from: the semaphore's capacity, or the counter's maximum of the request.
    pub capacity: u32,
    /// The numbers of its slots, where the semaphore has numbered ones.
    pub slots: Box<[u16]>,
}

/// What came of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerRecord {
    /// Whose request it was.
    pub session: SessionId,
    /// The request's number.
    pub request: u64,
    /// What was answered.
    pub answer: Box<[DeclaredState]>,
}

/// What a declared semaphore came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeclaredState {
    /// The number of the change.
    pub generation: u64,
    /// The capacity since.
    pub capacity: u32,
    /// Resources that were in use then.
    pub in_use: u32,
}

impl Record {
    /// What the record is found by.
    pub fn key(&self) -> Key {
        match self {
            Self::Mark(_) => Key::Mark,
            Self::Declaration(declaration) => Key::Declaration(declaration.name.clone()),
            Self::Session(session) => Key::Session(session.session),
            Self::Grant(grant) => Key::Grant(grant.grant),
            Self::Answer(answer) => Key::Answer(answer.session, answer.request),
        }
    }
}

/// Keys are compared here as any other field: a test's, or a store's that is checked. Whoever is asked for a key compares
/// it by [`SessionKey`]'s own means.
impl PartialEq for SessionRecord {
    fn eq(&self, other: &Self) -> bool {
        (self.session, self.key.0, self.ttl_ms, &self.label, self.revoked_grace_ms)
            == (other.session, other.key.0, other.ttl_ms, &other.label, other.revoked_grace_ms)
    }
}

impl Eq for SessionRecord {}
