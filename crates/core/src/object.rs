//! The object of a name: a counter or a semaphore, its holders, and the rules that no request may break.
//!
//! Invariants, maintained under the object's own lock: the consumption is the sum of the holdings; no acquire raises
//! it past the maximum of the request or the capacity of the semaphore; no arithmetic wraps; each holding is released
//! exactly once.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::claim::Claim;
use crate::counter::{Counter, Interval};
use crate::holders::{HandleIndex, Holders, Holding, Tracking};
use crate::invariant::{invariant, lock};
use crate::name::Name;
use crate::semaphore::{Lifecycle, Semaphore, Withheld};
use crate::session::Session;
use crate::sync::Mutex;
use signalbox_model::{ConnectionId, Namespace, Refusal};

/// A shared handle to an object; the map finds it by its name.
#[derive(Clone, Debug)]
pub(super) struct ObjectRef(Arc<Object>);

/// The order of the fields puts everything that plain requests access into two cache lines of 64 bytes, wherever the
/// allocator starts a chunk of 96: the counts of the [`Arc`], a short name, the state, and last the pointer to the rare
/// state, which few names have.
#[derive(Debug)]
#[repr(C)]
struct Object {
    name: Name,
    state: Mutex<State>,
}

/// The order of the fields matters here too; see [`Object`].
#[derive(Debug)]
#[repr(C)]
struct State {
    consumption: u32,
    kind: Kind,
    holders: Holders,
}

/// The usage of a name, as Dump reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpItem {
    /// Resources in use now.
    pub consumption: u32,
    /// The most resources in use at once: in a counter's current interval, or since a semaphore was created.
    pub peak: u32,
}

/// The capacity of a semaphore, and the part of it that is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Availability {
    /// The most that may be in use; 0 while the semaphore is being removed.
    pub capacity: u32,
    /// The resources that are neither in use nor withheld.
    pub available: u32,
}

/// The result of [`ObjectRef::survey`].
pub(super) struct ObjectSurvey {
    pub(super) usage: DumpItem,
    /// `None`: the object is a counter.
    pub(super) availability: Option<Availability>,
    /// Whether requests wait for the name.
    pub(super) is_queued: bool,
    pub(super) is_declared: bool,
}

/// The part in which counters and semaphores differ.
#[derive(Debug)]
enum Kind {
    Counter(Counter),
    Semaphore(Semaphore),
}

/// The size of an object with the two reference counts that [`Arc`] allocates in front of it.
const OBJECT_BYTES: usize = size_of::<Object>() + 2 * size_of::<usize>();
const _: () = assert!(
    cfg!(shuttle) || OBJECT_BYTES <= 88,
    "with the allocator's eight bytes an object fills a chunk of 96"
);

impl ObjectRef {
    /// A new object with no resources in use. The maximum of the claim becomes a semaphore's capacity.
    pub(super) fn new(namespace: Namespace, name: &[u8], claim: Claim, interval: Interval) -> Self {
        let kind = match namespace {
            Namespace::Counters => Kind::Counter(Counter::new(interval)),
            Namespace::Semaphores => Kind::Semaphore(Semaphore::new(claim.maximum)),
        };
        let state = State { consumption: 0, kind, holders: Holders::default() };
        Self(Arc::new(Object { state: Mutex::new(state), name: Name::new(name) }))
    }

    /// The object's address, which is unique while a handle exists.
    pub(super) fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    #[inline]
    pub(super) fn name(&self) -> &[u8] {
        self.0.name.as_bytes()
    }

    /// The heap memory of its name, in bytes; `None`: the name is stored in the object itself.
    #[inline(always)]
    pub(super) fn name_heap_bytes(&self) -> Option<usize> {
        self.0.name.heap_bytes()
    }

    /// Acquires resources for a session. Returns the index of the session's new handle if it held nothing before.
    #[inline(always)]
    pub(super) fn acquire(
        &self,
        claim: Claim,
        session: &mut Session,
        interval: Interval,
    ) -> Result<Option<HandleIndex>, PlainError> {
        let mut state = lock(&self.0.state);
        state.check_untracked()?;
        Ok(state.acquire(self, claim, session, interval)?)
    }

    /// Like [`Self::acquire`], called by the ledger for a tracked name.
    pub(super) fn acquire_tracked(
        &self,
        claim: Claim,
        session: &mut Session,
        interval: Interval,
    ) -> Result<Option<HandleIndex>, Refusal> {
        lock(&self.0.state).acquire(self, claim, session, interval)
    }

    /// Releases resources of a session. Returns the index of the session's handle if it no longer holds anything.
    #[inline(always)]
    pub(super) fn release(
        &self,
        resources: u32,
        session: ConnectionId,
        interval: Interval,
    ) -> Result<Option<HandleIndex>, PlainError> {
        if resources == 0 {
            return Ok(None);
        }
        let mut state = lock(&self.0.state);
        state.check_untracked()?;
        Ok(state.release(resources, session, interval)?)
    }

    /// Like [`Self::release`], called by the ledger for a tracked name.
    pub(super) fn release_tracked(
        &self,
        resources: u32,
        session: ConnectionId,
        interval: Interval,
    ) -> Result<Option<HandleIndex>, Refusal> {
        lock(&self.0.state).release(resources, session, interval)
    }

    /// Releases everything that an ended session holds. The session has dropped its handle of the object already.
    pub(super) fn release_all(&self, session: ConnectionId, interval: Interval) -> Result<(), PlainError> {
        let mut state = lock(&self.0.state);
        state.check_untracked()?;
        state.release_all(session, interval);
        Ok(())
    }

    /// Like [`Self::release_all`], called by the ledger for a tracked name. Returns the number of resources released.
    pub(super) fn release_all_tracked(&self, session: ConnectionId, interval: Interval) -> u32 {
        lock(&self.0.state).release_all(session, interval)
    }

    /// Acquires resources for a grant, or marks the object as queued. Only the ledger calls this: it knows the position of the
    /// claim in the queue.
    pub(super) fn grant(&self, claim: Claim, interval: Interval, position: QueuePosition) -> Granting {
        let mut state = lock(&self.0.state);
        if state.is_too_small(claim) {
            return Granting::Impossible;
        }
        let after = if let QueuePosition::Behind = position { None } else { state.consumption_after(claim) };
        let mut tracking = state.holders.tracking();
        let Some(after) = after else {
            tracking.queued |= !matches!(position, QueuePosition::Immediate);
            state.holders.set_tracking(tracking);
            return Granting::MustWait;
        };
        if let QueuePosition::OnlyWaiter = position {
            tracking.queued = false;
            state.holders.set_tracking(tracking);
        }
        let granted = state.holders.granted().checked_add(claim.resources);
        invariant!(granted.is_some(), "the granted resources never exceed the resources in use");
        state.holders.set_granted(granted.unwrap_or(u32::MAX));
        state.consume(after, interval);
        Granting::Granted {
            capacity: state.maximum(claim),
            is_numbered: state.lifecycle() == Lifecycle::Numbered,
        }
    }

    /// Restores the resources of a grant that was stored before the process started, whether or not they fit: a resize
    /// may have left the usage above the capacity. `None`: the sum would overflow, so the records contradict each
    /// other.
    pub(super) fn restore_grant(&self, resources: u32, interval: Interval) -> Option<()> {
        let mut state = lock(&self.0.state);
        let granted = state.holders.granted().checked_add(resources)?;
        let after = state.consumption.checked_add(resources)?;
        state.holders.set_granted(granted);
        state.consume(after, interval);
        Some(())
    }

    /// Sets the lifecycle and the capacity of a semaphore, and the part that is withheld.
    pub(super) fn declare(&self, lifecycle: Lifecycle, capacity: u32, withheld: Withheld) {
        if let Kind::Semaphore(semaphore) = &mut lock(&self.0.state).kind {
            semaphore.lifecycle = lifecycle;
            semaphore.capacity = capacity;
            semaphore.withheld = withheld;
        }
    }

    /// Sets the withheld part of a semaphore's capacity.
    pub(super) fn withhold(&self, withheld: Withheld) {
        lock(&self.0.state).withhold(withheld);
    }

    /// The withheld part of a semaphore's capacity; nothing for a counter.
    pub(super) fn withheld(&self) -> Withheld {
        match &lock(&self.0.state).kind {
            Kind::Counter(_) => Withheld::NOTHING,
            Kind::Semaphore(semaphore) => semaphore.withheld,
        }
    }

    /// Sets the lifecycle of a semaphore and keeps its capacity.
    pub(super) fn set_lifecycle(&self, lifecycle: Lifecycle) {
        if let Kind::Semaphore(semaphore) = &mut lock(&self.0.state).kind {
            semaphore.lifecycle = lifecycle;
        }
    }

    /// The lifecycle of a semaphore; a counter is always implicit.
    pub(super) fn lifecycle(&self) -> Lifecycle {
        lock(&self.0.state).lifecycle()
    }

    /// Consumption and peak, and at the same moment the capacity and the available resources of a semaphore; `None`: the object
    /// is a counter.
    pub(super) fn usage(&self, interval: Interval) -> (DumpItem, Option<Availability>) {
        let state = lock(&self.0.state);
        (state.dump_item(interval), state.availability())
    }

    /// The state of the object at one moment.
    pub(super) fn survey(&self, interval: Interval) -> ObjectSurvey {
        let state = lock(&self.0.state);
        ObjectSurvey {
            usage: state.dump_item(interval),
            availability: state.availability(),
            is_queued: state.holders.tracking().queued,
            is_declared: state.lifecycle() != Lifecycle::Implicit,
        }
    }

    /// The capacity of a semaphore; `None`: the object is a counter.
    pub(super) fn capacity(&self) -> Option<u32> {
        match &lock(&self.0.state).kind {
            Kind::Counter(_) => None,
            Kind::Semaphore(semaphore) => Some(semaphore.capacity),
        }
    }

    /// Releases the resources of a grant. Returns whether the ledger waits for a drop in usage of this name. `withheld`
    /// is set in the same step: a slot that is out of service must not become available in between.
    pub(super) fn release_grant(
        &self,
        resources: u32,
        withheld: Option<Withheld>,
        interval: Interval,
    ) -> bool {
        let mut state = lock(&self.0.state);
        if let Some(withheld) = withheld {
            state.withhold(withheld);
        }
        let granted = state.holders.granted().checked_sub(resources);
        invariant!(granted.is_some(), "a grant releases only resources that were granted");
        state.holders.set_granted(granted.unwrap_or(0));
        state.lower_consumption(resources, interval);
        state.holders.tracking().awaited
    }

    /// Returns whether the ledger waits for a drop in usage of this name.
    pub(super) fn is_awaited(&self) -> bool {
        lock(&self.0.state).holders.tracking().awaited
    }

    /// Changes the reasons why operations on this name go through the ledger.
    pub(super) fn set_tracking(&self, change: impl FnOnce(&mut Tracking)) {
        let mut state = lock(&self.0.state);
        let mut tracking = state.holders.tracking();
        change(&mut tracking);
        state.holders.set_tracking(tracking);
    }

    /// The namespace of the object.
    pub(super) fn namespace(&self) -> Namespace {
        match lock(&self.0.state).kind {
            Kind::Counter(_) => Namespace::Counters,
            Kind::Semaphore(_) => Namespace::Semaphores,
        }
    }

    /// The resources of grants and those reserved for waiters, and whether the object is marked as queued.
    pub(super) fn ledger_marks(&self) -> (u32, bool) {
        let state = lock(&self.0.state);
        (state.holders.granted(), state.holders.tracking().queued)
    }

    /// The refusal of a claim that can never be granted unless the semaphore changes; `None`: it can be granted, now or
    /// after a release.
    pub(super) fn refusal(&self, claim: Claim) -> Option<Refusal> {
        let state = lock(&self.0.state);
        match state.lifecycle() {
            Lifecycle::Removing => Some(Refusal::Removed),
            _ => state.is_too_small(claim).then_some(Refusal::NotAvailable),
        }
    }

    /// Returns whether a claim could be granted now.
    pub(super) fn fits(&self, claim: Claim) -> bool {
        lock(&self.0.state).consumption_after(claim).is_some()
    }

    pub(super) fn consumption(&self) -> u32 {
        lock(&self.0.state).consumption
    }

    /// The sessions that hold resources through plain Acquires, and the resources of each.
    pub(super) fn holdings(&self) -> Vec<(ConnectionId, u32)> {
        lock(&self.0.state).holders.holdings().collect()
    }

    /// Like [`Self::holdings`], for these sessions only.
    pub(super) fn holdings_of(&self, sessions: &HashSet<ConnectionId>) -> Vec<(ConnectionId, u32)> {
        let state = lock(&self.0.state);
        state.holders.holdings().filter(|(session, _)| sessions.contains(session)).collect()
    }

    /// Returns whether a session holds resources through plain Acquires.
    pub(super) fn is_held_by(&self, session: ConnectionId) -> bool {
        lock(&self.0.state).holders.resources(session).is_some()
    }

    /// The value that Get returns: a counter's consumption, or the available resources of a semaphore.
    pub(super) fn value(&self) -> u32 {
        let state = lock(&self.0.state);
        match &state.kind {
            Kind::Counter(_) => state.consumption,
            Kind::Semaphore(semaphore) => semaphore.available(state.consumption),
        }
    }

    /// Consumption and peak, as Dump lists them.
    pub(super) fn dump_item(&self, interval: Interval) -> DumpItem {
        lock(&self.0.state).dump_item(interval)
    }

    /// Returns whether nothing refers to the object (invariant 6). A counter stays until the interval of its last
    /// change is over, because Dump still reports the peak of that interval.
    pub(super) fn is_collectable(&self, interval: Interval) -> bool {
        let state = lock(&self.0.state);
        state.consumption == 0
            && !state.holders.tracking().queued
            && match &state.kind {
                Kind::Counter(counter) => counter.is_over(interval),
                Kind::Semaphore(semaphore) => semaphore.lifecycle == Lifecycle::Implicit,
            }
    }

    /// Returns whether nothing is held, no request waits, and the name is not declared.
    pub(super) fn is_unused(&self) -> bool {
        let state = lock(&self.0.state);
        state.consumption == 0 && !state.holders.tracking().queued && state.lifecycle() == Lifecycle::Implicit
    }

    /// Frees memory that was allocated under contention and is unused now.
    pub(super) fn shrink(&self) {
        lock(&self.0.state).holders.shrink();
    }

    /// The consumption and the sum of the holdings if they differ (invariant 1).
    pub(super) fn accounting_mismatch(&self) -> Option<(u32, u64)> {
        let state = lock(&self.0.state);
        let held = state.holders.sum();
        (u64::from(state.consumption) != held).then_some((state.consumption, held))
    }
}

/// The reason why a plain operation was not performed. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlainError {
    Refused(Refusal),
    /// The name is tracked, so the operation must go through the ledger.
    NeedsLedger,
}

impl From<Refusal> for PlainError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The position of a claim in the queue of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueuePosition {
    /// No waiter is ahead of it, and it may not wait.
    Immediate,
    /// No waiter is ahead of it, and it waits if it does not fit. Others may wait after it.
    Head,
    /// It is the only waiter, so the queue is empty once it is granted.
    OnlyWaiter,
    /// Waiters are ahead of it, and it waits after them.
    Behind,
}

/// The result of [`ObjectRef::grant`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Granting {
    Granted {
        /// The semaphore's capacity, or the maximum of the claim.
        capacity: u32,
        /// Whether the resources are numbered slots.
        is_numbered: bool,
    },
    /// The claim does not fit now.
    MustWait,
    /// The claim is larger than the capacity.
    Impossible,
}

impl State {
    /// Fails if plain operations on this name must go through the ledger.
    #[inline(always)]
    fn check_untracked(&self) -> Result<(), PlainError> {
        if self.holders.tracking().is_any() { Err(PlainError::NeedsLedger) } else { Ok(()) }
    }

    #[inline(always)]
    fn acquire(
        &mut self,
        object: &ObjectRef,
        claim: Claim,
        session: &mut Session,
        interval: Interval,
    ) -> Result<Option<HandleIndex>, Refusal> {
        let after = self.consumption_after(claim).ok_or(Refusal::NotAvailable)?;
        let new_handle = self.add_holding(object, claim.resources, session);
        self.consume(after, interval);
        Ok(new_handle)
    }

    #[inline(always)]
    fn release(
        &mut self,
        resources: u32,
        session: ConnectionId,
        interval: Interval,
    ) -> Result<Option<HandleIndex>, Refusal> {
        if resources == 0 {
            return Ok(None);
        }
        let held = self.holders.resources(session).ok_or(Refusal::NotAcquired)?;
        let left = held.checked_sub(resources).ok_or(Refusal::NotAcquired)?;
        let removed = if left > 0 {
            self.holders.set_resources(session, left);
            None
        } else {
            self.holders.remove(session)
        };
        self.lower_consumption(resources, interval);
        Ok(removed.map(|holding| holding.index))
    }

    fn release_all(&mut self, session: ConnectionId, interval: Interval) -> u32 {
        let holding = self.holders.remove(session);
        invariant!(holding.is_some(), "session {session} holds every object that it has a handle of");
        let resources = holding.map_or(0, |holding| holding.resources);
        self.lower_consumption(resources, interval);
        resources
    }

    /// The capacity and the available resources; `None`: it is a counter.
    fn availability(&self) -> Option<Availability> {
        let Kind::Semaphore(semaphore) = &self.kind else { return None };
        let available = semaphore.available(self.consumption);
        Some(Availability { capacity: semaphore.capacity, available })
    }

    fn dump_item(&self, interval: Interval) -> DumpItem {
        DumpItem {
            consumption: self.consumption,
            peak: match &self.kind {
                Kind::Counter(counter) => counter.peak(self.consumption, interval),
                Kind::Semaphore(semaphore) => semaphore.peak,
            },
        }
    }

    /// The most that may be in use after a claim, without what is withheld now.
    #[inline(always)]
    fn usable(&self, claim: Claim) -> u32 {
        match &self.kind {
            Kind::Counter(_) => claim.maximum,
            Kind::Semaphore(semaphore) => semaphore.usable(),
        }
    }

    /// The most that may be in use after a claim when nothing is withheld.
    fn maximum(&self, claim: Claim) -> u32 {
        match &self.kind {
            Kind::Counter(_) => claim.maximum,
            Kind::Semaphore(semaphore) => semaphore.capacity,
        }
    }

    fn withhold(&mut self, withheld: Withheld) {
        if let Kind::Semaphore(semaphore) = &mut self.kind {
            semaphore.withheld = withheld;
        }
    }

    /// Returns whether a claim exceeds the capacity, so that no release can make room for it unless the semaphore is
    /// resized. `false` while a removal is not stored, although the capacity is 0: no request is refused before that.
    fn is_too_small(&self, claim: Claim) -> bool {
        self.maximum(claim) < claim.resources && self.lifecycle() != Lifecycle::Closing
    }

    fn lifecycle(&self) -> Lifecycle {
        match &self.kind {
            Kind::Counter(_) => Lifecycle::Implicit,
            Kind::Semaphore(semaphore) => semaphore.lifecycle,
        }
    }

    /// The consumption after a claim; `None`: not enough is available.
    #[inline(always)]
    fn consumption_after(&self, claim: Claim) -> Option<u32> {
        let usable = self.usable(claim);
        self.consumption.checked_add(claim.resources).filter(|after| *after <= usable)
    }

    /// Adds to a session's holding; the caller updates the consumption. Returns the index of the handle if the holding
    /// is new.
    #[inline(always)]
    fn add_holding(
        &mut self,
        object: &ObjectRef,
        resources: u32,
        session: &mut Session,
    ) -> Option<HandleIndex> {
        match self.holders.resources(session.id()) {
            Some(held) => {
                let sum = held.checked_add(resources);
                invariant!(sum.is_some(), "a holding never exceeds the consumption");
                self.holders.set_resources(session.id(), sum.unwrap_or(u32::MAX));
                None
            }
            None => {
                let index = session.add_handle(object.clone());
                self.holders.add(session.id(), Holding { resources, index });
                Some(index)
            }
        }
    }

    #[inline(always)]
    fn lower_consumption(&mut self, resources: u32, interval: Interval) {
        let after = self.consumption.checked_sub(resources);
        invariant!(after.is_some(), "no more is released than is in use");
        self.consume(after.unwrap_or(0), interval);
        invariant!(self.consumption > 0 || self.holders.is_empty(), "an unused object has no holders");
    }

    #[inline(always)]
    fn consume(&mut self, after: u32, interval: Interval) {
        match &mut self.kind {
            Kind::Counter(counter) => counter.note(self.consumption, after, interval),
            Kind::Semaphore(semaphore) => semaphore.note(after),
        }
        self.consumption = after;
    }
}

impl PartialEq for ObjectRef {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for ObjectRef {}

impl Hash for ObjectRef {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

/// Requests search the map by the bytes of a name, so an object hashes and compares as its name does.
impl Borrow<[u8]> for ObjectRef {
    fn borrow(&self) -> &[u8] {
        self.name()
    }
}
