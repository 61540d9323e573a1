//! All sets, by id and by key, and the rules of the configuration for the sets of some keys.
//!
//! Invariants: no two sets have the same key, except those without one; an id is not used again for a long time.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, RangeInclusive};

use super::set::Set;
use signalbox_model::sysv::{IPC_PRIVATE, Order, SetId};

#[derive(Debug)]
pub(super) struct Sets {
    all: BTreeMap<SetId, Set>,
    by_key: HashMap<i32, SetId>,
    last: SetId,
    semaphores: u64,
}

impl Default for Sets {
    fn default() -> Self {
        Self { all: BTreeMap::new(), by_key: HashMap::new(), last: SetId::FIRST, semaphores: 0 }
    }
}

impl Sets {
    /// Starts the ids of new sets at an id that depends on `start`. If `start` differs from run to run of a server, an
    /// id from an earlier run most likely names no set.
    pub(super) fn start_after(&mut self, start: u32) {
        self.last = SetId(SetId::FIRST.0 | (start >> 2).cast_signed());
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The number of semaphores of all sets.
    pub(super) fn semaphores(&self) -> u64 {
        self.semaphores
    }

    pub(super) fn insert(&mut self, set: Set) -> SetId {
        let mut id = after(self.last);
        while self.all.contains_key(&id) {
            id = after(id);
        }
        self.last = id;
        self.insert_as(id, set);
        id
    }

    /// Adds a set with an id that no set has. No other set has its key.
    pub(super) fn insert_as(&mut self, id: SetId, set: Set) {
        self.semaphores += set.values.count() as u64;
        if set.stat.key != IPC_PRIVATE {
            self.by_key.insert(set.stat.key, id);
        }
        self.all.insert(id, set);
    }

    pub(super) fn remove(&mut self, id: SetId) -> Option<Set> {
        let set = self.all.remove(&id)?;
        self.semaphores -= set.values.count() as u64;
        if set.stat.key != IPC_PRIVATE {
            self.by_key.remove(&set.stat.key);
        }
        Some(set)
    }

    pub(super) fn get(&self, id: SetId) -> Option<&Set> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: SetId) -> Option<&mut Set> {
        self.all.get_mut(&id)
    }

    pub(super) fn by_key(&self, key: i32) -> Option<SetId> {
        self.by_key.get(&key).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SetId, &Set)> {
        self.after(None)
    }

    /// The sets after an id, or all of them.
    pub(super) fn after(&self, id: Option<SetId>) -> impl Iterator<Item = (SetId, &Set)> {
        let from = id.map_or(Bound::Unbounded, Bound::Excluded);
        self.all.range((from, Bound::Unbounded)).map(|(id, set)| (*id, set))
    }
}

/// The id that is tried after this one.
fn after(SetId(id): SetId) -> SetId {
    id.checked_add(1).map_or(SetId::FIRST, SetId)
}

/// A rule for the sets with some keys, which applies when they are created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRule {
    /// The keys, as unsigned numbers. 0 means sets without a key.
    pub keys: RangeInclusive<u32>,
    /// The order in which waiting calls are performed; `None`: the rule does not set it.
    pub order: Option<Order>,
    /// Whether the sets outlive the process, if there is a store.
    pub is_durable: bool,
}

/// All rules. A key may be in several of them.
#[derive(Debug, Default)]
pub(super) struct Rules(Vec<KeyRule>);

impl Rules {
    pub(super) fn new(rules: Vec<KeyRule>) -> Self {
        Self(rules)
    }

    /// The order of a new set with this key: that of the first rule that sets one.
    pub(super) fn order_of(&self, key: i32) -> Order {
        self.of(key).find_map(|rule| rule.order).unwrap_or_default()
    }

    /// Returns whether a rule makes new sets with this key durable, if there is a store.
    pub(super) fn is_durable(&self, key: i32) -> bool {
        self.of(key).any(|rule| rule.is_durable)
    }

    fn of(&self, key: i32) -> impl Iterator<Item = &KeyRule> {
        self.0.iter().filter(move |rule| rule.keys.contains(&key.cast_unsigned()))
    }
}

const _: () = assert!(IPC_PRIVATE == 0);
