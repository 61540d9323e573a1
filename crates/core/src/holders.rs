//! The holders of one object and how much each of them holds.
//!
//! Nearly every object has one holder at a time, so that holder is stored inside the object. The rest is rare and lives
//! in a separate allocation, the rare state: a second holder, a table that is created for the third, the resources of
//! grants, and the reasons why the object is tracked. An empty rare state is freed by the next sweep and not at once,
//! so that a contended name does not allocate again and again.
//!
//! Invariants: no holding has zero resources; the tag of `TaggedIndex` is set if and only if the rare state is not empty.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::invariant::invariant;
use signalbox_model::ConnectionId;

/// The index of the handle of one object within a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HandleIndex(u32);

impl HandleIndex {
    /// An index is below 2^31, which leaves one bit for the tag of [`Holders`].
    pub(super) fn new(number: u32) -> Self {
        invariant!(number < 1 << 31, "two billion handles of one session do not fit into memory");
        Self(number)
    }

    pub(super) fn number(self) -> u32 {
        self.0
    }
}

/// The resources of one object that one session holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holding {
    pub(super) resources: u32,
    /// The index of the object's handle within the session.
    pub(super) index: HandleIndex,
}

/// The holdings of one object, by session. The order of the fields matters; see `Object` in `object`.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Holders {
    /// The session whose holding is stored inline. The rest of that holding is `resources` and `index`.
    first: Option<ConnectionId>,
    resources: u32,
    index: TaggedIndex,
    /// Boxed, because few objects have this state, and it would make every object larger.
    rare: Option<Box<RareState>>,
}

/// State that few objects have.
#[derive(Debug, Default)]
struct RareState {
    /// Not in the table, because a third holder is rarer still and a table costs two more cache lines.
    second: Option<(ConnectionId, Holding)>,
    others: Table,
    /// Resources of grants, and those reserved for waiters.
    granted: u32,
    tracking: Tracking,
}

/// The reasons why operations on an object go through the ledger: it is tracked while any of these is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tracking {
    /// Requests wait for the object: nothing may overtake them, and released resources are granted to them.
    pub(super) queued: bool,
    /// A watch may cover the object.
    pub(super) watched: bool,
    /// The ledger acts when the usage drops: a request waits for the drop, or the object is being removed.
    pub(super) awaited: bool,
}

/// A handle index with a tag in its highest bit, which is set if the rare state is not empty. Without the tag, every
/// request on a name that once had two holders would have to read the rare state, which is one more cache line.
#[derive(Clone, Copy, Debug, Default)]
struct TaggedIndex(u32);

type Table = HashMap<ConnectionId, Holding, BuildHasherDefault<SessionHasher>>;

const _: () = assert!(size_of::<Holders>() == 24, "the holders of a name are part of its 140 bytes");
const _: () = assert!(
    size_of::<RareState>() <= 56,
    "with the allocator's eight bytes the rare state fills a cache line"
);

impl TaggedIndex {
    const TAG: u32 = 1 << 31;

    fn new(index: HandleIndex, is_tagged: bool) -> Self {
        let tag = if is_tagged { Self::TAG } else { 0 };
        Self(index.number() | tag)
    }

    fn index(self) -> HandleIndex {
        HandleIndex::new(self.0 & !Self::TAG)
    }

    fn is_tagged(self) -> bool {
        self.0 & Self::TAG != 0
    }
}

impl Holders {
    /// The resources that a session holds; `None`: it holds none.
    #[inline(always)]
    pub(super) fn resources(&self, session: ConnectionId) -> Option<u32> {
        if self.first == Some(session) {
            return Some(self.resources);
        }
        self.rare()?.holding(session).map(|holding| holding.resources)
    }

    /// Changes the resources of a session that holds some already; `resources` is not 0.
    #[inline(always)]
    pub(super) fn set_resources(&mut self, session: ConnectionId, resources: u32) {
        if self.first == Some(session) {
            self.resources = resources;
        } else if let Some(holding) = self.rare.as_mut().and_then(|rare| rare.holding_mut(session)) {
            holding.resources = resources;
        }
    }

    /// Adds the holding of a session that does not have one yet.
    #[inline(always)]
    pub(super) fn add(&mut self, session: ConnectionId, holding: Holding) {
        if self.first.is_none() {
            self.first = Some(session);
            self.resources = holding.resources;
            self.index = TaggedIndex::new(holding.index, self.index.is_tagged());
        } else {
            self.change_rare(|rare| rare.add(session, holding));
        }
    }

    /// Removes the holding of a session.
    #[inline(always)]
    pub(super) fn remove(&mut self, session: ConnectionId) -> Option<Holding> {
        if self.first == Some(session) {
            self.first = None;
            return Some(Holding { resources: self.resources, index: self.index.index() });
        }
        self.rare()?;
        self.change_rare(|rare| rare.remove(session))
    }

    /// Returns whether neither a session nor a grant holds anything.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none() && self.rare().is_none_or(|rare| !rare.has_holdings() && rare.granted == 0)
    }

    /// The sum of the holdings and grants. It is wider than one holding, so that a wrong sum shows instead of wrapping.
    pub(super) fn sum(&self) -> u64 {
        let holdings = self.holdings().map(|(_, resources)| u64::from(resources));
        holdings.sum::<u64>() + u64::from(self.granted())
    }

    /// The sessions that hold resources, and the resources of each.
    pub(super) fn holdings(&self) -> impl Iterator<Item = (ConnectionId, u32)> {
        let first = self.first.map(|session| (session, self.resources));
        let others = self.rare().into_iter().flat_map(RareState::holdings);
        first.into_iter().chain(others.map(|(session, holding)| (session, holding.resources)))
    }

    /// Resources of grants, and those reserved for waiters.
    pub(super) fn granted(&self) -> u32 {
        self.rare().map_or(0, |rare| rare.granted)
    }

    pub(super) fn set_granted(&mut self, granted: u32) {
        self.change_rare(|rare| rare.granted = granted);
    }

    /// Returns the reasons why operations go through the ledger.
    #[inline(always)]
    pub(super) fn tracking(&self) -> Tracking {
        self.rare().map_or(Tracking::default(), |rare| rare.tracking)
    }

    pub(super) fn set_tracking(&mut self, tracking: Tracking) {
        if self.tracking() != tracking {
            self.change_rare(|rare| rare.tracking = tracking);
        }
    }

    /// Frees an empty rare state.
    pub(super) fn shrink(&mut self) {
        if !self.index.is_tagged() {
            self.rare = None;
        }
    }

    /// The rare state, unless it is empty.
    #[inline(always)]
    fn rare(&self) -> Option<&RareState> {
        if self.index.is_tagged() { self.rare.as_deref() } else { None }
    }

    #[cold]
    fn change_rare<R>(&mut self, change: impl FnOnce(&mut RareState) -> R) -> R {
        let rare = self.rare.get_or_insert_default();
        let outcome = change(rare);
        let is_tagged = !rare.is_empty();
        self.index = TaggedIndex::new(self.index.index(), is_tagged);
        outcome
    }
}

impl RareState {
    fn is_empty(&self) -> bool {
        !self.has_holdings() && self.granted == 0 && self.tracking == Tracking::default()
    }

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

    fn has_holdings(&self) -> bool {
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

/// Spreads session numbers over a table. The server assigns them in sequence, so a client cannot choose colliding ones.
#[derive(Default)]
pub(super) struct SessionHasher(u64);

impl Hasher for SessionHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // The odd constant nearest to 2^64 divided by the golden ratio. The high bits are folded into the low ones
        // because the table uses both ends of a hash.
        let product = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
