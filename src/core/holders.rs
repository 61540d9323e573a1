//! Who holds how much of one object.
//!
//! Nearly every object has one holder at a time, so that one lives inside the object. What is rare stands in a crowd
//! beside it: a second holder, a table that is made when a third comes, what grants have taken, whether requests wait,
//! whether somebody watches. It is kept until a sweep finds that it says nothing, so that a contended name does not
//! allocate again and again.
//!
//! Invariants: no holding is of zero resources; the mark stands exactly while the crowd says anything.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::ids::ConnectionId;
use super::session::HandleIndex;

/// What one session holds of one object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holding {
    pub(super) resources: u32,
    /// Where the session keeps its handle of the object.
    pub(super) index: HandleIndex,
}

/// The holdings of one object, by session. In this order, since the object ends where the crowd does.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Holders {
    /// Whose holding stands here.
    first: Option<ConnectionId>,
    resources: u32,
    index: MarkedIndex,
    /// Boxed, since it would make every object larger.
    crowd: Option<Box<Crowd>>,
}

/// What few objects have.
#[derive(Debug, Default)]
struct Crowd {
    /// A holding by itself, since a third at a time is rarer still and a table is two cache lines more.
    second: Option<(ConnectionId, Holding)>,
    others: Table,
    /// Resources of grants, and those that waiters have set aside.
    granted: u32,
    tracking: Tracking,
}

/// Why operations on an object go through the ledger: the object is tracked while any of these is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tracking {
    /// Requests wait for the object: nothing may overtake them, and they are granted what is released.
    pub(super) queued: bool,
    /// A watch may cover the object.
    pub(super) watched: bool,
    /// The ledger acts when the usage drops: a request waits for that, or the object is being removed.
    pub(super) awaited: bool,
}

/// A handle index, and a mark in its highest bit: whether the crowd says anything. Without it every request would have to
/// look into the crowd of a name that once had two holders, which is a cache line more.
#[derive(Clone, Copy, Debug, Default)]
struct MarkedIndex(u32);

type Table = HashMap<ConnectionId, Holding, BuildHasherDefault<SessionHasher>>;

const _: () = assert!(size_of::<Holders>() == 24, "the holders of a name are part of its 140 bytes");
const _: () =
    assert!(size_of::<Crowd>() <= 56, "with the allocator's eight bytes a crowd is as large as a cache line");

impl MarkedIndex {
    const MARK: u32 = 1 << 31;

    fn new(index: HandleIndex, is_marked: bool) -> Self {
        let mark = if is_marked { Self::MARK } else { 0 };
        Self(index.number() | mark)
    }

    fn index(self) -> HandleIndex {
        HandleIndex::new(self.0 & !Self::MARK)
    }

    fn is_marked(self) -> bool {
        self.0 & Self::MARK != 0
    }
}

impl Holders {
    /// The resources that a session holds; `None` where it holds none.
    #[inline(always)]
    pub(super) fn resources(&self, session: ConnectionId) -> Option<u32> {
        if self.first == Some(session) {
            return Some(self.resources);
        }
        self.crowd()?.holding(session).map(|holding| holding.resources)
    }

    /// Sets the resources of a session that holds some already, to some.
    #[inline(always)]
    pub(super) fn set_resources(&mut self, session: ConnectionId, resources: u32) {
        if self.first == Some(session) {
            self.resources = resources;
        } else if let Some(holding) = self.crowd.as_mut().and_then(|crowd| crowd.holding_mut(session)) {
            holding.resources = resources;
        }
    }

    /// Adds the holding of a session that has none.
    #[inline(always)]
    pub(super) fn add(&mut self, session: ConnectionId, holding: Holding) {
        if self.first.is_none() {
            self.first = Some(session);
            self.resources = holding.resources;
            self.index = MarkedIndex::new(holding.index, self.index.is_marked());
        } else {
            self.change_crowd(|crowd| crowd.add(session, holding));
        }
    }

    /// Removes the holding of a session.
    #[inline(always)]
    pub(super) fn remove(&mut self, session: ConnectionId) -> Option<Holding> {
        if self.first == Some(session) {
            self.first = None;
            return Some(Holding { resources: self.resources, index: self.index.index() });
        }
        self.crowd()?;
        self.change_crowd(|crowd| crowd.remove(session))
    }

    /// Whether neither a session nor a grant has taken anything.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none() && self.crowd().is_none_or(|crowd| !crowd.is_held() && crowd.granted == 0)
    }

    /// The sum of what is held; wider than one holding, so that a broken sum shows instead of wrapping.
    pub(super) fn sum(&self) -> u64 {
        let holdings = self.holdings().map(|(_, resources)| u64::from(resources));
        holdings.sum::<u64>() + u64::from(self.granted())
    }

    /// The sessions that hold something, and how much.
    pub(super) fn holdings(&self) -> impl Iterator<Item = (ConnectionId, u32)> {
        let first = self.first.map(|session| (session, self.resources));
        let others = self.crowd().into_iter().flat_map(Crowd::holdings);
        first.into_iter().chain(others.map(|(session, holding)| (session, holding.resources)))
    }

    /// Resources of grants, and those that waiters have set aside.
    pub(super) fn granted(&self) -> u32 {
        self.crowd().map_or(0, |crowd| crowd.granted)
    }

    pub(super) fn set_granted(&mut self, granted: u32) {
        self.change_crowd(|crowd| crowd.granted = granted);
    }

    /// Whether operations go through the ledger, and why.
    #[inline(always)]
    pub(super) fn tracking(&self) -> Tracking {
        self.crowd().map_or(Tracking::default(), |crowd| crowd.tracking)
    }

    pub(super) fn set_supervision(&mut self, tracking: Tracking) {
        if self.tracking() != tracking {
            self.change_crowd(|crowd| crowd.tracking = tracking);
        }
    }

    /// Gives up the crowd where it says nothing.
    pub(super) fn shrink(&mut self) {
        if !self.index.is_marked() {
            self.crowd = None;
        }
    }

    /// The crowd, where it says anything.
    #[inline(always)]
    fn crowd(&self) -> Option<&Crowd> {
        if self.index.is_marked() { self.crowd.as_deref() } else { None }
    }

    #[cold]
    fn change_crowd<R>(&mut self, change: impl FnOnce(&mut Crowd) -> R) -> R {
        let crowd = self.crowd.get_or_insert_default();
        let outcome = change(crowd);
        let is_told = crowd.is_held() || crowd.granted > 0 || crowd.tracking != Tracking::default();
        self.index = MarkedIndex::new(self.index.index(), is_told);
        outcome
    }
}

impl Crowd {
    #[inline(always)]
    fn holding(&self, session: ConnectionId) -> Option<&Holding> {
        match &self.second {
            Some((second, holding)) if *second == session => Some(holding),
            _ => self.others.get(&session),
        }
    }

    fn holding_mut(&mut self, session: ConnectionId) -> Option<&mut Holding> {
        match &mut self.second {
            Some((second, holding)) if *second == session => Some(holding),
            _ => self.others.get_mut(&session),
        }
    }

    fn holdings(&self) -> impl Iterator<Item = (ConnectionId, Holding)> {
        self.second.into_iter().chain(self.others.iter().map(|(session, holding)| (*session, *holding)))
    }

    fn is_held(&self) -> bool {
        self.second.is_some() || !self.others.is_empty()
    }

    fn add(&mut self, session: ConnectionId, holding: Holding) {
        if self.second.is_none() {
            self.second = Some((session, holding));
        } else {
            self.others.insert(session, holding);
        }
    }

    fn remove(&mut self, session: ConnectionId) -> Option<Holding> {
        match self.second.take_if(|(second, _)| *second == session) {
            Some((_, holding)) => Some(holding),
            None => self.others.remove(&session),
        }
    }
}

impl Tracking {
    #[inline(always)]
    pub(super) fn is_any(self) -> bool {
        self.queued || self.watched || self.awaited
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
