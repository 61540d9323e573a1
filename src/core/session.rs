//! Sessions: the owners of what is held.
//!
//! A session keeps a handle of every object it holds something of, so that its end costs what it holds and not what
//! the server knows. The handles stand in slots that never move; an object remembers the slot of each holder, so
//! that a full release finds it at once.
//!
//! A session is one value that whoever uses it has to itself, so it needs no lock, and its end consumes it, so that
//! nothing is taken afterwards.
//!
//! Invariant: a slot is filled exactly while the object counts a holding of the session.

use std::num::NonZeroU64;

use super::invariant::invariant;
use super::name::NameHash;
use super::object::ObjectRef;
use super::{Core, Namespace, UnixSeconds};

/// The number of a session. Public: it is shown in listings and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(NonZeroU64);

impl SessionId {
    pub(super) fn new(number: u64) -> Self {
        Self(NonZeroU64::new(number).expect("sessions are counted from one, and 2^64 of them never come"))
    }

    /// The session with this number, as a client names it. `None`: no session has the number 0.
    pub fn from_number(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// The number, as it is shown.
    pub fn number(self) -> u64 {
        self.0.get()
    }
}

impl std::fmt::Display for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a session keeps the handle of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(u32);

impl Slot {
    /// The number of a slot is below 2^31, which leaves its holder a bit for a mark.
    pub(super) fn new(number: u32) -> Self {
        invariant!(number < 1 << 31, "two billion names of one session do not fit memory");
        Self(number)
    }

    pub(super) fn number(self) -> u32 {
        self.0
    }
}

/// An owner of holdings. Every connection has one of its own that ends with it.
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    objects: Vec<Option<ObjectRef>>,
    /// Slots of `objects` that are empty.
    free: Vec<Slot>,
    recent: [Recent; Namespace::ALL.len()],
    /// Whether an operation went through the ledger.
    supervised: bool,
}

/// Slots for which a session keeps room though all are empty.
const SLOTS_KEPT: usize = 1024;

impl Session {
    pub(super) fn new(id: SessionId) -> Self {
        Self { id, objects: Vec::new(), free: Vec::new(), recent: Default::default(), supervised: false }
    }

    /// The session's number.
    pub fn id(&self) -> SessionId {
        self.id
    }

    pub(super) fn note_supervised(&mut self) {
        self.supervised = true;
    }

    /// Whether an operation since it was last asked was on a name that is waited for or watched, and so may have served
    /// others.
    pub fn take_supervised(&mut self) -> bool {
        std::mem::take(&mut self.supervised)
    }

    /// Keeps a handle of an object, which now counts a holding of this session.
    #[inline(always)]
    pub(super) fn keep(&mut self, object: ObjectRef) -> Slot {
        if let Some(slot) = self.free.pop() {
            self.objects[slot.0 as usize] = Some(object);
            return slot;
        }
        let slot = Slot::new(u32::try_from(self.objects.len()).unwrap_or(u32::MAX));
        self.objects.push(Some(object));
        slot
    }

    /// The object of this name, where it is among those that the session came to hold last.
    #[inline(always)]
    pub(super) fn recent(&self, namespace: Namespace, hash: NameHash, name: &[u8]) -> Option<&ObjectRef> {
        let slot = self.recent[namespace as usize].find(hash)?;
        self.objects[slot.0 as usize].as_ref().filter(|object| object.name() == name)
    }

    /// Remembers in which slot the handle of a name is kept.
    #[inline(always)]
    pub(super) fn remember(&mut self, namespace: Namespace, hash: NameHash, slot: Slot) {
        self.recent[namespace as usize].insert(hash, slot);
    }

    /// Forgets the slot of a name, which is about to be emptied.
    #[inline(always)]
    pub(super) fn forget(&mut self, namespace: Namespace, hash: NameHash, slot: Slot) {
        self.recent[namespace as usize].remove(hash, slot);
    }

    /// Lets go of the handle in a slot, as the object counts no holding of this session any more.
    #[inline(always)]
    pub(super) fn let_go(&mut self, slot: Slot) {
        let object = self.objects[slot.0 as usize].take();
        invariant!(object.is_some(), "session {} has a handle of everything it holds", self.id);
        // The last one goes, so a session that holds one name at a time has no list of what is free.
        if slot.0 as usize + 1 == self.objects.len() {
            self.objects.pop();
        } else {
            self.free.push(slot);
        }
        // One that held very much and holds nothing any more gives back the room for it.
        if self.objects.capacity() > SLOTS_KEPT && self.free.len() == self.objects.len() {
            self.objects = Vec::new();
            self.free = Vec::new();
        }
    }
}

/// Slots that were filled last, by the hashes of their names, so that a release finds what was just acquired without
/// the map. A slot that another name of a like hash has displaced is found by the map again.
///
/// Invariant: every slot in it is filled by an object of its namespace.
#[derive(Debug, Default)]
struct Recent {
    /// By itself, so a session that takes one name after the other needs no table.
    last: Option<(NameHash, Slot)>,
    earlier: Option<Box<[Option<Slot>; RECENT_SLOTS]>>,
}

/// As many as a connection is likely to have on their way.
const RECENT_SLOTS: usize = 64;

impl Recent {
    #[inline(always)]
    fn find(&self, hash: NameHash) -> Option<Slot> {
        match self.last {
            Some((last, slot)) if last == hash => Some(slot),
            _ => self.earlier.as_ref()?[Self::index(hash)],
        }
    }

    #[inline(always)]
    fn insert(&mut self, hash: NameHash, slot: Slot) {
        if let Some((hash, slot)) = self.last.replace((hash, slot)) {
            let earlier = self.earlier.get_or_insert_with(|| Box::new([None; RECENT_SLOTS]));
            earlier[Self::index(hash)] = Some(slot);
        }
    }

    #[inline(always)]
    fn remove(&mut self, hash: NameHash, slot: Slot) {
        if self.last.is_some_and(|(_, last)| last == slot) {
            self.last = None;
        } else if let Some(earlier) = &mut self.earlier
            && earlier[Self::index(hash)] == Some(slot)
        {
            earlier[Self::index(hash)] = None;
        }
    }

    fn index(hash: NameHash) -> usize {
        hash.0 as usize % RECENT_SLOTS
    }
}

/// The end of a session at work: what it held is given back, some names a step.
#[derive(Debug)]
#[must_use = "what the session held is given back by the steps"]
pub struct Ending<'a> {
    core: &'a Core,
    session: SessionId,
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
                self.core.release_all_supervised(&object, self.session, now);
                // Requests were served, which is work enough for a step.
                break;
            }
        }
        self.objects.len() > 0
    }
}
