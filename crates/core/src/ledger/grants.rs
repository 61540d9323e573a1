//! Grants, and the waiters that become grants: one type with one id, in two phases; and the table of all of them with their
//! deadlines.
//!
//! Invariants: a waiter whose request was answered "waiting" has exactly one deadline, when its wait ends; a held grant has
//! exactly one if it was revoked, and none otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU8, NonZeroU32};
use std::ops::Bound;

use super::slots::SlotTables;
use crate::claim::Claim;
use crate::invariant::broken;
use crate::mailbox::ReplyTo;
use crate::object::ObjectRef;
use crate::outcome::Granted;
use crate::time::MonotonicMs;
use signalbox_model::{AS_DECLARED, GrantId, Namespace, RequestId, SessionId, UnixMilliseconds, UnixSeconds};

/// One name of a request, with the resources that the request wants of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want<'a> {
    /// The namespace of the name, unless the ledger resolves it.
    pub kind: Kind,
    /// The name's bytes.
    pub name: &'a [u8],
    /// The resources, and the maximum under which they are taken.
    pub claim: Claim,
    /// The requested slot of a semaphore with numbered slots; `None`: any. With a slot, the claim is for one resource of an
    /// existing semaphore.
    pub slot: Option<u16>,
    /// Whether it is part of a single flight: if the holder releases with `done` while the request waits, the request is
    /// refused with [`Refusal::Done`](signalbox_model::Refusal::Done).
    pub is_shared: bool,
}

/// The kind of a name that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request states it.
    Of(Namespace),
    /// The declared semaphore of the name if there is one when its turn comes, else the counter. The client must be permitted
    /// to acquire that kind.
    Resolved(Permitted),
}

/// The kinds of a name that a client is permitted to acquire. A missing permission never selects the other kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permitted {
    /// The counter.
    pub counter: bool,
    /// The semaphore.
    pub semaphore: bool,
}

impl Permitted {
    /// The kinds for which `may` is true.
    pub fn of(may: impl Fn(Namespace) -> bool) -> Self {
        Self { counter: may(Namespace::Counters), semaphore: may(Namespace::Semaphores) }
    }

    /// Returns whether it includes no kind.
    pub fn is_none(self) -> bool {
        !self.counter && !self.semaphore
    }

    /// Returns whether it includes this kind.
    pub fn includes(self, namespace: Namespace) -> bool {
        match namespace {
            Namespace::Counters => self.counter,
            Namespace::Semaphores => self.semaphore,
        }
    }
}

impl<'a> Want<'a> {
    /// The want for a claim; `None` if the claim breaks a rule of the protocol. A semaphore is only created if the
    /// request states its namespace and capacity, and no slot. `may` returns whether the client may acquire the name in
    /// a namespace; it is only called if the server resolves the name.
    pub fn of(claim: signalbox_model::Claim<'a>, may: impl Fn(Namespace) -> bool) -> Option<Self> {
        let signalbox_model::Claim { namespace, name, resources, maximum, slot } = claim;
        let may_be_semaphore = namespace != Some(Namespace::Counters);
        let claim = match may_be_semaphore && (maximum == AS_DECLARED || slot.is_some()) {
            true => Claim::of_existing(NonZeroU32::new(resources)?),
            false => Claim::new(resources, maximum)?,
        };
        let kind = namespace.map_or_else(|| Kind::Resolved(Permitted::of(may)), Kind::Of);
        Some(Self { kind, name, claim, slot, is_shared: false })
    }
}

/// How a request waits if it cannot be granted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queueing {
    /// How long it waits, in milliseconds; 0: not at all.
    pub wait_ms: u32,
    /// It joins a queue only while fewer waiters than this are in it.
    pub queue_max: u32,
}

/// A grant, or a waiter.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) session: SessionId,
    pub(super) request: RequestId,
    parts: Parts,
    phase: Phase,
}

const _: () =
    assert!(size_of::<Grant>() <= 88, "with the allocator's eight bytes a grant fills a chunk of 96");

/// The size of a grant with its entries in the tables of the ledger and the cached reply to its request, in bytes, rounded up.
const GRANT_BYTES: usize = 512;

/// The names of a grant. Nearly every grant has one, whose part needs no allocation.
#[derive(Debug)]
enum Parts {
    One(Part),
    /// In the order of name and namespace, in which they are taken.
    Many(Box<[Part]>),
}

/// One name of a grant.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) target: Target,
    /// [`Kind::Of`] once the target is [`Target::Now`].
    pub(super) kind: Kind,
    /// The position in the request.
    pub(super) position: u8,
    pub(super) claim: Claim,
    /// The slot that the request asked for; `None`: any, or it was granted before the process started.
    pub(super) slot: Option<u16>,
    /// Whether the request is part of a single flight. `true` for a restored grant, since its record does not say.
    pub(super) is_shared: bool,
}

/// The name that a part takes from.
#[derive(Debug)]
pub(super) enum Target {
    /// The part's turn has not come: the object need not exist.
    Later(Box<[u8]>),
    /// The grant waits for the object, or has taken from it.
    Now(ObjectRef),
}

#[derive(Debug)]
enum Phase {
    Waiting(Waiting),
    Held {
        since: Since,
        /// When it ends because it was revoked.
        revoked: Option<MonotonicMs>,
        /// How long its request waited, in milliseconds; `None`: the history has the grant.
        unrecorded_wait_ms: Option<u32>,
    },
}

/// The state of a waiter.
#[derive(Debug)]
pub(super) struct Waiting {
    /// When it stops waiting.
    pub(super) until: MonotonicMs,
    /// When the request or its last repetition was received: the remaining lease time in the answer counts from then.
    pub(super) received: MonotonicMs,
    /// Where the answer goes. `None` while the session has no connection, or until the request has its first answer.
    pub(super) reply_to: Option<ReplyTo>,
    since: Since,
    /// The part that is taken next, counted from one. The niche of `NonZero` keeps the size of a grant within its
    /// limit.
    next_part: NonZeroU8,
}

/// A time in 6 bytes: milliseconds since the Unix epoch, with the highest 16 bits first.
#[derive(Clone, Copy, Debug)]
struct Since([u16; 3]);

impl From<UnixMilliseconds> for Since {
    fn from(time: UnixMilliseconds) -> Self {
        let ms = time.0.min((1 << 48) - 1);
        Self([(ms >> 32) as u16, (ms >> 16) as u16, ms as u16])
    }
}

impl From<Since> for UnixMilliseconds {
    fn from(Since([high, middle, low]): Since) -> Self {
        Self(u64::from(high) << 32 | u64::from(middle) << 16 | u64::from(low))
    }
}

impl Grant {
    /// A waiter that has taken nothing. No name may be wanted twice.
    pub(super) fn waiting(
        session: SessionId,
        request: RequestId,
        wants: &[Want<'_>],
        received: MonotonicMs,
        until: MonotonicMs,
        since: UnixMilliseconds,
    ) -> Self {
        let waiting =
            Waiting { until, received, reply_to: None, since: since.into(), next_part: NonZeroU8::MIN };
        Self { session, request, parts: Parts::of(wants), phase: Phase::Waiting(waiting) }
    }

    /// A restored grant with these parts, at least one, in the order in which they were taken.
    pub(super) fn held(
        session: SessionId,
        request: RequestId,
        mut parts: Vec<Part>,
        since: UnixSeconds,
        revoked: Option<MonotonicMs>,
    ) -> Self {
        let parts = if parts.len() == 1 { Parts::One(parts.remove(0)) } else { Parts::Many(parts.into()) };
        let since = UnixMilliseconds::from(since).into();
        let phase = Phase::Held { since, revoked, unrecorded_wait_ms: None };
        Self { session, request, parts, phase }
    }

    pub(super) fn parts(&self) -> &[Part] {
        match &self.parts {
            Parts::One(part) => std::slice::from_ref(part),
            Parts::Many(parts) => parts,
        }
    }

    pub(super) fn taken(&self) -> &[Part] {
        match &self.phase {
            Phase::Waiting(waiting) => &self.parts()[..usize::from(waiting.next_part.get()) - 1],
            Phase::Held { .. } => self.parts(),
        }
    }

    /// The part that is taken next; `None`: all are taken.
    pub(super) fn awaited(&self) -> Option<&Part> {
        self.parts().get(self.taken().len())
    }

    /// The part that is taken next, to set its target.
    pub(super) fn awaited_mut(&mut self) -> Option<&mut Part> {
        let index = self.taken().len();
        match &mut self.parts {
            Parts::One(part) => (index == 0).then_some(part),
            Parts::Many(parts) => parts.get_mut(index),
        }
    }

    /// Marks the awaited part as taken.
    pub(super) fn count_taken(&mut self) {
        if let Phase::Waiting(waiting) = &mut self.phase {
            waiting.next_part = waiting.next_part.saturating_add(1);
        }
    }

    /// The bytes that count against the memory share of its client: those of the grant and of its names, even if other grants
    /// have the same names.
    pub(super) fn bytes(&self) -> usize {
        let part_bytes = |part: &Part| size_of::<Part>() + part.name().len();
        GRANT_BYTES + self.parts().iter().map(part_bytes).sum::<usize>()
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting(_))
    }

    /// The state of a waiter; `None`: the grant is held.
    pub(super) fn waiter(&self) -> Option<&Waiting> {
        if let Phase::Waiting(waiting) = &self.phase { Some(waiting) } else { None }
    }

    pub(super) fn waiter_mut(&mut self) -> Option<&mut Waiting> {
        if let Phase::Waiting(waiting) = &mut self.phase { Some(waiting) } else { None }
    }

    /// The state of a waiter that has ended; `None`: the grant was held.
    pub(super) fn into_waiter(self) -> Option<Waiting> {
        if let Phase::Waiting(waiting) = self.phase { Some(waiting) } else { None }
    }

    /// Turns a waiter into a grant. `None`: it is held already.
    pub(super) fn hold(&mut self, since: UnixMilliseconds) -> Option<Waiting> {
        let waited_ms = u32::try_from(self.since_ms().until(since)).unwrap_or(u32::MAX);
        let held = Phase::Held { since: since.into(), revoked: None, unrecorded_wait_ms: Some(waited_ms) };
        match std::mem::replace(&mut self.phase, held) {
            Phase::Waiting(waiting) => Some(waiting),
            before @ Phase::Held { .. } => {
                self.phase = before;
                None
            }
        }
    }

    /// When it ends because it was revoked; `None`: it was not revoked, or it waits.
    pub(super) fn revoked(&self) -> Option<MonotonicMs> {
        if let Phase::Held { revoked, .. } = self.phase { revoked } else { None }
    }

    /// Sets when a held grant ends.
    pub(super) fn set_revoked(&mut self, at: MonotonicMs) {
        if let Phase::Held { revoked, .. } = &mut self.phase {
            *revoked = Some(at);
        }
    }

    /// Since when it has waited or has been held.
    pub(super) fn since(&self) -> UnixSeconds {
        self.since_ms().into()
    }

    /// Like [`Self::since`], in milliseconds; without a history, and after a restart, rounded to whole seconds.
    pub(super) fn since_ms(&self) -> UnixMilliseconds {
        match self.phase {
            Phase::Waiting(Waiting { since, .. }) | Phase::Held { since, .. } => since.into(),
        }
    }

    /// How long the request of a held grant waited, in milliseconds; `None` from the second call on: the history has the grant.
    pub(super) fn take_unrecorded_wait_ms(&mut self) -> Option<u32> {
        if let Phase::Held { unrecorded_wait_ms, .. } = &mut self.phase {
            unrecorded_wait_ms.take()
        } else {
            None
        }
    }

    /// Returns whether the history has the beginning of this grant.
    pub(super) fn is_recorded(&self) -> bool {
        matches!(self.phase, Phase::Held { unrecorded_wait_ms: None, .. })
    }

    /// Returns the answer to the request in the form in which it is cached.
    pub(super) fn cached(&self, id: GrantId, slots: &SlotTables) -> CachedGrant {
        let count = self.parts().len();
        let mut capacities = vec![0; count].into_boxed_slice();
        let mut all_slots: Box<[Box<[u16]>]> = Box::default();
        for part in self.parts() {
            capacities[usize::from(part.position)] = part.claim.maximum;
            let slots = part.object().map_or(&[][..], |(_, object)| slots.of(object, id));
            if !slots.is_empty() {
                if all_slots.is_empty() {
                    all_slots = vec![Box::default(); count].into_boxed_slice();
                }
                all_slots[usize::from(part.position)] = slots.into();
            }
        }
        let resources = self.parts().iter().map(|part| u64::from(part.claim.resources)).sum();
        CachedGrant { grant: id, resources, capacities, slots: all_slots }
    }
}

/// The reply to a request that was granted.
#[derive(Clone, Debug)]
pub(super) struct CachedGrant {
    pub(super) grant: GrantId,
    pub(super) resources: u64,
    pub(super) capacities: Box<[u32]>,
    pub(super) slots: Box<[Box<[u16]>]>,
}

/// The overhead of an allocation, in bytes.
pub(super) const ALLOCATION_BYTES: usize = 16;

impl CachedGrant {
    pub(super) fn bytes(&self) -> usize {
        let slots: usize = self.slots.iter().map(|slots| ALLOCATION_BYTES + size_of_val::<[_]>(slots)).sum();
        3 * ALLOCATION_BYTES
            + size_of::<Self>()
            + size_of_val::<[_]>(&self.capacities)
            + size_of_val::<[_]>(&self.slots)
            + slots
    }

    pub(super) fn answer(self, ttl_left_ms: Option<u32>) -> Granted {
        let Self { grant, resources, capacities, slots } = self;
        Granted { grant, resources, capacities, slots, ttl_left_ms }
    }
}

impl Parts {
    fn of(wants: &[Want<'_>]) -> Self {
        let part = |(position, want): (usize, &Want<'_>)| Part {
            target: Target::Later(want.name.into()),
            kind: want.kind,
            position: position as u8,
            claim: want.claim,
            slot: want.slot,
            is_shared: want.is_shared,
        };
        if let [want] = wants {
            return Self::One(part((0, want)));
        }
        let mut order: Vec<_> = wants.iter().enumerate().collect();
        // A name that is resolved occurs once, so its kind does not matter for the order.
        order.sort_unstable_by_key(|(_, want)| {
            (want.name, matches!(want.kind, Kind::Of(Namespace::Semaphores)))
        });
        Self::Many(order.into_iter().map(part).collect())
    }
}

impl Part {
    pub(super) fn name(&self) -> &[u8] {
        match &self.target {
            Target::Later(name) => name,
            Target::Now(object) => object.name(),
        }
    }

    /// The object and its namespace; `None`: the part's turn has not come.
    pub(super) fn object(&self) -> Option<(Namespace, &ObjectRef)> {
        match (&self.target, self.kind) {
            (Target::Later(_), _) => None,
            (Target::Now(object), Kind::Of(namespace)) => Some((namespace, object)),
            (Target::Now(_), Kind::Resolved(_)) => broken(format_args!("a name with an object is resolved")),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Grants {
    all: BTreeMap<GrantId, Box<Grant>>,
    deadlines: BTreeSet<(MonotonicMs, GrantId)>,
    waiting: u64,
}

impl Grants {
    /// Adds a waiter or a grant. A grant that was revoked gets its deadline.
    pub(super) fn insert(&mut self, id: GrantId, grant: Grant) {
        self.waiting += u64::from(grant.is_waiting());
        if let Some(at) = grant.revoked() {
            self.deadlines.insert((at, id));
        }
        self.all.insert(id, Box::new(grant));
    }

    pub(super) fn remove(&mut self, id: GrantId) -> Option<Grant> {
        let grant = *self.all.remove(&id)?;
        self.waiting -= u64::from(grant.is_waiting());
        if let Some(at) = grant.waiter().map(|waiter| waiter.until).or(grant.revoked()) {
            self.deadlines.remove(&(at, id));
        }
        Some(grant)
    }

    /// The grant with this id, if there is one: a client may name any id.
    pub(super) fn get(&self, id: GrantId) -> Option<&Grant> {
        self.all.get(&id).map(AsRef::as_ref)
    }

    /// The grant with this id, which exists because a queue, a session or the caller refers to it.
    pub(super) fn existing(&self, id: GrantId) -> &Grant {
        match self.all.get(&id) {
            Some(grant) => grant,
            None => unknown(id),
        }
    }

    /// Like [`Self::existing`], but mutable.
    pub(super) fn existing_mut(&mut self, id: GrantId) -> &mut Grant {
        match self.all.get_mut(&id) {
            Some(grant) => grant,
            None => unknown(id),
        }
    }

    /// Sets the deadline of a waiter whose request is being answered "waiting".
    pub(super) fn set_wait_deadline(&mut self, id: GrantId) {
        let Some(waiting) = self.existing(id).waiter() else {
            broken(format_args!("grant {id} waits if its request is answered \"waiting\""))
        };
        self.deadlines.insert((waiting.until, id));
    }

    /// Turns a waiter into a held grant.
    pub(super) fn hold(&mut self, id: GrantId, since: UnixMilliseconds) -> Waiting {
        let Some(waiting) = self.existing_mut(id).hold(since) else {
            broken(format_args!("grant {id} waits until it is granted"))
        };
        self.deadlines.remove(&(waiting.until, id));
        self.waiting -= 1;
        waiting
    }

    /// Changes the id of a held grant, which must not be revoked.
    pub(super) fn renumber(&mut self, from: GrantId, to: GrantId) {
        let Some(grant) = self.all.remove(&from) else { unknown(from) };
        self.all.insert(to, grant);
    }

    /// Sets when a held grant ends. A second revocation may bring the end forward and never delays it. Returns when
    /// it ends.
    pub(super) fn revoke_at(&mut self, id: GrantId, at: MonotonicMs) -> MonotonicMs {
        let grant = self.existing_mut(id);
        let before = grant.revoked();
        let at = before.map_or(at, |before| before.min(at));
        grant.set_revoked(at);
        if let Some(before) = before {
            self.deadlines.remove(&(before, id));
        }
        self.deadlines.insert((at, id));
        at
    }

    /// Delays the ends of revoked grants by `late_ms`, the time since they were restored. There are no waiters yet.
    pub(super) fn begin_serving(&mut self, late_ms: u64) {
        for (at, id) in std::mem::take(&mut self.deadlines) {
            let at = MonotonicMs(at.0 + late_ms);
            self.existing_mut(id).set_revoked(at);
            self.deadlines.insert((at, id));
        }
    }

    /// The first grant whose deadline has passed.
    pub(super) fn first_due(&self, now: MonotonicMs) -> Option<GrantId> {
        self.deadlines.first().filter(|(at, _)| *at <= now).map(|(_, id)| *id)
    }

    pub(super) fn next_deadline(&self) -> Option<MonotonicMs> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// The number of waiters.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting
    }

    pub(super) fn held(&self) -> u64 {
        self.all.len() as u64 - self.waiting
    }

    /// The grants and waiters with higher ids than this one.
    pub(super) fn ids_after(&self, id: GrantId) -> impl Iterator<Item = GrantId> {
        self.all.range((Bound::Excluded(id), Bound::Unbounded)).map(|(id, _)| *id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (GrantId, &Grant)> {
        self.all.iter().map(|(id, grant)| (*id, grant.as_ref()))
    }

    /// Fails with a description of an invariant that does not hold.
    pub(super) fn check(&self) -> Result<(), String> {
        let deadline = |(id, grant): (GrantId, &Grant)| {
            let at = grant.waiter().map(|waiter| waiter.until).or(grant.revoked())?;
            Some((at, id))
        };
        let expected: BTreeSet<_> = self.iter().filter_map(deadline).collect();
        if expected != self.deadlines {
            let wrong = expected.symmetric_difference(&self.deadlines).next();
            return Err(format!("deadline {wrong:?} of a grant is missing or left over"));
        }
        let waiting = self.all.values().filter(|grant| grant.is_waiting()).count() as u64;
        if waiting != self.waiting {
            return Err(format!("{waiting} waiters are counted as {}", self.waiting));
        }
        Ok(())
    }
}

#[cold]
fn unknown(id: GrantId) -> ! {
    broken(format_args!("grant {id} exists as long as a queue or a session refers to it"))
}
