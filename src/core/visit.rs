//! Work that visits every name: Dump, the sweep, the check of invariant 1.
//!
//! A visit takes the handles of one shard at a time and then works through them without any lock on the map. So it
//! may be paused for as long as its reader likes and holds up nobody; in return it is no picture of one moment.

use super::object::{DumpItem, ObjectRef};
use super::registry::Registry;
use super::{Core, Namespace, UnixSeconds};

/// Where a visit stands.
#[derive(Debug, Default)]
pub(super) struct Visit {
    /// The next shard to take.
    shard: usize,
    /// What is left of the shard before it.
    objects: std::vec::IntoIter<ObjectRef>,
}

impl Visit {
    /// The next object; `None` when every shard was visited.
    fn next(&mut self, registry: &Registry) -> Option<ObjectRef> {
        self.peek(registry)?;
        self.objects.next()
    }

    /// The next object, which stays the next until [`Self::advance`].
    pub(super) fn peek(&mut self, registry: &Registry) -> Option<&ObjectRef> {
        if self.objects.len() == 0 && !self.take_shard(registry) {
            return None;
        }
        self.objects.as_slice().first()
    }

    /// Goes on to the object after the next.
    pub(super) fn advance(&mut self) {
        self.objects.next();
    }

    /// Takes the handles of the next shard that has any; false when every shard was visited.
    fn take_shard(&mut self, registry: &Registry) -> bool {
        while self.shard < registry.shards() {
            self.objects = registry.objects_of(self.shard).into_iter();
            self.shard += 1;
            if self.objects.len() > 0 {
                return true;
            }
        }
        false
    }
}

/// A Dump at work (`counter.md`, "Dump").
#[derive(Debug)]
pub struct Dump {
    namespace: Namespace,
    visit: Visit,
}

impl Dump {
    pub(super) fn new(namespace: Namespace) -> Self {
        Self { namespace, visit: Visit::default() }
    }

    /// Gives the next name to `show`; `None` when every name was shown.
    #[inline]
    pub fn next<R>(
        &mut self,
        core: &Core,
        now: UnixSeconds,
        show: impl FnOnce(&[u8], DumpItem) -> R,
    ) -> Option<R> {
        let object = self.visit.next(core.registry(self.namespace))?;
        Some(show(object.name(), object.dump_item(core.interval(now))))
    }
}

/// A sweep at work: it removes what nothing refers to (invariant 6), and gives back the memory that is left over.
#[derive(Debug)]
#[must_use = "nothing is collected but by the steps"]
pub struct Sweep<'a> {
    core: &'a Core,
    namespace: Namespace,
    visit: Visit,
    visited: u64,
    collected: u64,
}

impl<'a> Sweep<'a> {
    pub(super) fn new(core: &'a Core, namespace: Namespace) -> Self {
        Self { core, namespace, visit: Visit::default(), visited: 0, collected: 0 }
    }

    /// Takes a shard, or visits at most `names` names of the one that was taken: the first is work enough for a step.
    /// Tells whether there is more to do.
    pub fn step(&mut self, names: usize, now: UnixSeconds) -> bool {
        let registry = self.core.registry(self.namespace);
        if self.visit.objects.len() == 0 {
            return self.visit.take_shard(registry);
        }
        let interval = self.core.interval(now);
        for object in self.visit.objects.by_ref().take(names) {
            self.visited += 1;
            if registry.collect(&object, interval) {
                self.collected += 1;
            } else {
                object.shrink();
            }
        }
        if self.visit.objects.len() == 0 {
            registry.shrink(self.visit.shard - 1);
        }
        true
    }

    /// Names that there are now.
    pub fn names(&self) -> u64 {
        self.core.registry(self.namespace).names()
    }

    /// Names visited so far.
    pub fn visited(&self) -> u64 {
        self.visited
    }

    /// Names removed so far.
    pub fn collected(&self) -> u64 {
        self.collected
    }
}

/// A check at work: of every name, that its consumption is the sum of what is held (invariant 1).
#[derive(Debug)]
#[must_use = "nothing is checked but by the steps"]
pub struct Check<'a> {
    core: &'a Core,
    namespace: Namespace,
    visit: Visit,
    checked: u64,
}

/// A name that breaks invariant 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckFailure {
    /// The name's bytes.
    pub name: Box<[u8]>,
    /// Its consumption.
    pub consumption: u32,
    /// The sum of what is held of it.
    pub held: u64,
}

impl<'a> Check<'a> {
    pub(super) fn new(core: &'a Core, namespace: Namespace) -> Self {
        Self { core, namespace, visit: Visit::default(), checked: 0 }
    }

    /// Checks at most `names` names, adding to `failures`. Tells whether there is more to do.
    pub fn step(&mut self, names: usize, failures: &mut Vec<CheckFailure>) -> bool {
        let registry = self.core.registry(self.namespace);
        for _ in 0..names {
            let Some(object) = self.visit.next(registry) else { return false };
            self.checked += 1;
            if let Some((consumption, held)) = object.imbalance() {
                failures.push(CheckFailure { name: object.name().into(), consumption, held });
            }
        }
        true
    }

    /// Names checked so far.
    pub fn checked(&self) -> u64 {
        self.checked
    }
}
