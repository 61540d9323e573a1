//! The nodes of a cluster, as this node reads them from etcd, with the time of each node's last new heartbeat, and the
//! thread that reads them.
//!
//! A new leader uses two facts about each node: whether it may still have open relays, which its heartbeats state
//! (invariant C5, `docs/decisions/0028`), and the addresses at which clients reach it, which its own key states.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::coordinator::{Coordinator, Entry, Range, Revision};
use super::error::AdminError;
use super::keys::{Advertised, Heartbeat, Incarnation, Keys, Node, ValueError, decode};
use super::leadership::Term;
use super::timing::BootTime;

/// The time between two reads while a new leader waits for the relays of other nodes.
pub const FAST_PERIOD: Duration = Duration::from_millis(10);

/// The nodes of a cluster as they were read last.
#[derive(Clone, Debug, Default)]
pub struct Members {
    nodes: BTreeMap<String, Member>,
    /// The revision of the store at the last read.
    revision: Revision,
}

/// A node, and its last heartbeat.
#[derive(Clone, Debug)]
struct Member {
    node: Node,
    /// `None`: the node has not sent one.
    heartbeat: Option<Heartbeat>,
    modified: Revision,
    /// When this heartbeat, or its absence, was first read.
    since: BootTime,
}

/// A node as another one sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenNode {
    /// Its name.
    pub name: String,
    /// Its value in etcd.
    pub node: Node,
    /// How long ago its last heartbeat, or its absence, was first read.
    pub heartbeat_age: Duration,
    /// The number of client connections that it relays; `None`: it does not relay, or has sent no heartbeat.
    pub relays: Option<u32>,
}

/// The wait of a new leader until the relays of earlier epochs are closed (invariant C5).
#[derive(Clone, Debug)]
pub struct RelayWait {
    term: Term,
    /// The run that leads.
    this: Incarnation,
    lease_duration: Duration,
    /// A node whose relays are still open at this time is faulty. The wait may take two lease durations: the leader
    /// waits for a silent node until a lease duration after it first read the node's last heartbeat, and it may read
    /// that heartbeat after the takeover.
    deadline: BootTime,
    /// The nodes with open relays at the last read after the takeover; `None`: nothing was read since then.
    open_nodes: Option<Vec<String>>,
}

/// The state of the relays of earlier epochs, as far as a new leader knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OldRelays {
    /// They may be open.
    Open,
    /// They are closed.
    Closed,
    /// These nodes still send heartbeats that report open relays, although a node that receives etcd's answers would
    /// have closed them. The leader no longer waits for them: a node that receives no answers has closed its relays at
    /// its deadline (the margins of C4).
    Faulty(Vec<String>),
}

/// Values by the names of their nodes, with the revisions at which they were written.
pub type Written<T> = BTreeMap<String, (T, Revision)>;

/// All nodes and heartbeats, as they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The revision of the store when the nodes were read.
    pub revision: Revision,
    /// The nodes by name.
    pub nodes: BTreeMap<String, Node>,
    /// The heartbeats by name, with the revisions at which they were written.
    pub heartbeats: Written<Heartbeat>,
}

impl Reading {
    /// Reads all nodes and heartbeats.
    ///
    /// # Errors
    ///
    /// [`AdminError::Call`], [`AdminError::Value`].
    pub fn read(coordinator: &mut dyn Coordinator, keys: &Keys) -> Result<Self, AdminError> {
        let (revision, nodes) = read_below(coordinator, &keys.nodes())?;
        let (_, heartbeats) = read_below(coordinator, &keys.heartbeats())?;
        Ok(Self {
            revision,
            nodes: nodes.into_iter().map(|(name, (node, _))| (name, node)).collect(),
            heartbeats,
        })
    }
}

/// Reads the values below a prefix. Returns the revision of the store, and the values by the rest of their keys, each
/// with the revision at which it was written.
pub(super) fn read_below<T: DeserializeOwned>(
    coordinator: &mut dyn Coordinator,
    prefix: &[u8],
) -> Result<(Revision, Written<T>), AdminError> {
    let answer = coordinator.range(&Range::below(prefix))?;
    let decoded = |Entry { key, value, modified }: Entry| {
        Ok((name_of(prefix, &key), (decode(&key, &value)?, modified)))
    };
    let found = answer.entries.into_iter().map(decoded).collect::<Result<_, ValueError>>()?;
    Ok((answer.revision, found))
}

/// The name in a key below a prefix.
pub(super) fn name_of(prefix: &[u8], key: &[u8]) -> String {
    String::from_utf8_lossy(key.strip_prefix(prefix).unwrap_or(key)).into_owned()
}

impl Members {
    /// Applies the nodes and heartbeats that were read. The answer has arrived `now`.
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

    /// Returns all nodes, in the order of their names.
    pub fn seen(&self, now: BootTime) -> Vec<SeenNode> {
        let seen = |(name, member): (&String, &Member)| {
            let Member { node, heartbeat, since, .. } = member;
            let heartbeat = heartbeat.as_ref().filter(|heartbeat| node.relays && heartbeat.is_of(node));
            SeenNode {
                name: name.clone(),
                node: node.clone(),
                heartbeat_age: now.since(*since),
                relays: heartbeat.map(|heartbeat| heartbeat.relays),
            }
        };
        self.nodes.iter().map(seen).collect()
    }

    /// Returns where clients reach the nodes other than the run `this`. Nodes that have sent no heartbeat within the
    /// lease duration are left out: they may have failed, and attempts to connect to them would cost clients time.
    pub fn advertised(&self, this: &Incarnation, lease_duration: Duration, now: BootTime) -> Advertised {
        let mut advertised = Advertised::default();
        let is_alive = |Member { node, heartbeat, since, .. }: &Member| {
            heartbeat.as_ref().is_some_and(|heartbeat| heartbeat.is_of(node))
                && now < since.after(lease_duration)
        };
        let others =
            self.nodes.values().filter(|member| member.node.incarnation != *this && is_alive(member));
        others.for_each(|member| advertised.extend(&member.node.advertised));
        advertised
    }

    /// Returns whether the relay endpoint of a known node has this IP address.
    pub fn has_relay_at(&self, address: IpAddr) -> bool {
        let endpoints = self.nodes.values().filter_map(|member| member.node.relay_endpoint.as_ref());
        endpoints.map(|endpoint| endpoint.address.ip().to_canonical()).any(|ip| ip == address)
    }

    /// Returns the names of the nodes that may still relay clients to a leader of an epoch before `term`, in which the
    /// run `this` leads. A node that sends no heartbeat for the lease duration has closed its relays. `None`: the last
    /// read was before the takeover.
    fn with_open_relays(
        &self,
        term: Term,
        this: &Incarnation,
        lease_duration: Duration,
        now: BootTime,
    ) -> Option<Vec<String>> {
        if self.revision < term.leadership_modified {
            return None;
        }
        let is_open = |Member { node, heartbeat, since, .. }: &Member| {
            let report = heartbeat.as_ref().filter(|heartbeat| heartbeat.is_of(node));
            let has_closed = report.is_some_and(|report| report.relays_closed_below >= term.epoch);
            let is_silent = now >= since.after(lease_duration);
            node.relays && node.incarnation != *this && !has_closed && !is_silent
        };
        let open = self.nodes.iter().filter(|(_, member)| is_open(member));
        Some(open.map(|(name, _)| name.clone()).collect())
    }
}

impl RelayWait {
    /// Begins the wait `now`, for the run `this`, which leads in this term.
    pub fn new(term: Term, this: Incarnation, lease_duration: Duration, now: BootTime) -> Self {
        let deadline = now.after(lease_duration * 2);
        Self { term, this, lease_duration, deadline, open_nodes: None }
    }

    /// Applies the last read, and returns the state of the relays of earlier epochs.
    pub fn check(&mut self, members: &Members, now: BootTime) -> OldRelays {
        if let Some(nodes) = members.with_open_relays(self.term, &self.this, self.lease_duration, now) {
            self.open_nodes = Some(nodes);
        }
        match &self.open_nodes {
            Some(nodes) if nodes.is_empty() => OldRelays::Closed,
            Some(nodes) if now >= self.deadline => OldRelays::Faulty(nodes.clone()),
            // If nothing can be read, this node cannot renew its leadership either.
            _ => OldRelays::Open,
        }
    }
}

/// The thread that reads all nodes, and the nodes that it read last. The thread ends within a period after the last
/// clone of this is dropped.
#[derive(Clone, Debug)]
pub struct MemberPoller {
    shared: Arc<Shared>,
    thread: Thread,
}

#[derive(Debug, Default)]
struct Shared {
    members: Mutex<Members>,
    is_fast: AtomicBool,
}

impl MemberPoller {
    /// Starts the thread, which reads the nodes of the cluster once in each period. It has its own connection to etcd.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn start(
        mut coordinator: impl Coordinator + 'static,
        keys: Keys,
        period: Duration,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let read = Arc::downgrade(&shared);
        let poll = move || {
            loop {
                // If etcd does not answer, the leadership notices that too, and logs it.
                let reading = Reading::read(&mut coordinator, &keys);
                let Some(shared) = read.upgrade() else { return };
                if let Ok(reading) = reading {
                    shared.members().update(reading, BootTime::now());
                }
                let is_fast = shared.is_fast.load(Ordering::Relaxed);
                drop(shared);
                thread::park_timeout(if is_fast { FAST_PERIOD } else { period });
            }
        };
        let thread = thread::Builder::new().name("members".to_owned()).spawn(poll)?.thread().clone();
        Ok(Self { shared, thread })
    }

    /// The nodes as they were read last.
    pub fn members(&self) -> MutexGuard<'_, Members> {
        self.shared.members()
    }

    /// Makes the thread read every [`FAST_PERIOD`], or once in each period again.
    pub fn set_fast(&self, is_fast: bool) {
        self.shared.is_fast.store(is_fast, Ordering::Relaxed);
        self.thread.unpark();
    }
}

impl Shared {
    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
