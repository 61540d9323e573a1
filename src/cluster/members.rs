//! What a node sees of all nodes of its cluster, and since when it has been so.
//!
//! A new leader asks it whose relays may still be open (invariant C5, `docs/decisions/0028`); the status page and clients
//! learn from it which nodes there are. It decides nothing else.

use std::collections::BTreeMap;
use std::time::Duration;

use super::clock::BootTime;
use super::coordinator::{CallError, Coordinator, Entry, Range, Revision};
use super::keys::{Heartbeat, Incarnation, Keys, Node, ValueError, decode, end_of_prefix};

/// The nodes of a cluster as they were read last.
#[derive(Clone, Debug, Default)]
pub struct Members {
    nodes: BTreeMap<String, Member>,
    /// The revision of the store at the last reading.
    revision: Revision,
}

/// A node, and its last sign of life.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its own record.
    pub node: Node,
    /// Its last heartbeat; `None`: it has none.
    pub heartbeat: Option<Heartbeat>,
    modified: Revision,
    /// When the answer arrived that showed this heartbeat first.
    since: BootTime,
}

/// Nodes and heartbeats as they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The store at the beginning of the reading.
    pub revision: Revision,
    /// The nodes by name.
    pub nodes: BTreeMap<String, Node>,
    /// The heartbeats by name, and when they were written.
    pub heartbeats: BTreeMap<String, (Heartbeat, Revision)>,
}

/// Why there is no reading.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadingError {
    /// etcd did not answer as it should.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A value cannot be read.
    #[error(transparent)]
    Value(#[from] ValueError),
}

/// A node whose relays of earlier epochs may be open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclosed {
    /// Its name.
    pub node: String,
    /// When they are closed for certain, if the node works: it closes what it relays when it cannot give heartbeats.
    pub closed_at: BootTime,
}

impl Reading {
    /// Reads all nodes and heartbeats.
    ///
    /// # Errors
    ///
    /// [`ReadingError`].
    pub fn read(coordinator: &mut dyn Coordinator, keys: &Keys) -> Result<Self, ReadingError> {
        let mut below = |prefix: Vec<u8>| -> Result<(Revision, Vec<(String, Entry)>), CallError> {
            let range =
                Range { to: Some(end_of_prefix(&prefix)), from: prefix.clone(), at: None, count_only: false };
            let answer = coordinator.range(&range)?;
            let name =
                |key: &[u8]| String::from_utf8_lossy(key.strip_prefix(&*prefix).unwrap_or(key)).into_owned();
            let named = answer.entries.into_iter().map(|entry| (name(&entry.key), entry));
            Ok((answer.revision, named.collect()))
        };
        let (revision, nodes) = below(keys.nodes())?;
        let (_, heartbeats) = below(keys.heartbeats())?;
        Ok(Self {
            revision,
            nodes: nodes
                .into_iter()
                .map(|(name, entry)| Ok((name, decode(&entry.key, &entry.value)?)))
                .collect::<Result<_, ValueError>>()?,
            heartbeats: heartbeats
                .into_iter()
                .map(|(name, entry)| Ok((name, (decode(&entry.key, &entry.value)?, entry.modified))))
                .collect::<Result<_, ValueError>>()?,
        })
    }
}

impl Members {
    /// Takes in a reading that arrived `now`.
    pub fn update(&mut self, reading: Reading, now: BootTime) {
        let Reading { revision, nodes, mut heartbeats } = reading;
        self.revision = revision;
        let former = std::mem::take(&mut self.nodes);
        let member = |(name, node): (String, Node)| {
            let (heartbeat, modified) = heartbeats.remove(&name).unzip();
            let modified = modified.unwrap_or(0);
            let unchanged = former.get(&name).filter(|former| former.modified == modified);
            let since = unchanged.map_or(now, |former| former.since);
            (name, Member { node, heartbeat, modified, since })
        };
        self.nodes = nodes.into_iter().map(member).collect();
    }

    /// The nodes by name.
    pub fn nodes(&self) -> &BTreeMap<String, Member> {
        &self.nodes
    }

    /// The nodes that may relay clients to a leader of an earlier epoch than `epoch`, which the run `this` leads.
    /// `None`: the last reading was before the takeover, at revision `taken_at`.
    pub fn unclosed(
        &self,
        epoch: u32,
        taken_at: Revision,
        this: &Incarnation,
        lease_duration: Duration,
        now: BootTime,
    ) -> Option<Vec<Unclosed>> {
        if self.revision < taken_at {
            return None;
        }
        let unclosed = |(name, member): (&String, &Member)| {
            let Member { node, heartbeat, since, .. } = member;
            let closed_at = since.after(lease_duration);
            let promise = heartbeat.as_ref().filter(|heartbeat| heartbeat.incarnation == node.incarnation);
            let has_closed = promise.is_some_and(|promise| promise.relays_closed_below >= epoch);
            let is_open = node.relays && node.incarnation != *this && !has_closed && now < closed_at;
            is_open.then(|| Unclosed { node: name.clone(), closed_at })
        };
        Some(self.nodes.iter().filter_map(unclosed).collect())
    }
}
