//! What a node reads of the cluster in one transaction, and since when it has been so.

use std::time::Duration;

use serde::de::DeserializeOwned;

use super::ending::Ending;
use crate::clock::BootTime;
use crate::coordinator::{Entry, Operation, Revision};
use crate::keys::{
    Drain, Format, Heartbeat, Incarnation, Keys, Leadership, LeadershipState, Marker, Node, RelayEndpoint,
    ValueError, decode,
};

/// Why an answer is of no use.
pub(super) enum NoAnswer {
    /// It ends the part of the node.
    Ends(Ending),
    /// It does not have the reads that were asked for.
    Malformed,
}

impl<E: Into<Ending>> From<E> for NoAnswer {
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

/// What one transaction read. All of it was so at one moment.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// The node of this name.
    pub node: Option<Seen<Node>>,
    /// The heartbeat of the node of this name.
    pub heartbeat: Option<Seen<Heartbeat>>,
    pub format: Option<Seen<Format>>,
    pub marker: Option<Seen<Marker>>,
    pub leadership: Option<Seen<Leadership>>,
    /// What an operator asks of the node of this name.
    pub drain: Option<Seen<Drain>>,
    /// The node that was asked for besides.
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
    /// The reads of a view. `other` is the node that is read besides `name`.
    pub fn reads(keys: &Keys, name: &str, other: Option<&str>) -> Vec<Operation> {
        let mut wanted = vec![
            keys.node(name),
            keys.heartbeat(name),
            keys.format(),
            keys.marker(),
            keys.leadership(),
            keys.drain(name),
        ];
        wanted.extend(other.into_iter().flat_map(|other| [keys.heartbeat(other), keys.node(other)]));
        wanted.into_iter().map(|key| Operation::Read { key }).collect()
    }

    /// The view from the answers to [`Self::reads`] with the same `other`.
    pub fn new(read: &[Option<Entry>], other: Option<&str>) -> Result<Self, NoAnswer> {
        let (known, rest) = read.split_at_checked(6).ok_or(NoAnswer::Malformed)?;
        let other = match (other, rest) {
            (None, []) => None,
            (Some(name), [heartbeat, node]) => {
                Some(Other { name: name.to_owned(), heartbeat: seen(heartbeat)?, node: seen(node)? })
            }
            _ => return Err(NoAnswer::Malformed),
        };
        Ok(Self {
            node: seen(&known[0])?,
            heartbeat: seen(&known[1])?,
            format: seen(&known[2])?,
            marker: seen(&known[3])?,
            leadership: seen(&known[4])?,
            drain: request(&known[5]),
            other,
        })
    }

    /// What is known of the leader's heartbeat. `name` is the name of this node.
    fn sign(&self, name: &str) -> Sign {
        let Some(leadership) = &self.leadership else { return Sign::Absent };
        let node = &leadership.value.node;
        let heartbeat = match &self.other {
            _ if node == name => &self.heartbeat,
            Some(other) if *node == other.name => &other.heartbeat,
            _ => return Sign::Unknown,
        };
        match heartbeat {
            None => Sign::Absent,
            Some(heartbeat) if heartbeat.value.incarnation != leadership.value.incarnation => Sign::Replaced,
            Some(heartbeat) => Sign::Given(heartbeat.clone()),
        }
    }

    /// Where the leader accepts relayed connections.
    fn relay_endpoint(&self) -> Option<&RelayEndpoint> {
        let leadership = &self.leadership.as_ref()?.value;
        let node = &self.other.as_ref()?.node.as_ref()?.value;
        (node.incarnation == leadership.incarnation).then_some(node.relay_endpoint.as_ref()).flatten()
    }
}

/// What an operator asks for. A newer version may ask in words that this one does not know: then it does not
/// obey, and whoever asked learns that by the absence of an answer.
pub(super) fn request<T: DeserializeOwned>(entry: &Option<Entry>) -> Option<Seen<T>> {
    seen(entry).unwrap_or_default()
}

/// The value of an entry.
pub(super) fn seen<T: DeserializeOwned>(entry: &Option<Entry>) -> Result<Option<Seen<T>>, ValueError> {
    let Some(entry) = entry else { return Ok(None) };
    Ok(Some(Seen { value: decode(&entry.key, &entry.value)?, modified: entry.modified }))
}

/// A leader's sign of life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// Its heartbeat was not read, because another node led when the transaction was made.
    Unknown,
    /// It has no heartbeat.
    Absent,
    /// A later run of the same node has written the heartbeat, so the leader can never renew again.
    Replaced,
    /// Its heartbeat.
    Given(Seen<Heartbeat>),
}

/// Who leads as far as a node knows, and since when it has seen no sign of life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Observation {
    leadership: Option<Seen<Leadership>>,
    sign: Sign,
    /// When the answer arrived that showed this first.
    since: BootTime,
    /// Where the leader accepts relayed connections.
    relay_endpoint: Option<RelayEndpoint>,
    /// The highest epoch seen so far, in the leadership key or the commit marker. Where the leadership key has a lower one
    /// now, it was deleted or the store was restored from a backup, and the leader of the later epoch may still serve.
    epoch_max: u32,
}

/// When a node may take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vacancy {
    /// Nobody leads.
    AtOnce,
    /// If there is no sign of life of the leader until then.
    At(BootTime),
    /// Not before another look: the leader's heartbeat was not read, or it is this run that leads.
    AfterLook,
}

impl Observation {
    pub fn new(view: &View, name: &str, now: BootTime) -> Self {
        let mut this = Self {
            leadership: view.leadership.clone(),
            sign: view.sign(name),
            since: now,
            relay_endpoint: view.relay_endpoint().cloned(),
            epoch_max: 0,
        };
        this.note_epochs(view);
        this
    }

    /// Takes in what an answer showed that arrived `now`. Every change restarts the lease duration, except those that later runs
    /// of the leader's node make where the leader has no heartbeat: they begin to give one, or end. The leader can have given
    /// none since.
    pub fn update(&mut self, view: &View, name: &str, now: BootTime) {
        let sign = view.sign(name);
        let has_none = |sign: &Sign| matches!(sign, Sign::Absent | Sign::Replaced);
        let is_of_later_run = has_none(&self.sign) && has_none(&sign);
        if self.leadership != view.leadership || (self.sign != sign && !is_of_later_run) {
            self.since = now;
        }
        self.leadership.clone_from(&view.leadership);
        self.sign = sign;
        self.relay_endpoint = view.relay_endpoint().cloned();
        self.note_epochs(view);
    }

    /// For how long nothing has changed that shows the leader alive.
    pub fn silence(&self, now: BootTime) -> Duration {
        now.since(self.since)
    }

    /// The epoch below which the run `incarnation` has to have closed its relays, and the leader to which it may relay.
    pub fn relayable(&self, incarnation: &Incarnation) -> (u32, Option<(u32, RelayEndpoint)>) {
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

    /// This run has replaced a leader of its own name, whose heartbeat it saw at revision `heartbeat` and compared. That
    /// is no sign of life of the leader.
    pub fn replaced(&mut self, heartbeat: Revision) {
        if matches!(&self.sign, Sign::Given(seen) if seen.modified == heartbeat) {
            self.sign = Sign::Replaced;
        }
    }

    pub fn leadership(&self) -> Option<&Seen<Leadership>> {
        self.leadership.as_ref()
    }

    /// The node whose heartbeat has to be read next time.
    pub fn leader(&self) -> Option<&str> {
        self.leadership.as_ref().map(|leadership| leadership.value.node.as_str())
    }

    /// The revision of the leadership key; 0 if it does not exist.
    pub fn leadership_modified(&self) -> Revision {
        self.leadership.as_ref().map_or(0, |leadership| leadership.modified)
    }

    /// The revision that the leader's heartbeat must still have when a node takes over; 0 means that there is none.
    /// `None` if the leader's heartbeat does not matter.
    pub fn heartbeat_modified(&self) -> Option<Revision> {
        let is_held = self.leadership.as_ref().is_some_and(|leadership| is_held(&leadership.value));
        match &self.sign {
            _ if !is_held => None,
            Sign::Unknown | Sign::Replaced => None,
            Sign::Absent => Some(0),
            Sign::Given(heartbeat) => Some(heartbeat.modified),
        }
    }

    /// The leadership of this run, which nobody has taken over.
    pub fn led_by(&self, incarnation: &Incarnation) -> Option<&Seen<Leadership>> {
        self.leadership
            .as_ref()
            .filter(|leadership| is_held(&leadership.value) && leadership.value.incarnation == *incarnation)
    }

    /// When the run may take over.
    pub fn vacancy(&self, incarnation: &Incarnation, lease_duration: Duration) -> Vacancy {
        let leadership = self.leadership.as_ref().map(|seen| &seen.value);
        let is_held = leadership.is_some_and(is_held);
        let successor = leadership.and_then(|of| of.successor.as_ref());
        let is_for_another = successor.is_some_and(|successor| successor.incarnation != *incarnation);
        if self.led_by(incarnation).is_some() || (is_held && self.sign == Sign::Unknown) {
            Vacancy::AfterLook
        } else if is_held || is_for_another || self.epoch() < self.epoch_max {
            Vacancy::At(self.since.after(lease_duration))
        } else {
            Vacancy::AtOnce
        }
    }

    fn epoch(&self) -> u32 {
        self.leadership.as_ref().map_or(0, |leadership| leadership.value.epoch)
    }

    /// The epoch of the next leader; `None` if there are none left.
    pub fn next_epoch(&self) -> Option<u32> {
        self.epoch_max.checked_add(1)
    }
}

fn is_held(leadership: &Leadership) -> bool {
    leadership.state == LeadershipState::Held
}
