//! A node's view of the cluster, which one transaction reads, and its observation of the leader over several views.

use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::coordinator::{CallError, Entry, Operation, Revision};
use crate::error::Ending;
use crate::keys::{
    Drain, Format, Heartbeat, Incarnation, Keys, Leadership, LeadershipState, Marker, Node, RelayEndpoint,
    ValueError, decode,
};
use crate::timing::{BootTime, Timing};

/// Why an answer cannot be applied.
pub(super) enum AnswerError {
    /// The answer ends this node's part in the cluster.
    Ends(Ending),
    /// The request counts as unanswered or refused.
    Call(CallError),
}

impl AnswerError {
    /// The error of an answer without the reads of the request.
    pub fn malformed() -> Self {
        Self::Call(CallError::Unanswered("etcd's answer does not fit the request".to_owned()))
    }
}

impl<E: Into<Ending>> From<E> for AnswerError {
    fn from(ending: E) -> Self {
        Self::Ends(ending.into())
    }
}

/// A value and the revision at which it was written last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen<T> {
    pub value: T,
    pub modified: Revision,
}

/// The values that one transaction read, at one revision. "This node" is the node whose view it is.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// The entry of this node, which another run of it may have written.
    pub node: Option<Seen<Node>>,
    /// The heartbeat of this node.
    pub heartbeat: Option<Seen<Heartbeat>>,
    pub format: Option<Seen<Format>>,
    pub marker: Option<Seen<Marker>>,
    pub leadership: Option<Seen<Leadership>>,
    /// The request to drain this node.
    pub drain: Option<Seen<Drain>>,
    /// The other node that was read.
    pub other: Option<Other>,
}

/// Another node, as the transaction read it.
#[derive(Clone, Debug)]
pub(super) struct Other {
    pub name: String,
    pub heartbeat: Option<Seen<Heartbeat>>,
    pub node: Option<Seen<Node>>,
}

impl View {
    /// The reads for a view of the node `name` and of the other node, if there is one.
    pub fn reads(keys: &Keys, name: &str, other: Option<&str>) -> Vec<Operation> {
        let mut read = vec![
            keys.node(name),
            keys.heartbeat(name),
            keys.format(),
            keys.marker(),
            keys.leadership(),
            keys.drain(name),
        ];
        read.extend(other.into_iter().flat_map(|other| [keys.heartbeat(other), keys.node(other)]));
        read.into_iter().map(|key| Operation::Read { key }).collect()
    }

    /// Creates the view from the answers to [`Self::reads`] with the same `other`.
    pub fn new(read: &[Option<Entry>], other: Option<&str>) -> Result<Self, AnswerError> {
        let (known, rest) = read.split_at_checked(6).ok_or_else(AnswerError::malformed)?;
        let other = match (other, rest) {
            (None, []) => None,
            (Some(name), [heartbeat, node]) => {
                Some(Other { name: name.to_owned(), heartbeat: seen(heartbeat)?, node: seen(node)? })
            }
            _ => return Err(AnswerError::malformed()),
        };
        Ok(Self {
            node: seen(&known[0])?,
            heartbeat: seen(&known[1])?,
            format: seen(&known[2])?,
            marker: seen(&known[3])?,
            leadership: seen(&known[4])?,
            drain: drain_request(&known[5]),
            other,
        })
    }

    /// The leader's heartbeat. `name` is the name of this node.
    fn leader_heartbeat(&self, name: &str) -> LeaderHeartbeat {
        let Some(leadership) = &self.leadership else { return LeaderHeartbeat::Absent };
        let node = &leadership.value.node;
        let heartbeat = match &self.other {
            _ if node == name => &self.heartbeat,
            Some(other) if *node == other.name => &other.heartbeat,
            _ => return LeaderHeartbeat::Unknown,
        };
        match heartbeat {
            None => LeaderHeartbeat::Absent,
            Some(heartbeat) if heartbeat.value.incarnation != leadership.value.incarnation => {
                LeaderHeartbeat::Replaced
            }
            Some(heartbeat) => LeaderHeartbeat::Present(heartbeat.clone()),
        }
    }

    /// The endpoint at which the leader accepts relayed connections.
    fn relay_endpoint(&self) -> Option<&RelayEndpoint> {
        let leadership = &self.leadership.as_ref()?.value;
        let node = &self.other.as_ref()?.node.as_ref()?.value;
        (node.incarnation == leadership.incarnation).then_some(node.relay_endpoint.as_ref()).flatten()
    }
}

/// Decodes an operator's request to drain a node. A request that this version cannot read, because a newer one has
/// written it, is ignored: the command that wrote it reaches its time limit.
pub(super) fn drain_request(entry: &Option<Entry>) -> Option<Seen<Drain>> {
    seen(entry).unwrap_or_default()
}

/// Decodes the value of an entry.
pub(super) fn seen<T: DeserializeOwned>(entry: &Option<Entry>) -> Result<Option<Seen<T>>, ValueError> {
    let Some(entry) = entry else { return Ok(None) };
    Ok(Some(Seen { value: decode(&entry.key, &entry.value)?, modified: entry.modified }))
}

/// The leader's heartbeat, as far as a node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeaderHeartbeat {
    /// Its heartbeat was not read, because another node led when the transaction was made.
    Unknown,
    /// It has no heartbeat.
    Absent,
    /// A later run of the same node has written the heartbeat, so the leader can never renew again.
    Replaced,
    /// Its heartbeat.
    Present(Seen<Heartbeat>),
}

/// The leadership and the leader's heartbeat as this node knows them, and since when they have been unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Observation {
    leadership: Option<Seen<Leadership>>,
    heartbeat: LeaderHeartbeat,
    /// When the answer arrived that first showed this state.
    since: BootTime,
    /// The endpoint at which the leader accepts relayed connections.
    relay_endpoint: Option<RelayEndpoint>,
    /// The highest epoch seen so far, in the leadership key or the commit marker. If the leadership key now has a lower
    /// one, it was deleted or etcd was restored from a backup, and the leader of the later epoch may still serve.
    epoch_max: u32,
}

/// When a node may take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakeoverTime {
    /// Now: no node leads.
    Now,
    /// At this time, unless the leader sends a heartbeat before.
    At(BootTime),
    /// Not before another poll: the leader's heartbeat was not read, or this run already leads.
    AfterPoll,
}

impl Observation {
    pub fn new(view: &View, name: &str, now: BootTime) -> Self {
        let mut this = Self {
            leadership: view.leadership.clone(),
            heartbeat: view.leader_heartbeat(name),
            since: now,
            relay_endpoint: view.relay_endpoint().cloned(),
            epoch_max: 0,
        };
        this.note_epochs(view);
        this
    }

    /// Applies an answer that arrived `now`. Every change restarts the lease duration, with one exception: while the leader has
    /// no heartbeat of its own, a later run of its node may begin to send heartbeats, or end. That proves nothing about the
    /// leader.
    pub fn update(&mut self, view: &View, name: &str, now: BootTime) {
        let heartbeat = view.leader_heartbeat(name);
        let has_none = |heartbeat: &LeaderHeartbeat| {
            matches!(heartbeat, LeaderHeartbeat::Absent | LeaderHeartbeat::Replaced)
        };
        let is_of_later_run = has_none(&self.heartbeat) && has_none(&heartbeat);
        if self.leadership != view.leadership || (self.heartbeat != heartbeat && !is_of_later_run) {
            self.since = now;
        }
        self.leadership.clone_from(&view.leadership);
        self.heartbeat = heartbeat;
        self.relay_endpoint = view.relay_endpoint().cloned();
        self.note_epochs(view);
    }

    /// Returns for how long the leadership and the leader's heartbeat have been unchanged.
    pub fn unchanged_for(&self, now: BootTime) -> Duration {
        now.since(self.since)
    }

    /// Returns the epoch below which the run `incarnation` must have closed its relays, and the leader to which it may
    /// relay.
    pub fn relay_target(&self, incarnation: &Incarnation) -> (u32, Option<(u32, RelayEndpoint)>) {
        let Some(leadership) = self.leadership.as_ref().map(|seen| &seen.value) else { return (0, None) };
        let epoch = leadership.epoch;
        if leadership.incarnation == *incarnation {
            (epoch, None)
        } else if is_held(leadership) {
            (epoch, self.relay_endpoint.clone().map(|endpoint| (epoch, endpoint)))
        } else {
            (epoch.saturating_add(1), None)
        }
    }

    fn note_epochs(&mut self, view: &View) {
        let stored = view.marker.as_ref().map_or(0, |marker| marker.value.epoch);
        self.epoch_max = self.epoch_max.max(self.epoch()).max(stored);
    }

    /// Notes that this run has joined in place of a leader of the same name, and has overwritten the heartbeat with the
    /// revision `modified`. If that was the leader's heartbeat, the leader now has none.
    pub fn replaced(&mut self, modified: Revision) {
        if matches!(&self.heartbeat, LeaderHeartbeat::Present(seen) if seen.modified == modified) {
            self.heartbeat = LeaderHeartbeat::Replaced;
        }
    }

    pub fn leadership(&self) -> Option<&Seen<Leadership>> {
        self.leadership.as_ref()
    }

    /// The name of the node that leads or led last, whose heartbeat must be read next time.
    pub fn leader(&self) -> Option<&str> {
        self.leadership.as_ref().map(|leadership| leadership.value.node.as_str())
    }

    /// The revision of the leadership key; 0 if it does not exist.
    pub fn leadership_modified(&self) -> Revision {
        self.leadership.as_ref().map_or(0, |leadership| leadership.modified)
    }

    /// The revision that the leader's heartbeat must still have when a node takes over; 0: there must be no heartbeat;
    /// `None`: the leader's heartbeat does not matter.
    pub fn heartbeat_modified(&self) -> Option<Revision> {
        let is_held = self.leadership.as_ref().is_some_and(|leadership| is_held(&leadership.value));
        match &self.heartbeat {
            _ if !is_held => None,
            LeaderHeartbeat::Unknown | LeaderHeartbeat::Replaced => None,
            LeaderHeartbeat::Absent => Some(0),
            LeaderHeartbeat::Present(heartbeat) => Some(heartbeat.modified),
        }
    }

    /// The leadership, if the run `incarnation` has it.
    pub fn led_by(&self, incarnation: &Incarnation) -> Option<&Seen<Leadership>> {
        self.leadership
            .as_ref()
            .filter(|leadership| is_held(&leadership.value) && leadership.value.incarnation == *incarnation)
    }

    /// Returns when the run may take over.
    pub fn takeover_time(&self, incarnation: &Incarnation, timing: Timing) -> TakeoverTime {
        let leadership = self.leadership.as_ref().map(|seen| &seen.value);
        let is_held = leadership.is_some_and(is_held);
        let successor = leadership.and_then(|leadership| leadership.successor.as_ref());
        let is_for_another = successor.is_some_and(|successor| successor.incarnation != *incarnation);
        if self.led_by(incarnation).is_some() || (is_held && self.heartbeat == LeaderHeartbeat::Unknown) {
            TakeoverTime::AfterPoll
        } else if is_held || is_for_another || self.epoch() < self.epoch_max {
            TakeoverTime::At(self.since.after(timing.lease_duration()))
        } else {
            TakeoverTime::Now
        }
    }

    fn epoch(&self) -> u32 {
        self.leadership.as_ref().map_or(0, |leadership| leadership.value.epoch)
    }

    /// The epoch of the next leader; `None`: all are used up.
    pub fn next_epoch(&self) -> Option<u32> {
        self.epoch_max.checked_add(1)
    }
}

fn is_held(leadership: &Leadership) -> bool {
    leadership.state == LeadershipState::Held
}
