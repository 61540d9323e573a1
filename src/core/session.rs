//! The plain holdings of one connection.
//!
//! A session keeps a handle of every object that its connection holds by plain Acquires, so that the end of the session
//! costs what it holds and not what the server knows. A handle never changes its index; an object remembers the index of
//! each holder, so that a full release finds the handle at once.
//!
//! A session has one owner, so it needs no lock. Its end consumes it, so that nothing is acquired afterwards.
//!
//! Invariant: an index refers to a handle exactly while the object counts a holding of the session.

use super::ids::ConnectionId;
use super::invariant::invariant;
use super::name::NameHash;
use super::object::ObjectRef;
use super::{Core, Namespace, UnixSeconds};

/// The index of the handle of one object within a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HandleIndex(u32);

impl HandleIndex {
    /// An index is below 2^31, which leaves its holder a bit for a mark.
    pub(super) fn new(number: u32) -> Self {
        invariant!(number < 1 << 31, "two billion names of one session do not fit memory");
        Self(number)
    }

    pub(super) fn number(self) -> u32 {
        self.0
    }
}

/// What one connection holds by plain Acquires. It ends with the connection.
#[derive(Debug)]
pub struct Session {
    id: ConnectionId,
    objects: Vec<Option<ObjectRef>>,
    /// Entries of `objects` that are empty.
    free: Vec<HandleIndex>,
    recent: [Recent; Namespace::ALL.len()],
    /// Whether an operation went through the ledger since [`Self::take_tracked`].
    tracked: bool,
}

/// Handles for which a session keeps room although it holds nothing.
const HANDLES_KEPT: usize = 1024;

impl Session {
    pub(super) fn new(id: ConnectionId) -> Self {
        Self { id, objects: Vec::new(), free: Vec::new(), recent: Default::default(), tracked: false }
    }

    /// The connection that holds.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    pub(super) fn note_tracked(&mut self) {
        self.tracked = true;
    }

    /// Whether an operation since the last call was on a tracked name, and so may have served waiters.
    pub fn take_tracked(&mut self) -> bool {
        std::mem::take(&mut self.tracked)
    }

    /// Keeps a handle of an object, which now counts a holding of this session.
    #[inline(always)]
    pub(super) fn keep(&mut self, object: ObjectRef) -> HandleIndex {
        if let Some(index) = self.free.pop() {
            self.objects[index.0 as usize] = Some(object);
            return index;
        }
        let index = HandleIndex::new(u32::try_from(self.objects.len()).unwrap_or(u32::MAX));
        self.objects.push(Some(object));
        index
    }

    /// The object of this name, where it is among those that the session came to hold last.
    #[inline(always)]
    pub(super) fn recent(&self, namespace: Namespace, hash: NameHash, name: &[u8]) -> Option<&ObjectRef> {
        let index = self.recent[namespace as usize].find(hash)?;
        self.objects[index.0 as usize].as_ref().filter(|object| object.name() == name)
    }

    /// Remembers the index of a name's handle.
    #[inline(always)]
    pub(super) fn remember(&mut self, namespace: Namespace, hash: NameHash, index: HandleIndex) {
        self.recent[namespace as usize].insert(hash, index);
    }

    /// Forgets the index of a name's handle, which is about to be dropped.
    #[inline(always)]
    pub(super) fn forget(&mut self, namespace: Namespace, hash: NameHash, index: HandleIndex) {
        self.recent[namespace as usize].remove(hash, index);
    }

    /// Drops the handle at an index, as the object counts no holding of this session any more.
    #[inline(always)]
    pub(super) fn drop_handle(&mut self, index: HandleIndex) {
        let object = self.objects[index.0 as usize].take();
        invariant!(object.is_some(), "session {} has a handle of everything it holds", self.id);
        // The last one goes, so a session that holds one name at a time has no list of what is free.
        if index.0 as usize + 1 == self.objects.len() {
            self.objects.pop();
        } else {
            self.free.push(index);
        }
        // One that held very much and holds nothing any more gives back the room for it.
        if self.objects.capacity() > HANDLES_KEPT && self.free.len() == self.objects.len() {
            self.objects = Vec::new();
            self.free = Vec::new();
        }
    }
}

/// Handles that were added last, by the hashes of their names, so that a release finds what was just acquired without
/// the map. A handle that another name of a like hash has displaced is found by the map again.
///
/// Invariant: every index in it refers to an object of its namespace.
#[derive(Debug, Default)]
struct Recent {
    /// By itself, so a session that takes one name after the other needs no table.
    last: Option<(NameHash, HandleIndex)>,
    earlier: Option<Box<[Option<HandleIndex>; RECENT_HANDLES]>>,
}

/// As many as a connection is likely to have on their way.
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

/// The end of a session at work: what it held is given back, some names a step.
#[derive(Debug)]
#[must_use = "what the session held is given back by the steps"]
pub struct Ending<'a> {
    core: &'a Core,
    session: ConnectionId,
    objects: std::vec::IntoIter<Option<ObjectRef>>,
}

impl<'a> Ending<'a> {
    pub(super) fn new(core: &'a Core, session: Session) -> Self {
        Self { core, session: session.id, objects: session.objects.into_iter() }
    }

    /// Gives back what is held of at most `names` names. Tells whether there is more to do.
    pub fn step(&mut self, names: usize, now: UnixSeconds) -> bool {
        let interval = self.core.interval(now);
        for object in self.objects.by_ref().take(names).flatten() {
            if object.release_all(self.session, interval).is_err() {
                self.core.release_all_tracked(&object, self.session, now);
                // Requests were served, which is work enough for a step.
                break;
            }
        }
        self.objects.len() > 0
    }
}
