//! The semaphores that administrators declare, as the server has them after each step and had them before: what must
//! hold of them from step to step, and what tells whether an answer was true.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use signalbox::core::{DeclarationRecord, Declared, Namespace};
use signalbox::server::Server;

use crate::changes::Changes;
use crate::order::list;
use crate::scene::Scene;

/// How long after its grace a grant may still be held, or a removal that nobody holds up may take: what is stored first
/// must have its turn.
const LATE_MS_MAX: u64 = 500;

/// What a name was from one step on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The server was down.
    Down,
    /// It was not declared.
    Absent,
    Declared(DeclarationRecord),
}

/// What was in use of a name in one step, and in those after it until something changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Usage {
    in_use: u32,
    /// What was in use in the whole of the step at least.
    least: u32,
    /// Slots that were held in the whole of the step.
    slots: BTreeSet<u16>,
    waiting: u32,
}

/// A removal that takes a semaphore from its holders.
#[derive(Clone, Copy)]
struct Eviction {
    /// Grants with lower ids lose it.
    below: u64,
    at_ms: u64,
    grace_ms: u64,
}

/// A grant: resources and slots.
type Held = (u32, Vec<u16>);

#[derive(Default)]
struct Name {
    states: Vec<(u64, State)>,
    usages: Vec<(u64, Usage)>,
    held: BTreeMap<u64, Held>,
    waiting: BTreeSet<u64>,
    /// Since when all that was asked for is stored, and so in force.
    settled_ms: Option<u64>,
    /// Which state was found to be in force, and when.
    in_force: Vec<(u64, usize)>,
    evictions: Vec<Eviction>,
    /// When grants have to be gone.
    due: BTreeMap<u64, u64>,
    life: u64,
}

/// All of them.
pub struct Registry {
    scene: Arc<Scene>,
    names: Mutex<BTreeMap<Vec<u8>, Name>>,
    /// The greatest number of a grant, a waiter or a generation so far.
    last: Mutex<u64>,
    pub changes: Changes,
}

impl Registry {
    pub fn new(scene: Arc<Scene>) -> Self {
        let names = scene.declared.iter().map(|name| (name.clone(), Name::default())).collect();
        let changes = Changes::new(Arc::clone(&scene));
        Self { scene, names: Mutex::new(names), last: Mutex::default(), changes }
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Name>> {
        self.names.lock().expect("nothing panics while it looks at names")
    }

    /// Looks at the server after a step.
    pub fn check(&self) -> Result<(), String> {
        let (now_ms, life, server) = {
            let state = self.scene.state();
            (state.now_ms, state.server_life, state.server.clone())
        };
        let (mut names, mut last) = (self.names(), self.last.lock().expect("as above"));
        let mut greatest = *last;
        for (name, of) in names.iter_mut() {
            let told = |what: String| format!("{what}: {}", name.escape_ascii());
            let before = of.state().clone();
            let evicting = || self.changes.evicting(name, now_ms);
            match &server {
                Some(server) => of.look(server, name, (now_ms, life), *last, evicting).map_err(told)?,
                None => of.note(now_ms, State::Down, Usage::default()),
            }
            greatest = of.greatest().max(greatest);
            self.changes.seen(name, &before, of.state()).map_err(told)?;
        }
        *last = greatest;
        Ok(())
    }

    /// What a name was since then, the earliest first.
    pub fn states(&self, name: &[u8], since_ms: u64) -> Vec<State> {
        let names = self.names();
        names.get(name).map(|of| since(&of.states, since_ms).cloned().collect()).unwrap_or_default()
    }

    /// What of a name was in force since then: one state is until the next is stored.
    fn in_force(&self, name: &[u8], since_ms: u64) -> Vec<State> {
        let names = self.names();
        let Some(of) = names.get(name) else { return Vec::new() };
        let before = of.in_force.iter().rfind(|(at_ms, _)| *at_ms <= since_ms);
        let first = before.map_or(0, |(_, state)| *state);
        of.states[first..].iter().map(|(_, state)| state.clone()).collect()
    }

    pub fn now(&self, name: &[u8]) -> State {
        self.names().get(name).map_or(State::Down, |of| of.state().clone())
    }

    /// Whether no more than this was in use at a moment since then.
    pub fn was_in_use(&self, name: &[u8], most: u32, since_ms: u64) -> bool {
        self.names().get(name).is_some_and(|of| since(&of.usages, since_ms).any(|usage| usage.least <= most))
    }

    /// Whether nobody had a slot at a moment since then.
    pub fn was_free(&self, name: &[u8], slot: u16, since_ms: u64) -> bool {
        let names = self.names();
        let of = names.get(name);
        of.is_some_and(|of| since(&of.usages, since_ms).any(|usage| !usage.slots.contains(&slot)))
    }

    /// Whether a name was held or waited for at the end of every step from one moment to another.
    pub fn was_above(&self, name: &[u8], level: u32, (from_ms, until_ms): (u64, u64)) -> bool {
        let names = self.names();
        let Some(of) = names.get(name) else { return true };
        let later = of.usages.iter().rposition(|(at_ms, _)| *at_ms < until_ms).map_or(0, |last| last + 1);
        since(&of.usages[..later], from_ms).all(|usage| usage.in_use > level)
    }

    /// Whether there may have been states since then that no step ended with: more than one change was under way.
    pub fn is_unclear(&self, name: &[u8], since_ms: u64) -> bool {
        self.changes.overlapping(name, since_ms) > 1
    }

    /// Whether a name was not declared at a moment since then.
    pub fn was_absent(&self, name: &[u8], since_ms: u64) -> bool {
        let states = self.states(name, since_ms);
        states.contains(&State::Absent) || was_made_anew(&states) || self.is_unclear(name, since_ms)
    }

    /// Whether a name was declared at a moment since then.
    pub fn was_declared(&self, name: &[u8], since_ms: u64) -> bool {
        let is_declared = |state: &State| matches!(state, State::Declared(record) if !record.removing);
        self.states(name, since_ms).iter().any(is_declared) || self.is_unclear(name, since_ms)
    }

    /// Whether a name was being removed at a moment since then.
    pub fn was_removed(&self, name: &[u8], since_ms: u64) -> bool {
        let states = self.in_force(name, since_ms);
        let is_removing = |state: &State| matches!(state, State::Declared(record) if record.removing);
        let is_gone = |pair: &[State]| matches!(pair, [State::Declared(_), State::Absent]);
        states.iter().any(is_removing)
            || states.windows(2).any(is_gone)
            || was_made_anew(&states)
            || self.is_unclear(name, since_ms)
    }

    /// Whether a name had a capacity that is as asked for at a moment since then.
    pub fn had_capacity(&self, name: &[u8], since_ms: u64, is_so: impl Fn(u32) -> bool) -> bool {
        let is_it = |state: &State| matches!(state, State::Declared(record) if is_so(record.capacity));
        self.in_force(name, since_ms).iter().any(is_it) || self.is_unclear(name, since_ms)
    }

    /// When a removal began that takes a grant of one of these names from its holder, and the grace.
    pub fn eviction<'a>(&self, grant: u64, of: impl IntoIterator<Item = &'a Vec<u8>>) -> Option<(u64, u64)> {
        let names = self.names();
        let evictions = of.into_iter().filter_map(|name| names.get(name)).flat_map(|of| &of.evictions);
        let own = evictions.filter(|eviction| grant < eviction.below);
        own.map(|eviction| (eviction.at_ms, eviction.grace_ms))
            .min_by_key(|(at_ms, grace_ms)| at_ms + grace_ms)
    }

    /// Whether a name was taken from its holders since then.
    pub fn was_evicted(&self, name: &[u8], since_ms: u64) -> bool {
        let is_late = |of: &Name| of.evictions.iter().any(|eviction| eviction.at_ms >= since_ms);
        self.names().get(name).is_some_and(is_late) || self.changes.evicting(name, since_ms).is_some()
    }

    /// Whether a grant is held of any of them, and whether it retires for what became of that.
    pub fn standing(&self, grant: u64) -> Option<bool> {
        let names = self.names();
        let parts = names.values().filter_map(|of| Some((of.state(), of.held.get(&grant)?)));
        let retires = parts.map(|(state, (_, slots))| match state {
            State::Declared(record) => {
                let is_cut_off = slots.iter().any(|slot| u32::from(*slot) >= record.capacity);
                record.removing || grant < record.created || is_cut_off
            }
            State::Down | State::Absent => false,
        });
        retires.reduce(|one, other| one || other)
    }
}

impl Name {
    fn state(&self) -> &State {
        self.states.last().map_or(&State::Down, |(_, state)| state)
    }

    fn greatest(&self) -> u64 {
        let generation = match self.state() {
            State::Declared(record) => record.generation,
            State::Down | State::Absent => 0,
        };
        let ids = self.held.keys().chain(&self.waiting).copied();
        ids.max().unwrap_or(0).max(generation)
    }

    fn note(&mut self, now_ms: u64, state: State, usage: Usage) {
        if self.states.last().is_none_or(|(_, before)| *before != state) {
            self.states.push((now_ms, state));
            self.settled_ms = None;
        }
        if self.usages.last().is_none_or(|(_, before)| *before != usage) {
            self.usages.push((now_ms, usage));
        }
    }

    /// What became of it in a step. Ids above `last` are of this step; `evicting` is the grace of a removal that may have
    /// begun and ended in it.
    fn look(
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
                if !self.held.is_empty()
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
        let entry = |listed: signalbox::core::Listed| {
            Some((listed.grant?.0, (listed.resources, listed.slots.into_vec())))
        };
        let held: BTreeMap<u64, Held> = all(false).filter_map(entry).collect();
        let waits = all(true).filter_map(|listed| Some(listed.grant?.0)).collect();
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
        if self.settled_ms.is_some() && !is_restarted {
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
        if self.settled_ms.is_none() && server.core().is_stored() {
            self.settled_ms = Some(now_ms);
            self.in_force.push((now_ms, self.states.len() - 1));
        }
        self.check_ends(&record, (in_use, waiting), now_ms)
    }

    /// Notes a removal that takes it from its holders.
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

    /// Whether what has to be gone is.
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
        let is_long = self.settled_ms.is_some_and(|settled_ms| settled_ms + LATE_MS_MAX < now_ms);
        if record.removing && is_long && (waiting > 0 || in_use == 0) {
            return Err(format!(
                "{waiting} wait for what is removed, or nobody and it is not gone: {record:?}"
            ));
        }
        Ok(())
    }
}

/// What is newly granted is there to be granted: not above the capacity, not of what is removed, no slot beyond.
fn check_new<'a>(
    record: &DeclarationRecord,
    in_use: u32,
    mut new: impl Iterator<Item = (&'a u64, &'a Held)>,
) -> Result<(), String> {
    let is_wrong = |(_, (_, slots)): &(&'a u64, &'a Held)| {
        let is_beyond = slots.iter().any(|slot| u32::from(*slot) >= record.capacity);
        record.removing || in_use > record.capacity || is_beyond
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

/// Whether a semaphore was removed and declared anew within a step.
fn was_made_anew(states: &[State]) -> bool {
    let is_other = |pair: &[State]| matches!(pair, [State::Declared(before), State::Declared(after)] if before.created != after.created);
    states.windows(2).any(is_other)
}

/// What was so since then, the earliest first.
fn since<T>(all: &[(u64, T)], since_ms: u64) -> impl Iterator<Item = &T> {
    let later = all.partition_point(|(from_ms, _)| *from_ms <= since_ms);
    all[later.saturating_sub(1)..].iter().map(|(_, one)| one)
}
