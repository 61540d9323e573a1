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
mod grant;
mod listing;
mod owner;
mod queue;
mod time;
mod watch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::task::Waker;

pub use grant::{GrantId, Granted, Queueing, Want};
pub use listing::{Listed, Listing};
pub use owner::{Lease, REQUESTS_MAX, RequestIds, SessionKey};
pub use time::TICK_MS;
pub use watch::Scope;

use super::counter::Interval;
use super::mailbox::{EventKind, Letter, Mailbox, Notice, Token};
use super::object::ObjectRef;
use super::registry::Registry;
use super::{Namespace, Refusal, SessionId, UnixSeconds};
use grant::{Grant, Parts, Phase, Reply};
use owner::{Attachment, Owner, OwnerKind, Remembered, RememberedGrant};
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
    /// Most requests that wait for one name.
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
}

/// What came of a request for a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It is granted.
    Granted(Granted),
    /// It waits; the answer comes as a [`Letter`].
    Waiting,
    /// It is refused.
    Refused(Refusal),
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
    last_grant: u64,
    owners: BTreeMap<SessionId, Box<Owner>>,
    grants: BTreeMap<GrantId, Box<Grant>>,
    /// By [`ObjectRef::address`]. A tree, since a table of many names would grow in one long step.
    names: [BTreeMap<usize, NameEntry>; Namespace::ALL.len()],
    /// Names whose queues may have a head that fits.
    unserved: VecDeque<(Namespace, ObjectRef)>,
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
            last_grant: 0,
            owners: BTreeMap::new(),
            grants: BTreeMap::new(),
            names: Default::default(),
            unserved: VecDeque::new(),
            grant_ends: BTreeSet::new(),
            session_ends: BTreeSet::new(),
            gaps: Gaps::default(),
            watches: Watches::default(),
            alarm: None,
            closed_up_to: None,
            stats: LedgerStats::default(),
        }
    }

    /// Ids of grants are above this one from now on.
    pub(super) fn start_after(&mut self, last_grant: u64) {
        self.last_grant = self.last_grant.max(last_grant);
    }

    pub(super) fn set_limits(&mut self, limits: LedgerLimits) {
        self.limits = limits;
    }

    pub(super) fn stats(&self) -> LedgerStats {
        LedgerStats { watches: self.watches.len() as u64, ..self.stats }
    }

    /// Takes up a connection's own session, which may now own grants.
    pub(super) fn join(&mut self, connection: SessionId, label: Option<&[u8]>, mailbox: &Arc<Mailbox>) {
        let owner =
            self.owners.entry(connection).or_insert_with(|| Box::new(Owner::own(Arc::clone(mailbox))));
        if let Some(label) = label {
            owner.label = label.into();
        }
    }

    /// Lets a connection go: its own session ends, and a leased one that was attached lives on without it. What it
    /// held is given back in steps; tells whether there is more to do.
    pub(super) fn leave(&mut self, connection: SessionId, world: World<'_>) -> bool {
        let more = self.end(connection, EventKind::Released, Refusal::Canceled, world);
        self.serve(world);
        more
    }

    /// Makes a leased session, attached to this connection.
    pub(super) fn open(
        &mut self,
        session: SessionId,
        connection: SessionId,
        key: SessionKey,
        ttl_ms: u32,
        label: &[u8],
        now: Moment,
    ) -> Result<Arc<Lease>, Refusal> {
        self.check_open()?;
        if self.stats.sessions >= self.limits.sessions_max as u64 {
            self.stats.limited += 1;
            return Err(Refusal::LimitReached);
        }
        let lease = Arc::new(Lease::new(ttl_ms, now.monotonic_ms));
        let owner = Owner::leased(key, Arc::clone(&lease), connection, label);
        self.detach(connection, Some(Refusal::NoSuchSession));
        self.owners.insert(session, Box::new(owner));
        self.stats.sessions += 1;
        self.set_attachment(connection, Attachment::To(session));
        self.end_session_at(now.monotonic_ms + u64::from(ttl_ms), session);
        Ok(lease)
    }

    /// Attaches a connection to a leased session; the connection that was attached before is told.
    pub(super) fn attach(
        &mut self,
        session: SessionId,
        connection: SessionId,
        key: &SessionKey,
        now: Moment,
    ) -> Result<Arc<Lease>, Refusal> {
        let owner = self.owners.get(&session).filter(|owner| owner.opens_with(key));
        let Some(OwnerKind::Leased { lease, connection: before, .. }) = owner.map(|owner| &owner.kind) else {
            return Err(Refusal::NoSuchSession);
        };
        let (lease, before) = (Arc::clone(lease), *before);
        lease.hear(now.monotonic_ms);
        if before == Some(connection) {
            return Ok(lease);
        }
        if let Some(before) = before {
            self.detach(before, Some(Refusal::NoSuchSession));
            self.set_attachment(before, Attachment::Lost);
            self.notify(before, Notice::AttachedElsewhere { session });
        }
        self.detach(connection, Some(Refusal::NoSuchSession));
        if let Some(owner) = self.owners.get_mut(&session)
            && let OwnerKind::Leased { connection: attached, .. } = &mut owner.kind
        {
            *attached = Some(connection);
        }
        self.set_attachment(connection, Attachment::To(session));
        if let Some(revoked_ms) = self.owners.get(&session).and_then(|owner| owner.revoked_ms) {
            let grace_ms = left(revoked_ms, now.monotonic_ms);
            self.notify(connection, Notice::SessionRevoked { session, grace_ms });
        }
        Ok(lease)
    }

    /// The lease of the session that a connection is attached to.
    pub(super) fn lease(&self, connection: SessionId) -> Result<Arc<Lease>, Refusal> {
        let Attachment::To(session) = self.attachment(connection) else {
            return Err(Refusal::NoSuchSession);
        };
        self.lease_of(session).cloned().ok_or(Refusal::NoSuchSession)
    }

    /// Ends the session that a connection is attached to. Afterwards the connection has its own.
    pub(super) fn close(&mut self, connection: SessionId, world: World<'_>) -> Result<(), Refusal> {
        let attachment = self.attachment(connection);
        self.detach(connection, Some(Refusal::Canceled));
        let Attachment::To(session) = attachment else { return Err(Refusal::NoSuchSession) };
        if self.end(session, EventKind::Released, Refusal::Canceled, world) {
            self.end_session_at(world.now.monotonic_ms, session);
        }
        self.serve(world);
        Ok(())
    }

    /// Asks for a grant (`docs/protocol.md`, "AcquireGrant" and "AcquireAll"). No name is wanted twice.
    pub(super) fn acquire(
        &mut self,
        connection: SessionId,
        ids: RequestIds,
        wants: &[Want<'_>],
        queueing: Queueing,
        token: Token,
        world: World<'_>,
    ) -> Asked {
        let (session, repeated) = match self.begin(connection, ids) {
            Ok(begun) => begun,
            Err(refusal) => return Asked::Refused(refusal),
        };
        if let Some(repeated) = repeated {
            return self.answer(session, repeated, connection, token, world.now);
        }
        if let Err(refusal) = self.check_open().and_then(|()| self.check_grants(session)) {
            self.remember(session, ids.own, Remembered::Done(Err(refusal)));
            return Asked::Refused(refusal);
        }
        self.last_grant += 1;
        let id = GrantId(self.last_grant);
        let now = world.now;
        let until_ms = now.monotonic_ms + u64::from(queueing.wait_ms);
        let phase = Phase::Waiting { until_ms, received_ms: now.monotonic_ms, since: now.unix, reply: None };
        let grant = Grant { session, request: ids.own, parts: Parts::of(wants), taken: 0, phase };
        self.grants.insert(id, Box::new(grant));
        self.stats.waiters += 1;
        if let Some(owner) = self.owners.get_mut(&session) {
            owner.grants.push(id);
        }
        self.remember(session, ids.own, Remembered::Waiting(id));
        self.advance(id, Some(queueing), world);
        self.serve(world);
        let remembered = self.owners.get(&session).and_then(|owner| owner.requests.get(ids.own)).cloned();
        let asked =
            self.answer(session, remembered.unwrap_or(Remembered::Waiting(id)), connection, token, now);
        if let Asked::Waiting = asked {
            self.end_grant_at(until_ms, id);
        }
        asked
    }

    /// What has come of a request, whether it was made just now or is repeated: one that waits is answered to this
    /// connection from now on.
    fn answer(
        &mut self,
        session: SessionId,
        remembered: Remembered,
        connection: SessionId,
        token: Token,
        now: Moment,
    ) -> Asked {
        match remembered {
            Remembered::Waiting(id) => {
                self.reply_to(id, connection, token, now);
                Asked::Waiting
            }
            Remembered::Granted(granted) => {
                Asked::Granted(granted.told(self.ttl_left_ms(session, now.monotonic_ms)))
            }
            // What was done under this number was another request.
            Remembered::Done(outcome) => Asked::Refused(outcome.err().unwrap_or(Refusal::StaleRequest)),
        }
    }

    /// Gives a grant back. Only its session can.
    pub(super) fn release(
        &mut self,
        connection: SessionId,
        ids: RequestIds,
        grant: GrantId,
        world: World<'_>,
    ) -> Result<(), Refusal> {
        self.once(connection, ids, |ledger, session| {
            let held = ledger.grants.get(&grant);
            if !held.is_some_and(|held| held.session == session && !held.is_waiting()) {
                return Err(Refusal::NotAcquired);
            }
            ledger.give_back(grant, EventKind::Released, world);
            ledger.serve(world);
            Ok(())
        })
    }

    /// Ends the waiting of a request, which is answered [`Refusal::Canceled`].
    pub(super) fn cancel(
        &mut self,
        connection: SessionId,
        waiting: Waiting,
        world: World<'_>,
    ) -> Result<(), Refusal> {
        let session = self.acting(connection)?;
        let owner = self.owners.get(&session).ok_or(Refusal::NotFound)?;
        let grant = match waiting {
            Waiting::Request(request) => owner.requests.waiting(request),
            Waiting::Token(token) => owner.tokens.get(&token).copied(),
        };
        let grant = grant.filter(|id| self.grants.get(id).is_some_and(|grant| grant.is_waiting()));
        self.fail(grant.ok_or(Refusal::NotFound)?, Refusal::Canceled, world);
        self.serve(world);
        Ok(())
    }

    /// Whose a grant is, and how long its lease lasts; `None`: as long as the connection.
    pub(super) fn verify(&self, grant: GrantId, now: Moment) -> Result<(SessionId, Option<u32>), Refusal> {
        let held = self.grants.get(&grant).map(AsRef::as_ref);
        let is_held = |held: &&Grant| !held.is_waiting() && self.ending(held.session).is_none();
        let held = held.filter(is_held).ok_or(Refusal::NotAcquired)?;
        let lease_left = self.ttl_left_ms(held.session, now.monotonic_ms);
        let revoked_left = match held.phase {
            Phase::Held { revoked_ms: Some(revoked_ms), .. } => Some(left(revoked_ms, now.monotonic_ms)),
            _ => None,
        };
        Ok((held.session, lease_left.into_iter().chain(revoked_left).min()))
    }

    /// Takes a grant away when its grace is over, or ends its waiting at once.
    pub(super) fn revoke_grant(
        &mut self,
        connection: SessionId,
        ids: RequestIds,
        grant: GrantId,
        grace_ms: u32,
        world: World<'_>,
    ) -> Result<(), Refusal> {
        self.once(connection, ids, |ledger, _| ledger.revoke_grant_now(grant, grace_ms, world))
    }

    fn revoke_grant_now(&mut self, id: GrantId, grace_ms: u32, world: World<'_>) -> Result<(), Refusal> {
        let now_ms = world.now.monotonic_ms;
        let grant = self.grants.get_mut(&id).ok_or(Refusal::NotAcquired)?;
        self.stats.revoked += 1;
        match &mut grant.phase {
            Phase::Waiting { .. } => self.fail(id, Refusal::Revoked, world),
            Phase::Held { .. } if grace_ms == 0 => {
                let session = grant.session;
                self.give_back(id, EventKind::Revoked, world);
                self.notify_session(session, Notice::GrantRevoked { grant: id, grace_ms });
            }
            Phase::Held { revoked_ms, .. } => {
                let at_ms = now_ms + u64::from(grace_ms);
                // A second Revoke may hasten the end and never delays it.
                let before_ms = *revoked_ms;
                let at_ms = before_ms.map_or(at_ms, |before_ms| before_ms.min(at_ms));
                *revoked_ms = Some(at_ms);
                let session = grant.session;
                if let Some(before_ms) = before_ms {
                    self.grant_ends.remove(&(before_ms, id));
                }
                self.end_grant_at(at_ms, id);
                let grace_ms = left(at_ms, now_ms);
                self.notify_session(session, Notice::GrantRevoked { grant: id, grace_ms });
            }
        }
        self.serve(world);
        Ok(())
    }

    /// Takes a session away when its grace is over, with all that it holds; a connection's own is closed with it.
    pub(super) fn revoke_session(
        &mut self,
        connection: SessionId,
        ids: RequestIds,
        session: SessionId,
        grace_ms: u32,
        world: World<'_>,
    ) -> Result<(), Refusal> {
        self.once(connection, ids, |ledger, _| {
            let now_ms = world.now.monotonic_ms;
            let at_ms = now_ms + u64::from(grace_ms);
            let owner = ledger.owners.get_mut(&session).filter(|owner| owner.ending.is_none());
            let owner = owner.ok_or(Refusal::NoSuchSession)?;
            let at_ms = owner.revoked_ms.map_or(at_ms, |before_ms| before_ms.min(at_ms));
            owner.revoked_ms = Some(at_ms);
            ledger.stats.revoked += 1;
            ledger.notify_session(session, Notice::SessionRevoked { session, grace_ms: left(at_ms, now_ms) });
            let due_ms = ledger.session_ends_ms(session).unwrap_or(at_ms);
            ledger.end_session_at(due_ms, session);
            if at_ms <= now_ms {
                ledger.expire(world);
            }
            Ok(())
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
        let more = some.len() == STEP_GRANTS;
        if !more {
            // Nobody waits any more.
            self.unserved.clear();
        }
        more
    }

    /// Does a change for the session that a request is for: once, whatever the number of requests with these ids.
    fn once(
        &mut self,
        connection: SessionId,
        ids: RequestIds,
        change: impl FnOnce(&mut Self, SessionId) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let (session, repeated) = self.begin(connection, ids)?;
        match repeated {
            Some(Remembered::Done(outcome)) => outcome,
            Some(_) => Err(Refusal::StaleRequest),
            None => {
                let outcome = change(self, session);
                self.remember(session, ids.own, Remembered::Done(outcome));
                outcome
            }
        }
    }

    /// The session that a request is for, and what came of the request where it was made before.
    fn begin(
        &mut self,
        connection: SessionId,
        ids: RequestIds,
    ) -> Result<(SessionId, Option<Remembered>), Refusal> {
        let session = self.acting(connection)?;
        let owner = self.owners.get_mut(&session).ok_or(Refusal::NoSuchSession)?;
        let found = owner.requests.find(ids);
        if let Err(Refusal::LimitReached) = found {
            self.stats.limited += 1;
        }
        Ok((session, found?.cloned()))
    }

    /// The session that owns what a connection asks for.
    fn acting(&self, connection: SessionId) -> Result<SessionId, Refusal> {
        let session = match self.attachment(connection) {
            Attachment::None => connection,
            Attachment::To(session) => session,
            Attachment::Lost => return Err(Refusal::NoSuchSession),
        };
        let owner = self.owners.get(&session).filter(|owner| owner.ending.is_none());
        owner.map(|_| session).ok_or(Refusal::NoSuchSession)
    }

    fn attachment(&self, connection: SessionId) -> Attachment {
        match self.owners.get(&connection).map(|owner| &owner.kind) {
            Some(OwnerKind::Own { attachment, .. }) => *attachment,
            _ => Attachment::Lost,
        }
    }

    fn set_attachment(&mut self, connection: SessionId, to: Attachment) {
        if let Some(owner) = self.owners.get_mut(&connection)
            && let OwnerKind::Own { attachment, .. } = &mut owner.kind
        {
            *attachment = to;
        }
    }

    /// Lets go of the leased session that a connection is attached to. Its requests that wait are no more answered
    /// here but stay where they stand; where the connection is still there, it is told so for each.
    fn detach(&mut self, connection: SessionId, told: Option<Refusal>) {
        let attachment = self.attachment(connection);
        self.set_attachment(connection, Attachment::None);
        let Attachment::To(session) = attachment else { return };
        let Some(owner) = self.owners.get_mut(&session) else { return };
        if let OwnerKind::Leased { connection, .. } = &mut owner.kind {
            *connection = None;
        }
        let mut waiting: Vec<_> = std::mem::take(&mut owner.tokens).into_values().collect();
        waiting.sort_unstable();
        for id in waiting {
            let Some(grant) = self.grants.get_mut(&id) else { continue };
            if let Phase::Waiting { reply, .. } = &mut grant.phase
                && let Some(Reply { mailbox, token }) = reply.take()
                && let Some(refusal) = told
            {
                mailbox.put(Letter::Answer { token, outcome: Err(refusal) });
            }
        }
    }

    /// Answers a request that waits to this connection from now on. Who waited for the answer before, does so no more.
    fn reply_to(&mut self, id: GrantId, connection: SessionId, token: Token, now: Moment) {
        let Some(mailbox) = self.mailbox_of(connection).cloned() else { return };
        if let Some(grant) = self.grants.get_mut(&id)
            && let Phase::Waiting { reply, received_ms, .. } = &mut grant.phase
            && let Some(owner) = self.owners.get_mut(&grant.session)
        {
            // The client counts the lease from when it sent the request that is answered.
            *received_ms = now.monotonic_ms;
            if let Some(before) = reply.replace(Reply { mailbox, token }) {
                owner.forget_token(before.token, id);
                before.mailbox.put(Letter::Answer { token: before.token, outcome: Err(Refusal::Canceled) });
            }
            owner.tokens.insert(token, id);
        }
    }

    /// What a session that is ending, step by step, answers to who waits.
    fn ending(&self, session: SessionId) -> Option<Refusal> {
        self.owners.get(&session)?.ending.map(|(_, refusal)| refusal)
    }

    fn remember(&mut self, session: SessionId, request: u64, what: Remembered) {
        if let Some(owner) = self.owners.get_mut(&session) {
            owner.requests.remember(request, what);
        }
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

    fn notify(&self, connection: SessionId, notice: Notice) {
        if let Some(mailbox) = self.mailbox_of(connection) {
            mailbox.put(Letter::Notice(notice));
        }
    }

    /// Tells the connection that a session has, where it has one.
    fn notify_session(&self, session: SessionId, notice: Notice) {
        if let Some(connection) = self.connection_of(session) {
            self.notify(connection, notice);
        }
    }

    /// The mailbox of a connection, known by its own session.
    fn mailbox_of(&self, connection: SessionId) -> Option<&Arc<Mailbox>> {
        match &self.owners.get(&connection)?.kind {
            OwnerKind::Own { mailbox, .. } => Some(mailbox),
            OwnerKind::Leased { .. } => None,
        }
    }

    /// The lease of a session, where it has one.
    fn lease_of(&self, session: SessionId) -> Option<&Arc<Lease>> {
        match &self.owners.get(&session)?.kind {
            OwnerKind::Leased { lease, .. } => Some(lease),
            OwnerKind::Own { .. } => None,
        }
    }

    /// The own session of the connection that a session has.
    fn connection_of(&self, session: SessionId) -> Option<SessionId> {
        match &self.owners.get(&session)?.kind {
            OwnerKind::Own { .. } => Some(session),
            OwnerKind::Leased { connection, .. } => *connection,
        }
    }
}

/// Milliseconds from now until then.
fn left(then_ms: u64, now_ms: u64) -> u32 {
    u32::try_from(then_ms.saturating_sub(now_ms)).unwrap_or(u32::MAX - 1).min(u32::MAX - 1)
}
