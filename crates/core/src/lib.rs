//! The rules that decide which session may use how many resources of which name.
//!
//! The core is sans I/O and has no clock: time is a parameter, and nothing here blocks, logs or reads a socket. The
//! server calls one method of [`Core`] per request; the simulation in the tests calls the same methods.
//!
//! Plain operations access only the name itself. The `ledger` has the grants, queues, leased sessions and watches;
//! a plain operation enters it only if requests wait for the name or a watch covers it.
//!
//! System V semaphore sets (`sysv`) share nothing with names, and have a lock of their own.
//!
//! Locks are acquired in one order: the ledger, the shard of the map, then the object of a name. No lock outlives the
//! call that acquired it. Work that grows with the number of names (a Dump, the end of a session, a sweep) is a value
//! with a `step` method, so that the caller yields between steps of bounded size.
//!
//! `object` maintains invariant 1 of `docs/design.md` (the consumption is the sum of the holdings); [`Core::check`]
//! checks it at any time.

mod alarm;
mod api;
mod clients;
mod counter;
mod durable;
mod holders;
mod ids;
mod invariant;
mod journal;
mod ledger;
mod limit;
mod mailbox;
mod name;
mod object;
mod outcome;
mod registry;
mod request_log;
mod ring_map;
mod semaphore;
mod session;
mod session_client;
mod session_listing;
mod share;
mod store;
mod sync;
mod sysv;
mod time;
mod visit;

use std::num::NonZeroU32;

pub use ahash::RandomState as NameHasher;
pub use api::{Inspected, WatchSnapshot};
pub use durable::{
    AnswerRecord, Change, DeclarationRecord, DeclaredState, GrantRecord, Key, Origin, PartRecord, Record,
    Service, SessionRecord,
};
pub use ids::{
    ConnectionId, GrantId, Place, PlaceKey, PlaceProof, RequestId, RequestIds, SessionId, SessionKey, Token,
};
pub use ledger::{
    CheckedNames, Declare, Declared, DeclaredListing, GRANT_SLOTS_MAX, IfExists, Lease, LedgerLimits,
    LedgerStats, Listed, Listing, ListingKind, Queueing, Removal, Resizing, SLOTS_MAX, Scope, ServiceChange,
    TICK_MS, Until, WaitedListing, Waiting, Want,
};
pub use limit::{Limit, LimitKind, MemoryLimit};
pub use mailbox::{EVENTS_MAX, Event, EventKind, Mailbox, Message, Notice};
pub use object::{Availability, DumpItem};
pub use outcome::{Answer, Call, Granted, Opened, Outcome, Verified};
pub use registry::{Limits, RegistryStats};
pub use request_log::REQUESTS_MAX;
pub use session::{Ending, Session};
pub use session_client::{ClientSelector, SessionClient};
pub use session_listing::{Connected, ListedId, ListedSession, SessionListing};
pub use share::{ClientKey, ClientShare};
pub use store::{Batch, BatchLimit, CommitOutcome};
pub use sysv::{
    AdjustmentsRecord, Caller, ConnectionEnd, Errno, KeyRule, ListedSet, ListedUser, OpenedProcess,
    Operation, Order, Ownership, ProcessId, ProcessRecord, ResultRecord, SemaphoreRecord, SetAnswer,
    SetCheck, SetCommand, SetId, SetListing, SetRecord, SetStat, StoredAnswer, SysvCall, SysvKey, SysvLimits,
    SysvOutcome, SysvRecord, SysvStats, UserListing, UserRole,
};
pub use time::{Due, Moment, MonotonicMs, UnixSeconds};
pub use visit::{Check, CheckFailure, Dump, NamePlace, Survey, Surveyed, Sweep};

use counter::Interval;
use ledger::Ledger;
use object::PlainError;
use registry::Registry;
use sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use sysv::Sysv;

/// The two kinds of names; the same bytes may name one object in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Namespace {
    /// `counter.md`: a consumption; the maximum comes with each Acquire.
    Counters,
    /// `semaphore.md`: a capacity, fixed by the Acquire that creates the semaphore, and the resources available of it.
    Semaphores,
}

impl Namespace {
    /// Both, in the order of their default ports.
    pub const ALL: [Self; 2] = [Self::Counters, Self::Semaphores];
}

/// The resources that an Acquire requests: 1 to `maximum`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    resources: u32,
    maximum: u32,
}

impl Claim {
    /// A claim on `resources` under `maximum` (for a semaphore: its `initial`). `None` if the protocol documents
    /// require `Invalid arguments`: no resources are claimed, or more than the maximum.
    pub fn new(resources: u32, maximum: u32) -> Option<Self> {
        (resources > 0 && resources <= maximum).then_some(Self { resources, maximum })
    }

    /// A claim on `resources` of an existing semaphore; it does not create one.
    pub fn of_existing(resources: NonZeroU32) -> Self {
        Self { resources: resources.get(), maximum: 0 }
    }

    fn is_of_existing(self) -> bool {
        self.maximum == 0
    }

    /// The number of resources claimed.
    pub fn resources(self) -> u32 {
        self.resources
    }
}

/// Why a request was refused. A refused request has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such name.
    NotFound,
    /// The resources are in use.
    NotAvailable,
    /// The session holds less than it asked to release.
    NotAcquired,
    /// The namespace has as many names as its limit allows.
    TooManyNames,
    /// The request's timeout has passed.
    TimedOut,
    /// More requests are waiting than the request accepts ahead of it.
    QueueFull,
    /// The request was canceled, or its owner ended the session.
    Canceled,
    /// The grant or the session was revoked.
    Revoked,
    /// There is no such session, or the connection is no longer attached to it.
    NoSuchSession,
    /// This limit of the server is reached.
    LimitReached(Limit),
    /// The request's number is below the lowest number that its client reported as unanswered, or another request has
    /// used it.
    StaleRequest,
    /// The server is shutting down.
    ShuttingDown,
    /// The semaphore was removed, or is being removed.
    Removed,
    /// The semaphore is declared already.
    AlreadyExists,
    /// The semaphore was changed since its generation was read.
    GenerationDiffers,
    /// The semaphore is held.
    InUse,
    /// The configuration declares the semaphore, so no request may change it.
    NotPermitted,
    /// A number is outside its range.
    OutOfRange,
    /// The semaphore has no slot with this number.
    NoSuchSlot,
    /// The change could not be written to durable storage, and was rolled back.
    NotStored,
}

/// All counters, semaphores and sessions of a server.
#[derive(Debug)]
pub struct Core {
    counters: Registry,
    semaphores: Registry,
    stat_interval_s: NonZeroU32,
    last_session: AtomicU64,
    ledger: Mutex<Ledger>,
    sysv: Mutex<Sysv>,
    /// Whether the next batch for the store is one of the semaphore sets.
    sets_are_next: AtomicBool,
}

impl Core {
    /// An empty core. `stat_interval_s` is the length in seconds of the intervals for which a counter's peak is
    /// recorded; `hasher` seeds the hash of names: from the system's randomness in a server, fixed in a simulation.
    pub fn new(stat_interval_s: NonZeroU32, hasher: NameHasher) -> Self {
        Self {
            ledger: Mutex::new(Ledger::new()),
            sysv: Mutex::new(Sysv::new()),
            counters: Registry::new(hasher.clone()),
            semaphores: Registry::new(hasher),
            stat_interval_s,
            last_session: AtomicU64::new(0),
            sets_are_next: AtomicBool::new(false),
        }
    }

    /// Sets the limits of a namespace. Lowering a limit removes no names.
    pub fn set_limits(&self, namespace: Namespace, limits: Limits) {
        self.registry(namespace).set_limits(limits);
    }

    /// Opens a session. This core never reuses its number.
    pub fn open_session(&self) -> Session {
        Session::new(ConnectionId::new(self.next_session()))
    }

    fn next_session(&self) -> u64 {
        self.last_session.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Ends a session: everything that it holds is released once the returned work is done.
    pub fn end_session(&self, session: Session) -> Ending<'_> {
        Ending::new(self, session)
    }

    /// Acquires resources for a session (`counter.md` and `semaphore.md`, "Acquire"), and creates the name if it does
    /// not exist.
    pub fn acquire(
        &self,
        namespace: Namespace,
        name: &[u8],
        claim: Claim,
        session: &mut Session,
        now: UnixSeconds,
    ) -> Result<(), Refusal> {
        let registry = self.registry(namespace);
        match registry.acquire(namespace, name, claim, session, self.interval(now)) {
            Ok(()) => Ok(()),
            Err(PlainError::Refused(refusal)) => Err(refusal),
            Err(PlainError::NeedsLedger) => self.acquire_tracked(namespace, name, claim, session, now),
        }
    }

    /// Releases resources of a session (`counter.md` and `semaphore.md`, "Release"). Releasing 0 resources succeeds on
    /// every name that exists.
    pub fn release(
        &self,
        namespace: Namespace,
        name: &[u8],
        resources: u32,
        session: &mut Session,
        now: UnixSeconds,
    ) -> Result<(), Refusal> {
        let registry = self.registry(namespace);
        match registry.release(namespace, name, resources, session, self.interval(now)) {
            Ok(()) => Ok(()),
            Err(PlainError::Refused(refusal)) => Err(refusal),
            Err(PlainError::NeedsLedger) => self.release_tracked(namespace, name, resources, session, now),
        }
    }

    /// A counter's consumption, or the available resources of a semaphore (`counter.md` and `semaphore.md`, "Get").
    pub fn value(&self, namespace: Namespace, name: &[u8]) -> Result<u32, Refusal> {
        self.registry(namespace).find(name, |object| object.value()).ok_or(Refusal::NotFound)
    }

    /// Lists the names of a namespace (`counter.md`, "Dump"). Each name is read at a different time; a name that is
    /// created or collected during the Dump may be listed or not.
    pub fn dump(&self, namespace: Namespace) -> Dump {
        Dump::new(namespace)
    }

    /// Visits all names of a namespace with their queues. It is not a snapshot, as [`Self::dump`] is none.
    pub fn survey(&self, namespace: Namespace) -> Survey {
        Survey::new(namespace)
    }

    /// Removes the names that nothing refers to (invariant 6).
    pub fn sweep(&self, namespace: Namespace) -> Sweep<'_> {
        Sweep::new(self, namespace)
    }

    /// Checks invariant 1 name by name, at any time.
    pub fn check(&self, namespace: Namespace) -> Check<'_> {
        Check::new(self, namespace)
    }

    /// Live figures of a namespace.
    pub fn stats(&self, namespace: Namespace) -> RegistryStats {
        self.registry(namespace).stats()
    }

    /// How many shards of a namespace have two names or more, which share a lock. It looks at every shard.
    pub fn conflicts(&self, namespace: Namespace) -> u64 {
        self.registry(namespace).conflicts()
    }

    /// The end of the interval that contains `now`: from then on a sweep finds more names to collect.
    pub fn next_boundary(&self, now: UnixSeconds) -> UnixSeconds {
        let interval_s = u64::from(self.stat_interval_s.get());
        UnixSeconds((now.0 / interval_s + 1).saturating_mul(interval_s))
    }

    fn registry(&self, namespace: Namespace) -> &Registry {
        match namespace {
            Namespace::Counters => &self.counters,
            Namespace::Semaphores => &self.semaphores,
        }
    }

    fn registries(&self) -> [&Registry; Namespace::ALL.len()] {
        Namespace::ALL.map(|namespace| self.registry(namespace))
    }

    fn interval(&self, now: UnixSeconds) -> Interval {
        Interval::of(now, self.stat_interval_s)
    }
}
