//! The model of the extended rules, in the terms of `docs/design.md` and `docs/protocol.md`: plain lists that are
//! searched completely, and no derived state. Consumption, waiters and their order are computed from the list of grants
//! each time.
//!
//! Where the documents leave an order open, the model defines one: deadlines that pass together end in order of time,
//! waits and grace periods before sessions; a session releases its newest grant first; names are served in the order in
//! which resources of them became free.

use std::collections::BTreeSet;
use std::net::IpAddr;

use signalbox_core::{
    Answer, Call, ClientKey, ClientShare, Connected, DeclarationRecord, DeclaredSemaphore, GRANT_SLOTS_MAX,
    Granted, LedgerLimits, LedgerStats, Listed, ListedSession, Message, MonotonicMs, NameEntry, Origin,
    Outcome, Permitted, Queueing, REQUESTS_MAX, SLOTS_MAX, Service, SessionClient, Token, Waiting,
};
use signalbox_model::{
    Cancellation, ConnectionId, DeclaredState, Event, EventKind, Generation, GrantId, IfExists, Limit,
    Namespace, Notice, Refusal, Removal, RequestIds, Resizing, Scope, ServiceChange, SessionId, SessionKey,
};
use signalbox_model::{
    Declaration, GraceLeft, GrantState, Idle, Milliseconds, ReachedLimit, Revocation, SessionKind, TtlLeft,
    UnixSeconds, VerifiedGrant,
};

fn limit_reached(limit: Limit, max: usize) -> Refusal {
    Refusal::LimitReached(ReachedLimit { limit, max: max as u64, is_share: false })
}

/// A name and its kind.
pub type Key = (Namespace, &'static [u8]);

pub const INTERVAL_S: u64 = 10;
/// A pause of the ticks of this length or longer is added to every lease.
pub const GAP_MS: u64 = 3000;
/// The Unix time at the monotonic time 0.
const EPOCH_S: u64 = 1_000_000;

pub struct Model {
    pub now_ms: u64,
    /// By how much the clock was set forward or back, in seconds.
    pub clock_s: i64,
    pub limits: LedgerLimits,
    pub names_max: Option<u64>,
    pub names: Vec<Name>,
    pub sessions: Vec<Session>,
    /// Grants and waiters, by id.
    pub grants: Vec<Grant>,
    pub watches: Vec<Watch>,
    /// Requests that wait until less is in use.
    pub idle_waiters: Vec<IdleWaiter>,
    /// Semaphores that are being revoked from their holders.
    evictions: Vec<Eviction>,
    pub stats: LedgerStats,
    pub is_closing: bool,
    /// The messages to each connection, in order.
    pub messages: Vec<(ConnectionId, Message)>,
    last_id: u64,
    /// Names of which resources became free or whose queue became shorter.
    freed: Vec<Key>,
    /// Requests that were granted. Each may be granted once.
    granted: Vec<(SessionId, u64)>,
}

pub struct Name {
    pub key: Key,
    /// The capacity of a semaphore that an Acquire created; a counter has none.
    capacity: Option<u32>,
    pub declared: Option<Declared>,
    /// The holdings of connections by plain Acquires.
    pub holdings: Vec<(ConnectionId, u32)>,
    /// Every change: its interval, and the consumption before and after it.
    changes: Vec<(u64, u64, u64)>,
}

/// The declaration of a semaphore.
#[derive(Clone)]
pub struct Declared {
    label: Vec<u8>,
    pub generation: u64,
    created: u64,
    capacity: u32,
    numbered: bool,
    origin: Origin,
    removing: bool,
    evicted_grace_ms: Option<u32>,
    service: Service,
}

/// A removal at once revokes the holders of that moment, even if the name was declared again.
pub struct Eviction {
    key: Key,
    at_ms: u64,
    /// Grants with lower ids belong to the removed semaphore.
    removed: u64,
    /// The connections that held it by plain Acquires.
    plain: Vec<ConnectionId>,
    /// The holders were notified.
    is_notified: bool,
}

/// A request that waits until less of a name is in use.
pub struct IdleWaiter {
    pub connection: ConnectionId,
    pub token: Token,
    key: Key,
    until: Idle,
    until_ms: u64,
}

pub struct Session {
    pub id: SessionId,
    label: Vec<u8>,
    /// The client of the connection, or of the one that attached last.
    client: Client,
    opened_ms: u64,
    pub kind: Kind,
    /// The highest "Lowest unanswered" that was received.
    pub floor: u64,
    answers: Vec<(u64, CachedReply)>,
    revoked_ms: Option<u64>,
}

/// The client of a connection.
#[derive(Clone)]
pub struct Client {
    /// The client that its shares are counted for.
    pub share: ClientKey,
    pub shown: SessionClient,
}

pub enum Kind {
    /// The session of a connection.
    Connection(Attachment),
    Leased {
        key: SessionKey,
        ttl_ms: u32,
        ends_ms: u64,
        connection: Option<ConnectionId>,
    },
}

#[derive(Clone, Copy, PartialEq)]
pub enum Attachment {
    None,
    To(SessionId),
    /// The connection lost the session that it was attached to. Its requests are refused, not executed for another session.
    Lost,
}

/// The result of a request.
#[derive(Clone)]
enum CachedReply {
    Waits(u64),
    Granted(Granted),
    Done(Result<Answer, Refusal>),
}

pub struct Grant {
    pub id: u64,
    pub session: SessionId,
    pub request: u64,
    /// The parts, in the order of their names.
    parts: Vec<Part>,
    taken: usize,
    pub wait: Option<Wait>,
    since: UnixSeconds,
    revoked_ms: Option<u64>,
}

struct Part {
    key: Key,
    resources: u32,
    maximum: u32,
    /// It is resolved when its turn comes; until then, the kind in the key means nothing.
    resolves: Option<Permitted>,
    /// The only slot that the request accepts.
    wanted_slot: Option<u16>,
    is_shared: bool,
    /// Its position in the request.
    place: usize,
    /// The slots that were granted, if the semaphore is numbered.
    slots: Vec<u16>,
}

pub struct Wait {
    until_ms: u64,
    received_ms: u64,
    pub reply: Option<(ConnectionId, Token)>,
    /// It is in the queue of the name that it needs next.
    is_queued: bool,
}

pub struct Watch {
    pub connection: ConnectionId,
    pub token: Token,
    namespace: Namespace,
    scope: Scope<&'static [u8]>,
}

/// The claim of a request on one name.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    pub key: Key,
    pub resources: u32,
    pub maximum: u32,
    pub slot: Option<u16>,
    /// The kinds that the client may acquire if the name is resolved; `None`: it is the key.
    pub resolves: Option<Permitted>,
    /// It is one of a single flight.
    pub is_shared: bool,
}

/// The semaphore of this name.
pub fn semaphore(name: &'static [u8]) -> Key {
    (Namespace::Semaphores, name)
}

impl Model {
    pub fn new(limits: LedgerLimits, names_max: Option<u64>) -> Self {
        Self {
            now_ms: 0,
            clock_s: 0,
            limits,
            names_max,
            names: Vec::new(),
            sessions: Vec::new(),
            grants: Vec::new(),
            watches: Vec::new(),
            idle_waiters: Vec::new(),
            evictions: Vec::new(),
            stats: LedgerStats::default(),
            is_closing: false,
            messages: Vec::new(),
            last_id: 0,
            freed: Vec::new(),
            granted: Vec::new(),
        }
    }

    pub fn unix(&self) -> UnixSeconds {
        UnixSeconds((EPOCH_S + self.now_ms / 1000).saturating_add_signed(self.clock_s))
    }

    fn interval(&self) -> u64 {
        self.unix().0 / INTERVAL_S
    }

    pub fn name(&self, key: Key) -> Option<&Name> {
        self.names.iter().find(|name| name.key == key)
    }

    /// Invariant 1: holdings, grants, and what waiters have reserved.
    pub fn consumption(&self, key: Key) -> u64 {
        let plain = self.name(key).into_iter().flat_map(|name| &name.holdings).map(|(_, held)| *held);
        let taken = self.grants.iter().flat_map(|grant| &grant.parts[..grant.taken]);
        let granted = taken.filter(|part| part.key == key).map(|part| part.resources);
        plain.chain(granted).map(u64::from).sum()
    }

    /// "The maximum consumption of resources in the interval": the consumption at the beginning of the interval and after
    /// every change since. A semaphore has one interval, its lifetime.
    pub fn peak(&self, name: &Name) -> u64 {
        let (consumption, is_semaphore) = (self.consumption(name.key), name.capacity.is_some());
        let mut changes = name.changes.iter().rev().peekable();
        if !is_semaphore && changes.peek().is_none_or(|(last, ..)| *last < self.interval()) {
            return consumption;
        }
        let mut peak = 0;
        while let Some((interval, before, after)) = changes.next() {
            peak = peak.max(*before).max(*after);
            if !is_semaphore && changes.peek().is_some_and(|(earlier, ..)| earlier < interval) {
                break;
            }
        }
        peak
    }

    /// The waiters for a name, in order.
    fn queue(&self, key: Key) -> Vec<&Grant> {
        let waits = |grant: &&Grant| grant.is_queued() && grant.parts[grant.taken].key == key;
        let mut queue: Vec<_> = self.grants.iter().filter(waits).collect();
        queue.sort_by_key(|grant| grant.id);
        queue
    }

    pub fn value(&self, key: Key) -> Result<u64, Refusal> {
        let name = self.name(key).ok_or(Refusal::NotFound)?;
        let consumption = self.consumption(key);
        let usable = |_| self.usable_now(key, 0).saturating_sub(consumption);
        Ok(name.usable().map_or(consumption, usable))
    }

    /// The limit of a name for a request with this maximum.
    fn limit(&self, key: Key, maximum: u32) -> u32 {
        self.name(key).and_then(Name::usable).unwrap_or(maximum)
    }

    /// The limit without what is out of service: nothing of a paused semaphore, and no slot that is out of service, except
    /// for those that are held and count as in use.
    fn usable_now(&self, key: Key, maximum: u32) -> u64 {
        let limit = self.limit(key, maximum);
        let Some(Declared { service, .. }) = self.declaration(key) else { return limit.into() };
        if service.paused {
            return 0;
        }
        let held = self.held_slots(key);
        let is_withheld = |slot: &&u16| u32::from(**slot) < limit && !held.contains(slot);
        u64::from(limit) - service.slots_out.iter().filter(is_withheld).count() as u64
    }

    /// Whether a request can be granted now, if it is its turn.
    fn fits(&self, key: Key, resources: u32, maximum: u32, slot: Option<u16>) -> bool {
        let is_free = |slot| !self.held_slots(key).contains(&slot) && !self.is_out(key, slot);
        slot.is_none_or(is_free)
            && self.consumption(key) + u64::from(resources) <= self.usable_now(key, maximum)
    }

    fn is_out(&self, key: Key, slot: u16) -> bool {
        self.declaration(key).is_some_and(|declaration| declaration.service.slots_out.contains(&slot))
    }

    /// Why a request for a name can never be granted.
    fn refusal(&self, key: Key, resources: u32, maximum: u32, slot: Option<u16>) -> Option<Refusal> {
        if self.declaration(key).is_some_and(|declaration| declaration.removing) {
            return Some(Refusal::Removed);
        }
        if self.limit(key, maximum) < resources {
            return Some(Refusal::NotAvailable);
        }
        let is_numbered = self.declaration(key).is_some_and(|declaration| declaration.numbered);
        let is_there = |slot: u16| is_numbered && u32::from(slot) < self.limit(key, maximum);
        slot.filter(|slot| !is_there(*slot)).map(|_| Refusal::NoSuchSlot)
    }

    /// The slots of a semaphore that are held.
    fn held_slots(&self, key: Key) -> Vec<u16> {
        let taken = self.grants.iter().flat_map(|grant| &grant.parts[..grant.taken]);
        taken.filter(|part| part.key == key).flat_map(|part| part.slots.iter().copied()).collect()
    }

    fn change(&mut self, key: Key) {
        let (interval, after) = (self.interval(), self.consumption(key));
        for name in self.names.iter_mut().filter(|name| name.key == key) {
            let before = name.changes.last().map_or(0, |(.., before)| *before);
            name.changes.push((interval, before, after));
        }
    }

    /// Creates a name unless it exists.
    fn make(&mut self, key: Key, initial: u32) -> Result<(), Refusal> {
        if self.name(key).is_some() {
            return Ok(());
        }
        if initial == 0 {
            return Err(Refusal::NotFound);
        }
        let of_kind = self.names.iter().filter(|name| name.key.0 == key.0).count() as u64;
        if self.names_max.is_some_and(|names_max| of_kind >= names_max) {
            return Err(Refusal::TooManyNames);
        }
        let capacity = (key.0 == Namespace::Semaphores).then_some(initial);
        let changes = vec![(self.interval(), 0, 0)];
        self.names.push(Name { key, capacity, declared: None, holdings: Vec::new(), changes });
        Ok(())
    }

    /// Resources in use, requests that wait, and the capacity of a semaphore with what is available of it.
    pub fn inspect(&self, key: Key) -> Result<(u32, usize, u32, u32), Refusal> {
        let name = self.name(key).ok_or(Refusal::NotFound)?;
        let available = self.usable_now(key, 0).saturating_sub(self.consumption(key));
        let available = u32::try_from(available).expect("a part of the capacity");
        let (capacity, available) = name.usable().map_or((0, 0), |capacity| (capacity, available));
        Ok((self.in_use(key), self.queue(key).len(), capacity, available))
    }

    pub fn delete_counter(&mut self, name: &'static [u8]) -> Result<(), Refusal> {
        let key = (Namespace::Counters, name);
        if !self.names.iter().any(|name| name.key == key) {
            return Err(Refusal::NotFound);
        }
        if self.consumption(key) > 0 || !self.queue(key).is_empty() {
            return Err(Refusal::InUse);
        }
        self.names.retain(|name| name.key != key);
        self.publish_event(key, EventKind::Removed, None, None, 0);
        Ok(())
    }

    /// Removes the names that nothing refers to (invariant 6).
    pub fn sweep(&mut self, namespace: Namespace) {
        let interval = self.interval();
        let is_collected = |name: &&Name| {
            let is_unused = self.consumption(name.key) == 0 && self.queue(name.key).is_empty();
            let is_over =
                name.capacity.is_some() || name.changes.last().is_some_and(|(last, ..)| *last < interval);
            name.key.0 == namespace && is_unused && is_over && name.declared.is_none()
        };
        let collected: Vec<_> = self.names.iter().filter(is_collected).map(|name| name.key).collect();
        self.names.retain(|name| !collected.contains(&name.key));
    }

    pub fn plain_acquire(
        &mut self,
        connection: ConnectionId,
        key: Key,
        resources: u32,
        maximum: u32,
    ) -> Result<(), Refusal> {
        self.make(key, maximum)?;
        // Invariant 3: nothing overtakes.
        if !self.queue(key).is_empty() || !self.fits(key, resources, maximum, None) {
            return Err(Refusal::NotAvailable);
        }
        let name = self.names.iter_mut().find(|name| name.key == key).unwrap();
        match name.holdings.iter_mut().find(|(session, _)| *session == connection) {
            Some((_, held)) => *held += resources,
            None => name.holdings.push((connection, resources)),
        }
        self.change(key);
        self.publish(key, EventKind::Granted, None, connection.session(), resources);
        Ok(())
    }

    pub fn plain_release(
        &mut self,
        connection: ConnectionId,
        key: Key,
        resources: u32,
    ) -> Result<(), Refusal> {
        let name = self.names.iter_mut().find(|name| name.key == key).ok_or(Refusal::NotFound)?;
        if resources == 0 {
            return Ok(());
        }
        let mut holdings = name.holdings.iter_mut();
        let held = holdings.find(|(session, held)| *session == connection && *held >= resources);
        held.ok_or(Refusal::NotAcquired)?.1 -= resources;
        name.holdings.retain(|(_, held)| *held > 0);
        self.change(key);
        self.freed.push(key);
        self.publish(key, EventKind::Released, None, connection.session(), resources);
        self.serve();
        Ok(())
    }

    /// The holdings of a connection by plain Acquires.
    pub fn plain_holdings(&self, connection: ConnectionId) -> Vec<(Key, u32)> {
        let holdings = self.names.iter().flat_map(|name| name.holdings.iter().map(|held| (name.key, *held)));
        let own = holdings.filter(|(_, (session, _))| *session == connection);
        own.map(|(key, (_, resources))| (key, resources)).collect()
    }

    pub fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.iter().find(|session| session.id == id)
    }

    fn session_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.sessions.iter_mut().find(|session| session.id == id)
    }

    fn add_session(&mut self, id: SessionId, label: &[u8], client: Client, kind: Kind) {
        let (label, opened_ms) = (label.to_vec(), self.now_ms);
        let session =
            Session { id, label, client, opened_ms, kind, floor: 1, answers: Vec::new(), revoked_ms: None };
        self.sessions.push(session);
    }

    pub fn join(&mut self, connection: ConnectionId, label: &[u8], client: Client) {
        let kind = Kind::Connection(Attachment::None);
        self.add_session(connection.session(), label, client, kind);
    }

    fn client(&self, id: SessionId) -> ClientKey {
        self.session(id).unwrap().client.share
    }

    /// Checks that there may be one more, for all clients and for one that has `own`.
    fn check_limit(&self, limit: Limit, max: usize, in_use: usize, own: usize) -> Result<(), Refusal> {
        let ClientShare { percent, least } = self.limits.client_share;
        let share = (max as u128 * u128::from(percent) / 100) as usize;
        let share = share.max(least).min(max);
        if in_use >= max {
            return Err(limit_reached(limit, max));
        }
        if percent < 100 && own >= share && in_use as u128 * 2 >= max as u128 {
            return Err(Refusal::LimitReached(ReachedLimit { limit, max: share as u64, is_share: true }));
        }
        Ok(())
    }

    fn leased_of(&self, client: ClientKey) -> impl Iterator<Item = &Session> {
        let is_its = move |session: &&Session| {
            session.client.share == client && matches!(session.kind, Kind::Leased { .. })
        };
        self.sessions.iter().filter(is_its)
    }

    fn waiters_of(&self, client: ClientKey) -> usize {
        let waiting = self.grants.iter().filter(|grant| grant.wait.is_some()).map(|grant| grant.session);
        let idle = self.idle_waiters.iter().map(|idle| idle.connection.session());
        waiting.chain(idle).filter(|session| self.client(*session) == client).count()
    }

    /// The oldest session of a client that has no connection, no grants, no waiters and no answers to repeat.
    fn unused_of(&self, client: ClientKey) -> Option<SessionId> {
        let has_grants = |id| self.grants.iter().any(|grant| grant.session == id);
        let is_unused = |session: &&Session| {
            matches!(session.kind, Kind::Leased { connection: None, .. })
                && session.answers.is_empty()
                && !has_grants(session.id)
        };
        self.leased_of(client).filter(is_unused).map(|session| session.id).min()
    }

    pub fn leave(&mut self, connection: ConnectionId) {
        if self.session(connection.session()).is_none() {
            return;
        }
        self.detach(connection, None);
        self.forget_reader(connection);
        self.end(connection.session(), EventKind::Released, Refusal::Canceled);
        self.serve();
        self.messages.retain(|(to, _)| *to != connection);
    }

    fn forget_reader(&mut self, connection: ConnectionId) {
        self.watches.retain(|watch| watch.connection != connection);
        self.idle_waiters.retain(|idle| idle.connection != connection);
    }

    /// Checks that a connection may open a session. Its client's oldest unused ones end if they are in the way.
    pub fn check_open(&mut self, connection: ConnectionId) -> Result<(), Refusal> {
        if self.is_closing {
            return Err(Refusal::ShuttingDown);
        }
        let client = self.client(connection.session());
        loop {
            let (all, own) = (self.stats.sessions as usize, self.leased_of(client).count());
            let Err(refusal) = self.check_limit(Limit::Sessions, self.limits.sessions_max, all, own) else {
                return Ok(());
            };
            let Some(unused) = self.unused_of(client) else {
                self.stats.limited += 1;
                return Err(refusal);
            };
            self.stats.expired_sessions += 1;
            self.end(unused, EventKind::Expired, Refusal::NoSuchSession);
        }
    }

    /// Opens a session with the id that the core chose.
    pub fn open(
        &mut self,
        id: SessionId,
        connection: ConnectionId,
        key: SessionKey,
        ttl_ms: u32,
        label: &[u8],
    ) {
        assert!(self.sessions.iter().all(|session| session.id < id), "session ids grow");
        self.detach(connection, Some(Refusal::NoSuchSession));
        let ends_ms = self.now_ms + u64::from(ttl_ms);
        let kind = Kind::Leased { key, ttl_ms, ends_ms, connection: Some(connection) };
        let client = self.session(connection.session()).unwrap().client.clone();
        self.add_session(id, label, client, kind);
        self.set_attachment(connection, Attachment::To(id));
        self.stats.sessions += 1;
    }

    /// Opens the session again that has this key: the connection is attached to it. `None`: no session has it.
    pub fn open_again(
        &mut self,
        connection: ConnectionId,
        given: SessionKey,
    ) -> Option<Result<(SessionId, u32), Refusal>> {
        let has_key =
            |session: &&Session| matches!(session.kind, Kind::Leased { key, .. } if key.0 == given.0);
        let id = self.sessions.iter().find(has_key)?.id;
        Some(self.attach(id, connection, given).map(|ttl_ms| (id, ttl_ms)))
    }

    pub fn attach(
        &mut self,
        id: SessionId,
        connection: ConnectionId,
        given: SessionKey,
    ) -> Result<u32, Refusal> {
        let Some(Session { kind: Kind::Leased { key, ttl_ms, connection: before, .. }, .. }) =
            self.session(id)
        else {
            return Err(Refusal::NoSuchSession);
        };
        let (ttl_ms, before) = (*ttl_ms, *before);
        if key.0 != given.0 {
            return Err(Refusal::NoSuchSession);
        }
        if before == Some(connection) {
            return Ok(ttl_ms);
        }
        if let Some(before) = before {
            self.detach(before, Some(Refusal::NoSuchSession));
            self.set_attachment(before, Attachment::Lost);
            self.messages.push((before, Message::Notice(Notice::AttachedElsewhere { session: id.number() })));
        }
        self.detach(connection, Some(Refusal::NoSuchSession));
        self.set_attachment(connection, Attachment::To(id));
        let by = self.session(connection.session()).unwrap().client.clone();
        if let Some(Session { client, kind: Kind::Leased { connection: attached, .. }, .. }) =
            self.session_mut(id)
        {
            *attached = Some(connection);
            *client = by;
        }
        if let Some(at_ms) = self.session(id).and_then(|session| session.revoked_ms) {
            let notice = Notice::SessionRevoked { session: id.number(), end: MonotonicMs(at_ms) };
            self.messages.push((connection, Message::Notice(notice)));
        }
        Ok(ttl_ms)
    }

    pub fn attachment(&self, connection: ConnectionId) -> Attachment {
        match self.session(connection.session()).map(|session| &session.kind) {
            Some(Kind::Connection(attachment)) => *attachment,
            _ => Attachment::Lost,
        }
    }

    fn set_attachment(&mut self, connection: ConnectionId, to: Attachment) {
        if let Some(Session { kind: Kind::Connection(attachment), .. }) =
            self.session_mut(connection.session())
        {
            *attachment = to;
        }
    }

    /// Detaches a connection from its leased session. The waiters remain; with a `refusal` the connection is informed that
    /// their answers do not go to it.
    fn detach(&mut self, connection: ConnectionId, refusal: Option<Refusal>) {
        let attachment = self.attachment(connection);
        self.set_attachment(connection, Attachment::None);
        let Attachment::To(id) = attachment else { return };
        if let Some(Session { kind: Kind::Leased { connection, .. }, .. }) = self.session_mut(id) {
            *connection = None;
        }
        for grant in self.grants.iter_mut().filter(|grant| grant.session == id) {
            let reply = grant.wait.as_mut().and_then(|wait| wait.reply.take());
            if let (Some((to, token)), Some(refusal)) = (reply, refusal) {
                self.messages.push((to, Message::Answer { token, outcome: Err(refusal) }));
            }
        }
    }

    /// Something was received for a session, which renews its lease.
    pub fn renew(&mut self, id: SessionId) {
        let now_ms = self.now_ms;
        if let Some(Session { kind: Kind::Leased { ttl_ms, ends_ms, .. }, .. }) = self.session_mut(id) {
            *ends_ms = now_ms + u64::from(*ttl_ms);
        }
    }

    /// Whether a connection may acquire all that its leased session holds or waits for, if it may not acquire these names.
    pub fn may_have_all(&self, connection: ConnectionId, denied: &[Key]) -> bool {
        let Attachment::To(id) = self.attachment(connection) else { return true };
        let mut grants = self.grants.iter().filter(|grant| grant.session == id);
        grants.all(|grant| grant.parts.iter().all(|part| !denied.contains(&self.key_of(part))))
    }

    pub fn keep_alive(&mut self, connection: ConnectionId) -> Result<u32, Refusal> {
        let Attachment::To(id) = self.attachment(connection) else { return Err(Refusal::NoSuchSession) };
        self.renew(id);
        Ok(self.ttl_left_ms(id, self.now_ms).unwrap())
    }

    pub fn close(&mut self, connection: ConnectionId) -> Outcome {
        let attachment = self.attachment(connection);
        self.detach(connection, Some(Refusal::Canceled));
        let Attachment::To(id) = attachment else { return Outcome::Refused(Refusal::NoSuchSession) };
        self.end(id, EventKind::Released, Refusal::Canceled);
        self.serve();
        Outcome::Answered(Answer::Done)
    }

    /// The time at which a session expires or its grace period ends.
    fn session_ends_ms(&self, id: SessionId) -> Option<u64> {
        let session = self.session(id)?;
        let lease = match session.kind {
            Kind::Leased { ends_ms, .. } => Some(ends_ms),
            Kind::Connection(_) => None,
        };
        lease.into_iter().chain(session.revoked_ms).min()
    }

    /// The remaining time of a lease; `None` means as long as the connection.
    fn ttl_left_ms(&self, id: SessionId, from_ms: u64) -> Option<u32> {
        let Kind::Leased { .. } = self.session(id)?.kind else { return None };
        self.session_ends_ms(id).map(|ends_ms| u32::try_from(ends_ms - from_ms).unwrap())
    }

    fn newest_of(&self, id: SessionId) -> Option<u64> {
        self.grants.iter().filter(|grant| grant.session == id).map(|grant| grant.id).max()
    }

    /// Ends a session and its grants, the newest first. The caller serves the queues afterwards.
    fn end(&mut self, id: SessionId, why: EventKind, refusal: Refusal) {
        while let Some(grant) = self.newest_of(id) {
            match self.grant(grant).wait {
                Some(_) => self.fail(grant, refusal),
                None => self.end_grant(grant, why),
            }
        }
        let place = self.sessions.iter().position(|session| session.id == id).unwrap();
        match self.sessions[place].kind {
            Kind::Connection(_) => {
                self.detach(id.connection(), None);
                self.forget_reader(id.connection());
                if refusal == Refusal::Revoked {
                    self.messages.push((id.connection(), Message::Close));
                }
            }
            Kind::Leased { connection, .. } => {
                self.stats.sessions -= 1;
                if let Some(connection) = connection {
                    self.set_attachment(connection, Attachment::Lost);
                }
            }
        }
        self.sessions.remove(place);
    }

    /// The session that the requests of a connection belong to.
    pub fn acting(&self, connection: ConnectionId) -> Result<SessionId, Refusal> {
        let id = match self.attachment(connection) {
            Attachment::None => connection.session(),
            Attachment::To(id) => id,
            Attachment::Lost => return Err(Refusal::NoSuchSession),
        };
        self.session(id).map(|session| session.id).ok_or(Refusal::NoSuchSession)
    }

    /// The session of a request, and its cached reply.
    fn begin(
        &mut self,
        connection: ConnectionId,
        ids: RequestIds,
    ) -> Result<(SessionId, Option<CachedReply>), Refusal> {
        let id = self.acting(connection)?;
        let session = self.session_mut(id).unwrap();
        let (own, lowest_unanswered) = (ids.own.0, ids.lowest_unanswered.0);
        if lowest_unanswered == 0 || own < lowest_unanswered || own < session.floor {
            return Err(Refusal::StaleRequest);
        }
        session.floor = session.floor.max(lowest_unanswered);
        let floor = session.floor;
        session.answers.retain(|(request, _)| *request >= floor);
        if own > floor + REQUESTS_MAX {
            self.stats.limited += 1;
            return Err(limit_reached(Limit::Requests, REQUESTS_MAX as usize));
        }
        let found = session.answers.iter().find(|(request, _)| *request == own);
        Ok((id, found.map(|(_, reply)| reply.clone())))
    }

    fn cache_reply(&mut self, id: SessionId, request: u64, what: CachedReply) {
        let Some(session) = self.session_mut(id).filter(|session| request >= session.floor) else { return };
        session.answers.retain(|(other, _)| *other != request);
        session.answers.push((request, what));
    }

    /// Makes a change once (invariant 7).
    fn once(
        &mut self,
        call: Call,
        change: impl FnOnce(&mut Self, SessionId) -> Result<Answer, Refusal>,
    ) -> Outcome {
        let outcome = match self.begin(call.connection, call.ids) {
            Err(refusal) => Err(refusal),
            Ok((_, Some(CachedReply::Done(outcome)))) => outcome,
            Ok((_, Some(_))) => Err(Refusal::StaleRequest),
            Ok((session, None)) => {
                let outcome = change(self, session);
                self.cache_reply(session, call.ids.own.0, CachedReply::Done(outcome.clone()));
                outcome
            }
        };
        outcome.map_or_else(Outcome::Refused, Outcome::Answered)
    }

    pub fn acquire(&mut self, call: Call, wants: &[Want], queueing: Queueing) -> Outcome {
        let Call { connection, ids, token } = call;
        let (session, before) = match self.begin(connection, ids) {
            Ok(begun) => begun,
            Err(refusal) => return Outcome::Refused(refusal),
        };
        if before.is_some() {
            return self.answer(session, ids.own.0, connection, token);
        }
        let grants = self.grants.iter().filter(|grant| grant.session == session).count();
        let refusal = if self.is_closing {
            Some(Refusal::ShuttingDown)
        } else if grants >= self.limits.grants_max {
            self.stats.limited += 1;
            Some(limit_reached(Limit::Grants, self.limits.grants_max))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.cache_reply(session, ids.own.0, CachedReply::Done(Err(refusal)));
            return Outcome::Refused(refusal);
        }
        let mut parts: Vec<_> =
            wants.iter().enumerate().map(|(place, want)| Part::new(place, want)).collect();
        parts.sort_by_key(|part| (part.key.1, part.key.0));
        self.last_id += 1;
        let until_ms = self.now_ms + u64::from(queueing.wait_ms);
        self.grants.push(Grant {
            id: self.last_id,
            session,
            request: ids.own.0,
            parts,
            taken: 0,
            wait: Some(Wait { until_ms, received_ms: self.now_ms, reply: None, is_queued: false }),
            since: self.unix(),
            revoked_ms: None,
        });
        self.stats.waiters += 1;
        self.cache_reply(session, ids.own.0, CachedReply::Waits(self.last_id));
        self.advance(self.last_id, Some(queueing));
        self.serve();
        self.answer(session, ids.own.0, connection, token)
    }

    /// The result of a request; a pending answer goes to this connection with this token, and to no other.
    fn answer(
        &mut self,
        session: SessionId,
        request: u64,
        connection: ConnectionId,
        token: Token,
    ) -> Outcome {
        let answers = &self.session(session).unwrap().answers;
        match answers.iter().find(|(other, _)| *other == request).unwrap().1.clone() {
            CachedReply::Done(Ok(_)) => Outcome::Refused(Refusal::StaleRequest),
            CachedReply::Done(Err(refusal)) => Outcome::Refused(refusal),
            CachedReply::Granted(granted) => {
                let ttl_left_ms = self.ttl_left_ms(session, self.now_ms);
                Outcome::Answered(Answer::Granted(Granted { ttl_left_ms, ..granted }))
            }
            CachedReply::Waits(id) => {
                let now_ms = self.now_ms;
                let wait = self.grant_mut(id).wait.as_mut().unwrap();
                // The time to live starts at the repetition.
                wait.received_ms = now_ms;
                if let Some((to, token)) = wait.reply.replace((connection, token)) {
                    self.messages.push((to, Message::Answer { token, outcome: Err(Refusal::Canceled) }));
                }
                Outcome::Waiting
            }
        }
    }

    pub fn release(&mut self, call: Call, grant: GrantId, is_done: bool) -> Outcome {
        self.once(call, |model, session| {
            let held = |found: &&Grant| found.session == session && found.wait.is_none();
            let found = model.find(grant).filter(held).ok_or(Refusal::NotAcquired)?;
            if is_done && found.parts.iter().any(|part| !part.is_shared) {
                return Err(Refusal::NotShared);
            }
            let queues = found.parts.iter().filter(|_| is_done).flat_map(|part| model.queue(part.key));
            let done = queues.filter(|waiter| waiter.awaited().is_shared).map(|waiter| waiter.id);
            let done: Vec<_> = done.collect();
            model.stats.flights += u64::from(is_done);
            model.end_grant(grant.0, EventKind::Released);
            for waiter in done {
                model.fail(waiter, Refusal::Done);
                model.stats.told_done += 1;
            }
            model.serve();
            Ok(Answer::Done)
        })
    }

    /// The waiters of a session are canceled newest first, so that none is granted in between.
    pub fn cancel_waiting(&mut self, what: Cancellation) -> Result<u64, Refusal> {
        let is_meant = |grant: &&Grant| match what {
            _ if grant.wait.is_none() => false,
            Cancellation::Request(id) => grant.id == id.0,
            Cancellation::Session(session) => grant.session == session,
        };
        let mut waiting: Vec<_> = self.grants.iter().filter(is_meant).map(|grant| grant.id).collect();
        match what {
            Cancellation::Request(_) if waiting.is_empty() => return Err(Refusal::NotFound),
            Cancellation::Session(session) if self.session(session).is_none() => {
                return Err(Refusal::NoSuchSession);
            }
            _ => {}
        }
        waiting.sort_unstable();
        for id in waiting.iter().rev() {
            self.fail(*id, Refusal::Canceled);
        }
        self.serve();
        Ok(waiting.len() as u64)
    }

    pub fn cancel(&mut self, connection: ConnectionId, waiting: Waiting) -> Result<(), Refusal> {
        let is_idle =
            |idle: &IdleWaiter| idle.connection == connection && waiting == Waiting::Token(idle.token);
        if let Some(place) = self.idle_waiters.iter().position(is_idle) {
            self.end_idle_wait(place, Err(Refusal::Canceled));
            return Ok(());
        }
        let session = self.acting(connection)?;
        let floor = self.session(session).unwrap().floor;
        let is_meant = |grant: &&Grant| match (&grant.wait, waiting) {
            (None, _) => false,
            _ if grant.session != session => false,
            (Some(_), Waiting::Request(request)) => grant.request == request.0 && request.0 >= floor,
            (Some(wait), Waiting::Token(token)) => wait.reply.is_some_and(|(_, own)| own == token),
        };
        let found = self.grants.iter().find(is_meant).map(|grant| grant.id);
        self.fail(found.ok_or(Refusal::NotFound)?, Refusal::Canceled);
        self.serve();
        Ok(())
    }

    pub fn verify(&self, grant: GrantId) -> Result<VerifiedGrant, Refusal> {
        let found = self.find(grant).filter(|grant| grant.wait.is_none()).ok_or(Refusal::NotAcquired)?;
        let lease = self.ttl_left_ms(found.session, self.now_ms);
        let of_session = self.session(found.session).unwrap().revoked_ms;
        let revoked_ms = found.revoked_ms.into_iter().chain(of_session).min();
        let grace = revoked_ms.map(|at_ms| u32::try_from(at_ms - self.now_ms).unwrap());
        let is_retiring = grace.is_some() || self.is_retiring(found);
        let ttl_left_ms = lease.into_iter().chain(grace).min();
        Ok(VerifiedGrant {
            session: found.session.number(),
            ttl_left: ttl_left_ms.map_or(TtlLeft::Connection, |left| TtlLeft::For(Milliseconds(left))),
            state: if is_retiring { GrantState::Retiring } else { GrantState::Held },
            grace_left: grace.map_or(GraceLeft::NotRevoked, |left| GraceLeft::For(Milliseconds(left))),
        })
    }

    pub fn revoke_grant(&mut self, call: Call, grant: GrantId, grace_ms: u32) -> Outcome {
        self.once(call, |model, _| {
            model.revoke_grant_now(grant, grace_ms)?;
            model.serve();
            Ok(Answer::Done)
        })
    }

    /// The caller serves the queues afterwards.
    fn revoke_grant_now(&mut self, grant: GrantId, grace_ms: u32) -> Result<(), Refusal> {
        let now_ms = self.now_ms;
        let found = self.grants.iter_mut().find(|found| found.id == grant.0).ok_or(Refusal::NotAcquired)?;
        let session = found.session;
        self.stats.revoked += 1;
        if found.wait.is_some() {
            self.fail(grant.0, Refusal::Revoked);
        } else {
            // A second Revoke never delays the first.
            let at_ms = found.revoked_ms.unwrap_or(u64::MAX).min(now_ms + u64::from(grace_ms));
            found.revoked_ms = Some(at_ms);
            self.notify(session, Notice::GrantRevoked { grant, end: MonotonicMs(at_ms) });
            if at_ms <= now_ms {
                self.end_grant(grant.0, EventKind::Revoked);
            }
        }
        Ok(())
    }

    pub fn revoke_session(&mut self, call: Call, id: SessionId, grace_ms: u32) -> Outcome {
        self.once(call, |model, _| {
            model.revoke_session_now(id, grace_ms)?;
            model.serve();
            Ok(Answer::Done)
        })
    }

    /// Without a grace period the session ends, but no queue is served yet: several sessions may end in one step.
    fn revoke_session_now(&mut self, id: SessionId, grace_ms: u32) -> Result<(), Refusal> {
        if self.begin_revocation(id, grace_ms)? <= self.now_ms {
            self.end(id, EventKind::Revoked, Refusal::Revoked);
        }
        Ok(())
    }

    /// Begins the grace period of a session. Returns when it ends, and the session with it.
    fn begin_revocation(&mut self, id: SessionId, grace_ms: u32) -> Result<u64, Refusal> {
        let now_ms = self.now_ms;
        let session = self.session_mut(id).ok_or(Refusal::NoSuchSession)?;
        let at_ms = session.revoked_ms.unwrap_or(u64::MAX).min(now_ms + u64::from(grace_ms));
        session.revoked_ms = Some(at_ms);
        self.stats.revoked += 1;
        self.notify(id, Notice::SessionRevoked { session: id.number(), end: MonotonicMs(at_ms) });
        Ok(at_ms)
    }

    /// Revokes the leased sessions of some clients. Those without a grace period end with the next tick.
    pub fn revoke_clients(
        &mut self,
        (connection, token): (ConnectionId, Token),
        clients: Revocation<'_>,
        grace_ms: u32,
    ) {
        let is_its =
            |session: &&Session| session.client.is_of(clients) && matches!(session.kind, Kind::Leased { .. });
        let revoked: Vec<_> = self.sessions.iter().filter(is_its).map(|session| session.id).collect();
        for id in &revoked {
            self.begin_revocation(*id, grace_ms).unwrap();
        }
        let outcome = Ok(Answer::Revoked { sessions: revoked.len() as u64 });
        self.messages.push((connection, Message::Answer { token, outcome }));
    }

    fn notify(&mut self, id: SessionId, notice: Notice<MonotonicMs>) {
        if let Some(connection) = self.connection_of(id) {
            self.messages.push((connection, Message::Notice(notice)));
        }
    }

    fn connection_of(&self, id: SessionId) -> Option<ConnectionId> {
        match self.session(id)?.kind {
            Kind::Connection(_) => Some(id.connection()),
            Kind::Leased { connection, .. } => connection,
        }
    }

    pub fn declaration(&self, key: Key) -> Option<&Declared> {
        self.name(key)?.declared.as_ref()
    }

    /// The declaration of a name that is not being removed.
    fn active_declaration(&self, key: Key) -> Option<&Declared> {
        self.declaration(key).filter(|declaration| !declaration.removing)
    }

    fn set_declaration(&mut self, key: Key, declaration: Option<Declared>) {
        self.names.iter_mut().find(|name| name.key == key).unwrap().declared = declaration;
    }

    fn in_use(&self, key: Key) -> u32 {
        u32::try_from(self.consumption(key)).unwrap()
    }

    fn declared_state(&self, key: Key) -> DeclaredState {
        let declaration = self.declaration(key).unwrap();
        let Declared { generation, capacity, .. } = *declaration;
        DeclaredState { generation: Generation(generation), capacity, in_use: self.in_use(key) }
    }

    /// A semaphore cannot become numbered or unnumbered while it is in use.
    fn check_unused(&self, key: Key, numbered: bool) -> Result<(), Refusal> {
        let was_numbered = self.declaration(key).is_some_and(|declaration| declaration.numbered);
        if was_numbered != numbered && self.consumption(key) > 0 { Err(Refusal::InUse) } else { Ok(()) }
    }

    pub fn declare(&mut self, call: Call, wanted: &[Declaration<'static>], if_exists: IfExists) -> Outcome {
        self.once(call, |model, _| {
            for declare in wanted {
                model.check_declare(declare, if_exists)?;
            }
            for (place, declare) in wanted.iter().enumerate() {
                if let Err(refusal) = model.make(semaphore(declare.name), declare.capacity.max(1)) {
                    let is_unused = |name: &&Name| {
                        let is_wanted =
                            wanted[..place].iter().any(|declare| semaphore(declare.name) == name.key);
                        is_wanted && name.declared.is_none() && model.consumption(name.key) == 0
                    };
                    let unused: Vec<_> = model.names.iter().filter(is_unused).map(|name| name.key).collect();
                    model.names.retain(|name| !unused.contains(&name.key));
                    return Err(refusal);
                }
            }
            let first = model.last_id + 1;
            model.last_id += wanted.len() as u64;
            let change = |(declare, generation): (&Declaration<'static>, u64)| {
                let key = semaphore(declare.name);
                let stays = |present: &Declared| if_exists == IfExists::Keep || present.matches(declare);
                if model.active_declaration(key).is_some_and(stays) {
                    return model.declared_state(key);
                }
                let state = DeclaredState {
                    generation: Generation(generation),
                    capacity: declare.capacity,
                    in_use: model.in_use(key),
                };
                model.set(declare, generation, Origin::Request);
                state
            };
            Ok(Answer::Declared(wanted.iter().zip(first..).map(change).collect()))
        })
    }

    fn check_declare(&self, declare: &Declaration<'static>, if_exists: IfExists) -> Result<(), Refusal> {
        let key = semaphore(declare.name);
        if declare.numbered && declare.capacity > SLOTS_MAX {
            return Err(Refusal::OutOfRange);
        }
        match self.active_declaration(key) {
            Some(_) if if_exists == IfExists::Fail => return Err(Refusal::AlreadyExists),
            Some(present) if if_exists == IfExists::Keep || present.matches(declare) => return Ok(()),
            Some(present) => present.check(None)?,
            None => {}
        }
        self.check_counter(key)?;
        self.check_unused(key, declare.numbered)
    }

    /// A name is not declared while sessions hold or wait for its counter.
    fn check_counter(&self, key: Key) -> Result<(), Refusal> {
        let counter = (Namespace::Counters, key.1);
        let is_of_it = |grant: &Grant| {
            let touched = grant.taken + usize::from(grant.is_queued());
            grant.parts[..touched].iter().any(|part| part.key == counter)
        };
        match self.declaration(key).is_none() && self.grants.iter().any(is_of_it) {
            true => Err(Refusal::CounterInUse),
            false => Ok(()),
        }
    }

    fn set(&mut self, declare: &Declaration<'static>, generation: u64, origin: Origin) {
        let key = semaphore(declare.name);
        let created = match self.declaration(key) {
            Some(present) if present.removing => generation,
            Some(present) => present.created,
            None => 0,
        };
        let evicted_grace_ms = self.declaration(key).and_then(|present| present.evicted_grace_ms);
        let mut service =
            self.active_declaration(key).map_or_else(Service::default, |present| present.service.clone());
        if !declare.numbered {
            service.slots_out = Box::default();
        }
        let after = Declared {
            label: declare.label.to_vec(),
            generation,
            created,
            capacity: declare.capacity,
            numbered: declare.numbered,
            origin,
            removing: false,
            evicted_grace_ms,
            service,
        };
        self.become_declared(key, after);
    }

    fn become_declared(&mut self, key: Key, after: Declared) {
        let capacity = after.capacity;
        let before = self.active_declaration(key).map(|before| before.capacity);
        let mut service_before =
            self.active_declaration(key).map_or_else(Service::default, |before| before.service.clone());
        if !after.numbered {
            service_before.slots_out = Box::default();
        }
        let service = after.service.clone();
        self.set_declaration(key, Some(after));
        match before {
            None => self.publish_event(key, EventKind::Declared, None, None, capacity),
            Some(before) if before != capacity => {
                self.publish_event(key, EventKind::Resized, None, None, capacity);
            }
            Some(_) => {}
        }
        if service.paused != service_before.paused {
            let kind = if service.paused { EventKind::Paused } else { EventKind::Resumed };
            self.publish_event(key, kind, None, None, 0);
        }
        for slot in service.slots_out.iter().filter(|slot| !service_before.slots_out.contains(slot)) {
            self.publish_event(key, EventKind::SlotOut, None, None, (*slot).into());
        }
        for slot in service_before.slots_out.iter().filter(|slot| !service.slots_out.contains(slot)) {
            self.publish_event(key, EventKind::SlotIn, None, None, (*slot).into());
        }
        self.prune(key);
        self.freed.push(key);
        self.serve();
    }

    /// Refuses the waiters for a name that can never be granted.
    fn prune(&mut self, key: Key) {
        for id in self.queue(key).iter().map(|grant| grant.id).collect::<Vec<_>>() {
            let Part { resources, maximum, wanted_slot, .. } = *self.grant(id).awaited();
            if let Some(refusal) = self.refusal(key, resources, maximum, wanted_slot) {
                self.fail(id, refusal);
            }
        }
    }

    pub fn resize(
        &mut self,
        call: Call,
        name: &'static [u8],
        resizing: Resizing,
        generation: Option<u64>,
    ) -> Outcome {
        let key = semaphore(name);
        self.once(call, |model, _| {
            let mut after = model.declaration(key).ok_or(Refusal::NotFound)?.clone();
            after.check(generation)?;
            if after.removing {
                return Err(Refusal::Removed);
            }
            let capacity = match resizing {
                Resizing::To(capacity) => i64::from(capacity),
                Resizing::GrowBy(by) => i64::from(after.capacity) + i64::from(by),
                Resizing::ShrinkBy(by) => i64::from(after.capacity) - i64::from(by),
            };
            let most = if after.numbered { SLOTS_MAX } else { u32::MAX };
            if !(0..=i64::from(most)).contains(&capacity) {
                return Err(Refusal::OutOfRange);
            }
            let is_changed = after.capacity != u32::try_from(capacity).unwrap();
            after.capacity = u32::try_from(capacity).unwrap();
            Ok(model.change_if(key, after, is_changed))
        })
    }

    /// A change that leaves everything as it is gets no generation.
    fn change_if(&mut self, key: Key, mut after: Declared, is_changed: bool) -> Answer {
        if is_changed {
            self.last_id += 1;
            after.generation = self.last_id;
        }
        let Declared { generation, capacity, .. } = after;
        let state = DeclaredState { generation: Generation(generation), capacity, in_use: self.in_use(key) };
        if is_changed {
            self.become_declared(key, after);
        }
        Answer::Declared([state].into())
    }

    pub fn change_service(
        &mut self,
        call: Call,
        name: &'static [u8],
        change: ServiceChange,
        generation: Option<u64>,
    ) -> Outcome {
        let key = semaphore(name);
        self.once(call, |model, _| {
            let mut after = model.declaration(key).ok_or(Refusal::NotFound)?.clone();
            if generation.is_some_and(|generation| generation != after.generation) {
                return Err(Refusal::GenerationDiffers);
            }
            if after.removing {
                return Err(Refusal::Removed);
            }
            let mut slots: BTreeSet<_> = after.service.slots_out.iter().copied().collect();
            if let ServiceChange::SlotOut(slot) | ServiceChange::SlotIn(slot) = change
                && !slots.contains(&slot)
                && (!after.numbered || u32::from(slot) >= after.capacity)
            {
                return Err(Refusal::NoSuchSlot);
            }
            let is_changed = match change {
                ServiceChange::Pause => !std::mem::replace(&mut after.service.paused, true),
                ServiceChange::Resume => std::mem::replace(&mut after.service.paused, false),
                ServiceChange::SlotOut(slot) => slots.insert(slot),
                ServiceChange::SlotIn(slot) => slots.remove(&slot),
            };
            after.service.slots_out = slots.into_iter().collect();
            Ok(model.change_if(key, after, is_changed))
        })
    }

    pub fn remove(
        &mut self,
        call: Call,
        name: &'static [u8],
        removal: Removal,
        generation: Option<u64>,
    ) -> Outcome {
        let key = semaphore(name);
        self.once(call, |model, _| {
            let declaration = model.declaration(key).ok_or(Refusal::NotFound)?;
            declaration.check(generation)?;
            let is_held = model.consumption(key) > 0 || !model.queue(key).is_empty();
            if removal == Removal::IfIdle && is_held {
                return Err(Refusal::InUse);
            }
            if let Removal::Now { grace: Milliseconds(grace_ms) } = removal {
                let plain = model.name(key).unwrap().holdings.iter().map(|(session, _)| *session).collect();
                let at_ms = model.now_ms + u64::from(grace_ms);
                // The generation that the removal gets below.
                let removed = model.last_id + 1;
                model.evictions.push(Eviction { key, at_ms, removed, plain, is_notified: false });
            }
            model.become_removed(key, removal);
            Ok(Answer::Declared(Box::default()))
        })
    }

    fn become_removed(&mut self, key: Key, removal: Removal) {
        let mut after = self.declaration(key).unwrap().clone();
        match removal {
            Removal::Now { grace } => after.evicted_grace_ms = Some(grace.0),
            _ if !after.removing => after.evicted_grace_ms = None,
            _ => {}
        }
        self.last_id += 1;
        (after.removing, after.generation) = (true, self.last_id);
        after.service = Service::default();
        self.set_declaration(key, Some(after));
        self.prune(key);
        self.serve();
    }

    /// Revokes semaphores that are removed at once from their holders. `plain_holders` returns the holders by plain
    /// Acquires in the order of the core.
    pub fn evict(&mut self, plain_holders: impl Fn(Key) -> Vec<ConnectionId>) {
        self.disconnect();
        while let Some(place) = self.evictions.iter().position(|eviction| !eviction.is_notified) {
            let Eviction { key, at_ms, removed, plain: before, .. } = self.evictions.remove(place);
            let grace_ms = u32::try_from(at_ms.saturating_sub(self.now_ms)).unwrap();
            let mut plain = plain_holders(key);
            plain.retain(|session| before.contains(session));
            let holds = |grant: &&Grant| {
                grant.id < removed && grant.parts[..grant.taken].iter().any(|part| part.key == key)
            };
            for id in self.grants.iter().filter(holds).map(|grant| grant.id).collect::<Vec<_>>() {
                if self.find(GrantId(id)).unwrap().wait.is_some() {
                    self.fail(id, Refusal::Removed);
                } else {
                    let _ = self.revoke_grant_now(GrantId(id), grace_ms);
                }
            }
            // The grants end in one step of the core, so that others see them gone together.
            self.serve();
            if grace_ms > 0 {
                for session in plain.iter().map(|connection| connection.session()) {
                    self.notify(
                        session,
                        Notice::SessionRevoked { session: session.number(), end: MonotonicMs(at_ms) },
                    );
                }
            }
            self.evictions.push(Eviction { key, at_ms, removed, plain, is_notified: true });
            self.disconnect();
        }
    }

    /// Closes the connections that hold a semaphore that was removed at once by plain Acquires, after the grace period.
    fn disconnect(&mut self) {
        let now_ms = self.now_ms;
        let is_due = |eviction: &mut Eviction| eviction.is_notified && eviction.at_ms <= now_ms;
        let mut due: Vec<_> = self.evictions.extract_if(.., is_due).collect();
        due.sort_by_key(|eviction| eviction.at_ms);
        for Eviction { key, plain, .. } in due {
            let name = self.name(key);
            let holds = |session: &&ConnectionId| {
                name.is_some_and(|name| name.holdings.iter().any(|(holder, _)| holder == *session))
            };
            for session in plain.iter().filter(holds).copied().collect::<Vec<_>>() {
                let _ = self.revoke_session_now(session.session(), 0);
            }
            // The connections end in one step of the core: none of them is served with what another one returned.
            self.serve();
        }
    }

    pub fn declare_configured(&mut self, wanted: &[Declaration<'static>]) -> Vec<(Box<[u8]>, Refusal)> {
        let mut refused = Vec::new();
        for declare in wanted {
            let is_done =
                |present: &Declared| present.matches(declare) && present.origin == Origin::Configuration;
            if !self.active_declaration(semaphore(declare.name)).is_some_and(is_done)
                && let Err(refusal) = self.configure(declare)
            {
                refused.push((declare.name.into(), refusal));
            }
        }
        let is_gone = |name: &&Name| {
            let is_configured =
                |declaration: &Declared| declaration.origin == Origin::Configuration && !declaration.removing;
            name.declared.as_ref().is_some_and(is_configured)
                && wanted.iter().all(|declare| semaphore(declare.name) != name.key)
        };
        let mut gone: Vec<_> = self.names.iter().filter(is_gone).map(|name| name.key).collect();
        gone.sort_unstable();
        for key in gone {
            self.become_removed(key, Removal::WithLastHolder);
        }
        refused
    }

    fn configure(&mut self, declare: &Declaration<'static>) -> Result<(), Refusal> {
        let key = semaphore(declare.name);
        self.check_counter(key)?;
        self.check_unused(key, declare.numbered)?;
        self.make(key, declare.capacity.max(1))?;
        self.last_id += 1;
        self.set(declare, self.last_id, Origin::Configuration);
        Ok(())
    }

    pub fn list_declared(&self) -> Vec<DeclaredSemaphore> {
        let mut declared: Vec<_> = self.names.iter().filter(|name| name.declared.is_some()).collect();
        declared.sort_by_key(|name| name.key);
        let listed = |name: &Name| {
            let declaration = name.declared.as_ref().unwrap();
            let record = DeclarationRecord {
                name: name.key.1.into(),
                capacity: declaration.capacity,
                label: declaration.label.as_slice().into(),
                numbered: declaration.numbered,
                generation: declaration.generation,
                created: declaration.created,
                origin: declaration.origin,
                removing: declaration.removing,
                evicted_grace_ms: declaration.evicted_grace_ms,
                service: declaration.service.clone(),
            };
            let waiting = self.queue(name.key).len() as u32;
            DeclaredSemaphore { record, in_use: self.in_use(name.key), waiting }
        };
        declared.into_iter().map(listed).collect()
    }

    fn is_retiring(&self, grant: &Grant) -> bool {
        grant.parts.iter().any(|part| {
            self.declaration(part.key).is_some_and(|declaration| {
                let is_above = |slot: &u16| {
                    u32::from(*slot) >= declaration.capacity || declaration.service.slots_out.contains(slot)
                };
                declaration.removing || grant.id < declaration.created || part.slots.iter().any(is_above)
            })
        })
    }

    pub fn await_idle(
        &mut self,
        (connection, token): (ConnectionId, Token),
        key: Key,
        until: Idle,
        wait_ms: u32,
    ) -> Outcome {
        if self.is_closing {
            return Outcome::Refused(Refusal::ShuttingDown);
        }
        if self.name(key).is_none() {
            return Outcome::Refused(Refusal::NotFound);
        }
        if self.is_idle(key, until) {
            return Outcome::Answered(Answer::Idle { in_use: self.in_use(key) });
        }
        if wait_ms == 0 {
            return Outcome::Refused(Refusal::NotAvailable);
        }
        let of_connection = self.idle_waiters.iter().filter(|idle| idle.connection == connection).count();
        let for_name = self.idle_waiters.iter().filter(|idle| idle.key == key).count();
        let LedgerLimits { grants_max, waiters_max, .. } = self.limits;
        let own = self.waiters_of(self.client(connection.session()));
        if of_connection >= grants_max {
            self.stats.limited += 1;
            return Outcome::Refused(limit_reached(Limit::Grants, grants_max));
        }
        if let Err(refusal) = self.check_limit(Limit::Waiters, waiters_max, for_name, own) {
            self.stats.limited += 1;
            return Outcome::Refused(refusal);
        }
        let until_ms = self.now_ms + u64::from(wait_ms);
        self.idle_waiters.push(IdleWaiter { connection, token, key, until, until_ms });
        Outcome::Waiting
    }

    fn is_idle(&self, key: Key, until: Idle) -> bool {
        match until {
            Idle::Level(level) => self.consumption(key) <= u64::from(level),
            Idle::Slot(number) => !self.held_slots(key).contains(&number),
        }
    }

    fn end_idle_wait(&mut self, place: usize, outcome: Result<Answer, Refusal>) {
        let IdleWaiter { connection, token, .. } = self.idle_waiters.remove(place);
        self.messages.push((connection, Message::Answer { token, outcome }));
    }

    /// Answers the idle waiters whose condition holds, and completes removals after the last holder.
    fn usage_dropped(&mut self) {
        while let Some(place) = self.idle_waiters.iter().position(|idle| self.is_idle(idle.key, idle.until)) {
            let in_use = self.in_use(self.idle_waiters[place].key);
            self.end_idle_wait(place, Ok(Answer::Idle { in_use }));
        }
        let is_over = |name: &Name| {
            name.declared.as_ref().is_some_and(|declaration| declaration.removing)
                && self.consumption(name.key) == 0
        };
        let over: Vec<_> = self.names.iter().filter(|name| is_over(name)).map(|name| name.key).collect();
        for key in over {
            self.publish_event(key, EventKind::Removed, None, None, 0);
            self.names.retain(|name| name.key != key);
            // A later semaphore of this name is a new one.
            for eviction in self.evictions.iter_mut().filter(|eviction| eviction.key == key) {
                (eviction.removed, eviction.plain) = (0, Vec::new());
            }
        }
    }

    pub fn find(&self, id: GrantId) -> Option<&Grant> {
        self.grants.iter().find(|grant| grant.id == id.0)
    }

    fn grant(&self, id: u64) -> &Grant {
        self.find(GrantId(id)).unwrap()
    }

    fn grant_mut(&mut self, id: u64) -> &mut Grant {
        self.grants.iter_mut().find(|grant| grant.id == id).unwrap()
    }

    /// Takes name after name until one is not available. A new request may be refused instead of queued.
    fn advance(&mut self, id: u64, queueing: Option<Queueing>) {
        while self.grant(id).taken < self.grant(id).parts.len() {
            match self.next_part(id, queueing) {
                Ok(true) => {}
                Ok(false) => return self.enqueue(id),
                Err(refusal) => return self.fail(id, refusal),
            }
        }
        self.complete(id);
    }

    /// The name that a part is about now.
    fn key_of(&self, part: &Part) -> Key {
        let is_declared = || self.declaration(semaphore(part.key.1)).is_some();
        match part.resolves {
            None => part.key,
            Some(_) if is_declared() => semaphore(part.key.1),
            Some(_) => (Namespace::Counters, part.key.1),
        }
    }

    /// Resolves the next name of a waiter.
    fn resolve(&mut self, id: u64) -> Result<(), Refusal> {
        let grant = self.grant(id);
        let part = grant.awaited();
        let Some(permitted) = part.resolves else { return Ok(()) };
        let (key, maximum) = (self.key_of(part), part.maximum);
        if !permitted.includes(key.0) {
            return Err(Refusal::NotPermitted);
        }
        if key.0 == Namespace::Counters && maximum == 0 {
            return Err(Refusal::NotFound);
        }
        if let Some(declared) = self.active_declaration(key)
            && (1..declared.capacity).contains(&maximum)
        {
            return Err(Refusal::MaximumTooSmall(declared.capacity));
        }
        let grant = self.grant_mut(id);
        let part = &mut grant.parts[grant.taken];
        (part.key, part.resolves) = (key, None);
        if key.0 == Namespace::Semaphores {
            part.maximum = 0;
        }
        Ok(())
    }

    /// Takes the next name of a waiter. `false` means that it has to wait.
    fn next_part(&mut self, id: u64, queueing: Option<Queueing>) -> Result<bool, Refusal> {
        let is_new = self.grant(id).awaited().resolves.is_some();
        self.resolve(id)?;
        let grant = self.grant(id);
        let Part { key, resources, maximum, wanted_slot, .. } = grant.parts[grant.taken];
        let slots = grant.parts[..grant.taken].iter().map(|part| part.slots.len()).sum::<usize>();
        // A request for a removed semaphore is not served from one declared later.
        if queueing.is_none()
            && !is_new
            && self.declaration(key).is_some_and(|declaration| declaration.created > id)
        {
            return Err(Refusal::Removed);
        }
        self.make(key, maximum)?;
        if let Some(refusal) = self.refusal(key, resources, maximum, wanted_slot) {
            return Err(refusal);
        }
        let is_numbered = self.declaration(key).is_some_and(|declaration| declaration.numbered);
        if is_numbered && slots + resources as usize > GRANT_SLOTS_MAX {
            return Err(Refusal::NotAvailable);
        }
        let queue = self.queue(key);
        if queue.iter().all(|other| other.id >= id) && self.fits(key, resources, maximum, wanted_slot) {
            let capacity = self.limit(key, maximum);
            let slots = match wanted_slot {
                Some(slot) => vec![slot],
                None if is_numbered => self.lowest_free(key, resources),
                None => Vec::new(),
            };
            let grant = self.grant_mut(id);
            let part = &mut grant.parts[grant.taken];
            (part.maximum, part.slots) = (capacity, slots);
            grant.taken += 1;
            grant.wait.as_mut().unwrap().is_queued = false;
            self.change(key);
            return Ok(true);
        }
        match queueing {
            Some(Queueing { wait_ms: 0, .. }) => Err(Refusal::NotAvailable),
            Some(Queueing { queue_max, .. }) if queue.len() >= queue_max as usize => {
                self.stats.queue_full += 1;
                Err(Refusal::QueueFull)
            }
            Some(_) => {
                // Without this one.
                let own = self.waiters_of(self.client(self.grant(id).session)) - 1;
                let may_join = self.check_limit(Limit::Waiters, self.limits.waiters_max, queue.len(), own);
                self.stats.limited += u64::from(may_join.is_err());
                may_join.map(|()| false)
            }
            None => Ok(false),
        }
    }

    fn lowest_free(&self, key: Key, count: u32) -> Vec<u16> {
        let held: BTreeSet<_> = self.held_slots(key).into_iter().collect();
        (0..=u16::MAX)
            .filter(|number| !held.contains(number) && !self.is_out(key, *number))
            .take(count as usize)
            .collect()
    }

    fn enqueue(&mut self, id: u64) {
        let wait = self.grant_mut(id).wait.as_mut().unwrap();
        if !std::mem::replace(&mut wait.is_queued, true) {
            let grant = self.grant(id);
            let Part { key, resources, .. } = grant.parts[grant.taken];
            self.publish(key, EventKind::Queued, Some(id), grant.session, resources);
        }
    }

    fn complete(&mut self, id: u64) {
        let since = self.unix();
        let grant = self.grant_mut(id);
        let (session, request) = (grant.session, grant.request);
        let wait = grant.wait.take().unwrap();
        grant.since = since;
        let mut by_place: Vec<_> =
            grant.parts.iter().map(|part| (part.place, part.maximum, part.slots.clone())).collect();
        by_place.sort_by_key(|(place, ..)| *place);
        let keys: Vec<_> = grant.parts.iter().map(|part| (part.key, part.resources)).collect();
        let (capacities, slots): (Vec<_>, Vec<_>) =
            by_place.into_iter().map(|(_, capacity, slots)| (capacity, slots.into_boxed_slice())).unzip();
        let is_any = slots.iter().any(|slots| !slots.is_empty());
        self.stats.waiters -= 1;
        self.stats.grants += 1;
        self.stats.granted += 1;
        assert!(!self.granted.contains(&(session, request)), "one request is granted once");
        self.granted.push((session, request));
        let granted = Granted {
            grant: GrantId(id),
            resources: keys.iter().map(|(_, resources)| u64::from(*resources)).sum(),
            capacities: capacities.into(),
            slots: if is_any { slots.into() } else { Box::default() },
            ttl_left_ms: self.ttl_left_ms(session, wait.received_ms),
        };
        self.cache_reply(session, request, CachedReply::Granted(granted.clone()));
        if let Some((to, token)) = wait.reply {
            self.messages.push((to, Message::Answer { token, outcome: Ok(Answer::Granted(granted)) }));
        }
        for (key, resources) in keys {
            self.publish(key, EventKind::Granted, Some(id), session, resources);
        }
    }

    /// Serves the queues whose resources became free, from the head until it does not fit (invariant 4).
    fn serve(&mut self) {
        while let Some(key) = self.freed.first().copied() {
            match self.queue(key).first().map(|head| head.id) {
                Some(head) if self.head_fits(head) => self.advance(head, None),
                _ => drop(self.freed.remove(0)),
            }
        }
        self.usage_dropped();
    }

    fn head_fits(&self, head: u64) -> bool {
        let grant = self.grant(head);
        let Part { key, resources, maximum, wanted_slot, .. } = grant.parts[grant.taken];
        self.fits(key, resources, maximum, wanted_slot)
    }

    /// Refuses a waiter, and releases what it has reserved (invariant 5).
    fn fail(&mut self, id: u64, refusal: Refusal) {
        let place = self.grants.iter().position(|grant| grant.id == id).unwrap();
        let grant = self.grants.remove(place);
        let wait = grant.wait.unwrap();
        let queued = usize::from(wait.is_queued);
        self.free(&grant.parts[..grant.taken + queued], grant.taken, id, grant.session, EventKind::Left);
        self.stats.waiters -= 1;
        self.cache_reply(grant.session, grant.request, CachedReply::Done(Err(refusal)));
        if let Some((to, token)) = wait.reply {
            self.messages.push((to, Message::Answer { token, outcome: Err(refusal) }));
        }
    }

    fn end_grant(&mut self, id: u64, why: EventKind) {
        let place = self.grants.iter().position(|grant| grant.id == id).unwrap();
        let grant = self.grants.remove(place);
        self.stats.grants -= 1;
        self.free(&grant.parts, grant.taken, id, grant.session, why);
    }

    /// Publishes the release of the names of a grant or waiter, of which it had the first `taken`.
    fn free(&mut self, parts: &[Part], taken: usize, id: u64, session: SessionId, why: EventKind) {
        for (index, part) in parts.iter().enumerate() {
            if index < taken {
                self.change(part.key);
            }
            self.freed.push(part.key);
            self.publish(part.key, why, Some(id), session, part.resources);
        }
    }

    /// Advances the time by one tick of the server, and ends everything whose deadline has passed.
    pub fn tick(&mut self, by_ms: u64) {
        self.now_ms += by_ms;
        if by_ms >= GAP_MS {
            for session in &mut self.sessions {
                if let Kind::Leased { ends_ms, .. } = &mut session.kind {
                    *ends_ms += by_ms;
                }
            }
        }
        let now_ms = self.now_ms;
        let mut due: Vec<_> =
            self.grants.iter().filter_map(|grant| Some((grant.ends_ms()?, grant.id))).collect();
        due.retain(|(at_ms, _)| *at_ms <= now_ms);
        due.sort_unstable();
        for (_, id) in due {
            if self.grant(id).wait.is_some() {
                self.stats.timed_out += 1;
                self.fail(id, Refusal::TimedOut);
            } else {
                self.end_grant(id, EventKind::Revoked);
            }
        }
        while let Some(place) = self.idle_waiters.iter().position(|idle| idle.until_ms <= now_ms) {
            self.stats.timed_out += 1;
            self.end_idle_wait(place, Err(Refusal::TimedOut));
        }
        let ids = self.sessions.iter().map(|session| session.id);
        let mut due: Vec<_> = ids.filter_map(|id| Some((self.session_ends_ms(id)?, id))).collect();
        due.retain(|(at_ms, _)| *at_ms <= now_ms);
        due.sort_unstable();
        for (_, id) in due {
            if self.session(id).unwrap().revoked_ms.is_some_and(|at_ms| at_ms <= now_ms) {
                self.end(id, EventKind::Revoked, Refusal::Revoked);
            } else {
                self.stats.expired_sessions += 1;
                self.end(id, EventKind::Expired, Refusal::NoSuchSession);
            }
        }
        self.serve();
    }

    /// The time of the next deadline, or 0 if work is due now.
    pub fn next_due_ms(&self) -> Option<u64> {
        if self.evictions.iter().any(|eviction| !eviction.is_notified) {
            return Some(0);
        }
        let evictions = self.evictions.iter().filter(|eviction| !eviction.plain.is_empty());
        let evictions = evictions.map(|eviction| eviction.at_ms);
        let idles = self.idle_waiters.iter().map(|idle| idle.until_ms);
        let grants = self.grants.iter().filter_map(Grant::ends_ms);
        let sessions = self.sessions.iter().filter_map(|session| self.session_ends_ms(session.id));
        grants.chain(sessions).chain(idles).chain(evictions).min()
    }

    pub fn shut_down(&mut self) {
        if !self.is_closing {
            let is_connection = |session: &&Session| matches!(session.kind, Kind::Connection(_));
            for session in self.sessions.iter().filter(is_connection) {
                self.messages.push((session.id.connection(), Message::Notice(Notice::ShuttingDown)));
            }
        }
        self.is_closing = true;
        let waiting = self.grants.iter().filter(|grant| grant.wait.is_some()).map(|grant| grant.id);
        for id in waiting.collect::<Vec<_>>() {
            self.fail(id, Refusal::ShuttingDown);
        }
        while !self.idle_waiters.is_empty() {
            self.end_idle_wait(0, Err(Refusal::ShuttingDown));
        }
        self.serve();
    }

    pub fn holders(&self, key: Key) -> Vec<Listed> {
        let plain = self.name(key).into_iter().flat_map(|name| &name.holdings);
        let plain =
            plain.map(|(session, resources)| self.listed(None, session.session(), None, *resources, 0, &[]));
        let holds = |grant: &&Grant| grant.parts[..grant.taken].iter().any(|part| part.key == key);
        plain.chain(self.grants.iter().filter(holds).map(|grant| self.listed_grant(grant, key, 0))).collect()
    }

    pub fn waiters(&self, key: Key) -> Vec<Listed> {
        let queue = self.queue(key).into_iter().zip(1..);
        queue.map(|(grant, position)| self.listed_grant(grant, key, position)).collect()
    }

    /// The names that a session holds by grants or waits for: each name, whether it is held, and its entry among the
    /// holders or waiters of the name.
    pub fn claims(&self, session: SessionId) -> Vec<(Key, bool, Listed)> {
        let mut claims = Vec::new();
        for grant in self.grants.iter().filter(|grant| grant.session == session) {
            let reached = grant.taken + usize::from(grant.is_queued());
            for (index, part) in grant.parts[..reached].iter().enumerate() {
                let is_held = index < grant.taken;
                let (mut entry, connection) = self.listed_grant(grant, part.key, u32::from(!is_held));
                entry.position = 0;
                claims.push((part.key, is_held, (entry, connection)));
            }
        }
        claims.sort_by_key(|(.., (entry, _))| entry.grant);
        claims
    }

    /// The leased sessions and then those of connections.
    pub fn list_sessions(&self) -> Vec<ListedSession> {
        let listed = |session: &Session| {
            let (kind, attached) = match session.kind {
                Kind::Connection(_) => (SessionKind::Connection, true),
                Kind::Leased { connection, .. } => (SessionKind::Leased, connection.is_some()),
            };
            let of_it = self.grants.iter().filter(|grant| grant.session == session.id);
            let (waiting, held): (Vec<_>, Vec<_>) = of_it.partition(|grant| grant.wait.is_some());
            let left_ms = self.session_ends_ms(session.id).map(|ends_ms| ends_ms - self.now_ms);
            let SessionClient { address, identity } = &session.client.shown;
            ListedSession {
                kind,
                session: session.id.number(),
                label: session.label.as_slice().into(),
                address: address.to_string().into_bytes().into(),
                identity: identity.as_deref().unwrap_or_default().as_bytes().into(),
                attached,
                age_s: Some(((self.now_ms - session.opened_ms) / 1000) as u32),
                grants: held.len() as u32,
                waiting: waiting.len() as u32,
                ttl_left: left_ms.map_or(TtlLeft::Connection, |left| TtlLeft::For(Milliseconds(left as u32))),
            }
        };
        let mut all: Vec<_> = self.sessions.iter().map(listed).collect();
        all.sort_by_key(|session| session.kind == SessionKind::Connection);
        all
    }

    /// All sessions of these clients, in the order of the listing.
    pub fn sessions_of(&self, clients: Revocation<'_>) -> Vec<SessionId> {
        let of_clients = self.sessions.iter().filter(|session| session.client.is_of(clients));
        let (leased, connections): (Vec<_>, Vec<_>) =
            of_clients.partition(|session| matches!(session.kind, Kind::Leased { .. }));
        leased.into_iter().chain(connections).map(|session| session.id).collect()
    }

    pub fn connected(&self, after: Option<SessionId>) -> Option<Connected> {
        let is_next = |session: &&Session| {
            matches!(session.kind, Kind::Connection(_)) && after.is_none_or(|after| session.id > after)
        };
        let next = self.sessions.iter().find(is_next)?;
        let (connection, client) = (next.id.connection(), next.client.shown.clone());
        Some(Connected { connection, client, opened: MonotonicMs(next.opened_ms) })
    }

    fn listed_grant(&self, grant: &Grant, key: Key, position: u32) -> Listed {
        let part = grant.parts.iter().find(|part| part.key == key).unwrap();
        let id = Some(GrantId(grant.id));
        let slots = if position == 0 { &part.slots[..] } else { part.wanted_slot.as_slice() };
        self.listed(id, grant.session, Some(grant.since), part.resources, position, slots)
    }

    fn listed(
        &self,
        grant: Option<GrantId>,
        session: SessionId,
        since: Option<UnixSeconds>,
        resources: u32,
        position: u32,
        slots: &[u16],
    ) -> Listed {
        let label = self.session(session).map_or(&[][..], |session| &session.label).into();
        let connection =
            if grant.is_none() { Some(session.connection()) } else { self.connection_of(session) };
        let entry = NameEntry {
            grant,
            session: session.number(),
            since: since.map(|since| since.0),
            resources,
            position,
            slots: slots.into(),
            label,
            address: Box::default(),
        };
        (entry, connection)
    }

    pub fn watch(
        &mut self,
        connection: ConnectionId,
        token: Token,
        namespace: Namespace,
        scope: Scope<&'static [u8]>,
    ) -> Result<(), Refusal> {
        let client = self.client(connection.session());
        let own =
            self.watches.iter().filter(|watch| self.client(watch.connection.session()) == client).count();
        let limit = self.limits.watches_max;
        self.check_limit(Limit::Watches, limit, self.watches.len(), own)
            .inspect_err(|_| self.stats.limited += 1)?;
        let watch = Watch { connection, token, namespace, scope };
        let present = self.names.iter().filter(|name| watch.covers(name.key));
        let present: Vec<_> =
            present.map(|name| self.event(name.key, EventKind::Present, None, None, 0)).collect();
        let live = Event {
            kind: EventKind::Live,
            namespace: Namespace::Counters,
            name: Box::default(),
            grant: None,
            session: None,
            resources: 0,
            in_use: 0,
            waiting: 0,
        };
        for event in present.into_iter().chain([live]) {
            self.messages.push((connection, Message::Event { token, event }));
        }
        self.watches.push(watch);
        Ok(())
    }

    pub fn unwatch(&mut self, connection: ConnectionId, token: Token) -> Result<(), Refusal> {
        let is_meant = |watch: &Watch| watch.connection == connection && watch.token == token;
        let place = self.watches.iter().position(is_meant).ok_or(Refusal::NotFound)?;
        self.watches.remove(place);
        Ok(())
    }

    pub fn stats(&self) -> LedgerStats {
        let declared = self.names.iter().filter(|name| name.declared.is_some()).count() as u64;
        LedgerStats { watches: self.watches.len() as u64, declared, ..self.stats }
    }

    fn publish(&mut self, key: Key, kind: EventKind, grant: Option<u64>, session: SessionId, resources: u32) {
        self.publish_event(key, kind, grant, Some(session), resources);
    }

    fn publish_event(
        &mut self,
        key: Key,
        kind: EventKind,
        grant: Option<u64>,
        session: Option<SessionId>,
        resources: u32,
    ) {
        let event = self.event(key, kind, grant, session, resources);
        for watch in self.watches.iter().filter(|watch| watch.covers(key)) {
            self.messages
                .push((watch.connection, Message::Event { token: watch.token, event: event.clone() }));
        }
    }

    fn event(
        &self,
        key: Key,
        kind: EventKind,
        grant: Option<u64>,
        session: Option<SessionId>,
        resources: u32,
    ) -> Event<Box<[u8]>> {
        Event {
            kind,
            namespace: key.0,
            name: key.1.into(),
            grant: grant.map(GrantId),
            session: session.map(SessionId::number),
            resources,
            in_use: u32::try_from(self.consumption(key)).unwrap(),
            waiting: u32::try_from(self.queue(key).len()).unwrap(),
        }
    }

    /// Checks the invariants in the model's own terms, so that the model and the core cannot be wrong together.
    pub fn check(&self) {
        for name in &self.names {
            let queue = self.queue(name.key);
            assert!(
                queue.first().is_none_or(|head| !self.head_fits(head.id)),
                "the head of a queue fits and waits"
            );
            let mut slots = self.held_slots(name.key);
            let count = slots.len();
            slots.sort_unstable();
            slots.dedup();
            assert_eq!(slots.len(), count, "a slot belongs to one grant");
            let is_removing = name.declared.as_ref().is_some_and(|declared| declared.removing);
            assert!(!is_removing || queue.is_empty(), "a removed semaphore has no waiters");
            let is_made = name.declared.is_none();
            let is_in_bounds =
                name.usable().is_none_or(|usable| self.consumption(name.key) <= u64::from(usable));
            assert!(!is_made || is_in_bounds, "only a shrink leaves more in use than the capacity");
            let fit = |grant: &&Grant| name.usable().is_none_or(|usable| grant.awaited().resources <= usable);
            assert!(queue.iter().all(fit), "no waiter exceeds the capacity");
        }
        assert!(self.grants.iter().all(|grant| grant.wait.is_some() == (grant.taken < grant.parts.len())));
    }
}

impl Name {
    /// The effective capacity of a semaphore.
    fn usable(&self) -> Option<u32> {
        match &self.declared {
            Some(declaration) if declaration.removing => Some(0),
            Some(declaration) => Some(declaration.capacity),
            None => self.capacity,
        }
    }
}

impl Declared {
    fn matches(&self, declare: &Declaration<'_>) -> bool {
        (self.capacity, self.numbered, &self.label[..]) == (declare.capacity, declare.numbered, declare.label)
    }

    fn check(&self, generation: Option<u64>) -> Result<(), Refusal> {
        if self.origin == Origin::Configuration && !self.removing {
            return Err(Refusal::NotPermitted);
        }
        let is_meant = generation.is_none_or(|generation| generation == self.generation);
        if is_meant { Ok(()) } else { Err(Refusal::GenerationDiffers) }
    }
}

impl Client {
    fn is_of(&self, clients: Revocation<'_>) -> bool {
        let SessionClient { address, identity } = &self.shown;
        let IpAddr::V4(address) = address.ip() else { panic!("{address}") };
        match clients {
            Revocation::Addresses(range) => (range.first..=range.last).contains(&address.to_ipv6_mapped()),
            Revocation::Identity(of) => identity.as_deref().map(str::as_bytes) == Some(of),
            _ => panic!("{clients:?} are no clients"),
        }
    }
}

impl Grant {
    fn is_queued(&self) -> bool {
        self.wait.as_ref().is_some_and(|wait| wait.is_queued)
    }

    /// The name that it needs next.
    fn awaited(&self) -> &Part {
        &self.parts[self.taken]
    }

    /// The deadline of its wait, or the end of its grace period.
    fn ends_ms(&self) -> Option<u64> {
        self.wait.as_ref().map_or(self.revoked_ms, |wait| Some(wait.until_ms))
    }
}

impl Part {
    fn new(place: usize, want: &Want) -> Self {
        let Want { key, resources, maximum, slot, resolves, is_shared } = *want;
        Self { key, resources, maximum, resolves, wanted_slot: slot, is_shared, place, slots: Vec::new() }
    }
}

impl Watch {
    fn covers(&self, key: Key) -> bool {
        let is_in_scope = match &self.scope {
            Scope::Name(name) => *name == key.1,
            Scope::Prefix(prefix) => key.1.starts_with(prefix),
        };
        self.namespace == key.0 && is_in_scope
    }
}
