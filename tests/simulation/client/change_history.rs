//! The history of one declared semaphore. Invariants: an acknowledged change is in force until a later one; each
//! observed change was requested, and no request is carried out twice; a generation has the same capacity, and the same
//! slots and pause, as long as it is the last, also after a restart.

use std::collections::{BTreeMap, BTreeSet};

use signalbox::client::{DeclaredState, IfExists, Resizing};
use signalbox::core::{DeclarationRecord, Service};

use super::changes::{Change, ChangeKind};
use super::declared::State;

/// An acknowledged change of a name.
#[derive(Clone, Copy)]
struct Acknowledged {
    generation: u64,
    capacity: u32,
    requested_ms: u64,
    at_ms: u64,
    /// Whether the acknowledgement always means a change, and not a state that existed before.
    is_change: bool,
}

/// The acknowledged and the observed changes of a name.
#[derive(Default)]
pub struct ChangeHistory {
    /// The last acknowledged change, unless a later change may have replaced it.
    last: Option<Acknowledged>,
    /// When the last acknowledged removal was requested, with the same condition.
    removed_ms: Option<u64>,
    acknowledged: Vec<Acknowledged>,
    /// Generations that requests expected, and the generations that resulted; 0: the name was removed.
    expected: BTreeMap<u64, u64>,
    /// The greatest generation that was observed.
    pub greatest: u64,
    /// The generations that were observed in this life of the server, with the changes that may have caused them.
    pub seen: BTreeMap<u64, BTreeSet<usize>>,
    /// The capacities of generations that were observed, and what was out of service.
    contents: BTreeMap<u64, (u32, Service)>,
    /// The acknowledged pauses and changes of slots, by their generation.
    services: BTreeMap<u64, Vec<ChangeKind>>,
}

impl ChangeHistory {
    /// The server was restarted; it has what was stored, or nothing.
    pub fn restart(&mut self, now: &State, keeps: bool) {
        let kept = match now {
            State::Declared(record) if keeps => record.generation,
            _ => 0,
        };
        self.seen.retain(|generation, _| *generation <= kept);
        if !keeps {
            self.forget();
        }
    }

    /// Acknowledged changes no longer exist.
    pub fn forget(&mut self) {
        (self.last, self.removed_ms) = (None, None);
    }

    /// A change is acknowledged.
    pub fn done(
        &mut self,
        (index, change): (usize, &Change),
        states: Option<&DeclaredState>,
        at_ms: u64,
    ) -> Result<(), String> {
        let Change { kind, expected, requested_ms, .. } = change;
        let generation = states.map_or(0, |states| states.generation.0);
        // Without a change, the generation stays the expected one.
        if let Some(expected) = expected
            && *expected != generation
            && let Some(other) = self.expected.insert(*expected, generation)
        {
            return Err(format!("two requests changed generation {expected}: to {other} and {generation}"));
        }
        let Some(states) = states else {
            self.removed_ms = self.removed_ms.max(Some(*requested_ms));
            return Ok(());
        };
        let is_change = kind.changes_always();
        let (capacity, requested_ms) = (states.capacity, *requested_ms);
        let change = Acknowledged { generation, capacity, requested_ms, at_ms, is_change };
        let is_after = |other: &Acknowledged| {
            other.at_ms <= requested_ms && other.generation > generation
                || other.generation == generation && is_change && other.is_change
                || other.generation == generation && other.capacity != change.capacity
        };
        if self.acknowledged.iter().any(is_after) {
            return Err(format!(
                "{kind:?} requested at {requested_ms} ms, is acknowledged with generation {generation}"
            ));
        }
        let is_wrong = match kind {
            ChangeKind::Declare { if_exists: IfExists::Keep, .. }
            | ChangeKind::Remove(_)
            | ChangeKind::Pause(_)
            | ChangeKind::SetSlot(_) => false,
            ChangeKind::Declare { capacity, .. } | ChangeKind::Resize(Resizing::To(capacity)) => {
                *capacity != change.capacity
            }
            ChangeKind::Resize(Resizing::GrowBy(by)) => change.capacity < *by,
            ChangeKind::Resize(Resizing::ShrinkBy(_)) => false,
        };
        if is_wrong {
            return Err(format!("{kind:?} resulted in {states:?}"));
        }
        self.acknowledged.push(change);
        if let ChangeKind::Pause(_) | ChangeKind::SetSlot(_) = kind {
            self.services.entry(generation).or_default().push(kind.clone());
        }
        let is_between = |(from, to): (&u64, &u64)| {
            let mut all = self.acknowledged.iter();
            all.any(|other| *from < other.generation && other.generation < *to)
        };
        if let Some((from, to)) = self.expected.iter().find(|pair| is_between(*pair)) {
            return Err(format!(
                "a request that expected generation {from} made generation {to}, but there was another generation between"
            ));
        }
        for (seen, causes) in &mut self.seen {
            if *seen != generation {
                causes.remove(&index);
            } else if is_change {
                *causes = BTreeSet::from([index]);
            }
        }
        if self.last.is_none_or(|last| last.generation < generation) {
            self.last = Some(change);
        }
        Ok(())
    }

    /// Compares the present generation with what was observed of it before, and with its acknowledgements.
    pub fn check_generation(&mut self, record: &DeclarationRecord) -> Result<(), String> {
        let content = (record.capacity, record.service.clone());
        let before = self.contents.entry(record.generation).or_insert_with(|| content.clone());
        if *before != content {
            return Err(format!("generation {} had {before:?}, and has {content:?} now", record.generation));
        }
        let services = self.services.get(&record.generation);
        match services.into_iter().flatten().find(|kind| !kind.is_in_force(&record.service)) {
            Some(kind) => Err(format!("{kind:?} is acknowledged, but the server has {record:?}")),
            None => Ok(()),
        }
    }

    /// Checks that each observed generation has a cause of its own.
    pub fn check_causes(&self, changes: &[Change]) -> Result<(), String> {
        let mut made = BTreeMap::new();
        for generation in self.seen.keys() {
            if !self.find_cause(*generation, &mut made, &mut BTreeSet::new()) {
                let causes = self.seen[generation].iter().map(|index| &changes[*index]);
                let causes: Vec<_> = causes.collect();
                return Err(format!(
                    "generation {generation} has no cause; each of {causes:?} caused another one"
                ));
            }
        }
        Ok(())
    }

    /// Finds a cause that has no other generation, with Kuhn's algorithm for bipartite matching.
    fn find_cause(
        &self,
        generation: u64,
        made: &mut BTreeMap<usize, u64>,
        tried: &mut BTreeSet<usize>,
    ) -> bool {
        for cause in &self.seen[&generation] {
            if !tried.insert(*cause) {
                continue;
            }
            let other = made.get(cause).copied();
            if other.is_none_or(|other| self.find_cause(other, made, tried)) {
                made.insert(*cause, generation);
                return true;
            }
        }
        false
    }

    /// Compares the state of a name with what is acknowledged. `may_be` returns whether such a change may have been
    /// made since a moment.
    pub fn check(
        &mut self,
        now: &State,
        may_be: impl Fn(u64, fn(&ChangeKind) -> bool) -> bool,
    ) -> Result<(), String> {
        match (now, self.last) {
            (State::Declared(record), Some(last)) => {
                let is_it = record.generation == last.generation;
                let is_right = record.capacity == last.capacity && !record.removing;
                if record.generation < last.generation || is_it && !is_right {
                    return Err(format!(
                        "generation {} with capacity {} is acknowledged, but the server has {record:?}",
                        last.generation, last.capacity
                    ));
                }
            }
            (State::Absent, Some(last)) => {
                if !may_be(last.requested_ms, |kind| matches!(kind, ChangeKind::Remove(_))) {
                    return Err(format!(
                        "generation {} is acknowledged, but does not exist",
                        last.generation
                    ));
                }
                self.last = None;
            }
            _ => {}
        }
        if let (State::Declared(DeclarationRecord { removing: false, .. }), Some(removed_ms)) =
            (now, self.removed_ms)
        {
            if !may_be(removed_ms, |kind| matches!(kind, ChangeKind::Declare { .. })) {
                return Err(format!(
                    "the removal requested at {removed_ms} ms is acknowledged, but it exists"
                ));
            }
            self.removed_ms = None;
        }
        Ok(())
    }
}
