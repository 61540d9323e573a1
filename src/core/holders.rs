//! Who holds how much of one object.
//!
//! Nearly every object has one holder at a time, so that one lives inside the object; a table is made when a second
//! comes, and kept until a sweep finds it empty, so that a contended name does not allocate again and again.
//!
//! Invariants: no holding is of zero resources; the mark stands exactly while the table holds anything.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::session::{SessionId, Slot};

/// What one session holds of one object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holding {
    pub(super) resources: u32,
    /// Where the session keeps its handle of the object.
    pub(super) slot: Slot,
}

/// The holdings of one object, by session.
#[derive(Debug, Default)]
pub(super) struct Holders {
    /// Whose holding stands here.
    first: Option<SessionId>,
    resources: u32,
    slot: MarkedSlot,
    /// Boxed, since the table itself would make every object larger.
    others: Option<Box<Table>>,
}

/// A slot, and a mark in its highest bit: whether the table holds anything. Without it every request would have to
/// look into the table of a name that once had two holders, which is two cache lines more.
#[derive(Clone, Copy, Debug, Default)]
struct MarkedSlot(u32);

type Table = HashMap<SessionId, Holding, BuildHasherDefault<SessionHasher>>;

const _: () = assert!(size_of::<Holders>() == 24, "the holders of a name are part of its 140 bytes");

impl MarkedSlot {
    const MARK: u32 = 1 << 31;

    fn new(slot: Slot, is_marked: bool) -> Self {
        let mark = if is_marked { Self::MARK } else { 0 };
        Self(slot.number() | mark)
    }

    fn slot(self) -> Slot {
        Slot::new(self.0 & !Self::MARK)
    }

    fn is_marked(self) -> bool {
        self.0 & Self::MARK != 0
    }
}

impl Holders {
    /// The resources that a session holds; `None` where it holds none.
    #[inline]
    pub(super) fn resources(&self, session: SessionId) -> Option<u32> {
        if self.first == Some(session) {
            return Some(self.resources);
        }
        self.table()?.get(&session).map(|holding| holding.resources)
    }

    /// Sets the resources of a session that holds some already, to some.
    #[inline]
    pub(super) fn set_resources(&mut self, session: SessionId, resources: u32) {
        if self.first == Some(session) {
            self.resources = resources;
        } else if let Some(holding) = self.others.as_mut().and_then(|table| table.get_mut(&session)) {
            holding.resources = resources;
        }
    }

    /// Adds the holding of a session that has none.
    #[inline]
    pub(super) fn add(&mut self, session: SessionId, holding: Holding) {
        if self.first.is_none() {
            self.first = Some(session);
            self.resources = holding.resources;
            self.slot = MarkedSlot::new(holding.slot, self.slot.is_marked());
        } else {
            self.others.get_or_insert_default().insert(session, holding);
            self.slot = MarkedSlot::new(self.slot.slot(), true);
        }
    }

    /// Removes the holding of a session.
    #[inline]
    pub(super) fn remove(&mut self, session: SessionId) -> Option<Holding> {
        if self.first == Some(session) {
            self.first = None;
            return Some(Holding { resources: self.resources, slot: self.slot.slot() });
        }
        self.table()?;
        let table = self.others.as_mut()?;
        let holding = table.remove(&session)?;
        if table.is_empty() {
            self.slot = MarkedSlot::new(self.slot.slot(), false);
        }
        Some(holding)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none() && self.table().is_none()
    }

    /// The sum of what is held; wider than one holding, so that a broken sum shows instead of wrapping.
    pub(super) fn sum(&self) -> u64 {
        let first = self.first.map_or(0, |_| u64::from(self.resources));
        let others = self.table().into_iter().flat_map(HashMap::values);
        first + others.map(|holding| u64::from(holding.resources)).sum::<u64>()
    }

    /// Gives up the table where it stands empty.
    pub(super) fn shrink(&mut self) {
        if !self.slot.is_marked() {
            self.others = None;
        }
    }

    /// The table, where it holds anything.
    #[inline]
    fn table(&self) -> Option<&Table> {
        if self.slot.is_marked() { self.others.as_deref() } else { None }
    }
}

/// Spreads session numbers over a table. They are counted up by the server, so nobody can choose them to collide.
#[derive(Default)]
pub(super) struct SessionHasher(u64);

impl Hasher for SessionHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // The odd constant nearest to 2^64 divided by the golden ratio; its high bits are folded down because the
        // table takes both ends of a hash.
        let product = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
