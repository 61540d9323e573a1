//! One declared name after each step: its history, and what must hold from step to step.

use std::collections::{BTreeMap, BTreeSet};

use signalbox::core::{DeclarationRecord, Declared, Listed, ListingKind, Namespace};
use signalbox::server::Server;

use super::declared::State;
use crate::order::list;

/// How long after its grace period a grant may still be held, and how long a removal without holders may take: the
/// server stores the change first.
const LATE_MS_MAX: u64 = 500;

/// The usage of a name in one step, and in the steps after it until it changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub in_use: u32,
    /// What was in use during the whole step at least.
    pub least: u32,
    /// The slots that were held during the whole step.
    pub slots: BTreeSet<u16>,
    waiting: u32,
}

/// A removal that evicts the holders of a semaphore.
#[derive(Clone, Copy)]
pub struct Eviction {
    /// Grants with lower ids are evicted.
    pub below: u64,
    pub at_ms: u64,
    pub grace_ms: u64,
}

/// A grant: resources and slots.
pub type Held = (u32, Vec<u16>);

#[derive(Default)]
pub struct NameHistory {
    pub states: Vec<(u64, State)>,
    pub usages: Vec<(u64, Usage)>,
    pub held: BTreeMap<u64, Held>,
    waiting: BTreeSet<u64>,
    /// Since when all requested changes are stored, and so in force.
    stored_since_ms: Option<u64>,
    /// The states that were in force, and since when.
    pub in_force: Vec<(u64, usize)>,
    pub evictions: Vec<Eviction>,
    /// The times by which grants must have ended.
    due: BTreeMap<u64, u64>,
    life: u64,
}

impl NameHistory {
    pub fn state(&self) -> &State {
        self.states.last().map_or(&State::Down, |(_, state)| state)
    }

    pub fn greatest(&self) -> u64 {
        let generation = match self.state() {
            State::Declared(record) => record.generation,
            State::Down | State::Absent => 0,
        };
        let ids = self.held.keys().chain(&self.waiting).copied();
        ids.max().unwrap_or(0).max(generation)
    }

    pub fn note(&mut self, now_ms: u64, state: State, usage: Usage) {
        if self.states.last().is_none_or(|(_, before)| *before != state) {
            self.states.push((now_ms, state));
            self.stored_since_ms = None;
        }
        if self.usages.last().is_none_or(|(_, before)| *before != usage) {
            self.usages.push((now_ms, usage));
        }
    }

    /// Observes a step. Ids above `last` are of this step; `evicting` returns the grace period of a removal that may
    /// have begun and ended within it.
    pub fn observe(
        &mut self,
        server: &Server,
        name: &[u8],
        (now_ms, life): (u64, u64),
        last: u64,
        evicting: impl FnOnce() -> Option<u64>,
    ) -> Result<(), String> {
        let Declared { record, in_use, waiting } = match declared(server, name) {
            Some(declared) => declared,
            None => {
                if *self.state() != State::Absent
                    && let Some(grace_ms) = evicting()
                {
                    self.evictions.push(Eviction { below: u64::MAX, at_ms: now_ms, grace_ms });
                }
                (self.held, self.waiting, self.due) = Default::default();
                self.note(now_ms, State::Absent, Usage::default());
                self.in_force.push((now_ms, self.states.len() - 1));
                self.life = life;
                return Ok(());
            }
        };
        let all = |waiters| list(server, Namespace::Semaphores, name, waiters).into_iter();
        let entry = |listed: Listed| Some((listed.grant?.0, (listed.resources, listed.slots.into_vec())));
        let held: BTreeMap<u64, Held> = all(ListingKind::Holders).filter_map(entry).collect();
        let waits = all(ListingKind::Waiters).filter_map(|listed| Some(listed.grant?.0)).collect();
        let stayed = held.iter().filter(|(grant, _)| self.held.contains_key(grant));
        let (mut least, mut slots) = (0, BTreeSet::new());
        for (_, (resources, of_it)) in stayed {
            least += resources;
            slots.extend(of_it.iter().copied());
        }
        for eviction in self.evictions.iter_mut().filter(|eviction| eviction.below == u64::MAX) {
            eviction.below = record.generation;
        }
        let before = self.state().clone();
        self.note(now_ms, State::Declared(record.clone()), Usage { in_use, least, slots, waiting });
        let is_restarted = std::mem::replace(&mut self.life, life) != life;
        if self.stored_since_ms.is_some() && !is_restarted {
            check_new(
                &record,
                in_use,
                held.iter().filter(|(grant, _)| {
                    !self.held.contains_key(grant) && (self.waiting.contains(grant) || **grant > last)
                }),
            )?;
        }
        if is_restarted {
            self.due.clear();
        }
        self.evict(&before, &record, &held, now_ms, is_restarted);
        (self.held, self.waiting) = (held, waits);
        if self.stored_since_ms.is_none() && server.core().is_stored() {
            self.stored_since_ms = Some(now_ms);
            self.in_force.push((now_ms, self.states.len() - 1));
        }
        self.check_ends(&record, (in_use, waiting), now_ms)
    }

    /// Records a removal that evicts the holders.
    fn evict(
        &mut self,
        before: &State,
        record: &DeclarationRecord,
        held: &BTreeMap<u64, Held>,
        now_ms: u64,
        is_restarted: bool,
    ) {
        let Some(grace_ms) = record.evicted_grace_ms.map(u64::from) else { return };
        let is_known = match before {
            State::Declared(before) if before.evicted_grace_ms.is_some() => {
                before.generation == record.generation || !record.removing
            }
            _ => false,
        };
        if is_known && !is_restarted {
            return;
        }
        let below = if record.removing { record.generation } else { record.created };
        self.evictions.push(Eviction { below, at_ms: now_ms, grace_ms });
        for grant in self.held.keys().chain(held.keys()).filter(|grant| **grant < below) {
            let due_ms = self.due.entry(*grant).or_insert(u64::MAX);
            *due_ms = (now_ms + grace_ms + LATE_MS_MAX).min(*due_ms);
        }
    }

    /// Checks that everything due has ended.
    fn check_ends(
        &mut self,
        record: &DeclarationRecord,
        (in_use, waiting): (u32, u32),
        now_ms: u64,
    ) -> Result<(), String> {
        let held = &self.held;
        self.due.retain(|grant, _| held.contains_key(grant));
        if let Some((grant, due_ms)) = self.due.iter().find(|(_, due_ms)| **due_ms < now_ms) {
            return Err(format!("grant {grant} is held, of what was to be taken from it before {due_ms} ms"));
        }
        let is_long =
            self.stored_since_ms.is_some_and(|stored_since_ms| stored_since_ms + LATE_MS_MAX < now_ms);
        if record.removing && is_long && (waiting > 0 || in_use == 0) {
            return Err(format!(
                "{waiting} wait for a removed name, or it has no holders and still exists: {record:?}"
            ));
        }
        Ok(())
    }
}

/// Checks new grants: they respect the capacity, use no slot beyond it and none out of service, and are not of a name
/// that is paused or being removed.
fn check_new<'a>(
    record: &DeclarationRecord,
    in_use: u32,
    mut new: impl Iterator<Item = (&'a u64, &'a Held)>,
) -> Result<(), String> {
    let is_wrong = |(_, (_, slots)): &(&'a u64, &'a Held)| {
        let is_beyond = slots.iter().any(|slot| u32::from(*slot) >= record.capacity);
        let is_out = slots.iter().any(|slot| record.service.slots_out.contains(slot));
        record.removing || record.service.paused || in_use > record.capacity || is_beyond || is_out
    };
    match new.find(is_wrong) {
        Some((grant, held)) => {
            Err(format!("grant {grant} of {held:?} was given with {in_use} in use of {record:?}"))
        }
        None => Ok(()),
    }
}

fn declared(server: &Server, name: &[u8]) -> Option<Declared> {
    let mut listing = server.core().declared(name);
    server.core().list_declared(&mut listing).into_iter().find(|declared| *declared.record.name == *name)
}

/// The entries in force since then, the earliest first.
pub fn since<T>(all: &[(u64, T)], since_ms: u64) -> impl Iterator<Item = &T> {
    let later = all.partition_point(|(from_ms, _)| *from_ms <= since_ms);
    all[later.saturating_sub(1)..].iter().map(|(_, one)| one)
}
