//! The state of the core, and plain operations.

use std::num::NonZeroU32;

use ahash::RandomState as NameHasher;

use crate::claim::Claim;
use crate::counter::Interval;
use crate::ledger::Ledger;
use crate::object::{ObjectRef, PlainError};
use crate::registry::{Limits, Registry, RegistryStats};
use crate::session::Session;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use crate::sysv::Sysv;
use signalbox_model::UnixSeconds;
use signalbox_model::{ConnectionId, Namespace, Refusal};

/// All counters, semaphores and sessions of a server.
#[derive(Debug)]
pub struct Core {
    pub(crate) counters: Registry,
    pub(crate) semaphores: Registry,
    pub(crate) stat_interval_s: NonZeroU32,
    pub(crate) last_session: AtomicU64,
    pub(crate) ledger: Mutex<Ledger>,
    pub(crate) sysv: Mutex<Sysv>,
    /// Whether it is the turn of the semaphore sets to have a batch stored.
    pub(crate) sets_are_next: AtomicBool,
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

    /// Starts the numbers of sessions above this one.
    pub fn start_sessions_after(&self, last_session: u64) {
        self.last_session.fetch_max(last_session, Ordering::Relaxed);
    }

    pub(crate) fn next_session(&self) -> u64 {
        self.last_session.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Ends a session: the steps of the returned [`Ending`] release everything that it holds.
    pub fn end_session(&self, session: Session) -> Ending<'_> {
        Ending::new(self, session)
    }

    /// Acquires resources for a session (`counter.md` and `semaphore.md`, "Acquire"), and creates the name if it does
    /// not exist.
    #[inline]
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
    #[inline]
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

    /// Live figures of a namespace.
    pub fn stats(&self, namespace: Namespace) -> RegistryStats {
        self.registry(namespace).stats()
    }

    /// The number of shards of a namespace that have two names or more, which share a lock. Counting them visits every shard.
    pub fn conflicts(&self, namespace: Namespace) -> u64 {
        self.registry(namespace).conflicts()
    }

    /// The end of the interval that contains `now`: from then on a sweep finds more names to collect.
    pub fn next_boundary(&self, now: UnixSeconds) -> UnixSeconds {
        let interval_s = u64::from(self.stat_interval_s.get());
        UnixSeconds((now.0 / interval_s + 1).saturating_mul(interval_s))
    }

    pub(crate) fn registry(&self, namespace: Namespace) -> &Registry {
        match namespace {
            Namespace::Counters => &self.counters,
            Namespace::Semaphores => &self.semaphores,
        }
    }

    pub(crate) fn registries(&self) -> [&Registry; Namespace::ALL.len()] {
        Namespace::ALL.map(|namespace| self.registry(namespace))
    }

    pub(crate) fn interval(&self, now: UnixSeconds) -> Interval {
        Interval::of(now, self.stat_interval_s)
    }
}

/// The end of a session in progress: each step releases the holdings of some names.
#[derive(Debug)]
#[must_use = "the steps release the session's holdings"]
pub struct Ending<'a> {
    core: &'a Core,
    session: ConnectionId,
    objects: std::vec::IntoIter<Option<ObjectRef>>,
}

impl<'a> Ending<'a> {
    fn new(core: &'a Core, session: Session) -> Self {
        Self { core, session: session.id(), objects: session.into_objects().into_iter() }
    }

    /// Releases the holdings of at most `names` names. Returns whether there is more to do.
    pub fn step(&mut self, names: usize, now: UnixSeconds) -> bool {
        let interval = self.core.interval(now);
        for object in self.objects.by_ref().take(names).flatten() {
            if object.release_all(self.session, interval).is_err() {
                self.core.release_all_tracked(&object, self.session, now);
                // Waiters may have been served, which is enough work for one step.
                break;
            }
        }
        self.objects.len() > 0
    }
}
