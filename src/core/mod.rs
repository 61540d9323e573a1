//! The rules: who may use how much of what, right now.
//!
//! Sans I/O and without a clock: time comes in as a value, and nothing here waits, logs or reads a socket. The
//! server calls one method of [`Core`] a request; the simulation of tests calls the same ones.
//!
//! Plain operations work on the name alone; grants, queues, leased sessions and watches are the `ledger`'s, which
//! plain operations come to only where requests wait for a name or somebody watches it.
//!
//! Locks are taken in one order: the ledger, the shard of the map, then the object that stands under a name.
//! No lock outlives the call that took it. Work that grows with the number of names (a Dump, the end of a session, a
//! sweep) is a value with a `step` method, so that the caller yields between steps of bounded size.
//!
//! Invariant 1 of `docs/design.md` (consumption is the sum of what is held) is kept by `object` and can be checked
//! at any time with [`Core::check`].

mod api;
mod counter;
mod durable;
mod holders;
mod ids;
mod invariant;
mod ledger;
mod mailbox;
mod name;
mod object;
mod outcome;
mod registry;
mod ring_map;
mod semaphore;
mod session;
mod sync;
mod time;
mod visit;

use std::num::NonZeroU32;

pub use ahash::RandomState as NameHasher;
pub use api::WatchSnapshot;
pub use durable::{
    AnswerRecord, Change, DeclarationRecord, DeclaredState, GrantRecord, Key, Origin, PartRecord, Record,
    SessionRecord,
};
pub use ids::{ConnectionId, GrantId, RequestId, RequestIds, SessionId, SessionKey, Token};
pub use ledger::{
    Batch, CommitOutcome, Declare, Declared, DeclaredListing, GRANT_SLOTS_MAX, IfExists, Lease, LedgerLimits,
    LedgerStats, Listed, Listing, ListingKind, Queueing, REQUESTS_MAX, Removal, Resizing, SLOTS_MAX, Scope,
    TICK_MS, Until, Waiting, Want,
};
pub use mailbox::{EVENTS_MAX, Event, EventKind, Mailbox, Message, Notice};
pub use object::DumpItem;
pub use outcome::{Answer, Call, Granted, Opened, Outcome, Verified};
pub use registry::{Limits, RegistryStats};
pub use session::{Ending, Session};
pub use time::{Due, Moment, MonotonicMs, UnixSeconds};
pub use visit::{Check, CheckFailure, Dump, Sweep};

use counter::Interval;
use ledger::Ledger;
use object::PlainError;
use registry::Registry;
use sync::{AtomicU64, Mutex, Ordering};

/// The two kinds of names; the same bytes may name one thing in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Namespace {
    /// `counter.md`: a consumption; the maximum comes with each Acquire.
    Counters,
    /// `semaphore.md`: a capacity, fixed by the Acquire that makes it, and what is left of it.
    Semaphores,
}

impl Namespace {
    /// Both, in the order of their default ports.
    pub const ALL: [Self; 2] = [Self::Counters, Self::Semaphores];
}

/// What an Acquire asks for: 1 to `maximum` resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    resources: u32,
    maximum: u32,
}

impl Claim {
    /// A claim on `resources` under `maximum` (for a semaphore: its `initial`). `None` where the documents say
    /// `Invalid arguments`: nothing is claimed, or more than the maximum.
    pub fn new(resources: u32, maximum: u32) -> Option<Self> {
        (resources > 0 && resources <= maximum).then_some(Self { resources, maximum })
    }

    /// A claim on `resources` of a semaphore as it is, which is not made where there is none.
    pub fn of_existing(resources: NonZeroU32) -> Self {
        Self { resources: resources.get(), maximum: 0 }
    }

    fn is_of_existing(self) -> bool {
        self.maximum == 0
    }

    /// How many resources are claimed.
    pub fn resources(self) -> u32 {
        self.resources
    }
}

/// Why a request was refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such name.
    NotFound,
    /// The resources are in use.
    NotAvailable,
    /// The session holds less than it wants to give back.
    NotAcquired,
    /// The namespace has as many names as its limit allows.
    TooManyNames,
    /// The request waited as long as it wanted to.
    TimedOut,
    /// More requests wait than the request accepts before it.
    QueueFull,
    /// The request was canceled, or its session ended by its owner's will.
    Canceled,
    /// The grant or the session was revoked.
    Revoked,
    /// There is no such session, or the connection lost the one that it was attached to.
    NoSuchSession,
    /// The server has no room for more of what was asked for.
    LimitReached,
    /// The request's number is below the lowest that its client called unanswered, or was another request's.
    StaleRequest,
    /// The server is being stopped.
    ShuttingDown,
    /// The semaphore was removed, or is being removed.
    Removed,
    /// The semaphore is declared already.
    AlreadyExists,
    /// The semaphore was changed since its generation was read.
    GenerationDiffers,
    /// The semaphore is held.
    InUse,
    /// The configuration declares the semaphore, so that no request may change it.
    NotPermitted,
    /// A number is beyond what can be.
    OutOfRange,
    /// The change could not be written to where it would outlive the process, and was taken back.
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
}

impl Core {
    /// An empty core. `stat_interval_s` is the length of the intervals over which a counter's peak is taken, in
    /// seconds; `hasher` seeds the hash of names: from the system's randomness in a server, fixed in a simulation.
    pub fn new(stat_interval_s: NonZeroU32, hasher: NameHasher) -> Self {
        Self {
            ledger: Mutex::new(Ledger::new()),
            counters: Registry::new(hasher.clone()),
            semaphores: Registry::new(hasher),
            stat_interval_s,
            last_session: AtomicU64::new(0),
        }
    }

    /// Sets the limits of a namespace; names beyond a lowered limit stay.
    pub fn set_limits(&self, namespace: Namespace, limits: Limits) {
        self.registry(namespace).set_limits(limits);
    }

    /// Opens a session. Its number is never given out again by this core.
    pub fn open_session(&self) -> Session {
        Session::new(ConnectionId::new(self.next_session()))
    }

    fn next_session(&self) -> u64 {
        self.last_session.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Ends a session: it holds nothing more once the returned work is done.
    pub fn end_session(&self, session: Session) -> Ending<'_> {
        Ending::new(self, session)
    }

    /// Takes resources for a session (`counter.md` and `semaphore.md`, "Acquire"), making the name if need be.
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

    /// Gives back some of what a session holds (`counter.md` and `semaphore.md`, "Release"). Giving back nothing
    /// succeeds on every name that exists.
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

    /// A counter's consumption, or what is left of a semaphore (`counter.md` and `semaphore.md`, "Get").
    pub fn value(&self, namespace: Namespace, name: &[u8]) -> Result<u32, Refusal> {
        self.registry(namespace).find(name, |object| object.value()).ok_or(Refusal::NotFound)
    }

    /// Lists the names of a namespace (`counter.md`, "Dump"). Each name is read at a moment of its own; a name made
    /// or collected meanwhile may be listed or not.
    pub fn dump(&self, namespace: Namespace) -> Dump {
        Dump::new(namespace)
    }

    /// Collects the names that nothing refers to (invariant 6).
    pub fn sweep(&self, namespace: Namespace) -> Sweep<'_> {
        Sweep::new(self, namespace)
    }

    /// Checks invariant 1 name by name, as an administrator may ask at any time.
    pub fn check(&self, namespace: Namespace) -> Check<'_> {
        Check::new(self, namespace)
    }

    /// Live figures of a namespace.
    pub fn stats(&self, namespace: Namespace) -> RegistryStats {
        self.registry(namespace).stats()
    }

    /// When the interval that `now` lies in ends, in Unix seconds: from then on a sweep finds more to collect.
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
