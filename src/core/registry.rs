//! The names of one namespace: a sharded map from name to object.
//!
//! An operation on a name that exists holds its shard for reading while it works on the object; making or collecting
//! a name holds the shard for writing. So a name cannot be collected between being found and being held.
//!
//! What a plain Acquire or Release runs through is always inlined, here and in `session`, `object` and `holders`: others
//! call the same functions, for which the compiler would make calls of them, a tenth more instructions a request.
//!
//! There are many small shards, so that whoever visits a whole shard (Dump, sweep) takes little at a time.

use ahash::RandomState;
#[cfg(not(shuttle))]
use dashmap::{DashMap, Entry};

use super::counter::Interval;
use super::name::NameHash;
use super::object::{ObjectRef, PlainError};
use super::session::Session;
use super::sync::{AtomicBool, AtomicU64, Ordering};
#[cfg(shuttle)]
use super::sync::{DashMap, Entry};
use super::{Claim, Namespace, Refusal};

/// Enough that the handles of a shard of a million names are copied in some 70 us; more of them cost every operation
/// cache misses (`docs/decisions/0002-the-table-of-names.md`).
const SHARDS: usize = 2048;

/// What a name takes beside its object: a pointer and a control byte in the map, at the load between 7/16 and 7/8
/// that its tables have, the pointer that the holder's session keeps, and the allocator's own bytes.
const SLOT_BYTES: usize = 9 * 3 / 2 + 8 + 8;

/// A table is given back when it could hold this many times what it does.
const SPARSE: usize = 4;

/// Limits of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most names at a time; `None` is without limit.
    pub names_max: Option<u64>,
}

/// Live figures of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistryStats {
    /// Names that exist.
    pub objects: u64,
    /// Names that were ever made.
    pub total_objects: u64,
    /// An estimate of the memory that names take, in bytes.
    pub used_memory: u64,
    /// Shards with two names or more: these share a lock.
    pub conflicts: u64,
}

#[derive(Debug)]
pub(super) struct Registry {
    map: DashMap<ObjectRef, (), RandomState>,
    objects: AtomicU64,
    total_objects: AtomicU64,
    memory_bytes: AtomicU64,
    /// `u64::MAX` is without limit.
    names_max: AtomicU64,
    is_watched: AtomicBool,
}

impl Registry {
    pub(super) fn new(hasher: RandomState) -> Self {
        Self {
            map: DashMap::with_hasher_and_shard_amount(hasher, SHARDS),
            objects: AtomicU64::new(0),
            total_objects: AtomicU64::new(0),
            memory_bytes: AtomicU64::new(0),
            names_max: AtomicU64::new(u64::MAX),
            is_watched: AtomicBool::new(false),
        }
    }

    pub(super) fn set_limits(&self, limits: Limits) {
        self.names_max.store(limits.names_max.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Calls `visit` with the object of this name, if there is one. The shard is held for reading meanwhile.
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
        let kept = match outcome {
            Some(outcome) => outcome?,
            None => self.make(namespace, name, claim, interval, |object| {
                object.acquire(claim, session, interval)
            })??,
        };
        if let Some(index) = kept {
            session.remember(namespace, hash, index);
        }
        Ok(())
    }

    /// As [`Self::acquire`], called by the ledger for a tracked name.
    #[cold]
    pub(super) fn acquire_tracked(
        &self,
        namespace: Namespace,
        name: &[u8],
        claim: Claim,
        session: &mut Session,
        interval: Interval,
    ) -> Result<(), Refusal> {
        let take = |object: &ObjectRef| object.acquire_tracked(claim, session, interval);
        self.find_or_make(namespace, name, claim, interval, take)??;
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
        // A name stays while it is held, so the session's own handle is as good as the map's, and costs no lock.
        let outcome = match session.recent(namespace, hash, name) {
            Some(object) => Some(release(object)),
            None => self.find_hashed(name, hash, release),
        };
        if let Some(index) = outcome.ok_or(PlainError::Refused(Refusal::NotFound))?? {
            session.forget(namespace, hash, index);
            session.drop_handle(index);
        }
        Ok(())
    }

    /// As [`Self::release`], called by the ledger for a tracked name.
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
            session.forget(namespace, self.hash(name), index);
            session.drop_handle(index);
        }
        Ok(())
    }

    /// Calls `visit` with the object of this name, made where there is none. The shard is held meanwhile, so the
    /// object is not collected before `visit` has come to refer to it.
    pub(super) fn find_or_make<R>(
        &self,
        namespace: Namespace,
        name: &[u8],
        claim: Claim,
        interval: Interval,
        mut visit: impl FnMut(&ObjectRef) -> R,
    ) -> Result<R, Refusal> {
        match self.find(name, &mut visit) {
            Some(outcome) => Ok(outcome),
            None => self.make(namespace, name, claim, interval, visit),
        }
    }

    /// As [`Self::find_or_make`], for a name that was not found a moment ago.
    #[cold]
    fn make<R>(
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
        // Checked ahead of the allocation, which a refusal must not cost.
        if self.names() >= self.names_max.load(Ordering::Relaxed) {
            // Somebody may have made the name since it was not found; then it counts against nothing.
            return self.find(name, visit).ok_or(Refusal::TooManyNames);
        }
        // Made before the shard is locked, so that the allocation keeps nobody waiting.
        let object = ObjectRef::new(namespace, name, claim, interval);
        let memory_bytes = Self::memory_bytes_of(&object);
        let found = match self.map.entry(object) {
            Entry::Vacant(vacant) => {
                // Granting under the shard's lock and never on trial, so that nobody is refused for the sake of a name
                // that comes to nothing, because it is made by two at once or is refused itself.
                if !self.take_place() {
                    return Err(Refusal::TooManyNames);
                }
                self.count_made(memory_bytes);
                let made = vacant.insert(());
                self.watch_made(made.key());
                made
            }
            Entry::Occupied(occupied) => occupied.into_ref(),
        };
        Ok(visit(found.key()))
    }

    /// The object of this name, made where there is none, however many names there are: what was there before the
    /// process was started is there again.
    pub(super) fn restore(
        &self,
        namespace: Namespace,
        name: &[u8],
        claim: Claim,
        interval: Interval,
    ) -> ObjectRef {
        let object = ObjectRef::new(namespace, name, claim, interval);
        let memory_bytes = Self::memory_bytes_of(&object);
        let found = match self.map.entry(object) {
            Entry::Vacant(vacant) => {
                self.objects.fetch_add(1, Ordering::Relaxed);
                self.count_made(memory_bytes);
                vacant.insert(())
            }
            Entry::Occupied(occupied) => occupied.into_ref(),
        };
        found.key().clone()
    }

    fn count_made(&self, memory_bytes: u64) {
        self.total_objects.fetch_add(1, Ordering::Relaxed);
        self.memory_bytes.fetch_add(memory_bytes, Ordering::Relaxed);
    }

    /// Whether a watch is about a name that was made is for the ledger to say.
    fn watch_made(&self, made: &ObjectRef) {
        if self.is_watched.load(Ordering::Relaxed) {
            made.set_tracking(|tracking| tracking.watched = true);
        }
    }

    /// Says whether there is a watch, so that names that are made come to its notice.
    pub(super) fn set_watched(&self, is_watched: bool) {
        self.is_watched.store(is_watched, Ordering::Relaxed);
    }

    /// Counts one name more, unless there are as many as may be.
    fn take_place(&self) -> bool {
        let names_max = self.names_max.load(Ordering::Relaxed);
        let one_more = |objects| (objects < names_max).then_some(objects + 1);
        self.objects.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    /// How many names there are.
    pub(super) fn names(&self) -> u64 {
        self.objects.load(Ordering::Relaxed)
    }

    /// How many shards there are to visit.
    pub(super) fn shards(&self) -> usize {
        self.map.shards().len()
    }

    /// Handles of all objects.
    pub(super) fn all(&self) -> Vec<ObjectRef> {
        (0..self.shards()).flat_map(|shard| self.objects_of(shard)).collect()
    }

    /// Handles of all objects of a shard. The shard is held for reading while its table is copied.
    pub(super) fn objects_of(&self, shard: usize) -> Vec<ObjectRef> {
        let table = self.map.shards()[shard].read().clone();
        table.into_iter().map(|(object, _)| object).collect()
    }

    /// Removes an object that nothing refers to (invariant 6). Tells whether it did.
    pub(super) fn collect(&self, object: &ObjectRef, interval: Interval) -> bool {
        if !object.is_collectable(interval) {
            return false;
        }
        // Checked again under the shard's lock, where no request can reach the object any more. Under the same name
        // another object may stand by now, which is collected as gladly.
        let removed = self.map.remove_if(object.name(), |found, ()| found.is_collectable(interval));
        let Some((removed, ())) = removed else { return false };
        self.objects.fetch_sub(1, Ordering::Relaxed);
        self.memory_bytes.fetch_sub(Self::memory_bytes_of(&removed), Ordering::Relaxed);
        true
    }

    /// Gives back the memory of a shard's table where it is far larger than what it holds.
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
        RegistryStats {
            objects: self.names(),
            total_objects: self.total_objects.load(Ordering::Relaxed),
            used_memory: self.memory_bytes.load(Ordering::Relaxed),
            conflicts: self.map.shards().iter().filter(|shard| shard.read().len() > 1).count() as u64,
        }
    }

    fn memory_bytes_of(object: &ObjectRef) -> u64 {
        (object.memory_bytes() + SLOT_BYTES) as u64
    }
}
