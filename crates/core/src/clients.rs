//! How much each client uses of the limited resources, and which of its sessions are unused.
//!
//! A client that is not known (`None`) is not counted: its shares are never exhausted.
//!
//! Invariant: a client that has nothing has no entry.

use std::collections::{BTreeMap, BTreeSet};

use crate::invariant::invariant;
use crate::limit::ClientKey;

/// A quantity that is counted for each client.
#[derive(Clone, Copy, Debug)]
pub(super) enum Counted {
    /// Leased sessions, or processes of System V calls.
    Sessions,
    /// Requests that wait.
    Waiters,
    Watches,
    /// The memory that its sessions use, in bytes.
    Bytes,
}

impl Counted {
    const ALL: [Self; 4] = [Self::Sessions, Self::Waiters, Self::Watches, Self::Bytes];
}

/// The counts of one client, in the order of [`Counted`].
pub(super) type Counts = [usize; 4];

/// The clients and their unused sessions. `I` is the type of session ids, which grow.
#[derive(Debug)]
pub(super) struct Clients<I>(BTreeMap<ClientKey, Usage<I>>);

#[derive(Debug)]
struct Usage<I> {
    counts: Counts,
    /// Its sessions that may end to make room for new ones of the same client. Some may have been used again since they were
    /// added.
    unused: BTreeSet<I>,
}

impl<I> Default for Clients<I> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<I: Ord + Copy> Clients<I> {
    /// Returns a count of a client.
    pub(super) fn count(&self, client: Option<ClientKey>, what: Counted) -> usize {
        client.and_then(|client| self.0.get(&client)).map_or(0, |usage| usage.counts[what as usize])
    }

    /// Adds to a count of a client.
    pub(super) fn add(&mut self, client: Option<ClientKey>, what: Counted, amount: usize) {
        let Some(client) = client.filter(|_| amount > 0) else { return };
        let new = || Usage { counts: Counts::default(), unused: BTreeSet::new() };
        self.0.entry(client).or_insert_with(new).counts[what as usize] += amount;
    }

    /// Subtracts from a count of a client.
    pub(super) fn subtract(&mut self, client: Option<ClientKey>, what: Counted, amount: usize) {
        let Some(client) = client.filter(|_| amount > 0) else { return };
        let usage = self.0.get_mut(&client).filter(|usage| usage.counts[what as usize] >= amount);
        invariant!(usage.is_some(), "a client gives back what was counted");
        let Some(usage) = usage else { return };
        usage.counts[what as usize] -= amount;
        if usage.counts == Counts::default() {
            self.0.remove(&client);
        }
    }

    /// Adds to each count of a client.
    pub(super) fn add_all(&mut self, client: Option<ClientKey>, counts: Counts) {
        Counted::ALL.into_iter().zip(counts).for_each(|(what, amount)| self.add(client, what, amount));
    }

    /// Subtracts from each count of a client.
    pub(super) fn subtract_all(&mut self, client: Option<ClientKey>, counts: Counts) {
        Counted::ALL.into_iter().zip(counts).for_each(|(what, amount)| self.subtract(client, what, amount));
    }

    /// Marks a session of a client as unused. Does nothing for a client that has no session.
    pub(super) fn add_unused(&mut self, client: Option<ClientKey>, session: I) {
        if let Some(usage) = client.and_then(|client| self.0.get_mut(&client)) {
            usage.unused.insert(session);
        }
    }

    /// Removes a session that is used again or has ended.
    pub(super) fn remove_unused(&mut self, client: Option<ClientKey>, session: I) {
        if let Some(usage) = client.and_then(|client| self.0.get_mut(&client)) {
            usage.unused.remove(&session);
        }
    }

    /// Takes the oldest session of a client that was added as unused. It may have been used again since.
    pub(super) fn pop_unused(&mut self, client: Option<ClientKey>) -> Option<I> {
        self.0.get_mut(&client?)?.unused.pop_first()
    }

    /// All unused sessions, and their clients.
    pub(super) fn unused(&self) -> impl Iterator<Item = (ClientKey, I)> {
        self.0.iter().flat_map(|(client, usage)| usage.unused.iter().map(|session| (*client, *session)))
    }

    /// Fails with a description if the counts are not the sums of `all`, which has the counts of each session or process.
    pub(super) fn check(&self, all: impl Iterator<Item = (Option<ClientKey>, Counts)>) -> Result<(), String> {
        let mut expected = BTreeMap::<_, Counts>::new();
        for (client, counts) in all.filter(|(_, counts)| *counts != Counts::default()) {
            let Some(client) = client else { continue };
            let sums = expected.entry(client).or_default();
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        let counted: BTreeMap<_, _> = self.0.iter().map(|(client, usage)| (*client, usage.counts)).collect();
        if counted == expected {
            return Ok(());
        }
        Err(format!("clients have {expected:?}, and {counted:?} is counted"))
    }
}
