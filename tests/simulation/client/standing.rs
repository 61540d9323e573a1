//! What is known of one declared semaphore: an acknowledged change is in force until another one comes after it, each
//! change that is seen is somebody's, and nobody's is made twice.

use std::collections::{BTreeMap, BTreeSet};

use signalbox::client::{DeclaredState, IfExists, Resizing};
use signalbox::core::DeclarationRecord;

use super::changes::{Change, Wish};
use super::declared::State;

/// What is acknowledged of a name.
#[derive(Clone, Copy)]
struct Acknowledged {
    generation: u64,
    capacity: u32,
    asked_ms: u64,
    at_ms: u64,
    /// Whether it was a change in any case, and not what was so already.
    is_change: bool,
}

/// What is known of a name, from what is seen of it and what is acknowledged.
#[derive(Default)]
pub struct Standing {
    /// The last change that is acknowledged, while it is not known to be overtaken.
    last: Option<Acknowledged>,
    /// When the last removal was asked for that is acknowledged, while as above.
    removed_ms: Option<u64>,
    acknowledged: Vec<Acknowledged>,
    /// Generations that were expected, and what they became; 0: they were removed.
    expected: BTreeMap<u64, u64>,
    /// The greatest generation that was ever seen.
    pub greatest: u64,
    /// Generations that were seen in this life of the server, and whose they may be.
    pub seen: BTreeMap<u64, BTreeSet<usize>>,
}

impl Standing {
    /// The server is another one; it keeps what was stored, or nothing.
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

    /// What was acknowledged is no more.
    pub fn forget(&mut self) {
        (self.last, self.removed_ms) = (None, None);
    }

    /// A change is acknowledged.
    pub fn done(
        &mut self,
        (index, change): (usize, &Change),
        settled: Option<&DeclaredState>,
        at_ms: u64,
    ) -> Result<(), String> {
        let Change { wish, expected, asked_ms, .. } = change;
        let generation = settled.map_or(0, |settled| settled.generation.0);
        if let Some(expected) = expected
            && let Some(other) = self.expected.insert(*expected, generation)
        {
            return Err(format!("two changed generation {expected}: to {other} and {generation}"));
        }
        let Some(settled) = settled else {
            self.removed_ms = self.removed_ms.max(Some(*asked_ms));
            return Ok(());
        };
        let is_change = wish.changes_always();
        let (capacity, asked_ms) = (settled.capacity, *asked_ms);
        let told = Acknowledged { generation, capacity, asked_ms, at_ms, is_change };
        let is_after = |other: &Acknowledged| {
            other.at_ms <= asked_ms && other.generation > generation
                || other.generation == generation && is_change && other.is_change
                || other.generation == generation && other.capacity != told.capacity
        };
        if self.acknowledged.iter().any(is_after) {
            return Err(format!("{wish:?} asked at {asked_ms} ms is told of generation {generation}"));
        }
        let is_wrong = match wish {
            Wish::Declare { if_exists: IfExists::Keep, .. } | Wish::Remove(_) => false,
            Wish::Declare { capacity, .. } | Wish::Resize(Resizing::To(capacity)) => {
                *capacity != told.capacity
            }
            Wish::Resize(Resizing::GrowBy(by)) => told.capacity < *by,
            Wish::Resize(Resizing::ShrinkBy(_)) => false,
        };
        if is_wrong {
            return Err(format!("{wish:?} came to {settled:?}"));
        }
        self.acknowledged.push(told);
        let is_between = |(from, to): (&u64, &u64)| {
            let mut all = self.acknowledged.iter();
            all.any(|other| *from < other.generation && other.generation < *to)
        };
        if let Some((from, to)) = self.expected.iter().find(|pair| is_between(*pair)) {
            return Err(format!(
                "one who expected generation {from} made {to} of it, and another was between"
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
            self.last = Some(told);
        }
        Ok(())
    }

    /// Whether each generation that was seen has a cause of its own.
    pub fn check_causes(&self, changes: &[Change]) -> Result<(), String> {
        let mut made = BTreeMap::new();
        for generation in self.seen.keys() {
            if !self.find_cause(*generation, &mut made, &mut BTreeSet::new()) {
                let causes = self.seen[generation].iter().map(|index| &changes[*index]);
                let causes: Vec<_> = causes.collect();
                return Err(format!("generation {generation} is nobody's; of {causes:?}, each made another"));
            }
        }
        Ok(())
    }

    /// Finds a cause that made no other, by Kuhn's way through those that may have made several.
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

    /// Compares what a name is with what is acknowledged. `may_be` tells whether a change of a kind may have been made
    /// since a moment.
    pub fn check(
        &mut self,
        now: &State,
        may_be: impl Fn(u64, fn(&Wish) -> bool) -> bool,
    ) -> Result<(), String> {
        match (now, self.last) {
            (State::Declared(record), Some(last)) => {
                let is_it = record.generation == last.generation;
                let is_right = record.capacity == last.capacity && !record.removing;
                if record.generation < last.generation || is_it && !is_right {
                    return Err(format!(
                        "generation {} with capacity {} is acknowledged, and there is {record:?}",
                        last.generation, last.capacity
                    ));
                }
            }
            (State::Absent, Some(last)) => {
                if !may_be(last.asked_ms, |wish| matches!(wish, Wish::Remove(_))) {
                    return Err(format!("generation {} is acknowledged and gone", last.generation));
                }
                self.last = None;
            }
            _ => {}
        }
        if let (State::Declared(DeclarationRecord { removing: false, .. }), Some(removed_ms)) =
            (now, self.removed_ms)
        {
            if !may_be(removed_ms, |wish| matches!(wish, Wish::Declare { .. })) {
                return Err(format!("it was removed, asked at {removed_ms} ms, and is there"));
            }
            self.removed_ms = None;
        }
        Ok(())
    }
}
