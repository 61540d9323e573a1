//! Grants, the queues they come from, and the sessions that own them.
//!
//! Everything that is more than a plain Acquire is kept here, under one lock, so that what belongs together changes
//! together: a release serves the queue in the same step, an answer is remembered as it is given, events come in the
//! order in which things happened. Plain operations do not come here but for names that are supervised: those that
//! requests wait for, and those that are watched.
//!
//! The ledger's lock is taken before that of a shard and that of an object, never under one.
//!
//! Invariants (numbers of `docs/design.md`): a queue is served in the order of ids and nothing overtakes (3); a head
//! that fits is not left waiting when the ledger is let go, but for names in `unserved`, which the next step serves
//! (4); a waiter holds what it has set aside and nothing else (5); a request id makes one change (7); an object is
//! marked as queued exactly while its queue has a waiter.

mod check;
mod configured;
mod declaration;
mod declared;
mod grant;
mod idle;
mod idles;
mod journal;
mod listing;
mod owner;
mod queue;
mod records;
mod removal;
mod request;
mod restore;
mod revoke;
mod session;
mod slots;
mod time;
mod watch;

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::task::Waker;

pub use declaration::{Declare, Declared, IfExists, Removal, Resizing};
pub use declared::DeclaredListing;
pub use grant::{GrantId, Granted, Queueing, Verified, Want};
pub use idle::Until;
pub use journal::Batch;
pub use listing::{Listed, Listing};
pub use owner::{Lease, REQUESTS_MAX, RequestIds, SessionKey};
pub use request::{Answer, Call, Opened, Outcome};
pub use slots::{GRANT_SLOTS_MAX, SLOTS_MAX};
pub use time::TICK_MS;
pub use watch::Scope;

use super::counter::Interval;
use super::mailbox::{EventKind, Mailbox, Message, Notice, Token};
use super::object::ObjectRef;
use super::registry::Registry;
use super::{Namespace, Refusal, SessionId, UnixSeconds};
use declaration::Declarations;
use grant::{Grant, Parts, Phase};
use idles::Idles;
use journal::Journal;
use owner::{Owner, Remembered, RememberedGrant};
use removal::{Disconnections, Eviction, Pruning};
use request::{Done, Expected};
use slots::Slots;
use time::Gaps;
use watch::Watches;

/// A moment, in the two times that the rules know (invariant 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Milliseconds since some moment in the past, never going back: for waits and leases.
    pub monotonic_ms: u64,
    /// For intervals, and for what people read.
    pub unix: UnixSeconds,
}

/// Limits of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerLimits {
    /// Most leased sessions.
    pub sessions_max: usize,
    /// Most grants and waiters of one session.
    pub grants_max: usize,
    /// Most requests that wait in the queue of one name, and most that wait until it is idle.
    pub waiters_max: usize,
    /// Most watches.
    pub watches_max: usize,
}

impl LedgerLimits {
    /// No limits, as a core has none before it is told of some.
    pub const NONE: Self = Self {
        sessions_max: usize::MAX,
        grants_max: usize::MAX,
        waiters_max: usize::MAX,
        watches_max: usize::MAX,
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
    /// Leased sessions that ended because their time was up.
    pub expired_sessions: u64,
    /// Requests that waited in vain until their time was up.
    pub timed_out: u64,
    /// Requests that found a queue longer than they accepted.
    pub queue_full: u64,
    /// Requests refused because of a limit of the ledger.
    pub limited: u64,
    /// Grants and sessions that were revoked.
    pub revoked: u64,
    /// Declared semaphores.
    pub declared: u64,
    /// Requests refused because what they asked for could not be stored.
    pub not_stored: u64,
}

/// What a Cancel is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The request with this number within its session.
    Request(u64),
    /// The request that the connection calls so.
    Token(Token),
}

/// What is around the ledger in one call of it. A plain operation, which has no monotonic time, comes with 0: nothing
/// that it sets off looks at it.
#[derive(Clone, Copy)]
pub(super) struct World<'a> {
    pub(super) registries: [&'a Registry; Namespace::ALL.len()],
    pub(super) interval: Interval,
    pub(super) now: Moment,
}

/// Work that one step does before others have their turn: names of grants that are served or given back.
const STEP_GRANTS: usize = 64;

#[derive(Debug)]
pub(super) struct Ledger {
    limits: LedgerLimits,
    /// The last number that was given to a grant or a generation.
    last_id: u64,
    owners: BTreeMap<SessionId, Box<Owner>>,
    grants: BTreeMap<GrantId, Box<Grant>>,
    /// By [`ObjectRef::address`]. A tree, since a table of many names would grow in one long step.
    names: [BTreeMap<usize, NameEntry>; Namespace::ALL.len()],
    declarations: Declarations,
    /// The numbers of semaphores that have some, by [`ObjectRef::address`].
    slots: BTreeMap<usize, Slots>,
    /// Names whose queues may have a head that fits.
    unserved: VecDeque<(Namespace, ObjectRef)>,
    /// Names of which less is in use, where somebody waits for that.
    lessened: VecDeque<(Namespace, ObjectRef)>,
    prunings: VecDeque<Pruning>,
    evictions: VecDeque<Eviction>,
    disconnections: Disconnections,
    idles: Idles,
    journal: Option<Journal>,
    /// When waiting or a grant ends.
    grant_ends: BTreeSet<(u64, GrantId)>,
    /// When a session may end.
    session_ends: BTreeSet<(u64, SessionId)>,
    gaps: Gaps,
    watches: Watches,
    /// Woken when something is due before what was last asked for.
    alarm: Option<(Option<u64>, Waker)>,
    /// Set when the server stops: up to which grant those who wait were answered.
    closed_up_to: Option<GrantId>,
    stats: LedgerStats,
}

/// What the ledger knows of a name: there is an entry while any grant or waiter refers to it.
#[derive(Debug)]
struct NameEntry {
    object: ObjectRef,
    held: BTreeSet<GrantId>,
    queue: BTreeSet<GrantId>,
}

impl NameEntry {
    fn of(object: &ObjectRef) -> Self {
        Self { object: object.clone(), held: BTreeSet::new(), queue: BTreeSet::new() }
    }
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self {
            limits: LedgerLimits::NONE,
            last_id: 0,
            owners: BTreeMap::new(),
            grants: BTreeMap::new(),
            names: Default::default(),
            declarations: Declarations::default(),
            slots: BTreeMap::new(),
            unserved: VecDeque::new(),
            lessened: VecDeque::new(),
            prunings: VecDeque::new(),
            evictions: VecDeque::new(),
            disconnections: Disconnections::default(),
            idles: Idles::default(),
            journal: None,
            grant_ends: BTreeSet::new(),
            session_ends: BTreeSet::new(),
            gaps: Gaps::default(),
            watches: Watches::default(),
            alarm: None,
            closed_up_to: None,
            stats: LedgerStats::default(),
        }
    }

    /// Ids are above this one from now on.
    pub(super) fn start_after(&mut self, last_id: u64) {
        self.last_id = self.last_id.max(last_id);
    }

    pub(super) fn set_limits(&mut self, limits: LedgerLimits) {
        self.limits = limits;
    }

    pub(super) fn stats(&self) -> LedgerStats {
        let (watches, declared) = (self.watches.len() as u64, self.declarations.len() as u64);
        LedgerStats { watches, declared, ..self.stats }
    }

    /// Asks for a grant (`docs/protocol.md`, "AcquireGrant" and "AcquireAll"). No name is wanted twice.
    pub(super) fn acquire(
        &mut self,
        call: Call,
        wants: &[Want<'_>],
        queueing: Queueing,
        world: World<'_>,
    ) -> Outcome {
        let ids = call.ids;
        let (session, repeated) = match self.begin(call.connection, ids) {
            Ok(begun) => begun,
            Err(refusal) => return Outcome::Refused(refusal),
        };
        let now = world.now;
        if let Some(repeated) = repeated {
            return self.answer(session, repeated, Expected::Grant, call, now);
        }
        let id =
            match self.check_open().and_then(|()| self.check_grants(session)).and_then(|()| self.next_id()) {
                Ok(id) => GrantId(id),
                Err(refusal) => {
                    self.remember(session, ids.own, Remembered::Done(Err(refusal)));
                    return Outcome::Refused(refusal);
                }
            };
        let until_ms = now.monotonic_ms + u64::from(queueing.wait_ms);
        let (received_ms, since) = (now.monotonic_ms, now.unix.into());
        let phase = Phase::Waiting { until_ms, received_ms, since, taken: 0, reply: None };
        let grant = Grant { session, request: ids.own, parts: Parts::of(wants), phase };
        self.grants.insert(id, Box::new(grant));
        self.stats.waiters += 1;
        if let Some(owner) = self.owners.get_mut(&session) {
            owner.grants.insert(id, ());
        }
        self.remember(session, ids.own, Remembered::Waiting(id));
        self.advance(id, Some(queueing), world);
        self.serve(world);
        let remembered = self.owners.get(&session).and_then(|owner| owner.requests.get(ids.own)).cloned();
        let remembered = remembered.unwrap_or(Remembered::Waiting(id));
        if let Remembered::Waiting(_) = remembered {
            self.end_grant_at(until_ms, id);
        }
        self.answer(session, remembered, Expected::Grant, call, now)
    }

    /// Gives a grant back. Only its session can.
    pub(super) fn release(&mut self, call: Call, grant: GrantId, world: World<'_>) -> Outcome {
        self.change(call, world, |ledger, session| {
            let held = ledger.grants.get(&grant);
            if !held.is_some_and(|held| held.session == session && !held.is_waiting()) {
                return Err(Refusal::NotAcquired);
            }
            ledger.give_back(grant, EventKind::Released, world);
            ledger.serve(world);
            Ok(Done { outcome: Remembered::Done(Ok(())), is_durable: ledger.is_durable(session) })
        })
    }

    /// Ends the waiting of a request, which is answered [`Refusal::Canceled`].
    pub(super) fn cancel(
        &mut self,
        connection: SessionId,
        waiting: Waiting,
        world: World<'_>,
    ) -> Result<(), Refusal> {
        if let Waiting::Token(token) = waiting
            && self.cancel_idle(connection, token)
        {
            return Ok(());
        }
        let session = self.acting(connection)?;
        let owner = self.owners.get(&session).ok_or(Refusal::NotFound)?;
        let grant = match waiting {
            Waiting::Request(request) => owner.requests.waiting(request),
            Waiting::Token(token) => owner.tokens.get(token).copied(),
        };
        let grant = grant.filter(|id| self.grants.get(id).is_some_and(|grant| grant.is_waiting()));
        self.fail(grant.ok_or(Refusal::NotFound)?, Refusal::Canceled, world);
        self.serve(world);
        Ok(())
    }

    /// Whether a grant is held, whose it is, and how long its lease lasts.
    pub(super) fn verify(&self, grant: GrantId, now: Moment) -> Result<Verified, Refusal> {
        let held = self.grants.get(&grant).map(AsRef::as_ref);
        let is_held = |held: &&Grant| !held.is_waiting() && self.ending(held.session).is_none();
        let held = held.filter(is_held).ok_or(Refusal::NotAcquired)?;
        let lease_left = self.ttl_left_ms(held.session, now.monotonic_ms);
        let revoked_left = match held.phase {
            Phase::Held { revoked_ms: Some(revoked_ms), .. } => Some(left(revoked_ms, now.monotonic_ms)),
            _ => None,
        };
        let is_revoked = revoked_left.is_some()
            || self.owners.get(&held.session).is_some_and(|owner| owner.revoked_ms.is_some());
        Ok(Verified {
            session: held.session,
            ttl_left_ms: lease_left.into_iter().chain(revoked_left).min(),
            is_retiring: is_revoked || self.is_retiring(grant),
        })
    }

    /// Refuses whatever would wait from now on, and answers who waits. In steps; tells whether there is more to do.
    pub(super) fn shut_down(&mut self, world: World<'_>) -> bool {
        if self.closed_up_to.is_none() {
            for connection in self.owners.keys() {
                self.notify(*connection, Notice::ShuttingDown);
            }
        }
        let from = *self.closed_up_to.get_or_insert(GrantId(0));
        let after = (Bound::Excluded(from), Bound::Unbounded);
        let some: Vec<_> = self.grants.range(after).map(|(id, _)| *id).take(STEP_GRANTS).collect();
        for id in &some {
            if self.grants.get(id).is_some_and(|grant| grant.is_waiting()) {
                self.fail(*id, Refusal::ShuttingDown, world);
            }
        }
        self.closed_up_to = some.last().copied().or(self.closed_up_to);
        let more = some.len() == STEP_GRANTS || self.shut_idles_down();
        if !more {
            // Nobody waits any more.
            self.unserved.clear();
            self.serve(world);
        }
        more
    }

    /// What a session that is ending, step by step, answers to who waits.
    fn ending(&self, session: SessionId) -> Option<Refusal> {
        self.owners.get(&session)?.ending.map(|(_, refusal)| refusal)
    }

    fn check_open(&self) -> Result<(), Refusal> {
        if self.closed_up_to.is_some() { Err(Refusal::ShuttingDown) } else { Ok(()) }
    }

    fn check_grants(&mut self, session: SessionId) -> Result<(), Refusal> {
        let held = self.owners.get(&session).map_or(0, |owner| owner.grants.len());
        if held < self.limits.grants_max {
            return Ok(());
        }
        self.stats.limited += 1;
        Err(Refusal::LimitReached)
    }
}

/// Milliseconds from now until then.
fn left(then_ms: u64, now_ms: u64) -> u32 {
    u32::try_from(then_ms.saturating_sub(now_ms)).unwrap_or(u32::MAX - 1).min(u32::MAX - 1)
}

/// Takes an item out of the set that stands under a key, and the set with its last. Tells whether it was there.
fn remove_from<K: Borrow<Q> + Ord, Q: Ord + ?Sized, T: Ord>(
    sets: &mut BTreeMap<K, BTreeSet<T>>,
    key: &Q,
    item: &T,
) -> bool {
    let Some(set) = sets.get_mut(key) else { return false };
    let was_there = set.remove(item);
    if set.is_empty() {
        sets.remove(key);
    }
    was_there
}
