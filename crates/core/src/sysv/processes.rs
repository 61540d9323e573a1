//! All processes: their connections, their requests, and when they end.
//!
//! Invariants: a connection is attached to one process at most; a process has a deadline if and only if
//! it has no connections; a process that is ending has no connection; a process counts against the share of the client whose
//! connection attached to it last.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::ops::Bound;
use std::sync::Arc;

use super::durable::ProcessRecord;
use super::waiters::WaiterId;
use crate::clients::{Clients, Counted, Counts};
use crate::limit::ClientKey;
use crate::mailbox::{Mailbox, ReplyTo, SessionClient};
use crate::request_log::{self, RequestLog};
use crate::time::MonotonicMs;
use signalbox_model::sysv::{Errno, ProcessId, SetAnswer, SetId};
use signalbox_model::{ConnectionId, RequestId};

/// The size of a process with its entries in the tables, in bytes, rounded up.
const PROCESS_BYTES: usize = 1024;

#[derive(Debug)]
pub(super) struct Process {
    /// The facts that it has stated, its number and its secret.
    pub(super) record: ProcessRecord,
    /// When it was opened; `None`: before the start of the server.
    pub(super) opened: Option<MonotonicMs>,
    /// Its last client; `None`: no client since the start of the server.
    pub(super) client: Option<SessionClient>,
    connections: BTreeSet<ConnectionId>,
    /// The client whose shares it counts against; `None`: no connection has attached since a restart, or its client is not
    /// counted.
    owner: Option<ClientKey>,
    /// How long it lives on without a connection, in milliseconds, because it replaces its program (exec).
    pub(super) grace_ms: Option<u32>,
    deadline: Option<MonotonicMs>,
    pub(super) log: RequestLog<Reply>,
    /// Its calls that wait. They count against the shares of the same client.
    waiting: BTreeMap<RequestId, (SetId, WaiterId)>,
    /// The memory of these calls, in bytes.
    waiting_bytes: usize,
    /// The sets that it has adjustments of, numbered in the order of their first operations with SEM_UNDO.
    pub(super) adjusts: BTreeMap<u64, SetId>,
    /// Whether the store has it, because it has used a durable set.
    pub(super) is_stored: bool,
    /// Requests whose results the client no longer needs and the store still has. They are deleted when the next result is
    /// stored.
    pub(super) forgotten: Vec<RequestId>,
}

/// The cached reply to a request, or the state of a request that has no reply yet.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Waiting(SetId, WaiterId),
    /// The result is sent when everything so far is stored.
    Storing(Done, Option<ReplyTo>),
    Done(Done),
}

impl request_log::Reply for Reply {
    fn bytes(&self) -> usize {
        match self {
            Self::Storing(Done { result: Ok(SetAnswer::Values(values)), .. }, _)
            | Self::Done(Done { result: Ok(SetAnswer::Values(values)), .. }) => size_of_val::<[_]>(values),
            _ => 0,
        }
    }

    /// Clients raise the lowest unanswered request past calls that still wait, so that a long wait does not hold it back.
    fn is_late(&self) -> bool {
        !matches!(self, Self::Done(_))
    }
}

/// The result of a call.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub(super) result: Result<SetAnswer, Errno>,
    /// Whether the call has changed a durable set, so that the store has the result.
    pub(super) is_stored: bool,
}

/// A call whose result is sent on commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(super) process: ProcessId,
    pub(super) request: RequestId,
}

/// A connection that is attached to a process.
#[derive(Debug)]
struct Attached {
    process: ProcessId,
    mailbox: Arc<Mailbox>,
}

#[derive(Debug, Default)]
pub(super) struct Processes {
    all: BTreeMap<ProcessId, Process>,
    attached: BTreeMap<ConnectionId, Attached>,
    deadlines: BTreeSet<(MonotonicMs, ProcessId)>,
    clients: Clients<ProcessId>,
    last: u64,
}

impl Process {
    pub(super) fn new(record: ProcessRecord) -> Self {
        Self {
            record,
            opened: None,
            client: None,
            connections: BTreeSet::new(),
            owner: None,
            grace_ms: None,
            deadline: None,
            log: RequestLog::default(),
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            adjusts: BTreeMap::new(),
            is_stored: false,
            forgotten: Vec::new(),
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        !self.connections.is_empty()
    }

    /// Returns whether nothing is lost if the process ends: it has no connections, no calls that wait, no adjustments,
    /// and no results that its client may ask for again.
    fn is_unused(&self) -> bool {
        !self.is_connected() && self.waiting.is_empty() && self.adjusts.is_empty() && self.log.len() == 0
    }

    /// Notes that the process has adjustments of one more set.
    pub(super) fn add_adjusted_set(&mut self, set: SetId) {
        let turn = self.adjusts.last_key_value().map_or(0, |(last, _)| last + 1);
        self.adjusts.insert(turn, set);
    }

    /// The number of a set among those that it has adjustments of.
    pub(super) fn turn_of(&self, set: SetId) -> Option<u64> {
        self.adjusts.iter().find_map(|(turn, adjusted)| (*adjusted == set).then_some(*turn))
    }

    /// Its calls that wait, by the numbers of their requests.
    pub(super) fn waiting(&self) -> &BTreeMap<RequestId, (SetId, WaiterId)> {
        &self.waiting
    }

    /// The bytes that the process counts against the memory share of its client.
    fn bytes(&self) -> usize {
        PROCESS_BYTES
            + size_of_val::<[_]>(&self.record.groups)
            + self.record.label.len()
            + self.waiting_bytes
            + self.log.counted_bytes()
    }

    /// Checks the counted bytes of its waiting calls, which take this many, and of its results.
    pub(super) fn check_bytes(&self, waiting_bytes: usize) -> Result<(), String> {
        if waiting_bytes != self.waiting_bytes {
            let counted = self.waiting_bytes;
            return Err(format!("waiting calls take {waiting_bytes} bytes, and {counted} are counted"));
        }
        self.log.check()
    }

    /// The amounts that the process counts against the shares of its client.
    fn counts(&self) -> Counts {
        [1, self.waiting.len(), 0, self.bytes()]
    }

    pub(super) fn deadline(&self) -> Option<MonotonicMs> {
        self.deadline
    }
}

impl Processes {
    /// Allocates the number of a new process.
    pub(super) fn next_id(&mut self) -> ProcessId {
        self.last += 1;
        ProcessId(self.last)
    }

    /// Starts the numbers of processes above this one.
    pub(super) fn start_after(&mut self, last: u64) {
        self.last = self.last.max(last);
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn insert(&mut self, id: ProcessId, process: Process) {
        self.all.insert(id, process);
    }

    pub(super) fn get(&self, id: ProcessId) -> Option<&Process> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: ProcessId) -> Option<&mut Process> {
        self.all.get_mut(&id)
    }

    /// Removes a process, which has no connection.
    pub(super) fn remove(&mut self, id: ProcessId) -> Option<Process> {
        let process = self.all.remove(&id)?;
        if let Some(deadline) = process.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        self.clients.remove_unused(process.owner, id);
        self.clients.subtract_all(process.owner, process.counts());
        Some(process)
    }

    pub(super) fn attach(&mut self, connection: ConnectionId, id: ProcessId, mailbox: &Arc<Mailbox>) {
        let Some(process) = self.all.get_mut(&id) else { return };
        process.connections.insert(connection);
        process.client = mailbox.client();
        if let Some(deadline) = process.deadline.take() {
            self.deadlines.remove(&(deadline, id));
        }
        let owner = mailbox.owner();
        let before = mem::replace(&mut process.owner, owner);
        self.clients.remove_unused(before, id);
        let counts = process.counts();
        self.clients.subtract_all(before, counts);
        self.clients.add_all(owner, counts);
        self.attached.insert(connection, Attached { process: id, mailbox: Arc::clone(mailbox) });
    }

    /// Records the connection's client in the process that the connection is attached to, if there is one.
    pub(super) fn note_client(&mut self, connection: ConnectionId) {
        let Some(Attached { process, mailbox }) = self.attached.get(&connection) else { return };
        if let Some(process) = self.all.get_mut(process) {
            process.client = mailbox.client();
        }
    }

    /// Detaches a connection, and returns the process that it was attached to. If the process has no connection left, the
    /// caller sets a deadline or ends the process.
    pub(super) fn detach(&mut self, connection: ConnectionId) -> Option<ProcessId> {
        let Attached { process: id, .. } = self.attached.remove(&connection)?;
        if let Some(process) = self.all.get_mut(&id) {
            process.connections.remove(&connection);
        }
        Some(id)
    }

    /// The process that a connection is attached to, and the connection's mailbox.
    pub(super) fn acting(&self, connection: ConnectionId) -> Option<(ProcessId, &Arc<Mailbox>)> {
        let Attached { process, mailbox } = self.attached.get(&connection)?;
        Some((*process, mailbox))
    }

    /// Sets the time at which a process without connections ends.
    pub(super) fn set_deadline(&mut self, id: ProcessId, at: MonotonicMs) {
        let Some(process) = self.all.get_mut(&id) else { return };
        if let Some(before) = process.deadline.replace(at) {
            self.deadlines.remove(&(before, id));
        }
        if process.is_unused() {
            self.clients.add_unused(process.owner, id);
        }
        self.deadlines.insert((at, id));
    }

    /// Adds a call of a process that waits for a set and takes this many bytes.
    pub(super) fn add_waiting(
        &mut self,
        id: ProcessId,
        request: RequestId,
        waiter_id: (SetId, WaiterId),
        bytes: usize,
    ) {
        self.change(id, |process| {
            if process.waiting.insert(request, waiter_id).is_none() {
                process.waiting_bytes += bytes;
            }
        });
    }

    /// Removes a call of a process that waited and took this many bytes.
    pub(super) fn remove_waiting(&mut self, id: ProcessId, request: RequestId, bytes: usize) {
        self.change(id, |process| {
            if process.waiting.remove(&request).is_some() {
                process.waiting_bytes -= bytes;
            }
        });
    }

    /// Changes a process, if it exists, and updates the shares of its client.
    pub(super) fn change<T>(&mut self, id: ProcessId, change: impl FnOnce(&mut Process) -> T) -> Option<T> {
        let process = self.all.get_mut(&id)?;
        let before = process.counts();
        let result = change(process);
        let (after, owner) = (process.counts(), process.owner);
        if after != before {
            // In this order, so that the client keeps its entry in between.
            self.clients.add_all(owner, after);
            self.clients.subtract_all(owner, before);
        }
        Some(result)
    }

    /// The memory of all processes of the client of this process, in bytes.
    pub(super) fn bytes_of_client(&self, id: ProcessId) -> usize {
        self.bytes_of(self.all.get(&id).and_then(|process| process.owner))
    }

    /// The memory of all processes of a client, in bytes.
    pub(super) fn bytes_of(&self, client: Option<ClientKey>) -> usize {
        self.clients.count(client, Counted::Bytes)
    }

    /// The number of waiting calls of the client of this process.
    pub(super) fn waiting_of_client(&self, id: ProcessId) -> usize {
        let owner = self.all.get(&id).and_then(|process| process.owner);
        self.clients.count(owner, Counted::Waiters)
    }

    /// The number of processes of a client.
    pub(super) fn count_of(&self, client: Option<ClientKey>) -> usize {
        self.clients.count(client, Counted::Sessions)
    }

    /// Takes the oldest unused process of a client: nothing is lost if it ends.
    pub(super) fn pop_unused(&mut self, client: Option<ClientKey>) -> Option<ProcessId> {
        self.clients.pop_unused(client)
    }

    /// The first deadline, and the process that ends then.
    pub(super) fn first_deadline(&self) -> Option<(MonotonicMs, ProcessId)> {
        self.deadlines.first().copied()
    }

    /// The processes after this one.
    pub(super) fn after(&self, last: Option<ProcessId>) -> impl Iterator<Item = (ProcessId, &Process)> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.all.range((from, Bound::Unbounded)).map(|(id, process)| (*id, process))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ProcessId, &Process)> {
        self.all.iter().map(|(id, process)| (*id, process))
    }

    /// Fails with a description of an invariant that does not hold.
    pub(super) fn check(&self) -> Result<(), String> {
        for (id, process) in self.iter() {
            if process.is_connected() == process.deadline.is_some() {
                return Err(format!("process {id} has connections and a deadline, or neither"));
            }
            for connection in &process.connections {
                if self.attached.get(connection).map(|attached| attached.process) != Some(id) {
                    return Err(format!("connection {connection} is not attached to process {id}"));
                }
            }
        }
        let connections: usize = self.all.values().map(|process| process.connections.len()).sum();
        if connections != self.attached.len() {
            return Err(format!("{connections} connections of processes, {} attached", self.attached.len()));
        }
        let due = |(id, process): (ProcessId, &Process)| Some((process.deadline?, id));
        let expected: BTreeSet<_> = self.iter().filter_map(due).collect();
        if expected != self.deadlines {
            return Err("the deadlines of processes are wrong".to_owned());
        }
        let is_used = |(_, id): &(ClientKey, ProcessId)| !self.get(*id).is_some_and(Process::is_unused);
        if let Some((_, id)) = self.clients.unused().find(is_used) {
            return Err(format!("process {id} is used and may be ended"));
        }
        self.clients.check(self.all.values().map(|process| (process.owner, process.counts())))
    }
}
