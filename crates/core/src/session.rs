//! The plain holdings of one connection.
//!
//! A session has a handle of every object that its connection holds through plain Acquires, so that the cost of ending
//! the session depends on the number of its holdings and not on the number of names in the server. A handle never
//! changes its index; an object stores the index of each holder's handle, so that a full release finds it at once.
//!
//! A session has one owner, so it needs no lock. Ending a session consumes it, so nothing can be acquired afterwards.
//!
//! Invariant: an index refers to a handle if and only if the session has a holding in the object.

use crate::holders::HandleIndex;
use crate::invariant::invariant;
use crate::name::NameHash;
use crate::object::ObjectRef;
use signalbox_model::{ConnectionId, Namespace};

/// The holdings that one connection has through plain Acquires. They end with the connection.
#[derive(Debug)]
pub struct Session {
    id: ConnectionId,
    objects: Vec<Option<ObjectRef>>,
    /// Entries of `objects` that are empty.
    free: Vec<HandleIndex>,
    recent: [Recent; Namespace::ALL.len()],
    /// The heap memory of the names of all objects that it holds, in bytes.
    name_bytes: usize,
    /// Whether an operation went through the ledger since the last call of [`Self::take_tracked`].
    tracked: bool,
}

/// The number of handles for which a session keeps memory although it holds nothing.
const HANDLES_KEPT: usize = 1024;

/// The size of an object with its holder and the handle, in bytes, rounded up.
const HOLDING_BYTES: usize = 192;

impl Session {
    pub(super) fn new(id: ConnectionId) -> Self {
        Self {
            id,
            objects: Vec::new(),
            free: Vec::new(),
            recent: Default::default(),
            name_bytes: 0,
            tracked: false,
        }
    }

    /// The connection of the session.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// The memory that its holdings take, in bytes, as if no other session held the same names.
    pub fn bytes(&self) -> usize {
        (self.objects.len() - self.free.len()) * HOLDING_BYTES + self.name_bytes
    }

    pub(super) fn note_tracked(&mut self) {
        self.tracked = true;
    }

    /// Returns whether an operation since the last call was on a tracked name, so that it may have served waiters.
    pub fn take_tracked(&mut self) -> bool {
        std::mem::take(&mut self.tracked)
    }

    /// Ends the session. Returns its handles.
    pub(super) fn into_objects(self) -> Vec<Option<ObjectRef>> {
        self.objects
    }

    /// Stores a handle of an object in which this session now has a holding.
    #[inline(always)]
    pub(super) fn add_handle(&mut self, object: ObjectRef) -> HandleIndex {
        // A branch, because most names are short and then cost no write.
        if let Some(bytes) = object.name_heap_bytes() {
            self.name_bytes += bytes;
        }
        if let Some(index) = self.free.pop() {
            self.objects[index.number() as usize] = Some(object);
            return index;
        }
        let index = HandleIndex::new(u32::try_from(self.objects.len()).unwrap_or(u32::MAX));
        self.objects.push(Some(object));
        index
    }

    /// The object of this name if it is among those that the session acquired most recently.
    #[inline(always)]
    pub(super) fn recent(&self, namespace: Namespace, hash: NameHash, name: &[u8]) -> Option<&ObjectRef> {
        let index = self.recent[namespace as usize].find(hash)?;
        self.objects[index.number() as usize].as_ref().filter(|object| object.name() == name)
    }

    /// Caches the index of a name's handle.
    #[inline(always)]
    pub(super) fn cache_recent(&mut self, namespace: Namespace, hash: NameHash, index: HandleIndex) {
        self.recent[namespace as usize].insert(hash, index);
    }

    /// Removes the index of a name's handle, which is about to be dropped, from the cache.
    #[inline(always)]
    pub(super) fn forget_recent(&mut self, namespace: Namespace, hash: NameHash, index: HandleIndex) {
        self.recent[namespace as usize].remove(hash, index);
    }

    /// Drops the handle at an index because this session no longer has a holding in the object.
    #[inline(always)]
    pub(super) fn drop_handle(&mut self, index: HandleIndex) {
        let object = self.objects[index.number() as usize].take();
        invariant!(object.is_some(), "session {} has a handle of every object that it holds", self.id);
        if let Some(bytes) = object.and_then(|object| object.name_heap_bytes()) {
            self.name_bytes -= bytes;
        }
        // The last entry is removed instead, so that a session that holds one name at a time needs no free list.
        if index.number() as usize + 1 == self.objects.len() {
            self.objects.pop();
        } else {
            self.free.push(index);
        }
        // A session that held very many objects and now holds none frees the memory.
        if self.objects.capacity() > HANDLES_KEPT && self.free.len() == self.objects.len() {
            self.objects = Vec::new();
            self.free = Vec::new();
        }
    }
}

/// A cache of the handles that were added most recently, by the hashes of their names, so that the release of a name
/// that was just acquired does not use the map. If another name has displaced a handle, the map finds the object.
///
/// Invariant: every index in the cache refers to an object of the cache's namespace.
#[derive(Debug, Default)]
struct Recent {
    /// Not in the table, so that a session that holds one name at a time needs no table.
    last: Option<(NameHash, HandleIndex)>,
    earlier: Option<Box<[Option<HandleIndex>; RECENT_HANDLES]>>,
}

/// The number of cached handles: as many as a connection is likely to have requests in flight.
const RECENT_HANDLES: usize = 64;

impl Recent {
    #[inline(always)]
    fn find(&self, hash: NameHash) -> Option<HandleIndex> {
        match self.last {
            Some((last, index)) if last == hash => Some(index),
            _ => self.earlier.as_ref()?[Self::index(hash)],
        }
    }

    #[inline(always)]
    fn insert(&mut self, hash: NameHash, index: HandleIndex) {
        if let Some((hash, index)) = self.last.replace((hash, index)) {
            let earlier = self.earlier.get_or_insert_with(|| Box::new([None; RECENT_HANDLES]));
            earlier[Self::index(hash)] = Some(index);
        }
    }

    #[inline(always)]
    fn remove(&mut self, hash: NameHash, index: HandleIndex) {
        if self.last.is_some_and(|(_, last)| last == index) {
            self.last = None;
        } else if let Some(earlier) = &mut self.earlier
            && earlier[Self::index(hash)] == Some(index)
        {
            earlier[Self::index(hash)] = None;
        }
    }

    fn index(hash: NameHash) -> usize {
        hash.0 as usize % RECENT_HANDLES
    }
}
