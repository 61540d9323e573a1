//! Work that visits every name: Dump, the survey, pages of names, the sweep, the check of invariant 1.
//!
//! A visit copies the handles of one shard at a time and then works through them without any lock on the map. So its
//! caller may pause it at any time without blocking requests; in return, a visit is not a consistent snapshot.

use crate::object::{Availability, DumpItem, ObjectRef, ObjectSurvey};
use crate::registry::Registry;
use crate::state::Core;
use signalbox_model::{ConnectionId, Namespace, UnixSeconds};

/// The position of a visit.
#[derive(Debug, Default)]
pub(super) struct Visit {
    /// The next shard to take.
    shard: usize,
    /// The objects that are not visited yet, of the shard that was taken last.
    objects: std::vec::IntoIter<ObjectRef>,
}

impl Visit {
    /// The next object; `None`: every shard was visited.
    pub(super) fn next(&mut self, registry: &Registry) -> Option<ObjectRef> {
        self.peek(registry)?;
        self.objects.next()
    }

    /// The next object, without advancing; see [`Self::advance`].
    pub(super) fn peek(&mut self, registry: &Registry) -> Option<&ObjectRef> {
        if self.objects.len() == 0 && !self.take_shard(registry) {
            return None;
        }
        self.objects.as_slice().first()
    }

    /// Advances past the object that [`Self::peek`] returned.
    pub(super) fn advance(&mut self) {
        self.objects.next();
    }

    /// Copies the handles of the next shard that is not empty; false: every shard was visited.
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

/// A Dump in progress (`counter.md`, "Dump").
#[derive(Debug)]
pub struct Dump {
    namespace: Namespace,
    visit: Visit,
}

impl Dump {
    /// Passes the next name to `show` and returns its result; `None`: every name was shown.
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

/// A survey in progress: the usage and the queue of every name, for an overview.
#[derive(Debug)]
pub struct Survey {
    namespace: Namespace,
    visit: Visit,
}

/// A name as a survey finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surveyed {
    /// Resources in use, and the peak.
    pub usage: DumpItem,
    /// The capacity and the available resources of a semaphore; `None`: the name is a counter.
    pub availability: Option<Availability>,
    /// Requests that wait.
    pub waiting: u32,
    /// Whether it is a declared semaphore.
    pub is_declared: bool,
}

impl Survey {
    /// Copies the handles of the next shard, or passes at most `names` names of the copied shard to `show`. Returns whether
    /// there is more to do.
    pub fn step(
        &mut self,
        core: &Core,
        names: usize,
        now: UnixSeconds,
        mut show: impl FnMut(&[u8], Surveyed),
    ) -> bool {
        let registry = core.registry(self.namespace);
        if self.visit.objects.len() == 0 {
            return self.visit.take_shard(registry);
        }
        let interval = core.interval(now);
        for object in self.visit.objects.by_ref().take(names) {
            let ObjectSurvey { usage, availability, is_queued, is_declared } = object.survey(interval);
            // Most names have no queue, and need no lock of the ledger.
            let waiting = if is_queued { core.ledger().waiting(self.namespace, &object) } else { 0 };
            show(object.name(), Surveyed { usage, availability, waiting, is_declared });
        }
        true
    }
}

/// A position among the names of a namespace, from which a page continues. Names are ordered by shard, and within a
/// shard by their hashes, which differ from process to process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameCursor {
    /// The shard.
    pub shard: usize,
    /// The hash of the last name of the shard that is before this position; `None`: the shard begins here.
    pub after: Option<u64>,
}

impl Core {
    /// Begins to list the names of a namespace (`counter.md`, "Dump"). Each name is read at a different time; a name that is
    /// created or collected during the Dump may be listed or not.
    pub fn dump(&self, namespace: Namespace) -> Dump {
        Dump { namespace, visit: Visit::default() }
    }

    /// Begins to visit all names of a namespace with their queues. Like [`Self::dump`], this is not a snapshot.
    pub fn survey(&self, namespace: Namespace) -> Survey {
        Survey { namespace, visit: Visit::default() }
    }

    /// Begins to remove the names that nothing refers to (invariant 6).
    pub fn sweep(&self, namespace: Namespace) -> Sweep<'_> {
        Sweep { core: self, namespace, visit: Visit::default(), visited: 0, collected: 0 }
    }

    /// Begins to check invariant 1 name by name. The check may run at any time.
    pub fn check(&self, namespace: Namespace) -> Check<'_> {
        Check { core: self, namespace, visit: Visit::default(), checked: 0 }
    }

    /// Visits the names from a position to the end of its shard. Calls `show` with each name that begins with a prefix, and
    /// with the position after that name, until `show` returns `false`. With a holder, only names that it
    /// holds by plain Acquires are shown. Returns the number of names of the shard; `None`: there is no such shard.
    pub fn show_names(
        &self,
        namespace: Namespace,
        from: NameCursor,
        (prefix, holder): (&[u8], Option<ConnectionId>),
        mut show: impl FnMut(&[u8], NameCursor) -> bool,
    ) -> Option<usize> {
        let registry = self.registry(namespace);
        if from.shard >= registry.shards() {
            return None;
        }
        let mut names = 0;
        let objects = registry.ordered(from.shard, |object| {
            names += 1;
            object.name().starts_with(prefix) && holder.is_none_or(|holder| object.is_held_by(holder))
        });
        let rest = objects.iter().filter(|(hash, _)| from.after.is_none_or(|after| *hash > after));
        for (hash, object) in rest {
            if !show(object.name(), NameCursor { after: Some(*hash), ..from }) {
                break;
            }
        }
        Some(names)
    }
}

/// A sweep in progress: it removes the names that nothing refers to (invariant 6) and frees unused memory.
#[derive(Debug)]
#[must_use = "only the steps collect names"]
pub struct Sweep<'a> {
    core: &'a Core,
    namespace: Namespace,
    visit: Visit,
    visited: u64,
    collected: u64,
}

impl Sweep<'_> {
    /// Copies the handles of the next shard, or visits at most `names` names of the copied shard; a copy alone is
    /// enough work for one step. Returns whether there is more to do.
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

    /// Names that exist now.
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

/// A check in progress: whether the consumption of every name equals the sum of its holdings (invariant 1).
#[derive(Debug)]
#[must_use = "only the steps check names"]
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
    /// The sum of its holdings.
    pub held: u64,
}

impl Check<'_> {
    /// Checks at most `names` names and adds to `failures`. Returns whether there is more to do.
    pub fn step(&mut self, names: usize, failures: &mut Vec<CheckFailure>) -> bool {
        let registry = self.core.registry(self.namespace);
        for _ in 0..names {
            let Some(object) = self.visit.next(registry) else { return false };
            self.checked += 1;
            if let Some((consumption, held)) = object.accounting_mismatch() {
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
