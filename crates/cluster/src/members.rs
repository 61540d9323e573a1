//! All nodes of a cluster as one of them has read them, the thread that reads them, and since when each has sent no heartbeat.
//!
//! A new leader learns from them which nodes may still have open relays (invariant C5, `docs/decisions/0028`), and where
//! clients reach them.

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

/// The time between two readings while a new leader waits for the relays of other nodes.
pub const FAST_PERIOD: Duration = Duration::from_millis(10);

/// The nodes of a cluster as they were read last.
#[derive(Clone, Debug, Default)]
pub struct Members {
    nodes: BTreeMap<String, Member>,
    /// The revision of the store at the last reading.
    revision: Revision,
}

/// A node, and its last heartbeat.
#[derive(Clone, Debug)]
struct Member {
    node: Node,
    /// `None`: it has not sent one.
    heartbeat: Option<Heartbeat>,
    modified: Revision,
    /// When this heartbeat, or its absence, was read first.
    since: BootTime,
}

/// A node as another one sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenNode {
    /// Its name.
    pub name: String,
    /// Its value in etcd.
    pub node: Node,
    /// How long ago its last heartbeat, or its absence, was read first.
    pub heartbeat_age: Duration,
    /// Connections of clients that it relays; `None`: it relays none, or has sent no heartbeat.
    pub relays: Option<u32>,
}

/// A new leader waits until the relays of earlier epochs are closed (invariant C5).
#[derive(Clone, Debug)]
pub struct RelayWait {
    term: Term,
    /// The run that leads.
    this: Incarnation,
    lease_duration: Duration,
    /// A node whose relays are still open at this time is faulty. The leader waits for a silent one for the lease
    /// duration after it has read its last heartbeat, which may be later than the takeover.
    deadline: BootTime,
    /// The nodes with open relays at the last reading after the takeover; `None`: no reading yet.
    open_nodes: Option<Vec<String>>,
}

/// What a new leader knows about the relays of earlier epochs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OldRelays {
    /// They may be open.
    Open,
    /// They are closed.
    Closed,
    /// These nodes send heartbeats that report open relays, for longer than a node that receives etcd's answers would. The
    /// leader no longer waits for them: a node that receives none has closed its relays at its deadline (the margins of C4).
    Faulty(Vec<String>),
}

/// Values by the names of their nodes, with the revisions at which they were written.
pub type Written<T> = BTreeMap<String, (T, Revision)>;

/// All nodes and heartbeats, as they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The store at the beginning of the reading.
    pub revision: Revision,
    /// The nodes by name.
    pub nodes: BTreeMap<String, Node>,
    /// The heartbeats by name, and when they were written.
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

/// Reads the values below a prefix, by the rest of their keys, with the revisions at which they were written. Returns the
/// revision of the store, too.
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
    /// Applies a reading that arrived `now`.
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

    /// All nodes by name.
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

    /// Where clients reach the nodes other than the run `this` that have sent a heartbeat within the lease duration. The others
    /// may have failed, and an attempt to connect to them would cost clients time.
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

    /// Whether a node accepts, and so sends, relayed connections at this address.
    pub fn has_relay_at(&self, address: IpAddr) -> bool {
        let endpoints = self.nodes.values().filter_map(|member| member.node.relay_endpoint.as_ref());
        endpoints.map(|endpoint| endpoint.address.ip().to_canonical()).any(|ip| ip == address)
    }

    /// The names of the nodes that may relay clients to a leader of an earlier epoch than that of `term`, in which the run `this`
    /// leads. A node that sends no heartbeat for the lease duration has closed its relays. `None`: the last reading was before the
    /// takeover.
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
    /// Begins to wait `now`, for the run `this`, which leads in this term.
    pub fn new(term: Term, this: Incarnation, lease_duration: Duration, now: BootTime) -> Self {
        let deadline = now.after(lease_duration * 2);
        Self { term, this, lease_duration, deadline, open_nodes: None }
    }

    /// What the last reading says about the relays of the other nodes.
    pub fn check(&mut self, members: &Members, now: BootTime) -> OldRelays {
        if let Some(nodes) = members.with_open_relays(self.term, &self.this, self.lease_duration, now) {
            self.open_nodes = Some(nodes);
        }
        match &self.open_nodes {
            Some(nodes) if nodes.is_empty() => OldRelays::Closed,
            Some(nodes) if now >= self.deadline => OldRelays::Faulty(nodes.clone()),
            // Without a reading, this node cannot renew either.
            _ => OldRelays::Open,
        }
    }
}

/// The thread that reads the other nodes, and the last reading. It ends a period after the last clone of this is dropped.
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
                // The leadership notices too if etcd does not answer, and logs it.
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

    /// Whether the thread reads every [`FAST_PERIOD`] from now on, or once in each period again.
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
