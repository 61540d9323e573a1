//! The connections to the relay port that have not proven yet that they come from a relay.
//!
//! Any program that reaches the port can open such connections. A node needs one for about a round trip, so new ones
//! are served, and the oldest are closed.
//!
//! Invariants: there are at most [`UNPROVEN_MAX`] of them, and at most [`OF_CLIENT_MAX`] of a client that is not a
//! known node. Such a client never takes the place of a node.

use std::collections::BTreeMap;

use signalbox_core::ClientKey;

/// The most unproven connections.
pub(super) const UNPROVEN_MAX: usize = 1024;

/// The most unproven connections of a client that is not a known node. A node that may not lead and has no `cluster.bind`
/// is not known. It can relay its clients all the same: an attempt takes little time, and is repeated if it fails.
pub(super) const OF_CLIENT_MAX: usize = 64;

/// The unproven connections. `T` is the handle that ends one.
#[derive(Debug)]
pub(super) struct Unproven<T> {
    /// In the order in which they were accepted.
    all: BTreeMap<u64, Connection<T>>,
    next: u64,
}

#[derive(Debug)]
struct Connection<T> {
    client: ClientKey,
    is_of_node: bool,
    end: T,
}

impl<T> Default for Unproven<T> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), next: 0 }
    }
}

/// A new connection must not be served.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoRoom;

impl<T> Unproven<T> {
    /// Makes room for a connection of this client. Returns the handle of another connection, if one must be closed for
    /// that.
    pub(super) fn make_room(&mut self, client: ClientKey, is_of_node: bool) -> Result<Option<T>, NoRoom> {
        let is_own = |other: &Connection<T>| other.client == client;
        let has_used_up_share =
            !is_of_node && self.all.values().filter(|other| is_own(other)).count() >= OF_CLIENT_MAX;
        let oldest = if has_used_up_share {
            self.oldest(is_own)
        } else if self.all.len() < UNPROVEN_MAX {
            return Ok(None);
        } else {
            let of_strangers = self.oldest(|other| !other.is_of_node);
            of_strangers.or_else(|| self.oldest(|_| is_of_node))
        };
        let oldest = oldest.and_then(|number| self.all.remove(&number)).ok_or(NoRoom)?;
        Ok(Some(oldest.end))
    }

    /// Adds a connection, for which there is room. `begin` receives its number, and returns its handle.
    pub(super) fn add(&mut self, client: ClientKey, is_of_node: bool, begin: impl FnOnce(u64) -> T) {
        let number = self.next;
        self.next += 1;
        self.all.insert(number, Connection { client, is_of_node, end: begin(number) });
    }

    /// Removes a connection that is over, or whose relay has proven itself.
    pub(super) fn remove(&mut self, number: u64) {
        self.all.remove(&number);
    }

    fn oldest(&self, which: impl Fn(&Connection<T>) -> bool) -> Option<u64> {
        self.all.iter().find(|(_, connection)| which(connection)).map(|(number, _)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u32) -> ClientKey {
        ClientKey(u128::from(number).to_be_bytes())
    }

    /// Accepts a connection. Returns the number of the one that is closed for it.
    fn accept(unproven: &mut Unproven<u64>, number: u32, is_of_node: bool) -> Result<Option<u64>, NoRoom> {
        let closed = unproven.make_room(client(number), is_of_node)?;
        unproven.add(client(number), is_of_node, |number| number);
        Ok(closed)
    }

    #[test]
    fn a_client_that_is_no_node_closes_its_own_oldest() {
        let mut unproven = Unproven::default();
        assert_eq!(accept(&mut unproven, 2, false), Ok(None));
        for _ in 0..OF_CLIENT_MAX {
            assert_eq!(accept(&mut unproven, 1, false), Ok(None));
        }
        for oldest in 1..100 {
            assert_eq!(accept(&mut unproven, 1, false), Ok(Some(oldest)));
        }
        unproven.remove(100);
        assert_eq!(accept(&mut unproven, 1, false), Ok(None), "one has proven itself");
    }

    #[test]
    fn strangers_make_room_for_nodes_and_never_the_other_way_round() {
        let mut unproven = Unproven::default();
        for number in 0..UNPROVEN_MAX {
            assert_eq!(accept(&mut unproven, number as u32, false), Ok(None));
        }
        assert_eq!(accept(&mut unproven, 5_000, false), Ok(Some(0)), "the oldest of all");
        for oldest in 1..=UNPROVEN_MAX as u64 {
            assert_eq!(accept(&mut unproven, 9_000, true), Ok(Some(oldest)));
        }
        assert_eq!(accept(&mut unproven, 1, false), Err(NoRoom));
        assert_eq!(accept(&mut unproven, 9_001, true), Ok(Some(UNPROVEN_MAX as u64 + 1)));
        unproven.remove(UNPROVEN_MAX as u64 + 2);
        assert_eq!(accept(&mut unproven, 1, false), Ok(None));
    }
}
