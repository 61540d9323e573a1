//! The commands of an operator that show which node leads, clean up after a node that has failed, and raise the format of
//! records. They read and write etcd directly, so they work while no node serves clients.

use std::collections::BTreeMap;
use std::time::Duration;

use super::coordinator::{CallError, Compare, Coordinator, Entry, Operation, Range, Revision, Transaction};
use super::error::{AdminError, Unready};
use super::keys::{
    Format, Incarnation, Keys, LAYOUT, Leadership, LeadershipState, Marker, Node, decode, encode,
    end_of_prefix,
};
use super::members::{Reading, name_of, read_below};
use super::timing::BootTime;
use super::timing::Timing;

/// The newest format of a record that this program reads and writes.
pub use signalbox_storage::FORMAT;

/// The time between two reads while a command waits.
pub(super) const POLL_PERIOD: Duration = Duration::from_millis(50);

/// A cluster, as read from etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterStatus {
    /// The settings that all nodes have in common.
    pub format: Format,
    /// The node that leads or led last; `None`: no node has ever led.
    pub leadership: Option<Leadership>,
    /// The last commit.
    pub marker: Option<Marker>,
    /// The nodes by name.
    pub nodes: BTreeMap<String, NodeStatus>,
    /// The number of records.
    pub records: u64,
}

/// A node, as read from etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Its value in etcd.
    pub node: Node,
    /// The time since its last heartbeat was seen; `None`: it sent none while the command watched it. The command has to
    /// watch, because etcd does not store the time at which a key is written.
    pub heartbeat_age: Option<Duration>,
    /// The number of client connections that it relays, according to its last heartbeat; `None`: it does not relay, or has
    /// sent no heartbeat.
    pub relays: Option<u32>,
}

/// Whether the format of records can be raised to the newest one of this program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finalization {
    /// The cluster already writes this format or a newer one.
    Done,
    /// Every node reads it, so [`finalize`] may raise the format.
    Possible,
    /// These nodes do not read it; empty: the cluster has no nodes.
    Blocked(Vec<Unready>),
}

impl Finalization {
    fn new<'a>(stored: u32, own: u32, nodes: impl Iterator<Item = (&'a String, &'a Node)>) -> Self {
        if stored >= own {
            return Self::Done;
        }
        let mut nodes = nodes.peekable();
        let is_empty = nodes.peek().is_none();
        let unready: Vec<_> = nodes
            .filter(|(_, node)| node.record_format < own)
            .map(|(name, node)| Unready {
                node: name.clone(),
                version: node.version.clone(),
                reads: node.record_format,
            })
            .collect();
        if is_empty || !unready.is_empty() { Self::Blocked(unready) } else { Self::Possible }
    }
}

impl NodeStatus {
    /// Returns whether it sent a heartbeat while it was watched.
    pub fn is_alive(&self) -> bool {
        self.heartbeat_age.is_some()
    }
}

impl ClusterStatus {
    /// Returns the name of the node that leads: it has not released the leadership, and sends heartbeats.
    pub fn leader(&self) -> Option<&str> {
        let leadership = self.leadership.as_ref().filter(|found| found.state == LeadershipState::Held)?;
        let node = self.nodes.get(&leadership.node)?;
        (node.is_alive() && node.node.incarnation == leadership.incarnation)
            .then_some(leadership.node.as_str())
    }

    /// Returns whether the format of records can be raised to `own`.
    pub fn finalization(&self, own: u32) -> Finalization {
        let nodes = self.nodes.iter().map(|(name, status)| (name, &status.node));
        Finalization::new(self.format.record_format, own, nodes)
    }
}

/// Reads the state of a cluster, and watches its nodes until all have sent a heartbeat, or two retry periods have
/// passed; longer if etcd is slow.
pub fn status(coordinator: &mut dyn Coordinator, keys: &Keys) -> Result<ClusterStatus, AdminError> {
    let format = format_of(coordinator, keys)?;
    let alive = watch(coordinator, keys, timing(&format), |_| true)?;
    let reading = Reading::read(coordinator, keys)?;
    let records = keys.records();
    let count = Range { count_only: true, ..Range::below(&records) };
    let now = coordinator.now();
    let age = |name: &String| alive.get(name).map(|(_, at)| now.since(*at));
    Ok(ClusterStatus {
        format,
        leadership: read(coordinator, &keys.leadership())?,
        marker: read(coordinator, &keys.marker())?,
        nodes: reading
            .nodes
            .into_iter()
            .map(|(name, node)| {
                let heartbeat = reading.heartbeats.get(&name).map(|(heartbeat, _)| heartbeat);
                let relays = heartbeat.filter(|heartbeat| node.relays && heartbeat.is_of(&node));
                let relays = relays.map(|heartbeat| heartbeat.relays);
                (name.clone(), NodeStatus { heartbeat_age: age(&name), node, relays })
            })
            .collect(),
        records: coordinator.range(&count)?.count,
    })
}

/// Returns the nodes that send heartbeats, each with the revision of its last heartbeat and the time at which that was
/// seen. Watches for two retry periods, or until all `awaited` nodes have sent a heartbeat. The time that etcd takes to
/// answer is added, up to the lease duration, because heartbeats are late if etcd is slow.
pub(super) fn watch(
    coordinator: &mut dyn Coordinator,
    keys: &Keys,
    timing: Timing,
    awaited: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, (Revision, BootTime)>, AdminError> {
    let prefix = keys.heartbeats();
    let read = |coordinator: &mut dyn Coordinator| -> Result<BTreeMap<String, Revision>, AdminError> {
        let entries = coordinator.range(&Range::below(&prefix))?.entries;
        Ok(entries.into_iter().map(|entry| (name_of(&prefix, &entry.key), entry.modified)).collect())
    };
    let first = read(coordinator)?;
    let mut deadline = coordinator.now().after(timing.retry_period() * 2);
    let last_deadline = deadline.after(timing.lease_duration());
    let mut alive = BTreeMap::<String, (Revision, BootTime)>::new();
    loop {
        let asked = coordinator.now();
        let heartbeats = read(coordinator)?;
        deadline = deadline.after(coordinator.now().since(asked)).min(last_deadline);
        for (name, revision) in heartbeats {
            let before = alive.get(&name).map(|(revision, _)| *revision).or(first.get(&name).copied());
            if before != Some(revision) {
                alive.insert(name, (revision, coordinator.now()));
            }
        }
        let are_complete = first.keys().all(|name| alive.contains_key(name) || !awaited(name));
        if are_complete || coordinator.now() >= deadline {
            return Ok(alive);
        }
        coordinator.pause(POLL_PERIOD);
    }
}

/// Returns the times of the cluster, or the longest times if its renew deadline is one that only another version
/// permits.
pub(super) fn timing(format: &Format) -> Timing {
    Timing::new(Duration::from_millis(format.renew_deadline_ms)).unwrap_or(Timing::LONGEST)
}

/// The outcome of [`release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The node led, and another one may take over at once.
    Released,
    /// The node did not lead. Its name may be used again at once.
    Left,
    /// There was nothing to do.
    Nothing,
}

/// Removes a node whose process has ended, and releases its leadership. The caller must be certain that the process has ended.
/// With `invocation`, only that run of the service is removed; without it, a node that sends heartbeats is refused.
///
/// # Errors
///
/// [`AdminError::Alive`]: the node sends heartbeats. [`AdminError::NoCluster`]: nothing has changed.
/// [`AdminError::Changed`]: the cluster changed during the command.
pub fn release(
    coordinator: &mut dyn Coordinator,
    keys: &Keys,
    name: &str,
    invocation: Option<&str>,
) -> Result<Release, AdminError> {
    let (node_key, heartbeat) = (keys.node(name), keys.heartbeat(name));
    let watched = match invocation {
        None => Some(format_of(coordinator, keys)?),
        Some(_) => None,
    };
    let Some(entry) = entry(coordinator, &node_key)? else { return Ok(Release::Nothing) };
    let node: Node = decode(&node_key, &entry.value)?;
    if invocation.is_some_and(|invocation| node.invocation != invocation) {
        return Ok(Release::Nothing);
    }
    // An operator may be mistaken. Heartbeats reveal a running process, but not a frozen one.
    if let Some(format) = watched
        && watch(coordinator, keys, timing(&format), |node| node == name)?.contains_key(name)
    {
        return Err(AdminError::Alive(name.to_owned()));
    }
    let mut transaction = Transaction {
        compare: vec![Compare::Modified { key: node_key.clone(), at: entry.modified }],
        then: vec![Operation::Delete { key: node_key }, Operation::Delete { key: heartbeat }],
        otherwise: Vec::new(),
    };
    let key = keys.leadership();
    let mut outcome = Release::Left;
    if let Some(entry) = self::entry(coordinator, &key)? {
        let mut leadership: Leadership = decode(&key, &entry.value)?;
        if leadership.incarnation == node.incarnation && leadership.state == LeadershipState::Held {
            leadership.state = LeadershipState::Released;
            transaction.compare.push(Compare::Modified { key: key.clone(), at: entry.modified });
            transaction.then.push(Operation::Put { key, value: encode(&leadership) });
            outcome = Release::Released;
        }
    }
    if coordinator.transact(&transaction)?.held || is_removed(coordinator, keys, name, &node.incarnation)? {
        return Ok(outcome);
    }
    Err(AdminError::Changed)
}

/// Returns whether a run is no longer a node and does not lead. If an attempt was performed but its answer was lost,
/// the comparisons of the repeated attempt fail, but this state shows that the first one was performed.
fn is_removed(
    coordinator: &mut dyn Coordinator,
    keys: &Keys,
    name: &str,
    incarnation: &Incarnation,
) -> Result<bool, AdminError> {
    let node: Option<Node> = read(coordinator, &keys.node(name))?;
    let is_gone = node.is_none_or(|node| node.incarnation != *incarnation);
    Ok(is_gone && !is_led_by(coordinator, keys, incarnation)?)
}

/// Returns whether a run leads.
pub(super) fn is_led_by(
    coordinator: &mut dyn Coordinator,
    keys: &Keys,
    incarnation: &Incarnation,
) -> Result<bool, AdminError> {
    let leadership: Option<Leadership> = read(coordinator, &keys.leadership())?;
    let leads = |found: Leadership| found.state == LeadershipState::Held && found.incarnation == *incarnation;
    Ok(leadership.is_some_and(leads))
}

/// Removes a node that will not come back, after it has sent no heartbeat for two retry periods, or for the lease duration if it
/// relays clients: a new leader does not wait for a node without keys, so the node must have closed its relays
/// (invariant C5).
///
/// # Errors
///
/// [`AdminError::Alive`], [`AdminError::Leads`], [`AdminError::NoNode`], [`AdminError::NoCluster`]: nothing has changed.
/// [`AdminError::Changed`]: the node has sent a heartbeat or joined again during the command.
pub fn forget(coordinator: &mut dyn Coordinator, keys: &Keys, name: &str) -> Result<(), AdminError> {
    let format = format_of(coordinator, keys)?;
    let (_, mut nodes) = read_below::<Node>(coordinator, &keys.nodes())?;
    let Some((node, revision)) = nodes.remove(name) else {
        return Err(AdminError::no_node(name, nodes.keys()));
    };
    let leadership: Option<Leadership> = read(coordinator, &keys.leadership())?;
    if leadership.is_some_and(|found| found.node == name && found.state == LeadershipState::Held) {
        return Err(AdminError::Leads(name.to_owned()));
    }
    let heartbeat = keys.heartbeat(name);
    let before = revision_of(coordinator, &heartbeat)?;
    let timing = timing(&format);
    let silent_for = if node.relays { timing.lease_duration() } else { timing.retry_period() * 2 };
    let deadline = coordinator.now().after(silent_for);
    while coordinator.now() < deadline {
        coordinator.pause(POLL_PERIOD);
        if revision_of(coordinator, &heartbeat)? != before {
            return Err(AdminError::Alive(name.to_owned()));
        }
    }
    let transaction = Transaction {
        compare: vec![
            Compare::Modified { key: keys.node(name), at: revision },
            Compare::Modified { key: heartbeat.clone(), at: before },
        ],
        then: [keys.node(name), heartbeat, keys.drain(name)].map(|key| Operation::Delete { key }).into(),
        otherwise: Vec::new(),
    };
    if coordinator.transact(&transaction)?.held || is_removed(coordinator, keys, name, &node.incarnation)? {
        return Ok(());
    }
    Err(AdminError::Changed)
}

/// The outcome of [`finalize`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finalized {
    /// The format that leaders wrote before.
    pub from: u32,
    /// The format that they write from the next takeover on; the same as `from` if there was nothing to do.
    pub to: u32,
}

/// Raises the format of records to `own`, the newest one of this program, if every node, even a silent one, reads that
/// format. The leader continues with the format of its takeover, so `own` is written from the next takeover on.
///
/// # Errors
///
/// [`AdminError::Unready`], [`AdminError::NoNodes`], [`AdminError::NoCluster`], [`AdminError::Layout`],
/// [`AdminError::Newer`]: nothing has changed. [`AdminError::Changed`]: a node has joined during the command.
pub fn finalize(coordinator: &mut dyn Coordinator, keys: &Keys, own: u32) -> Result<Finalized, AdminError> {
    let key = keys.format();
    let no_cluster = || AdminError::NoCluster(keys.prefix().to_owned());
    let stored = entry(coordinator, &key)?.ok_or_else(no_cluster)?;
    let format: Format = decode(&key, &stored.value)?;
    if format.layout != LAYOUT {
        return Err(AdminError::Layout(format.layout));
    }
    let from = format.record_format;
    if from > own {
        return Err(AdminError::Newer { stored: from, own });
    }
    let prefix = keys.nodes();
    let (revision, nodes) = read_below::<Node>(coordinator, &prefix)?;
    match Finalization::new(from, own, nodes.iter().map(|(name, (node, _))| (name, node))) {
        Finalization::Done => return Ok(Finalized { from, to: from }),
        Finalization::Blocked(nodes) if nodes.is_empty() => return Err(AdminError::NoNodes),
        Finalization::Blocked(nodes) => return Err(AdminError::Unready { to: own, nodes }),
        Finalization::Possible => {}
    }
    // The second comparison finds a node that has joined since. A node that joins later compares the format.
    let transaction = Transaction {
        compare: vec![
            Compare::Modified { key: key.clone(), at: stored.modified },
            Compare::NotAfter { to: end_of_prefix(&prefix), from: prefix, at: revision },
        ],
        then: vec![Operation::Put { key, value: encode(&Format { record_format: own, ..format }) }],
        otherwise: Vec::new(),
    };
    if coordinator.transact(&transaction)?.held {
        return Ok(Finalized { from, to: own });
    }
    // An earlier attempt whose answer was lost may have been performed, or another command has raised the format.
    let is_raised = read::<Format>(coordinator, &keys.format())?.is_some_and(|of| of.record_format == own);
    if is_raised { Ok(Finalized { from, to: own }) } else { Err(AdminError::Changed) }
}

/// Reads the format of a cluster.
pub(super) fn format_of(coordinator: &mut dyn Coordinator, keys: &Keys) -> Result<Format, AdminError> {
    let format = read(coordinator, &keys.format())?;
    format.ok_or_else(|| AdminError::NoCluster(keys.prefix().to_owned()))
}

pub(super) fn entry(coordinator: &mut dyn Coordinator, key: &[u8]) -> Result<Option<Entry>, CallError> {
    Ok(coordinator.range(&Range::of(key.to_vec()))?.entries.pop())
}

/// Reads the revision at which a key was written last; 0: the key does not exist.
pub(super) fn revision_of(coordinator: &mut dyn Coordinator, key: &[u8]) -> Result<Revision, CallError> {
    Ok(entry(coordinator, key)?.map_or(0, |entry| entry.modified))
}

pub(super) fn read<T: serde::de::DeserializeOwned>(
    coordinator: &mut dyn Coordinator,
    key: &[u8],
) -> Result<Option<T>, AdminError> {
    entry(coordinator, key)?.map(|entry| Ok(decode(key, &entry.value)?)).transpose()
}
