//! The waiters and the grants of each name.
//!
//! Invariants: a queue is in the order of ids (invariant 3 of `docs/design.md`); an id is among the waiters or the grants
//! of a name, never both; an object is marked as queued if and only if its queue has a waiter; a name has an entry if and
//! only if it has a waiter or a grant; the heads are the first waiters of all queues.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::object::ObjectRef;
use signalbox_model::{GrantId, Namespace};

pub(super) type IdRange = (Bound<GrantId>, Bound<GrantId>);

#[derive(Debug, Default)]
pub(super) struct Queues {
    /// By [`ObjectRef::address`]. These are trees, because a hash table of many names would grow in one long step.
    names: [BTreeMap<usize, Entry>; Namespace::ALL.len()],
    heads: BTreeSet<Head>,
}

/// The first waiter of a queue, and the address of the object. Heads are in the order of ids, so the longest wait mostly
/// comes first.
pub(super) type Head = (GrantId, Namespace, usize);

#[derive(Debug)]
struct Entry {
    object: ObjectRef,
    held: BTreeSet<GrantId>,
    queue: BTreeSet<GrantId>,
    /// The highest id that a grant of the name got instead of the id under which it had waited. A waiter gets another id if its
    /// own is of an earlier run, or is lower than this one.
    renumbered_up_to: GrantId,
    /// The waiters of single flights.
    shared: BTreeSet<GrantId>,
    /// The work of the waiters in `shared` with ids up to this one is done.
    done_up_to: GrantId,
}

impl Queues {
    /// The number of requests that wait for a name.
    pub(super) fn waiting(&self, namespace: Namespace, object: &ObjectRef) -> usize {
        self.entry(namespace, object).map_or(0, |entry| entry.queue.len())
    }

    /// Returns whether a name has a waiter or a grant.
    pub(super) fn is_in_use(&self, namespace: Namespace, object: &ObjectRef) -> bool {
        self.entry(namespace, object).is_some()
    }

    /// The waiter that is served next.
    pub(super) fn head(&self, namespace: Namespace, object: &ObjectRef) -> Option<GrantId> {
        self.entry(namespace, object)?.queue.first().copied()
    }

    /// The waiters of a name in their order, in a range of ids.
    pub(super) fn waiters(
        &self,
        namespace: Namespace,
        object: &ObjectRef,
        ids: IdRange,
    ) -> impl Iterator<Item = GrantId> {
        self.entry(namespace, object).into_iter().flat_map(move |entry| entry.queue.range(ids).copied())
    }

    /// The number of waiters of a name before this one, at most `most`.
    pub(super) fn waiters_before(
        &self,
        namespace: Namespace,
        object: &ObjectRef,
        id: GrantId,
        most: usize,
    ) -> usize {
        self.waiters(namespace, object, (Bound::Unbounded, Bound::Excluded(id))).take(most).count()
    }

    /// The grants of a name in the order of their ids, in a range of ids.
    pub(super) fn grants(
        &self,
        namespace: Namespace,
        object: &ObjectRef,
        ids: IdRange,
    ) -> impl Iterator<Item = GrantId> {
        self.entry(namespace, object).into_iter().flat_map(move |entry| entry.held.range(ids).copied())
    }

    /// Adds a waiter, in the order of ids. The object is marked as queued already.
    pub(super) fn add_waiter(
        &mut self,
        namespace: Namespace,
        object: &ObjectRef,
        id: GrantId,
        is_shared: bool,
    ) {
        self.change_queue(namespace, object, |entry| {
            entry.queue.insert(id);
            if is_shared {
                entry.shared.insert(id);
            }
        });
    }

    /// Notes that the work of all present waiters of single flights for a name is done.
    pub(super) fn set_done(&mut self, namespace: Namespace, object: &ObjectRef) {
        let entry = self.entry_or_new(namespace, object);
        entry.done_up_to = entry.shared.last().copied().unwrap_or(entry.done_up_to);
    }

    /// The first waiter for a name whose work is done.
    /// The work is that of the waiter's single flight.
    pub(super) fn first_done(&self, namespace: Namespace, object: &ObjectRef) -> Option<GrantId> {
        let entry = self.entry(namespace, object)?;
        entry.shared.first().copied().filter(|id| *id <= entry.done_up_to)
    }

    /// Returns whether the work of a waiter's single flight for a name is done.
    pub(super) fn is_done(&self, namespace: Namespace, object: &ObjectRef, id: GrantId) -> bool {
        self.entry(namespace, object)
            .is_some_and(|entry| id <= entry.done_up_to && entry.shared.contains(&id))
    }

    pub(super) fn add_grant(&mut self, namespace: Namespace, object: &ObjectRef, id: GrantId) {
        self.entry_or_new(namespace, object).held.insert(id);
    }

    /// Turns a waiter into a grant. If it is the only waiter, the caller has removed the object's mark as queued.
    pub(super) fn grant_waiter(&mut self, namespace: Namespace, object: &ObjectRef, id: GrantId) {
        self.change_queue(namespace, object, |entry| {
            entry.queue.remove(&id);
            entry.shared.remove(&id);
            entry.held.insert(id);
        });
    }

    /// Gives a grant a higher id.
    pub(super) fn renumber(&mut self, namespace: Namespace, object: &ObjectRef, from: GrantId, to: GrantId) {
        let entry = self.entry_or_new(namespace, object);
        entry.held.remove(&from);
        entry.held.insert(to);
        entry.renumbered_up_to = to;
    }

    /// The highest id that a grant of a name got instead of the id under which it had waited, as long as a waiter may have a
    /// lower one.
    pub(super) fn renumbered_up_to(&self, namespace: Namespace, object: &ObjectRef) -> GrantId {
        self.entry(namespace, object).map_or_else(GrantId::default, |entry| entry.renumbered_up_to)
    }

    /// Removes a waiter. If it was the only one, the object is no longer marked as queued. Returns whether others wait.
    pub(super) fn remove_waiter(&mut self, namespace: Namespace, object: &ObjectRef, id: GrantId) -> bool {
        let has_others = self.change_queue(namespace, object, |entry| {
            entry.queue.remove(&id);
            entry.shared.remove(&id);
            !entry.queue.is_empty()
        });
        if !has_others {
            object.set_tracking(|tracking| tracking.queued = false);
        }
        self.drop_unused(namespace, object);
        has_others
    }

    /// Removes a grant. Returns whether requests wait for the name.
    pub(super) fn remove_grant(&mut self, namespace: Namespace, object: &ObjectRef, id: GrantId) -> bool {
        let entry = self.entry_or_new(namespace, object);
        entry.held.remove(&id);
        let has_waiters = !entry.queue.is_empty();
        self.drop_unused(namespace, object);
        has_waiters
    }

    /// Returns whether an id is among the grants of a name, and whether it is among the waiters.
    pub(super) fn contains(&self, namespace: Namespace, object: &ObjectRef, id: GrantId) -> (bool, bool) {
        let entry = self.entry(namespace, object);
        entry.map_or((false, false), |entry| (entry.held.contains(&id), entry.queue.contains(&id)))
    }

    /// All names with a waiter or a grant.
    pub(super) fn objects(&self, namespace: Namespace) -> impl Iterator<Item = &ObjectRef> {
        self.names[namespace as usize].values().map(|entry| &entry.object)
    }

    /// The names with waiters after this head, in the order of their heads.
    pub(super) fn waited_for(&self, after: Option<Head>) -> impl Iterator<Item = (Head, &ObjectRef)> {
        let heads = self.heads.range((after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
        heads.filter_map(|head| Some((*head, &self.names[head.1 as usize].get(&head.2)?.object)))
    }

    /// Fails with a description of an invariant that does not hold.
    pub(super) fn check(&self) -> Result<(), String> {
        let of = |namespace: Namespace| {
            let entries = self.names[namespace as usize].iter();
            entries.filter_map(move |(at, entry)| Some((*entry.queue.first()?, namespace, *at)))
        };
        let heads: BTreeSet<Head> = Namespace::ALL.into_iter().flat_map(of).collect();
        if heads != self.heads {
            let wrong = heads.symmetric_difference(&self.heads).next();
            return Err(format!("the head {wrong:?} of a queue is missing or left over"));
        }
        let mut entries = self.names.iter().flat_map(BTreeMap::values);
        match entries.find_map(|entry| entry.shared.difference(&entry.queue).next()) {
            Some(id) => Err(format!("waiter {id} of a single flight is in no queue")),
            None => Ok(()),
        }
    }

    /// Changes a queue, and updates its head in `heads`.
    fn change_queue<R>(
        &mut self,
        namespace: Namespace,
        object: &ObjectRef,
        change: impl FnOnce(&mut Entry) -> R,
    ) -> R {
        let entry = self.entry_or_new(namespace, object);
        let before = entry.queue.first().copied();
        let result = change(entry);
        let after = entry.queue.first().copied();
        if before != after {
            let head = |id| (id, namespace, object.address());
            before.map(|id| self.heads.remove(&head(id)));
            after.map(|id| self.heads.insert(head(id)));
        }
        result
    }

    fn entry(&self, namespace: Namespace, object: &ObjectRef) -> Option<&Entry> {
        self.names[namespace as usize].get(&object.address())
    }

    fn entry_or_new(&mut self, namespace: Namespace, object: &ObjectRef) -> &mut Entry {
        self.names[namespace as usize].entry(object.address()).or_insert_with(|| Entry {
            object: object.clone(),
            held: BTreeSet::new(),
            queue: BTreeSet::new(),
            renumbered_up_to: GrantId::default(),
            shared: BTreeSet::new(),
            done_up_to: GrantId::default(),
        })
    }

    fn drop_unused(&mut self, namespace: Namespace, object: &ObjectRef) {
        let names = &mut self.names[namespace as usize];
        let is_unused = |entry: &Entry| entry.held.is_empty() && entry.queue.is_empty();
        if names.get(&object.address()).is_some_and(is_unused) {
            names.remove(&object.address());
        }
    }
}
