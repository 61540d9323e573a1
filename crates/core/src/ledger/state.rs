//! The state of the ledger, its limits and its statistics, the allocation of ids, and the checks that most operations begin
//! with: whether something may begin or be stored now.

use std::collections::BTreeMap;

use super::backlog::Backlog;
use super::declarations::Declarations;
use super::grants::Grants;
use super::id_allocator::IdAllocator;
use super::idle_waiters::IdleWaiters;
use super::places::Places;
use super::queues::Queues;
use super::sessions::{CachedReply, Sessions};
use super::slots::SlotTables;
use super::watches::Watches;
use crate::alarm::Alarm;
use crate::clients::Clients;
use crate::counter::Interval;
use crate::durable::{Change, DeclarationRecord, Record};
use crate::history::History;
use crate::journal::{Journal, Journaled, Step};
use crate::limit::{ClientShare, MemoryLimit};
use crate::mailbox::ReplyTo;
use crate::object::ObjectRef;
use crate::registry::Registry;
use crate::state::Core;
use crate::time::MonotonicMs;
use signalbox_model::{GrantId, Namespace, Refusal, RequestId, SessionId, UnixSeconds};

/// Limits of the ledger.
#[derive(Clone, Copy, Debug)]
pub struct LedgerLimits {
    /// The most leased sessions.
    pub sessions_max: usize,
    /// The most grants and waiters of one session.
    pub grants_max: usize,
    /// The most waiters of one name, and the most requests that wait until it is idle.
    pub waiters_max: usize,
    /// The most watches.
    pub watches_max: usize,
    /// Once it is used up, no session, grant, waiter, watch or declaration is added.
    pub memory: MemoryLimit,
    /// How much of the sessions, of the waiters of a name, of the watches and of the memory one client may have.
    pub client_share: ClientShare,
}

impl LedgerLimits {
    /// No limits, as in a new core.
    pub const NONE: Self = Self {
        sessions_max: usize::MAX,
        grants_max: usize::MAX,
        waiters_max: usize::MAX,
        watches_max: usize::MAX,
        memory: MemoryLimit::NONE,
        client_share: ClientShare::NONE,
    };
}

/// Live figures of the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerStats {
    /// Leased sessions.
    pub sessions: u64,
    /// Grants that are held.
    pub grants: u64,
    /// Grants that were made.
    pub granted: u64,
    /// Requests that wait.
    pub waiters: u64,
    /// Watches.
    pub watches: u64,
    /// Leased sessions that expired, or ended to make room for another one of their client.
    pub expired_sessions: u64,
    /// Requests whose wait timed out.
    pub timed_out: u64,
    /// Requests that found a queue longer than they accepted.
    pub queue_full: u64,
    /// Requests refused because of a limit of the ledger.
    pub limited: u64,
    /// Grants and sessions that were revoked.
    pub revoked: u64,
    /// Single flights: grants that were released with `done`.
    pub flights: u64,
    /// Requests that were told `done` while they waited in a single flight.
    pub told_done: u64,
    /// Declared semaphores.
    pub declared: u64,
    /// Requests refused because their change could not be stored.
    pub not_stored: u64,
    /// Entries of the history that were dropped, because too many waited to be taken.
    pub history_dropped: u64,
}

/// The context of an operation of the ledger: the objects and the time. Monotonic time is an argument of its own,
/// because plain operations do not have it.
#[derive(Clone, Copy)]
pub(crate) struct LedgerContext<'a> {
    pub(crate) registries: [&'a Registry; Namespace::ALL.len()],
    pub(crate) interval: Interval,
    pub(crate) now: UnixSeconds,
}

impl<'a> LedgerContext<'a> {
    pub(super) fn registry(&self, namespace: Namespace) -> &'a Registry {
        self.registries[namespace as usize]
    }
}

/// A consequence of the commit of a change.
#[derive(Debug)]
pub(crate) enum OnCommit {
    /// The pending reply to a request is sent.
    Reply(SessionId, RequestId),
    /// A session was closed; the client is answered.
    Closed(ReplyTo),
    /// The sessions of clients were revoked, this many; the client is answered.
    ClientsRevoked(u64, ReplyTo),
    /// A session was opened; its client is answered.
    Opened(SessionId),
    /// A declared semaphore takes the state `after`. `evicts`: its holders lose it.
    Declared { object: ObjectRef, after: Box<DeclarationRecord>, evicts: bool },
    /// Ids up to this one are reserved.
    Reserved(u64),
}

impl OnCommit {
    /// Returns whether it answers a client, which happens at once if the store fails. Everything else waits until the
    /// store works again.
    pub(super) fn is_answer(&self) -> bool {
        !matches!(self, Self::Declared { .. } | Self::Reserved(_))
    }
}

/// An answer that waits for a commit.
#[derive(Debug)]
pub(super) struct PendingReply {
    pub(super) reply: CachedReply,
    /// When the request or its last repetition was received.
    pub(super) received: MonotonicMs,
    /// `None` while the session has no connection.
    pub(super) to: Option<ReplyTo>,
}

pub(super) type PendingReplies = BTreeMap<(SessionId, RequestId), PendingReply>;

#[derive(Debug)]
pub(crate) struct Ledger {
    pub(super) limits: LedgerLimits,
    pub(super) ids: IdAllocator,
    pub(super) sessions: Sessions,
    pub(super) grants: Grants,
    pub(super) queues: Queues,
    pub(super) slots: SlotTables,
    pub(super) declarations: Declarations,
    pub(super) idle_waiters: IdleWaiters,
    pub(super) watches: Watches,
    pub(super) clients: Clients<SessionId>,
    pub(super) backlog: Backlog,
    pub(super) places: Places,
    pub(super) alarm: Alarm,
    /// Without a store, every request is answered at once.
    pub(super) journal: Journal<OnCommit>,
    pub(super) pending_replies: PendingReplies,
    /// `None`: no history is kept.
    pub(super) history: Option<History>,
    /// Set when the server shuts down: waiters with ids up to this one have been answered.
    pub(super) shut_down_up_to: Option<GrantId>,
    /// The counts of events; the parts know how many of each thing there are.
    pub(super) counts: LedgerStats,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self {
            limits: LedgerLimits::NONE,
            ids: IdAllocator::default(),
            sessions: Sessions::default(),
            grants: Grants::default(),
            queues: Queues::default(),
            slots: SlotTables::default(),
            declarations: Declarations::default(),
            idle_waiters: IdleWaiters::default(),
            watches: Watches::default(),
            clients: Clients::default(),
            backlog: Backlog::default(),
            places: Places::default(),
            alarm: Alarm::default(),
            journal: Journal::default(),
            pending_replies: PendingReplies::default(),
            history: None,
            shut_down_up_to: None,
            counts: LedgerStats::default(),
        }
    }

    /// Refuses requests for grants, sessions and AwaitIdle once the server shuts down.
    pub(super) fn check_open(&self) -> Result<(), Refusal> {
        if self.shut_down_up_to.is_some() { Err(Refusal::ShuttingDown) } else { Ok(()) }
    }

    /// While the store fails, refuses what would have to be stored.
    pub(super) fn check_store(&mut self) -> Result<(), Refusal> {
        let is_failing = self.journal.is_failing();
        self.counts.not_stored += u64::from(is_failing);
        if is_failing { Err(Refusal::NotStored) } else { Ok(()) }
    }

    /// Like [`Self::check_store`], for what is stored only if the session is durable.
    pub(super) fn check_store_for(&mut self, session: SessionId) -> Result<(), Refusal> {
        if self.is_durable(session) { self.check_store() } else { Ok(()) }
    }

    /// Returns whether the grants of a session outlive the process.
    pub(super) fn is_durable(&self, session: SessionId) -> bool {
        self.journal.has_store() && self.sessions.is_leased(session)
    }

    /// Allocates the id of a grant or of a generation.
    pub(super) fn next_id(&mut self) -> Result<u64, Refusal> {
        let id = self.ids.next()?;
        self.extend_reservation();
        Ok(id)
    }

    /// Reserves more ids in the store when few are left.
    pub(super) fn extend_reservation(&mut self) {
        if let Some(up_to) = self.ids.begin_extension() {
            self.journal.add(Change::Put(Record::Mark(up_to)));
            self.journal.on_commit(OnCommit::Reserved(up_to));
        }
    }
}

impl Journaled for Ledger {
    type Then = OnCommit;

    fn journal(&mut self) -> &mut Journal<OnCommit> {
        &mut self.journal
    }
}

impl Core {
    pub(crate) fn ledger(&self) -> Step<'_, Ledger> {
        Step::begin(&self.ledger)
    }

    pub(crate) fn context(&self, now: UnixSeconds) -> LedgerContext<'_> {
        LedgerContext { registries: self.registries(), interval: self.interval(now), now }
    }

    /// Sets the limits of the ledger. Lowering a limit ends nothing.
    pub fn set_ledger_limits(&self, limits: LedgerLimits) {
        self.ledger().limits = limits;
    }

    /// Starts the ids of grants and generations above this one, so that they grow from one run of a server to the next.
    pub fn start_ids_after(&self, last_id: u64) {
        self.ledger().ids.start_after(last_id);
    }

    /// Sets how long the reconnect window is open at most, in milliseconds; 0: it does not open. The server calls
    /// this before [`Self::begin_serving`].
    pub fn set_reconnect_window(&self, window_ms: u32) {
        self.ledger().places.set_window_ms(window_ms);
    }

    /// Live figures of sessions, grants, queues and watches.
    pub fn ledger_stats(&self) -> LedgerStats {
        let ledger = &*self.ledger();
        LedgerStats {
            sessions: ledger.sessions.leased(),
            grants: ledger.grants.held(),
            waiters: ledger.grants.waiting(),
            watches: ledger.watches.len() as u64,
            declared: ledger.declarations.len() as u64,
            ..ledger.counts
        }
    }
}
