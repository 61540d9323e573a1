//! Who holds how much of one object.
//!
//! Nearly every object has one holder at a time, so that one lives inside the object; a table is made when a second
//! comes, and kept until a sweep finds it empty, so that a contended name does not allocate again and again.
//!
//! Invariant: no holding is of zero resources.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
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
pub(super) enum Holders {
    #[default]
    None,
    One(SessionId, Holding),
    // Boxed, since the table itself would make every object larger.
    Many(Box<Table>),
}

type Table = HashMap<SessionId, Holding, BuildHasherDefault<SessionHasher>>;

const _: () = assert!(size_of::<Holders>() == 24, "the holders of a name are part of its 140 bytes");

impl Holders {
    /// The holding of a session, to be changed in place. It must not be set to zero.
    pub(super) fn holding_mut(&mut self, session: SessionId) -> Option<&mut Holding> {
        match self {
            Self::One(holder, holding) if *holder == session => Some(holding),
            Self::None | Self::One(..) => None,
            Self::Many(table) => table.get_mut(&session),
        }
    }

    /// Adds the holding of a session that has none.
    pub(super) fn add(&mut self, session: SessionId, holding: Holding) {
        match self {
            Self::None => *self = Self::One(session, holding),
            Self::One(first, first_holding) => {
                let mut table = Table::default();
                table.insert(*first, *first_holding);
                table.insert(session, holding);
                *self = Self::Many(Box::new(table));
            }
            Self::Many(table) => {
                table.insert(session, holding);
            }
        }
    }

    /// Removes the holding of a session.
    pub(super) fn remove(&mut self, session: SessionId) -> Option<Holding> {
        match self {
            Self::One(holder, holding) if *holder == session => {
                let holding = *holding;
                *self = Self::None;
                Some(holding)
            }
            Self::None | Self::One(..) => None,
            Self::Many(table) => match table.entry(session) {
                Entry::Occupied(entry) => Some(entry.remove()),
                Entry::Vacant(_) => None,
            },
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::None => true,
            Self::One(..) => false,
            Self::Many(table) => table.is_empty(),
        }
    }

    /// The sum of what is held; wider than one holding, so that a broken sum shows instead of wrapping.
    pub(super) fn sum(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::One(_, holding) => u64::from(holding.resources),
            Self::Many(table) => table.values().map(|holding| u64::from(holding.resources)).sum(),
        }
    }

    /// Gives up the table where it stands empty.
    pub(super) fn shrink(&mut self) {
        if let Self::Many(table) = self
            && table.is_empty()
        {
            *self = Self::None;
        }
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
