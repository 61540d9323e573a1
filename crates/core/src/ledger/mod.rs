//! Grants, the queues that they come from, and the sessions that own them.
//!
//! The ledger has everything beyond plain Acquires, under one lock, so that what belongs together changes together: a
//! release serves the queue in the same step, a reply is cached as it is made, events come in the order in which things
//! happened. Plain operations bypass it, except for tracked names: those that requests wait for, and those that a watch
//! covers.
//!
//! The ledger's lock is taken before that of a shard and that of an object, never under one.
//!
//! [`Ledger`] is composed of parts with private fields and one invariant each, stated at the top of their files:
//! `sessions`, `grants`, `queues`, `slots`, `declarations`, `idle_waiters`, `watches`, `clients`, `backlog`, `places`,
//! `alarm`, `id_allocator`, `pending_replies`. The other files have the operations. Each uses only operations of lower levels:
//!
//! | level | files |
//! |---|---|
//! | operations that clients ask for, and what comes due | `acquire`, `declare`, `service`, `configure`, `connect`, `revoke`, `evict`, `expire`, `commit`, `restore` |
//! | the end of a session | `session_end` |
//! | serving queues and the rest of the backlog | `serve` |
//! | steps of that | `removal`, `idle`, `release`, `places`, `shares` |
//! | what others learn of a change | `replies`, `events`, `records` |
//!
//! Invariants across parts (numbers of `docs/design.md`): a head of a queue that fits does not wait when the lock is
//! released, unless its name is in the backlog (4); a waiter holds what it has taken and nothing else (5); a request id
//! makes one change (7). `check` verifies all of them at once.

mod acquire;
mod backlog;
mod cached_reply;
mod check;
mod commit;
mod configure;
mod connect;
mod declarations;
mod declare;
mod events;
mod evict;
mod expire;
mod grant;
mod grants;
mod id_allocator;
mod idle;
mod idle_waiters;
mod leases;
mod listing;
mod on_commit;
mod pending_replies;
mod places;
mod queues;
mod records;
mod release;
mod removal;
mod replies;
mod restore;
mod revoke;
mod serve;
mod service;
mod session_end;
mod session_listing;
mod sessions;
mod sets;
mod shares;
mod slots;
mod watch;
mod watches;

pub use acquire::Waiting;
pub use connect::CheckedNames;
pub use declarations::{Declare, Declared, IfExists, Removal, Resizing, ServiceChange};
pub use grant::{Queueing, Want};
pub use idle_waiters::Until;
pub use leases::{Lease, TICK_MS};
pub use listing::{DeclaredListing, Listed, Listing, ListingKind, WaitedListing};
pub use slots::{GRANT_SLOTS_MAX, SLOTS_MAX};
pub(super) use watch::Shown;
pub use watches::Scope;

use super::counter::Interval;
use super::ids::GrantId;
use super::limit::MemoryLimit;
use super::registry::Registry;
use super::share::ClientShare;
use super::time::UnixSeconds;
use super::{Core, Namespace, Refusal};
use crate::alarm::Alarm;
use crate::clients::Clients;
use crate::ids::SessionId;
use crate::journal::Journal;
use crate::store::Journaled;
use backlog::Backlog;
use declarations::Declarations;
use grants::Grants;
use id_allocator::IdAllocator;
use idle_waiters::IdleWaiters;
use on_commit::OnCommit;
use pending_replies::PendingReplies;
use places::Places;
use queues::Queues;
use sessions::Sessions;
use slots::SlotTables;
use watches::Watches;

/// Limits of the ledger.
#[derive(Clone, Copy, Debug)]
pub struct LedgerLimits {
    /// Most leased sessions.
    pub sessions_max: usize,
    /// Most grants and waiters of one session.
    pub grants_max: usize,
    /// Most waiters of one name, and most requests that wait until it is idle.
    pub waiters_max: usize,
    /// Most watches.
    pub watches_max: usize,
    /// Past it, no session, grant, waiter, watch or declaration is added.
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
    /// Declared semaphores.
    pub declared: u64,
    /// Requests refused because their change could not be stored.
    pub not_stored: u64,
}

/// What an operation of the ledger needs besides the ledger. Operations that need monotonic time take it by itself, as
/// plain operations have none.
#[derive(Clone, Copy)]
pub(super) struct LedgerContext<'a> {
    pub(super) registries: [&'a Registry; Namespace::ALL.len()],
    pub(super) interval: Interval,
    pub(super) now: UnixSeconds,
}

impl<'a> LedgerContext<'a> {
    fn registry(&self, namespace: Namespace) -> &'a Registry {
        self.registries[namespace as usize]
    }
}

#[derive(Debug)]
pub(super) struct Ledger {
    limits: LedgerLimits,
    ids: IdAllocator,
    sessions: Sessions,
    grants: Grants,
    queues: Queues,
    slots: SlotTables,
    declarations: Declarations,
    idle_waiters: IdleWaiters,
    watches: Watches,
    clients: Clients<SessionId>,
    backlog: Backlog,
    places: Places,
    alarm: Alarm,
    /// `None`: there is no store, and every request is answered at once.
    journal: Option<Journal<OnCommit>>,
    pending_replies: PendingReplies,
    /// Set when the server shuts down: waiters with ids up to this one have been answered.
    shut_down_up_to: Option<GrantId>,
    /// The counts of events; the parts know how many of each thing there are.
    counts: LedgerStats,
}

impl Core {
    /// Sets the limits of sessions, grants, queues and watches. What exceeds a lowered limit stays.
    pub fn set_ledger_limits(&self, limits: LedgerLimits) {
        self.ledger().limits = limits;
    }

    /// Sets what the ids of grants and generations are above, so that they grow from one run of a server to the next.
    pub fn start_ids_after(&self, last_id: u64) {
        self.ledger().ids.start_after(last_id);
    }

    /// Sets how long the reconnect window after a start is open at most; 0: there is none. For the next
    /// [`Self::keep_journal`].
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

impl Ledger {
    pub(super) fn new() -> Self {
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
            journal: None,
            pending_replies: PendingReplies::default(),
            shut_down_up_to: None,
            counts: LedgerStats::default(),
        }
    }

    /// Refuses requests that would wait or stay, once the server shuts down.
    fn check_open(&self) -> Result<(), Refusal> {
        if self.shut_down_up_to.is_some() { Err(Refusal::ShuttingDown) } else { Ok(()) }
    }
}

impl Journaled for Ledger {
    type Then = OnCommit;

    fn journal(&self) -> Option<&Journal<OnCommit>> {
        self.journal.as_ref()
    }

    fn journal_mut(&mut self) -> Option<&mut Journal<OnCommit>> {
        self.journal.as_mut()
    }
}
