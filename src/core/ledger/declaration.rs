//! What is declared of semaphores, and what can be asked for of them.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

use super::{ObjectRef, Refusal};
use crate::core::durable::{DeclarationRecord, DeclaredState, Origin};
use crate::core::semaphore::Standing;

/// A semaphore that is to be declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declare<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// How many resources may be in use; of numbered ones up to [`SLOTS_MAX`](crate::core::SLOTS_MAX).
    pub capacity: u32,
    /// Whether its resources have numbers.
    pub numbered: bool,
    /// What people call it.
    pub label: &'a [u8],
}

/// What becomes of a Declare of a semaphore that is declared already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfExists {
    /// It is refused.
    Fail,
    /// The semaphore stays as it is.
    Keep,
    /// The semaphore becomes what the Declare says.
    Set,
}

/// How a capacity changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resizing {
    /// To so many.
    To(u32),
    /// By so many more.
    Grow(u32),
    /// By so many less, and to 0 where there are fewer.
    Shrink(u32),
}

/// When a semaphore that is held is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Not at all: the request is refused.
    IfIdle,
    /// When its last holder has left.
    WithLastHolder,
    /// When so many milliseconds are over, after which its holders lose it.
    Now {
        /// The grace.
        grace_ms: u32,
    },
}

/// A declared semaphore, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// What was declared.
    pub record: DeclarationRecord,
    /// Resources in use.
    pub in_use: u32,
    /// Requests that wait.
    pub waiting: u32,
}

/// What was declared of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Declaration {
    pub(super) label: Box<[u8]>,
    pub(super) generation: u64,
    pub(super) created: u64,
    pub(super) capacity: u32,
    pub(super) numbered: bool,
    pub(super) origin: Origin,
    pub(super) removing: bool,
    pub(super) evicted_grace_ms: Option<u32>,
}

/// What a semaphore was before it was declared as it is to be.
#[derive(Debug)]
pub(super) enum Before {
    /// Nobody had declared it. `None`: nobody used it either, so that the declaration is what made it.
    Undeclared {
        capacity: Option<u32>,
    },
    Declared(Box<Declaration>),
}

/// The declared semaphores, in the order of their names.
#[derive(Debug, Default)]
pub(super) struct Declarations(BTreeMap<ByName, Declaration>);

/// Found by the name's bytes.
#[derive(Debug)]
struct ByName(ObjectRef);

impl Declaration {
    pub(super) fn new(declare: &Declare<'_>, generation: u64, origin: Origin) -> Self {
        Self {
            label: declare.label.into(),
            generation,
            created: generation,
            capacity: declare.capacity,
            numbered: declare.numbered,
            origin,
            removing: false,
            evicted_grace_ms: None,
        }
    }

    /// What was declared before the process was started.
    pub(super) fn of(record: DeclarationRecord) -> Self {
        Self {
            label: record.label,
            generation: record.generation,
            created: record.created,
            capacity: record.capacity,
            numbered: record.numbered,
            origin: record.origin,
            removing: record.removing,
            evicted_grace_ms: record.evicted_grace_ms,
        }
    }

    pub(super) fn record(&self, name: &[u8]) -> DeclarationRecord {
        DeclarationRecord {
            name: name.into(),
            capacity: self.capacity,
            label: self.label.clone(),
            numbered: self.numbered,
            generation: self.generation,
            created: self.created,
            origin: self.origin,
            removing: self.removing,
            evicted_grace_ms: self.evicted_grace_ms,
        }
    }

    /// What its object is when all of this is done.
    pub(super) fn standing(&self) -> Standing {
        match (self.removing, self.numbered) {
            (true, _) => Standing::Removing,
            (false, true) => Standing::Numbered,
            (false, false) => Standing::Declared,
        }
    }

    /// What may be in use.
    pub(super) fn usable(&self) -> u32 {
        if self.removing { 0 } else { self.capacity }
    }

    pub(super) fn says(&self, declare: &Declare<'_>) -> bool {
        self.capacity == declare.capacity
            && self.numbered == declare.numbered
            && *self.label == *declare.label
    }

    pub(super) fn settled(&self, object: &ObjectRef) -> DeclaredState {
        DeclaredState { generation: self.generation, capacity: self.capacity, in_use: object.consumption() }
    }

    pub(super) fn check(&self, generation: Option<u64>) -> Result<(), Refusal> {
        // What the configuration declares no more is nobody's: it may be hastened away.
        if self.origin == Origin::Configuration && !self.removing {
            return Err(Refusal::NotPermitted);
        }
        if generation.is_some_and(|generation| generation != self.generation) {
            return Err(Refusal::GenerationDiffers);
        }
        Ok(())
    }
}

impl Declarations {
    pub(super) fn get(&self, name: &[u8]) -> Option<&Declaration> {
        self.0.get(name)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn entry(&self, name: &[u8]) -> Option<(&ObjectRef, &Declaration)> {
        self.0.get_key_value(name).map(|(key, declaration)| (&key.0, declaration))
    }

    pub(super) fn put(&mut self, object: &ObjectRef, declaration: Declaration) {
        self.0.insert(ByName(object.clone()), declaration);
    }

    pub(super) fn remove(&mut self, object: &ObjectRef) {
        self.0.remove(object.name());
    }

    /// Those whose names are from there on.
    pub(super) fn from(&self, from: Bound<&[u8]>) -> impl Iterator<Item = (&ObjectRef, &Declaration)> {
        let all = self.0.range::<[u8], _>((from, Bound::Unbounded));
        all.map(|(key, declaration)| (&key.0, declaration))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ObjectRef, &Declaration)> {
        self.0.iter().map(|(key, declaration)| (&key.0, declaration))
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ByName {}

impl PartialOrd for ByName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.name().cmp(other.0.name())
    }
}

impl Borrow<[u8]> for ByName {
    fn borrow(&self) -> &[u8] {
        self.0.name()
    }
}
