//! The handover of a leadership: the leader that is drained chooses its successor, which reads the records in advance.
//!
//! The successor reads while the leader goes on to store. So the leader keeps a [`Trace`] of what it stores from before
//! that on, and writes it into etcd as the last thing before it releases the leadership. The successor, once it leads, makes
//! these changes to what it has read. Where the trace is missing or too long, it reads all records, as after any takeover.
//!
//! Invariant C9: what a successor has read, with the changes, is what etcd has at the takeover. This holds because
//! - the trace begins before the successor is asked to read, and has every commit whose outcome was not known then;
//! - it is written only if no commit is in flight, and nothing is committed after it was taken;
//! - the successor uses it only in the next epoch, so no other node has led in between, and only if it was asked to read
//!   after the trace had begun.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thiserror::Error;

use super::coordinator::{CallError, Compare, Coordinator, Operation, Range, Revision, Transaction};
use super::fence::Fence;
use super::keys::{
    Drain, Handover, Heartbeat, Incarnation, Keys, Node, Successor, ValueError, decode, encode,
};
use super::leadership::Term;
use super::members::{NoSuchNode, Reading, ReadingError};
use super::store::{CHANGED_BYTES_MAX, range_answered, read_records, refused};
use super::timing::Timing;
use crate::storage::StorageError;

/// How long a successor may take to read the records.
const PRELOAD_MAX: Duration = Duration::from_secs(60);

/// The time between two looks at heartbeats.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// Attempts at a call before etcd counts as unreachable; each goes to another member.
const ATTEMPTS_MAX: usize = 6;

/// Records by their keys, as bytes.
pub(super) type RawRecords = BTreeMap<Vec<u8>, Vec<u8>>;

/// The last change of each key; `None`: it was removed.
pub type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// What a leader stores, from a certain commit on.
#[derive(Clone, Debug, Default)]
pub struct Trace(Arc<Mutex<Traced>>);

#[derive(Debug, Default)]
struct Traced {
    state: State,
    /// Whether the outcome of a commit is not known yet.
    is_in_flight: bool,
}

#[derive(Debug, Default)]
enum State {
    /// Nothing is kept.
    #[default]
    Off,
    On {
        changes: Changes,
        bytes: usize,
    },
    /// There were too many changes.
    TooLong,
    /// The changes were taken: nothing may be stored any more.
    Taken,
}

impl Trace {
    /// Keeps what is stored from now on, and the commit that is in flight.
    pub fn start(&self) {
        self.lock().state = State::On { changes: Changes::new(), bytes: 0 };
    }

    /// Keeps nothing any more: there is no handover after all.
    pub fn stop(&self) {
        self.lock().state = State::Off;
    }

    /// The changes since the start, after which nothing may be stored any more. `None`: they are not known, because a commit is
    /// in flight, there were too many, or nothing was kept.
    pub fn take(&self) -> Option<Changes> {
        let mut traced = self.lock();
        if traced.is_in_flight {
            return None;
        }
        match std::mem::replace(&mut traced.state, State::Taken) {
            State::On { changes, .. } => Some(changes),
            State::Off | State::TooLong | State::Taken => None,
        }
    }

    /// A commit begins, whose outcome will be reported. Returns whether it may: nothing may be stored any more once the changes
    /// were taken.
    pub(super) fn begin(&self) -> bool {
        let mut traced = self.lock();
        let may_begin = !matches!(traced.state, State::Taken);
        traced.is_in_flight |= may_begin;
        may_begin
    }

    /// The outcome of the commit is known: these writes are stored, or none.
    pub(super) fn end(&self, stored: &[Operation]) {
        let mut traced = self.lock();
        traced.is_in_flight = false;
        let State::On { changes, bytes } = &mut traced.state else { return };
        for operation in stored {
            let (key, value) = match operation {
                Operation::Put { key, value } => (key, Some(value)),
                Operation::Delete { key } => (key, None),
                Operation::Read { .. } => continue,
            };
            // What a key replaces is counted too: the limit is one of caution.
            *bytes += key.len() + value.map_or(0, Vec::len) + CHANGE_OVERHEAD;
            changes.insert(key.clone(), value.cloned());
        }
        if *bytes > CHANGED_BYTES_MAX {
            traced.state = State::TooLong;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Traced> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of an encoded change besides its key and value: two lengths. This length means that the key was removed.
const CHANGE_OVERHEAD: usize = 8;
const REMOVED: u32 = u32::MAX;

/// The epoch, the revision of the handover, and for each change the length of the key, the length of the value, and both.
fn encode_changes(epoch: u32, handover: Revision, changes: &Changes) -> Vec<u8> {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("changes are limited");
    let mut encoded = [&epoch.to_be_bytes()[..], &handover.to_be_bytes()].concat();
    for (key, value) in changes {
        encoded.extend(length(key).to_be_bytes());
        encoded.extend(value.as_deref().map_or(REMOVED, length).to_be_bytes());
        encoded.extend(key);
        encoded.extend(value.iter().flatten());
    }
    encoded
}

/// Makes encoded changes to records that were read for `handover`. Returns the epoch of the leader that has made them.
/// `None`: they do not begin early enough, or are damaged; then some may be made.
fn apply_changes(mut encoded: &[u8], handover: Revision, records: &mut RawRecords) -> Option<u32> {
    fn number(encoded: &mut &[u8]) -> Option<u32> {
        let (number, rest) = encoded.split_first_chunk()?;
        *encoded = rest;
        Some(u32::from_be_bytes(*number))
    }
    fn bytes(encoded: &mut &[u8], length: u32) -> Option<Vec<u8>> {
        let (bytes, rest) = encoded.split_at_checked(length as usize)?;
        *encoded = rest;
        Some(bytes.to_vec())
    }
    let epoch = number(&mut encoded)?;
    let (begin, mut encoded) = encoded.split_first_chunk()?;
    if Revision::from_be_bytes(*begin) > handover {
        return None;
    }
    while !encoded.is_empty() {
        let (key_length, value_length) = (number(&mut encoded)?, number(&mut encoded)?);
        let key = bytes(&mut encoded, key_length)?;
        if value_length == REMOVED {
            records.remove(&key);
        } else {
            records.insert(key, bytes(&mut encoded, value_length)?);
        }
    }
    Some(epoch)
}

/// Records that were read in advance.
#[derive(Clone, Debug)]
pub struct Preloaded {
    /// The revision of the handover for which they were read.
    handover: Revision,
    records: RawRecords,
}

impl Preloaded {
    /// Reads all records as they are now, for the handover of this revision.
    ///
    /// # Errors
    ///
    /// etcd does not answer, or refuses.
    pub fn read(
        coordinator: &mut (impl Coordinator + ?Sized),
        keys: &Keys,
        handover: Revision,
    ) -> Result<Self, StorageError> {
        let all = keys.records();
        let now = coordinator.range(&Range { count_only: true, ..Range::below(&all) }).map_err(refused)?;
        let mut records = RawRecords::new();
        let mut read = |range: &Range| coordinator.range(range);
        read_records(keys, now.revision, &mut read, &mut |entry| {
            records.insert(entry.key, entry.value);
            Ok(())
        })?;
        Ok(Self { handover, records })
    }

    /// The records at the beginning of a term; `None`: they have to be read, because another node has led in between, or the
    /// changes since then are not known.
    ///
    /// # Errors
    ///
    /// etcd does not answer until the deadline of the fence, or refuses.
    pub(super) fn complete(
        self,
        coordinator: &mut impl Coordinator,
        keys: &Keys,
        term: Term,
        fence: &Fence,
    ) -> Result<Option<RawRecords>, CallError> {
        let Self { handover, mut records } = self;
        // The takeover has removed them.
        let before = Some(term.taken_at - 1);
        let changes = Range { from: keys.changes(), to: None, at: before, count_only: false };
        let Some(changes) = range_answered(coordinator, &changes, fence)?.entries.pop() else {
            return Ok(None);
        };
        let epoch = apply_changes(&changes.value, handover, &mut records);
        if epoch.and_then(|epoch| epoch.checked_add(1)) != Some(term.epoch) {
            return Ok(None);
        }
        let at = Some(term.taken_at);
        let count = Range { at, count_only: true, ..Range::below(&keys.records()) };
        let count = range_answered(coordinator, &count, fence)?.count;
        Ok((count == records.len() as u64).then_some(records))
    }
}

/// A node that is going to lead next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// Its name and its run.
    pub successor: Successor,
    /// What it has stated about itself.
    pub node: Node,
}

/// Why a leader hands over to nobody.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The node that was named does not exist.
    #[error(transparent)]
    NoNode(#[from] NoSuchNode),
    /// The node that was named leads already.
    #[error("node \"{node}\" leads itself; name another one")]
    Itself {
        /// The name.
        node: String,
    },
    /// The node that was named must not lead.
    #[error("node \"{node}\" may not lead (cluster.eligible = false); name another one")]
    NotEligible {
        /// The name.
        node: String,
    },
    /// The node that was named gives no heartbeat.
    #[error("node \"{node}\" sends no heartbeats; start it, or name another one")]
    Silent {
        /// The name.
        node: String,
    },
    /// There is no node that could lead.
    #[error(
        "no other node that may lead sends heartbeats; start one first, or stop this node, which ends the service"
    )]
    NoOther,
    /// The successor is not ready.
    #[error(
        "node \"{node}\" has not read the records within {} s; see its log, or name another one",
        PRELOAD_MAX.as_secs()
    )]
    NotInTime {
        /// Its name.
        node: String,
    },
    /// The successor has ended.
    #[error("node \"{node}\" has left the cluster while it read the records; run the command again")]
    Gone {
        /// Its name.
        node: String,
    },
    /// The operator has given up.
    #[error("the request was withdrawn")]
    Withdrawn,
    /// Another node leads.
    #[error("the node does not lead any more")]
    NotLeading,
    /// etcd did not answer, or refused.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A value in etcd cannot be read.
    #[error(transparent)]
    Value(#[from] ValueError),
}

impl From<ReadingError> for Refusal {
    fn from(error: ReadingError) -> Self {
        match error {
            ReadingError::Call(error) => error.into(),
            ReadingError::Value(error) => error.into(),
        }
    }
}

/// What an operator asks of a leader, and the revision of the request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The request.
    pub drain: Drain,
    /// When it was written.
    pub written: Revision,
}

/// A request that a leader has refused.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub refusal: Refusal,
    /// Whether the operator learns of it.
    pub told: Result<(), CallError>,
}

/// What a leader leaves behind.
#[derive(Debug)]
pub struct Completed {
    /// Who leads next; `None`: the successor has left the cluster, so any node may.
    pub successor: Option<Successor>,
    /// Whether the successor can know the changes; else it reads all records.
    pub written: Result<(), CallError>,
}

/// A leader that prepares a handover.
#[derive(Debug)]
pub struct Leader<C> {
    /// A connection to etcd of its own.
    pub coordinator: C,
    /// The keys of the cluster.
    pub keys: Keys,
    /// The name of the node.
    pub name: String,
    /// The term that it is going to end.
    pub term: Term,
    /// Its run.
    pub incarnation: Incarnation,
    /// The times of the cluster.
    pub timing: Timing,
    /// What it stores.
    pub trace: Trace,
    /// The revision of the handover that it prepares; 0: none yet.
    pub handover: Revision,
}

impl<C: Coordinator> Leader<C> {
    /// Prepares the handover that an operator asks for, or tells the operator why it does not.
    ///
    /// # Errors
    ///
    /// [`Refused`]: the node goes on to lead.
    pub fn obey(&mut self, request: &Request) -> Result<Next, Refused> {
        self.prepare(request).map_err(|refusal| {
            let told = self.refuse(request, &refusal);
            Refused { refusal, told }
        })
    }

    /// Gives the successor what it does not know yet, unless it has left the cluster in the meantime. To be called when the server
    /// has stored its last change.
    pub fn complete(&mut self, next: Next) -> Completed {
        if matches!(self.awaits(&next), Ok(false)) {
            return Completed { successor: None, written: Ok(()) };
        }
        Completed { written: self.write_changes(), successor: Some(next.successor) }
    }

    /// Chooses who leads next, and waits until that node has read the records. Any node that may lead can be it unless the
    /// request names one; one of the newest version comes first. Takes two heartbeats, and as long as it takes to read the
    /// records. If it fails, nothing has changed, apart from what a successor has read.
    fn prepare(&mut self, request: &Request) -> Result<Next, Refusal> {
        let next = self.choose(request.drain.to.as_deref())?;
        if !next.node.drains {
            // An older version, which reads the records when it leads.
            return self.check(request).map(|()| next);
        }
        self.trace.start();
        let prepared = self.ask_to_read(&next).and_then(|()| self.await_reading(&next, request));
        if prepared.is_err() {
            self.trace.stop();
        }
        prepared.map(|()| next)
    }

    /// Checks that the operator still wants what was requested.
    fn check(&mut self, request: &Request) -> Result<(), Refusal> {
        let key = Range { from: self.keys.drain(&self.name), to: None, at: None, count_only: false };
        let found = answered(&mut self.coordinator, |etcd| etcd.range(&key))?.entries.pop();
        let is_wanted = found.is_some_and(|entry| entry.modified == request.written);
        if is_wanted { Ok(()) } else { Err(Refusal::Withdrawn) }
    }

    /// Tells the operator that the request is refused, and the successor that nothing is handed over, so that it forgets what it
    /// has read. If that fails, the operator does not learn of it.
    fn refuse(&mut self, request: &Request, refusal: &Refusal) -> Result<(), CallError> {
        let withdraw = Transaction {
            compare: vec![self.leads()],
            then: vec![Operation::Delete { key: self.keys.handover() }],
            otherwise: Vec::new(),
        };
        answered(&mut self.coordinator, |etcd| etcd.transact(&withdraw))?;
        let key = self.keys.drain(&self.name);
        let refused = Drain { refused: Some(refusal.to_string()), ..request.drain.clone() };
        let transaction = Transaction {
            compare: vec![self.leads(), Compare::Modified { key: key.clone(), at: request.written }],
            then: vec![Operation::Put { key, value: encode(&refused) }],
            otherwise: Vec::new(),
        };
        answered(&mut self.coordinator, |etcd| etcd.transact(&transaction)).map(drop)
    }

    /// Whether the run that is to lead next is still part of the cluster.
    fn awaits(&mut self, next: &Next) -> Result<bool, Refusal> {
        let key = self.keys.node(&next.successor.node);
        let range = Range { from: key.clone(), to: None, at: None, count_only: false };
        let entry = answered(&mut self.coordinator, |etcd| etcd.range(&range))?.entries.pop();
        let node: Option<Node> = entry.map(|entry| decode(&key, &entry.value)).transpose()?;
        Ok(node.is_some_and(|node| node.incarnation == next.successor.incarnation))
    }

    /// Writes the changes that the successor has to make. Call it when the server has stored its last change.
    ///
    /// # Errors
    ///
    /// [`CallError`]: the successor reads all records.
    pub fn write_changes(&mut self) -> Result<(), CallError> {
        let Some(changes) = self.trace.take() else { return Ok(()) };
        let value = encode_changes(self.term.epoch, self.handover, &changes);
        let transaction = Transaction {
            compare: vec![self.leads()],
            then: vec![Operation::Put { key: self.keys.changes(), value }],
            otherwise: Vec::new(),
        };
        answered(&mut self.coordinator, |etcd| etcd.transact(&transaction)).map(drop)
    }

    fn choose(&mut self, to: Option<&str>) -> Result<Next, Refusal> {
        let before = answered(&mut self.coordinator, |etcd| Reading::read(etcd, &self.keys))?;
        let deadline = self.coordinator.now().after(self.timing.retry_period() * 2);
        loop {
            let now = answered(&mut self.coordinator, |etcd| Reading::read(etcd, &self.keys))?;
            let is_other = |node: &Node| node.incarnation != self.incarnation;
            if let Some(name) = to {
                match now.nodes.get(name) {
                    None => return Err(NoSuchNode::new(name, now.nodes.keys()).into()),
                    Some(node) if !is_other(node) => {
                        return Err(Refusal::Itself { node: name.to_owned() });
                    }
                    Some(node) if !node.is_eligible => {
                        return Err(Refusal::NotEligible { node: name.to_owned() });
                    }
                    Some(_) => {}
                }
            }
            let modified = |reading: &Reading, name: &str| reading.heartbeats.get(name).map(|(_, at)| *at);
            let is_alive = |name: &str, node: &Node| {
                let heartbeat = now.heartbeats.get(name).is_some_and(|(heartbeat, _)| heartbeat.is_of(node));
                heartbeat && modified(&now, name) != modified(&before, name)
            };
            let candidates = || {
                now.nodes.iter().filter(|(name, node)| {
                    node.is_eligible && is_other(node) && to.is_none_or(|to| to == *name)
                })
            };
            let is_late = self.coordinator.now() >= deadline;
            if is_late || candidates().all(|(name, node)| is_alive(name, node)) {
                let alive = candidates().filter(|(name, node)| is_alive(name, node));
                let best = alive.max_by_key(|(_, node)| (node.drains, version(&node.version)));
                return match (best, to) {
                    (Some((name, node)), _) => {
                        let incarnation = node.incarnation.clone();
                        let successor = Successor { node: name.clone(), incarnation };
                        Ok(Next { successor, node: node.clone() })
                    }
                    (None, Some(name)) => Err(Refusal::Silent { node: name.to_owned() }),
                    (None, None) => Err(Refusal::NoOther),
                };
            }
            self.coordinator.pause(LOOK_PERIOD);
        }
    }

    fn ask_to_read(&mut self, next: &Next) -> Result<(), Refusal> {
        let handover = Handover { epoch: self.term.epoch, successor: next.successor.clone() };
        let transaction = Transaction {
            compare: vec![self.leads()],
            then: vec![Operation::Put { key: self.keys.handover(), value: encode(&handover) }],
            otherwise: Vec::new(),
        };
        let answer = answered(&mut self.coordinator, |etcd| etcd.transact(&transaction))?;
        // An attempt before it may be performed later: then the successor reads again, for a later revision.
        self.handover = answer.revision;
        if answer.held { Ok(()) } else { Err(Refusal::NotLeading) }
    }

    /// Waits until the successor has read the records, but not once the operator has given up.
    fn await_reading(&mut self, next: &Next, request: &Request) -> Result<(), Refusal> {
        let node = &next.successor.node;
        let key = self.keys.heartbeat(node);
        let heartbeat = Range { from: key.clone(), to: None, at: None, count_only: false };
        let mut heard_at = self.coordinator.now();
        let (mut count, deadline) = (0, heard_at.after(PRELOAD_MAX));
        while self.coordinator.now() < deadline {
            let entry = answered(&mut self.coordinator, |etcd| etcd.range(&heartbeat))?.entries.pop();
            let found: Option<Heartbeat> = entry.map(|entry| decode(&key, &entry.value)).transpose()?;
            self.check(request)?;
            match found.filter(|heartbeat| heartbeat.is_of(&next.node)) {
                None => return Err(Refusal::Gone { node: node.clone() }),
                Some(heartbeat) if heartbeat.preloaded >= self.handover => return Ok(()),
                Some(heartbeat) if heartbeat.count != count => {
                    (count, heard_at) = (heartbeat.count, self.coordinator.now());
                }
                Some(_) if self.coordinator.now().since(heard_at) > self.timing.lease_duration() => {
                    return Err(Refusal::Silent { node: node.clone() });
                }
                Some(_) => {}
            }
            self.coordinator.pause(LOOK_PERIOD);
        }
        Err(Refusal::NotInTime { node: node.clone() })
    }

    fn leads(&self) -> Compare {
        Compare::Modified { key: self.keys.leadership(), at: self.term.leadership_modified }
    }
}

/// Repeats a call that is not answered, which changes nothing if it was performed before.
fn answered<C: Coordinator, T, E>(
    coordinator: &mut C,
    mut call: impl FnMut(&mut C) -> Result<T, E>,
) -> Result<T, E> {
    for _ in 1..ATTEMPTS_MAX {
        if let Ok(answer) = call(coordinator) {
            return Ok(answer);
        }
        coordinator.pause(LOOK_PERIOD);
    }
    call(coordinator)
}

/// The numbers of a version, to compare two.
fn version(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}
