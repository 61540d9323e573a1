//! The semaphores that administrators declare, and their states over time, which determine whether an answer is
//! possible.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use signalbox::core::DeclarationRecord;

use super::changes::Changes;
use super::name_history::{NameHistory, Usage, since};
use crate::scene::Scene;

/// The state of a name from one step on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The server was down.
    Down,
    /// It was not declared.
    Absent,
    Declared(DeclarationRecord),
}

/// All declared names.
pub struct Registry {
    scene: Arc<Scene>,
    names: Mutex<BTreeMap<Vec<u8>, NameHistory>>,
    /// The greatest id of a grant or waiter and the greatest generation so far.
    last: Mutex<u64>,
    pub changes: Changes,
}

impl Registry {
    pub fn new(scene: Arc<Scene>) -> Self {
        let names = scene.declared.iter().map(|name| (name.clone(), NameHistory::default())).collect();
        let changes = Changes::new(Arc::clone(&scene));
        Self { scene, names: Mutex::new(names), last: Mutex::default(), changes }
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, NameHistory>> {
        self.names.lock().expect("nothing panics while it looks at names")
    }

    /// Observes the server after a step.
    pub fn check(&self) -> Result<(), String> {
        let (now_ms, life, server) = {
            let state = self.scene.state();
            (state.now_ms, state.server_life, state.server.clone())
        };
        let (mut names, mut last) = (self.names(), self.last.lock().expect("as above"));
        let mut greatest = *last;
        for (name, of) in names.iter_mut() {
            let with_name = |what: String| format!("{what}: {}", name.escape_ascii());
            let before = of.state().clone();
            let evicting = || self.changes.evicting(name, now_ms);
            match &server {
                Some(server) => {
                    of.observe(server, name, (now_ms, life), *last, evicting).map_err(with_name)?
                }
                None => of.note(now_ms, State::Down, Usage::default()),
            }
            greatest = of.greatest().max(greatest);
            self.changes.observe(name, &before, of.state()).map_err(with_name)?;
        }
        *last = greatest;
        Ok(())
    }

    /// The states of a name since then, the earliest first.
    pub fn states(&self, name: &[u8], since_ms: u64) -> Vec<State> {
        let names = self.names();
        names.get(name).map(|of| since(&of.states, since_ms).cloned().collect()).unwrap_or_default()
    }

    /// The states of a name that were in force since then: a state is in force until the next one is stored.
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

    /// Whether at most this many resources were in use at some moment since then.
    pub fn was_in_use(&self, name: &[u8], most: u32, since_ms: u64) -> bool {
        self.names().get(name).is_some_and(|of| since(&of.usages, since_ms).any(|usage| usage.least <= most))
    }

    /// Whether a slot was free at some moment since then.
    pub fn was_free(&self, name: &[u8], slot: u16, since_ms: u64) -> bool {
        let names = self.names();
        let of = names.get(name);
        of.is_some_and(|of| since(&of.usages, since_ms).any(|usage| !usage.slots.contains(&slot)))
    }

    /// Whether more than this level was in use at the end of every step between two moments.
    pub fn was_above(&self, name: &[u8], level: u32, (from_ms, until_ms): (u64, u64)) -> bool {
        let names = self.names();
        let Some(of) = names.get(name) else { return true };
        let later = of.usages.iter().rposition(|(at_ms, _)| *at_ms < until_ms).map_or(0, |last| last + 1);
        since(&of.usages[..later], from_ms).all(|usage| usage.in_use > level)
    }

    /// Whether there may have been further states since then, because more than one change was pending.
    pub fn is_unclear(&self, name: &[u8], since_ms: u64) -> bool {
        self.changes.overlapping(name, since_ms) > 1
    }

    /// Whether a name was undeclared at some moment since then.
    pub fn was_absent(&self, name: &[u8], since_ms: u64) -> bool {
        let states = self.states(name, since_ms);
        states.contains(&State::Absent) || was_declared_again(&states) || self.is_unclear(name, since_ms)
    }

    /// Whether a name was declared at some moment since then.
    pub fn was_declared(&self, name: &[u8], since_ms: u64) -> bool {
        let is_declared = |state: &State| matches!(state, State::Declared(record) if !record.removing);
        self.states(name, since_ms).iter().any(is_declared) || self.is_unclear(name, since_ms)
    }

    /// Whether a name was being removed at some moment since then.
    pub fn was_removed(&self, name: &[u8], since_ms: u64) -> bool {
        let states = self.in_force(name, since_ms);
        let is_removing = |state: &State| matches!(state, State::Declared(record) if record.removing);
        let is_gone = |pair: &[State]| matches!(pair, [State::Declared(_), State::Absent]);
        states.iter().any(is_removing)
            || states.windows(2).any(is_gone)
            || was_declared_again(&states)
            || self.is_unclear(name, since_ms)
    }

    /// Whether a name had such a capacity at some moment since then.
    pub fn had_capacity(&self, name: &[u8], since_ms: u64, is_so: impl Fn(u32) -> bool) -> bool {
        let is_it = |state: &State| matches!(state, State::Declared(record) if is_so(record.capacity));
        self.in_force(name, since_ms).iter().any(is_it) || self.is_unclear(name, since_ms)
    }

    /// Whether a name had no such slot at some moment since then.
    pub fn lacked_slot(&self, name: &[u8], slot: u16, since_ms: u64) -> bool {
        let lacks_it = |state: &State| matches!(state, State::Declared(record) if !record.numbered || record.capacity <= slot.into());
        self.in_force(name, since_ms).iter().any(lacks_it) || self.is_unclear(name, since_ms)
    }

    /// When a removal began that evicts the holder of a grant of one of these names, and the grace period.
    pub fn eviction<'a>(&self, grant: u64, of: impl IntoIterator<Item = &'a Vec<u8>>) -> Option<(u64, u64)> {
        let names = self.names();
        let evictions = of.into_iter().filter_map(|name| names.get(name)).flat_map(|of| &of.evictions);
        let own = evictions.filter(|eviction| grant < eviction.below);
        own.map(|eviction| (eviction.at_ms, eviction.grace_ms))
            .min_by_key(|(at_ms, grace_ms)| at_ms + grace_ms)
    }

    /// Whether the holders of a name were evicted since then.
    pub fn was_evicted(&self, name: &[u8], since_ms: u64) -> bool {
        let is_late = |of: &NameHistory| of.evictions.iter().any(|eviction| eviction.at_ms >= since_ms);
        self.names().get(name).is_some_and(is_late) || self.changes.evicting(name, since_ms).is_some()
    }

    /// `None` if the grant is held of no declared name; else whether it is retiring because of a change.
    pub fn is_retiring(&self, grant: u64) -> Option<bool> {
        let names = self.names();
        let parts = names.values().filter_map(|of| Some((of.state(), of.held.get(&grant)?)));
        let retires = parts.map(|(state, (_, slots))| match state {
            State::Declared(record) => {
                let is_cut_off = slots.iter().any(|slot| {
                    u32::from(*slot) >= record.capacity || record.service.slots_out.contains(slot)
                });
                record.removing || grant < record.created || is_cut_off
            }
            State::Down | State::Absent => false,
        });
        retires.reduce(|one, other| one || other)
    }
}

/// Whether a semaphore was removed and declared again within a step.
fn was_declared_again(states: &[State]) -> bool {
    // A name that is declared after its removal counts as never removed.
    let is_other = |before: &DeclarationRecord, after: &DeclarationRecord| {
        before.created != after.created || before.removing && !after.removing
    };
    states.windows(2).any(|pair| match pair {
        [State::Declared(before), State::Declared(after)] => is_other(before, after),
        _ => false,
    })
}
