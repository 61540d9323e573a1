//! Work that the ledger does in steps, so that no request and no other work waits for long.
//!
//! An operation puts its consequences here: a queue to serve, waiters to refuse, holders to evict. A step takes tasks
//! of one kind until its budget is used up; a task that is not finished goes back to the front.
//!
//! Invariant: as long as there are tasks, [`Backlog::due`] returns when the next one is due, so that the server runs
//! another step then.

use std::collections::{BTreeMap, VecDeque};

use crate::mailbox::{ReplyTo, SessionClient};
use crate::object::ObjectRef;
use crate::time::{Due, MonotonicMs};
use signalbox_model::{AddressRange, ConnectionId, GrantId, Namespace, SessionId};

/// The budget of one step, in names of grants that are granted, released or visited.
pub(super) const STEP_GRANTS: usize = 64;

/// The kinds of tasks that do not need the present time, so that every request can run a step of them.
pub(super) const TIMELESS_KINDS: [TaskKind; 4] =
    [TaskKind::RefuseWaiters, TaskKind::TellDone, TaskKind::ServeQueue, TaskKind::UsageDropped];

/// An object and its namespace.
#[derive(Clone, Debug)]
pub(super) struct NameRef {
    pub(super) namespace: Namespace,
    pub(super) object: ObjectRef,
}

/// A kind of tasks, in the order in which a step takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskKind {
    RefuseWaiters,
    TellDone,
    ServeQueue,
    UsageDropped,
    Disconnect,
    Evict,
    RevokeClients,
}

#[derive(Debug)]
pub(super) enum Task {
    /// Waiters that can no longer be granted are refused.
    RefuseWaiters(RefuseWaiters),
    /// Waiters are told that the work of their single flight for the name is done.
    TellDone(NameRef),
    /// The head of the queue may fit.
    ServeQueue(NameRef),
    /// Less of the name is in use, and an AwaitIdle request or a removal waits for that.
    UsageDropped(NameRef),
    /// The grace period of these connections is over: those that still hold the object are disconnected.
    Disconnect(ObjectRef, VecDeque<ConnectionId>),
    /// Holders of a semaphore that is removed at once are informed, and lose it after a grace period.
    Evict(Eviction),
    /// The leased sessions of clients are revoked.
    RevokeClients(ClientRevocation),
}

/// The waiters of a semaphore that shrank or is being removed.
#[derive(Debug)]
pub(super) struct RefuseWaiters {
    pub(super) object: ObjectRef,
    /// The last waiter that was visited.
    pub(super) after: Option<GrantId>,
    /// Waiters with lower ids wait for a semaphore that was removed, even if its name was declared again since.
    pub(super) removed: Option<GrantId>,
}

/// The holders of a semaphore that is removed at once.
#[derive(Debug)]
pub(super) struct Eviction {
    pub(super) object: ObjectRef,
    /// When the grace period ends.
    pub(super) at: MonotonicMs,
    /// The last grant that was visited.
    pub(super) after: Option<GrantId>,
    /// Grants with lower ids are of the removed semaphore, even if its name was declared again since.
    pub(super) removed: GrantId,
    /// Connections that held the semaphore by plain Acquires. They lose it only when they end.
    pub(super) plain: std::vec::IntoIter<ConnectionId>,
}

/// The leased sessions of some clients, which are revoked.
#[derive(Debug)]
pub(super) struct ClientRevocation {
    /// The clients.
    pub(super) clients: ClientSelector,
    /// When the grace period ends.
    pub(super) at: MonotonicMs,
    /// The last session that was visited.
    pub(super) after: Option<SessionId>,
    /// The last session that existed when the request came.
    pub(super) last: Option<SessionId>,
    /// The number of sessions that were revoked.
    pub(super) revoked: u64,
    pub(super) reply_to: ReplyTo,
}

/// Some clients, whose sessions an administrator revokes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClientSelector {
    /// Those with these addresses.
    Addresses(AddressRange),
    /// Those that have proven this identity, from any address.
    Identity(Box<str>),
}

impl ClientSelector {
    /// Returns whether a client is one of them.
    pub(super) fn selects(&self, client: &SessionClient) -> bool {
        match self {
            Self::Addresses(addresses) => addresses.contains(client.address.ip()),
            Self::Identity(identity) => client.identity.as_deref() == Some(identity),
        }
    }
}

const KINDS: usize = 7;

impl NameRef {
    pub(super) fn new(namespace: Namespace, object: &ObjectRef) -> Self {
        Self { namespace, object: object.clone() }
    }
}

impl TaskKind {
    /// Returns the budget of one step, in names of grants.
    pub(super) fn budget(self) -> usize {
        match self {
            // The request that runs this step has already spent work on releasing or ending something.
            Self::ServeQueue => STEP_GRANTS / 2,
            _ => STEP_GRANTS,
        }
    }
}

impl Task {
    fn kind(&self) -> TaskKind {
        match self {
            Self::RefuseWaiters(_) => TaskKind::RefuseWaiters,
            Self::TellDone(_) => TaskKind::TellDone,
            Self::ServeQueue(_) => TaskKind::ServeQueue,
            Self::UsageDropped(_) => TaskKind::UsageDropped,
            Self::Disconnect(..) => TaskKind::Disconnect,
            Self::Evict(_) => TaskKind::Evict,
            Self::RevokeClients(_) => TaskKind::RevokeClients,
        }
    }

    /// Returns whether both are the same task for the same name, so that one of them is enough.
    fn is_same_task(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::ServeQueue(one), Self::ServeQueue(other))
            | (Self::TellDone(one), Self::TellDone(other))
            | (Self::UsageDropped(one), Self::UsageDropped(other)) => {
                one.namespace == other.namespace && one.object.address() == other.object.address()
            }
            _ => false,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Backlog {
    ready: [VecDeque<Task>; KINDS],
    /// Tasks for later. The number distinguishes tasks of the same time.
    delayed: BTreeMap<(MonotonicMs, u64), Task>,
    last_delayed: u64,
}

impl Backlog {
    /// Adds a task after the others of its kind, unless the last of them is the same.
    pub(super) fn push(&mut self, task: Task) {
        let tasks = &mut self.ready[task.kind() as usize];
        // Many holders often leave the same name one after the other.
        if !tasks.back().is_some_and(|last| last.is_same_task(&task)) {
            tasks.push_back(task);
        }
    }

    /// Adds a queue whose head may fit.
    pub(super) fn serve_later(&mut self, namespace: Namespace, object: &ObjectRef) {
        self.push(Task::ServeQueue(NameRef::new(namespace, object)));
    }

    /// Adds a name whose usage has dropped.
    pub(super) fn usage_dropped_later(&mut self, namespace: Namespace, object: &ObjectRef) {
        self.push(Task::UsageDropped(NameRef::new(namespace, object)));
    }

    /// Adds a task that is taken at this time at the earliest.
    pub(super) fn push_delayed(&mut self, at: MonotonicMs, task: Task) {
        self.last_delayed += 1;
        self.delayed.insert((at, self.last_delayed), task);
    }

    /// Puts back a task that is not finished.
    pub(super) fn push_front(&mut self, task: Task) {
        self.ready[task.kind() as usize].push_front(task);
    }

    pub(super) fn pop(&mut self, kind: TaskKind) -> Option<Task> {
        self.ready[kind as usize].pop_front()
    }

    /// Makes delayed tasks ready, if their time has come.
    pub(super) fn wake_delayed(&mut self, now: MonotonicMs) {
        while let Some(first) = self.delayed.first_entry().filter(|first| first.key().0 <= now) {
            let task = first.remove();
            self.push(task);
        }
    }

    pub(super) fn clear(&mut self, kind: TaskKind) {
        self.ready[kind as usize].clear();
    }

    pub(super) fn has(&self, kind: TaskKind) -> bool {
        !self.ready[kind as usize].is_empty()
    }

    pub(super) fn has_any_of(&self, kinds: &[TaskKind]) -> bool {
        kinds.iter().any(|kind| self.has(*kind))
    }

    /// Returns when the next task of any kind is due.
    pub(super) fn due(&self) -> Option<Due> {
        if self.ready.iter().any(|tasks| !tasks.is_empty()) {
            return Some(Due::Now);
        }
        self.delayed.first_key_value().map(|((at, _), _)| Due::At(*at))
    }

    /// Returns whether the queue of this name will be served.
    pub(super) fn will_serve(&self, namespace: Namespace, object: &ObjectRef) -> bool {
        self.has_same(&Task::ServeQueue(NameRef::new(namespace, object)))
    }

    /// Returns whether waiters for this name will be told that the work of their single flight is done.
    pub(super) fn will_tell_done(&self, namespace: Namespace, object: &ObjectRef) -> bool {
        self.has_same(&Task::TellDone(NameRef::new(namespace, object)))
    }

    fn has_same(&self, task: &Task) -> bool {
        self.ready[task.kind() as usize].iter().any(|other| other.is_same_task(task))
    }

    /// Returns whether a waiter will be refused because the semaphore that it waits for was removed.
    pub(super) fn will_refuse(&self, object: &ObjectRef, waiter: GrantId) -> bool {
        self.ready[TaskKind::RefuseWaiters as usize].iter().any(|task| {
            matches!(task, Task::RefuseWaiters(task)
                if task.object.address() == object.address()
                    && task.removed.is_some_and(|removed| waiter < removed))
        })
    }
}
