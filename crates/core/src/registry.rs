//! The names of one namespace: a sharded map from name to object.
//!
//! An operation on a name that exists holds the read lock of its shard while it works on the object; creating or
//! collecting a name holds the write lock. So a name cannot be collected between a lookup and an acquire.
//!
//! The functions on the path of a plain Acquire or Release are always inlined, here and in `session`, `object` and
//! `holders`. Since they have other callers too, the compiler would not inline them by itself, and a request would take
//! a tenth more instructions.
//!
//! There are many small shards, so that visiting a whole shard (Dump, sweep) is a small amount of work.

use ahash::RandomState;
#[cfg(not(shuttle))]
use dashmap::{DashMap, Entry};

use crate::claim::Claim;
use crate::counter::Interval;
use crate::name::NameHash;
use crate::object::{ObjectRef, PlainError};
use crate::session::Session;
use crate::sync::{AtomicBool, AtomicU64, Ordering};
#[cfg(shuttle)]
use crate::sync::{DashMap, Entry};
use signalbox_model::{Namespace, Refusal};

/// The number of shards. With a million names, the handles of one shard are copied in 50 to 100 µs. More shards would cost
/// every operation cache misses (`docs/decisions/0002-the-table-of-names.md`).
const SHARDS: usize = 2048;

/// The ratio of a table's capacity to its length above which the table is shrunk.
const SPARSE: usize = 4;

/// Limits of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most names at a time; `None`: no limit.
    pub names_max: Option<u64>,
}

/// Live figures of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistryStats {
    /// Names that exist.
    pub objects: u64,
    /// Names created so far.
    pub total_objects: u64,
}

#[derive(Debug)]
pub(super) struct Registry {
    map: DashMap<ObjectRef, (), RandomState>,
    objects: AtomicU64,
    total_objects: AtomicU64,
    /// `u64::MAX`: no limit.
    names_max: AtomicU64,
    is_watched: AtomicBool,
}

impl Registry {
    pub(super) fn new(hasher: RandomState) -> Self {
        Self {
            map: DashMap::with_hasher_and_shard_amount(hasher, SHARDS),
            objects: AtomicU64::new(0),
            total_objects: AtomicU64::new(0),
            names_max: AtomicU64::new(u64::MAX),
            is_watched: AtomicBool::new(false),
        }
    }

    pub(super) fn set_limits(&self, limits: Limits) {
        self.names_max.store(limits.names_max.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Calls `visit` with the object of this name, if there is one, under the read lock of its shard.
    #[inline]
    pub(super) fn find<R>(&self, name: &[u8], visit: impl FnOnce(&ObjectRef) -> R) -> Option<R> {
        self.find_hashed(name, self.hash(name), visit)
    }

    #[inline(always)]
    fn find_hashed<R>(&self, name: &[u8], hash: NameHash, visit: impl FnOnce(&ObjectRef) -> R) -> Option<R> {
        let shard = &self.map.shards()[self.map.determine_shard(hash.0 as usize)];
        let table = shard.read();
        let (found, _) = table.get(hash.0, |(object, _)| object.name() == name)?;
        Some(visit(found))
    }

    #[inline(always)]
    fn hash(&self, name: &[u8]) -> NameHash {
        NameHash(self.map.hasher().hash_one(name))
    }

    #[inline]
    pub(super) fn acquire(
        &self,
        namespace: Namespace,
        name: &[u8],
        claim: Claim,
        session: &mut Session,
        interval: Interval,
    ) -> Result<(), PlainError> {
        let hash = self.hash(name);
        let outcome = self.find_hashed(name, hash, |object| object.acquire(claim, session, interval));
        let new_handle = match outcome {
            Some(outcome) => outcome?,
            None => self.create(namespace, name, claim, interval, |object| {
                object.acquire(claim, session, interval)
            })??,
        };
        if let Some(index) = new_handle {
            session.cache_recent(namespace, hash, index);
        }
        Ok(())
    }

    /// Like [`Self::acquire`], called by the ledger for a tracked name.
    #[cold]
    pub(super) fn acquire_tracked(
        &self,
        namespace: Namespace,
        name: &[u8],
        claim: Claim,
        session: &mut Session,
        interval: Interval,
    ) -> Result<(), Refusal> {
        let acquire = |object: &ObjectRef| object.acquire_tracked(claim, session, interval);
        self.find_or_create(namespace, name, claim, interval, acquire)??;
        Ok(())
    }

    #[inline]
    pub(super) fn release(
        &self,
        namespace: Namespace,
        name: &[u8],
        resources: u32,
        session: &mut Session,
        interval: Interval,
    ) -> Result<(), PlainError> {
        let hash = self.hash(name);
        let release = |object: &ObjectRef| object.release(resources, session.id(), interval);
        // A name is not collected while it has holders, so the session's own handle is valid and saves the shard's
        // lock.
        let outcome = match session.recent(namespace, hash, name) {
            Some(object) => Some(release(object)),
            None => self.find_hashed(name, hash, release),
        };
        if let Some(index) = outcome.ok_or(PlainError::Refused(Refusal::NotFound))?? {
            session.forget_recent(namespace, hash, index);
            session.drop_handle(index);
        }
        Ok(())
    }

    /// Like [`Self::release`], called by the ledger for a tracked name.
    #[cold]
    pub(super) fn release_tracked(
        &self,
        namespace: Namespace,
        name: &[u8],
        resources: u32,
        session: &mut Session,
        interval: Interval,
    ) -> Result<(), Refusal> {
        let release = |object: &ObjectRef| object.release_tracked(resources, session.id(), interval);
        if let Some(index) = self.find(name, release).ok_or(Refusal::NotFound)?? {
            session.forget_recent(namespace, self.hash(name), index);
            session.drop_handle(index);
        }
        Ok(())
    }

    /// Calls `visit` with the object of this name, which is created if it does not exist. The shard is locked during
    /// the call, so the object cannot be collected before `visit` has made something refer to it.
    pub(super) fn find_or_create<R>(
        &self,
        namespace: Namespace,
        name: &[u8],
        claim: Claim,
        interval: Interval,
        mut visit: impl FnMut(&ObjectRef) -> R,
    ) -> Result<R, Refusal> {
        match self.find(name, &mut visit) {
            Some(outcome) => Ok(outcome),
            None => self.create(namespace, name, claim, interval, visit),
        }
    }

    /// Like [`Self::find_or_create`], for a name that was just not found.
    #[cold]
    fn create<R>(
        &self,
        namespace: Namespace,
        name: &[u8],
        claim: Claim,
        interval: Interval,
        mut visit: impl FnMut(&ObjectRef) -> R,
    ) -> Result<R, Refusal> {
        if claim.is_of_existing() {
            return self.find(name, visit).ok_or(Refusal::NotFound);
        }
        // Checked before the allocation, so that a refusal does not cost one.
        if self.names() >= self.names_max.load(Ordering::Relaxed) {
            // Another request may have created the name since; then the limit does not matter.
            return self.find(name, visit).ok_or(Refusal::TooManyNames);
        }
        // Allocated before the shard is locked, so that the lock is not held during the allocation.
        let object = ObjectRef::new(namespace, name, claim, interval);
        let found = match self.map.entry(object) {
            Entry::Vacant(vacant) => {
                // Counted under the shard's lock and only when the name is certain to be inserted. Otherwise a name
                // that two requests create at once, or that is refused, could use up the limit and refuse another name.
                if !self.reserve_name() {
                    return Err(Refusal::TooManyNames);
                }
                self.total_objects.fetch_add(1, Ordering::Relaxed);
                let created = vacant.insert(());
                self.mark_watched(created.key());
                created
            }
            Entry::Occupied(occupied) => occupied.into_ref(),
        };
        Ok(visit(found.key()))
    }

    /// Returns the object of this name, which is created if it does not exist. The limit of names does not apply: every
    /// name that existed before the process started is restored.
    pub(super) fn restore(
        &self,
        namespace: Namespace,
        name: &[u8],
        claim: Claim,
        interval: Interval,
    ) -> ObjectRef {
        let object = ObjectRef::new(namespace, name, claim, interval);
        let found = match self.map.entry(object) {
            Entry::Vacant(vacant) => {
                self.objects.fetch_add(1, Ordering::Relaxed);
                self.total_objects.fetch_add(1, Ordering::Relaxed);
                vacant.insert(())
            }
            Entry::Occupied(occupied) => occupied.into_ref(),
        };
        found.key().clone()
    }

    /// Marks a created object as watched if there is any watch. The ledger decides whether a watch covers it.
    fn mark_watched(&self, created: &ObjectRef) {
        if self.is_watched.load(Ordering::Relaxed) {
            created.set_tracking(|tracking| tracking.watched = true);
        }
    }

    /// Sets whether there is any watch. While there is, plain operations on names that are created go through the ledger.
    pub(super) fn set_watched(&self, is_watched: bool) {
        self.is_watched.store(is_watched, Ordering::Relaxed);
    }

    /// Counts one more name, unless the limit is reached. Returns whether it was counted.
    fn reserve_name(&self) -> bool {
        let names_max = self.names_max.load(Ordering::Relaxed);
        let one_more = |objects| (objects < names_max).then_some(objects + 1);
        self.objects.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    /// The number of names.
    pub(super) fn names(&self) -> u64 {
        self.objects.load(Ordering::Relaxed)
    }

    /// The number of shards to visit.
    pub(super) fn shards(&self) -> usize {
        self.map.shards().len()
    }

    /// Handles of all objects.
    pub(super) fn all(&self) -> Vec<ObjectRef> {
        (0..self.shards()).flat_map(|shard| self.objects_of(shard)).collect()
    }

    /// Handles of all objects of a shard. The shard's read lock is held while its table is copied.
    pub(super) fn objects_of(&self, shard: usize) -> Vec<ObjectRef> {
        let table = self.map.shards()[shard].read().clone();
        table.into_iter().map(|(object, _)| object).collect()
    }

    /// Handles of the objects of a shard that `is_wanted` selects, with the hashes of their names and in the order of
    /// these hashes.
    pub(super) fn ordered(
        &self,
        shard: usize,
        is_wanted: impl FnMut(&ObjectRef) -> bool,
    ) -> Vec<(u64, ObjectRef)> {
        let wanted = self.objects_of(shard).into_iter().filter(is_wanted);
        let mut objects: Vec<_> =
            wanted.map(|object| (self.map.hasher().hash_one(&object), object)).collect();
        objects.sort_unstable_by_key(|(hash, _)| *hash);
        objects
    }

    /// Removes an object that nothing refers to (invariant 6). Returns whether it was removed.
    pub(super) fn collect(&self, object: &ObjectRef, interval: Interval) -> bool {
        if !object.is_collectable(interval) {
            return false;
        }
        // Checked again under the shard's lock, where no request can reach the object. The name may belong to
        // another object by now; that one is collected if nothing refers to it.
        let removed = self.map.remove_if(object.name(), |found, ()| found.is_collectable(interval));
        if removed.is_some() {
            self.objects.fetch_sub(1, Ordering::Relaxed);
        }
        removed.is_some()
    }

    /// Removes the object of this name unless it is in use. Unlike [`Self::collect`], it removes a counter even if the
    /// peak of its interval is lost.
    pub(super) fn delete_unused(&self, name: &[u8]) -> Result<ObjectRef, Refusal> {
        let mut exists = false;
        let removed = self.map.remove_if(name, |object, ()| {
            exists = true;
            object.is_unused()
        });
        let Some((removed, ())) = removed else {
            return Err(if exists { Refusal::InUse } else { Refusal::NotFound });
        };
        self.objects.fetch_sub(1, Ordering::Relaxed);
        Ok(removed)
    }

    /// Shrinks a shard's table if it is far larger than its content.
    pub(super) fn shrink(&self, shard: usize) {
        let shard = &self.map.shards()[shard];
        let is_sparse = {
            let table = shard.read();
            table.capacity() > SPARSE * table.len().max(1)
        };
        if is_sparse {
            let mut table = shard.write();
            let length = table.len();
            table.shrink_to(length, |(object, _)| self.map.hasher().hash_one(object));
        }
    }

    pub(super) fn stats(&self) -> RegistryStats {
        RegistryStats { objects: self.names(), total_objects: self.total_objects.load(Ordering::Relaxed) }
    }

    /// The number of shards with two names or more, which share a lock.
    pub(super) fn conflicts(&self) -> u64 {
        self.map.shards().iter().filter(|shard| shard.read().len() > 1).count() as u64
    }
}
