//! Listings: the holders or waiters of a name, what sessions hold and wait for, the names with waiters, the declared semaphores,
//! and all sessions: leased ones, those of connections, and processes of System V calls. Each step takes a limited number of
//! entries, so that a long listing delays no other request. An entry that appears or disappears meanwhile may or may not be
//! listed.

use std::collections::HashSet;
use std::ops::Bound;
use std::vec::IntoIter;

use super::grants::Part;
use super::queues::Head;
use super::removal::SEMAPHORES;
use super::sessions::SessionState;
use super::state::Ledger;
use crate::durable::{DeclarationRecord, Origin};
use crate::mailbox::SessionClient;
use crate::object::{Availability, DumpItem, ObjectRef};
use crate::state::Core;
use crate::time::{Moment, MonotonicMs};
use crate::visit::Visit;
use signalbox_model::sysv::ProcessId;
use signalbox_model::{
    ConnectionId, DeclaredEntry, Generation, GrantId, Inspected, ListEntry, Milliseconds, Namespace, Refusal,
    SessionEntry, SessionId, SessionKind, TtlLeft,
};

/// The most entries of one step.
pub(super) const STEP_ENTRIES: usize = 128;

/// The most bytes of names, labels and slots of one step, unless one entry has more.
const STEP_BYTES: usize = 64 * 1024;

/// The most names of a [`ClaimSubject`].
const SUBJECT_NAMES: usize = 8;

/// The kind of the entries in a listing of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListingKind {
    /// Those that hold resources of the name.
    Holders,
    /// The requests in its queue.
    Waiters,
}

/// A declared semaphore in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredSemaphore {
    /// Its declaration.
    pub record: DeclarationRecord,
    /// The resources in use.
    pub in_use: u32,
    /// The number of waiters.
    pub waiting: u32,
}

impl DeclaredSemaphore {
    /// The entry that clients get.
    pub fn entry(&self) -> DeclaredEntry<&[u8], &[u16]> {
        let DeclarationRecord { name, label, service, .. } = &self.record;
        DeclaredEntry {
            generation: Generation(self.record.generation),
            capacity: self.record.capacity,
            in_use: self.in_use,
            waiting: self.waiting,
            numbered: self.record.numbered,
            removing: self.record.removing,
            configured: self.record.origin == Origin::Configuration,
            paused: service.paused,
            name,
            label,
            slots_out: &service.slots_out,
        }
    }
}

/// A holder or a waiter in a listing.
pub type NameEntry = ListEntry<Box<[u8]>, Box<[u16]>>;

/// An entry without an address, and the connection of its session, whose address the caller adds; `None`: the session has no
/// connection now.
pub type Listed = (NameEntry, Option<ConnectionId>);

/// A listing of the holders or waiters of a name.
#[derive(Debug)]
pub struct Listing {
    namespace: Namespace,
    name: Box<[u8]>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The holders by plain Acquires come first; `None`: they have not been read yet.
    PlainHolders(Option<IntoIter<(ConnectionId, u32)>>),
    Grants {
        after: Option<GrantId>,
    },
    Waiters {
        after: Option<GrantId>,
        position: u32,
    },
}

impl Listing {
    /// The kind of its entries.
    pub fn kind(&self) -> ListingKind {
        match self.state {
            State::PlainHolders(_) | State::Grants { .. } => ListingKind::Holders,
            State::Waiters { .. } => ListingKind::Waiters,
        }
    }
}

/// One name that a session holds, or that its request waits for.
#[derive(Debug)]
pub struct Claimed {
    /// The namespace of the name.
    pub namespace: Namespace,
    /// The name's bytes.
    pub name: Box<[u8]>,
    /// Whether it is held, perhaps by a request that still waits for its other names; otherwise, the request waits for
    /// it.
    pub is_held: bool,
    /// The entry among the holders or the waiters of the name. The position is always 0, also for a waiter.
    pub listed: Listed,
}

/// The names and the label by which log lines describe a grant, a waiting request or a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimSubject {
    /// The first names, eight at most.
    pub names: Vec<(Namespace, Box<[u8]>)>,
    /// Whether there are more.
    pub has_more: bool,
    /// The label of the session.
    pub label: Box<[u8]>,
}

/// A listing of what sessions hold by grants and wait for, session by session.
#[derive(Debug)]
pub struct ClaimListing {
    /// The sessions that are left, the next one last.
    sessions: Vec<SessionId>,
    /// The grant of the next session that was listed last.
    after: Option<GrantId>,
}

impl ClaimListing {
    /// A listing of these sessions, the last one first.
    pub fn of(sessions: Vec<SessionId>) -> Self {
        Self { sessions, after: None }
    }
}

/// A listing of the names that requests wait for. The name whose first waiter has the lowest id comes first; mostly,
/// that waiter has waited longest.
#[derive(Debug, Default)]
pub struct WaitedListing {
    after: Option<Head>,
}

/// A listing of declared semaphores, in the order of their names.
#[derive(Debug)]
pub struct DeclaredListing {
    prefix: Box<[u8]>,
    after: Option<Box<[u8]>>,
}

/// A session of any kind in the listing.
pub type ListedSession = SessionEntry<Box<[u8]>>;

/// A connection, as its server knows it.
#[derive(Clone, Debug)]
pub struct Connected {
    /// The connection.
    pub connection: ConnectionId,
    /// Its client.
    pub client: SessionClient,
    /// When it was opened.
    pub opened: MonotonicMs,
}

/// The progress of a listing of all sessions: first leased sessions, then connections, then processes, each in the order of
/// their ids.
#[derive(Debug)]
pub struct SessionListing(Left);

/// The sessions that are left: those after the last one that was listed.
#[derive(Clone, Copy, Debug)]
enum Left {
    Leased(Option<SessionId>),
    Connections(Option<SessionId>),
    Processes(Option<ProcessId>),
}

impl Core {
    /// Begins a listing of all sessions.
    pub fn sessions(&self) -> SessionListing {
        SessionListing(Left::Leased(None))
    }

    /// The next sessions of a listing; none at its end. `connected` returns the next connections after the one with the
    /// given session, in the order of ids.
    pub fn list_sessions(
        &self,
        listing: &mut SessionListing,
        connected: impl Fn(Option<SessionId>) -> Vec<Connected>,
        now: Moment,
    ) -> Vec<ListedSession> {
        if let Left::Leased(after) = listing.0 {
            let ledger = self.ledger();
            let mut last = None;
            let leased = ledger.sessions.leased_after(after).take(STEP_ENTRIES).map(|(session, state)| {
                last = Some(session);
                ledger.listed_session(session, state, now.monotonic)
            });
            let leased: Vec<_> = leased.collect();
            if last.is_some() {
                listing.0 = Left::Leased(last);
                return leased;
            }
            listing.0 = Left::Connections(None);
        }
        if let Left::Connections(after) = listing.0 {
            let connected = connected(after);
            if let Some(last) = connected.last() {
                listing.0 = Left::Connections(Some(last.connection.session()));
                let ledger = self.ledger();
                let listed = connected.into_iter().map(|one| ledger.listed_connection(one, now.monotonic));
                return listed.collect();
            }
            listing.0 = Left::Processes(None);
        }
        let Left::Processes(after) = listing.0 else { return Vec::new() };
        let processes = self.sysv().list_processes(after, now.monotonic);
        if let Some((last, _)) = processes.last() {
            listing.0 = Left::Processes(Some(*last));
        }
        processes.into_iter().map(|(_, listed)| listed).collect()
    }

    /// The usage of a name, its capacity and the length of its queue.
    pub fn inspect(&self, namespace: Namespace, name: &[u8], now: Moment) -> Result<Inspected, Refusal> {
        let ledger = self.ledger();
        let found = self.registry(namespace).find(name, ObjectRef::clone);
        let object = found.ok_or(Refusal::NotFound)?;
        let (DumpItem { consumption, peak }, availability) = object.usage(self.interval(now.unix));
        let waiting = ledger.waiting(namespace, &object);
        let Availability { capacity, available } =
            availability.unwrap_or(Availability { capacity: 0, available: 0 });
        Ok(Inspected { in_use: consumption, peak, waiting, capacity, available, namespace })
    }

    /// Returns the namespace of a name for a request that does not state it: that of the declared semaphore of this
    /// name, else that of the counter. If neither exists, that of an undeclared semaphore, which only requests for
    /// semaphores acquire.
    pub fn resolve(&self, name: &[u8]) -> Namespace {
        let exists = |namespace| self.registry(namespace).find(name, |_| ()).is_some();
        match self.ledger().resolve(name) {
            Namespace::Counters if !exists(Namespace::Counters) && exists(Namespace::Semaphores) => {
                Namespace::Semaphores
            }
            resolved => resolved,
        }
    }

    /// Begins a listing of the declared semaphores whose names start with these bytes.
    pub fn declared(&self, prefix: &[u8]) -> DeclaredListing {
        DeclaredListing { prefix: prefix.into(), after: None }
    }

    /// Begins a listing of the holders or waiters of a name.
    pub fn listing(&self, namespace: Namespace, name: &[u8], kind: ListingKind) -> Result<Listing, Refusal> {
        let exists = self.registry(namespace).find(name, |_| ());
        exists.ok_or(Refusal::NotFound)?;
        let state = match kind {
            ListingKind::Holders => State::PlainHolders(None),
            ListingKind::Waiters => State::Waiters { after: None, position: 0 },
        };
        Ok(Listing { namespace, name: name.into(), state })
    }

    /// The next entries of a listing, each with the connection of its session; none at its end. Their addresses are empty.
    pub fn list(&self, listing: &mut Listing) -> Vec<Listed> {
        let ledger = self.ledger();
        let Some(object) = self.registry(listing.namespace).find(&listing.name, ObjectRef::clone) else {
            return Vec::new();
        };
        let namespace = listing.namespace;
        if let State::PlainHolders(plain) = &mut listing.state {
            let plain = plain.get_or_insert_with(|| object.holdings().into_iter());
            if plain.len() > 0 {
                return plain.take(STEP_ENTRIES).map(|holding| ledger.listed_holding(holding)).collect();
            }
            listing.state = State::Grants { after: None };
        }
        match &mut listing.state {
            State::PlainHolders(_) => Vec::new(),
            State::Grants { after } => {
                let ids = ledger.queues.grants(namespace, &object, ids_after(*after)).take(STEP_ENTRIES);
                let listed = ids.map(|id| {
                    *after = Some(id);
                    ledger.listed_grant(id, namespace, &object, 0)
                });
                listed.collect()
            }
            State::Waiters { after, position } => {
                let ids = ledger.queues.waiters(namespace, &object, ids_after(*after)).take(STEP_ENTRIES);
                let listed = ids.map(|id| {
                    *after = Some(id);
                    *position += 1;
                    ledger.listed_grant(id, namespace, &object, *position)
                });
                listed.collect()
            }
        }
    }

    /// The next claims of a listing; none at its end. Their addresses are empty.
    pub fn list_claims(&self, listing: &mut ClaimListing) -> Vec<Claimed> {
        let ledger = &*self.ledger();
        let (mut claims, mut bytes) = (Vec::new(), 0);
        while let Some(session) = listing.sessions.last().copied() {
            let (state, after) = (ledger.sessions.get(session), listing.after);
            for id in state.into_iter().flat_map(|state| state.grants_after(after)) {
                let grant = ledger.grants.existing(id);
                let taken = grant.taken().len();
                for (index, part) in grant.parts().iter().enumerate() {
                    // A name whose turn has not come is not waited for yet.
                    let Some((namespace, object)) = part.object() else { break };
                    bytes += object.name().len();
                    let listed = ledger.listed_grant(id, namespace, object, 0);
                    claims.push(Claimed {
                        namespace,
                        name: object.name().into(),
                        is_held: index < taken,
                        listed,
                    });
                }
                listing.after = Some(id);
                if claims.len() >= STEP_ENTRIES || bytes >= STEP_BYTES {
                    return claims;
                }
            }
            listing.after = None;
            listing.sessions.pop();
        }
        claims
    }

    /// Describes a grant or a waiting request; `None`: there is no such grant.
    pub fn subject_of_grant(&self, id: GrantId) -> Option<ClaimSubject> {
        let ledger = &*self.ledger();
        let grant = ledger.grants.get(id)?;
        Some(ledger.subject(grant.session, [id]))
    }

    /// Describes what a session holds by grants and waits for; `None`: there is no such session.
    pub fn subject_of_session(&self, session: SessionId) -> Option<ClaimSubject> {
        let ledger = &*self.ledger();
        let state = ledger.sessions.get(session)?;
        Some(ledger.subject(session, state.grants_after(None)))
    }

    /// The next names of a listing; none at its end.
    pub fn list_waited(&self, listing: &mut WaitedListing) -> Vec<(Namespace, Box<[u8]>)> {
        let ledger = &*self.ledger();
        let mut bytes = 0;
        let mut names = Vec::new();
        for (head, object) in ledger.queues.waited_for(listing.after).take(STEP_ENTRIES) {
            bytes += object.name().len();
            if bytes > STEP_BYTES && !names.is_empty() {
                break;
            }
            listing.after = Some(head);
            names.push((head.1, object.name().into()));
        }
        names
    }

    /// The declared semaphore of this name; `None`: it is not declared.
    pub fn declared_semaphore(&self, name: &[u8]) -> Option<DeclaredSemaphore> {
        let ledger = &*self.ledger();
        ledger.declarations.entry(name).map(|entry| ledger.declared_semaphore(entry))
    }

    /// The next declared semaphores of a listing; none at its end.
    pub fn list_declared(&self, listing: &mut DeclaredListing) -> Vec<DeclaredSemaphore> {
        let ledger = &*self.ledger();
        let from = match &listing.after {
            Some(after) => Bound::Excluded(&after[..]),
            None => Bound::Included(&listing.prefix[..]),
        };
        let mut bytes = 0;
        let has_room = |(object, declaration): &(&ObjectRef, &DeclarationRecord)| {
            let is_first = bytes == 0;
            bytes += object.name().len() + declaration.label.len();
            bytes += 2 * declaration.service.slots_out.len();
            is_first || bytes <= STEP_BYTES
        };
        let listed: Vec<_> = ledger
            .declarations
            .from(from)
            .take_while(|(object, _)| object.name().starts_with(&listing.prefix))
            .take(STEP_ENTRIES)
            .take_while(has_room)
            .map(|entry| ledger.declared_semaphore(entry))
            .collect();
        if let Some(last) = listed.last() {
            listing.after = Some(last.record.name.clone());
        }
        listed
    }
}

/// A listing of what some connections hold by plain Acquires.
#[derive(Debug)]
pub struct PlainListing {
    connections: HashSet<ConnectionId>,
    /// The namespaces that are left, the one being visited first.
    namespaces: &'static [Namespace],
    visit: Visit,
}

impl PlainListing {
    /// A listing of these connections.
    pub fn of(connections: HashSet<ConnectionId>) -> Self {
        let namespaces = if connections.is_empty() { &[][..] } else { &Namespace::ALL[..] };
        Self { connections, namespaces, visit: Visit::default() }
    }
}

impl Core {
    /// Returns whether the ledger has a session: a leased one, or that of a connection that has sent an extended
    /// request.
    pub fn has_session(&self, session: SessionId) -> bool {
        self.ledger().sessions.get(session).is_some()
    }

    /// Visits at most `names` more names for a listing, and returns the holdings of its connections; `None`: all names were
    /// visited.
    pub fn list_plain(&self, listing: &mut PlainListing, names: usize) -> Option<Vec<Claimed>> {
        let [namespace, rest @ ..] = listing.namespaces else { return None };
        let namespace = *namespace;
        let mut claims = Vec::new();
        for _ in 0..names {
            let Some(object) = listing.visit.next(self.registry(namespace)) else {
                (listing.namespaces, listing.visit) = (rest, Visit::default());
                break;
            };
            let holdings = object.holdings_of(&listing.connections);
            if holdings.is_empty() {
                continue;
            }
            let ledger = self.ledger();
            claims.extend(holdings.into_iter().map(|holding| Claimed {
                namespace,
                name: object.name().into(),
                is_held: true,
                listed: ledger.listed_holding(holding),
            }));
        }
        Some(claims)
    }
}

impl Ledger {
    fn declared_semaphore(
        &self,
        (object, declaration): (&ObjectRef, &DeclarationRecord),
    ) -> DeclaredSemaphore {
        DeclaredSemaphore {
            record: declaration.clone(),
            in_use: object.consumption(),
            waiting: self.waiting(SEMAPHORES, object),
        }
    }

    fn listed_holding(&self, (connection, resources): (ConnectionId, u32)) -> Listed {
        let entry = NameEntry {
            grant: None,
            session: connection.number(),
            since: None,
            resources,
            position: 0,
            slots: Box::default(),
            label: self.label(connection.session()),
            address: Box::default(),
        };
        (entry, Some(connection))
    }

    fn listed_grant(&self, id: GrantId, namespace: Namespace, object: &ObjectRef, position: u32) -> Listed {
        let grant = self.grants.existing(id);
        let is_of_name = |part: &&Part| part.object() == Some((namespace, object));
        let part = grant.parts().iter().find(is_of_name);
        let slots = match grant.taken().iter().any(|part| is_of_name(&part)) {
            true => self.slots.of(object, id).into(),
            false => part.and_then(|part| part.slot).into_iter().collect(),
        };
        let entry = NameEntry {
            grant: Some(id),
            session: grant.session.number(),
            since: Some(grant.since().0),
            resources: part.map_or(0, |part| part.claim.resources),
            position,
            slots,
            label: self.label(grant.session),
            address: Box::default(),
        };
        (entry, self.sessions.connection_of(grant.session))
    }

    fn subject(&self, session: SessionId, grants: impl IntoIterator<Item = GrantId>) -> ClaimSubject {
        let parts = grants.into_iter().flat_map(|id| self.grants.existing(id).parts());
        let mut names = parts.map(|part| (self.namespace_of(part), part.name().into()));
        let first = names.by_ref().take(SUBJECT_NAMES).collect();
        ClaimSubject { names: first, has_more: names.next().is_some(), label: self.label(session) }
    }

    fn label(&self, session: SessionId) -> Box<[u8]> {
        self.sessions.get(session).map_or_else(Box::default, |state| state.label().into())
    }

    fn listed_session(&self, session: SessionId, state: &SessionState, now: MonotonicMs) -> ListedSession {
        let (address, identity) = client_texts(state.client());
        ListedSession {
            kind: SessionKind::Leased,
            session: session.number(),
            label: state.label().into(),
            address,
            identity,
            attached: self.sessions.connection_of(session).is_some(),
            age_s: state.opened().map(|opened| age_s(opened, now)),
            grants: held(state),
            waiting: state.waiting(),
            ttl_left: ttl_left(self.sessions.ttl_left_ms(session, now)),
        }
    }

    /// The entry for the session of a connection. The ledger need not have the session: a plain client has no label and
    /// no grants.
    fn listed_connection(&self, connected: Connected, now: MonotonicMs) -> ListedSession {
        let Connected { connection, client, opened } = connected;
        let state = self.sessions.get(connection.session());
        let (address, identity) = client_texts(Some(&client));
        ListedSession {
            kind: SessionKind::Connection,
            session: connection.number(),
            label: state.map_or_else(Box::default, |state| state.label().into()),
            address,
            identity,
            attached: true,
            age_s: Some(age_s(opened, now)),
            grants: state.map_or(0, held),
            waiting: state.map_or(0, SessionState::waiting),
            ttl_left: ttl_left(state.and_then(SessionState::revoked).map(|at| now.until(at))),
        }
    }
}

fn ids_after(after: Option<GrantId>) -> (Bound<GrantId>, Bound<GrantId>) {
    (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
}

/// The number of grants that a session holds.
fn held(state: &SessionState) -> u32 {
    u32::try_from(state.grant_count()).unwrap_or(u32::MAX) - state.waiting()
}

/// The address and the identity of a client, as texts; empty if the client or its identity is not known.
pub(crate) fn client_texts(client: Option<&SessionClient>) -> (Box<[u8]>, Box<[u8]>) {
    let address = client.map(|client| client.address.to_string()).unwrap_or_default();
    let identity = client.and_then(|client| client.identity.as_deref()).unwrap_or_default();
    (address.into_bytes().into(), identity.as_bytes().into())
}

/// An age in whole seconds, at most `u32::MAX - 1`, which is more than a century.
pub(crate) fn age_s(since: MonotonicMs, now: MonotonicMs) -> u32 {
    u32::try_from(since.age_ms(now) / 1000).unwrap_or(u32::MAX - 1)
}

/// The remaining time of a lease; `None`: the session ends with its connection.
pub(crate) fn ttl_left(left_ms: Option<u32>) -> TtlLeft {
    left_ms.map_or(TtlLeft::Connection, |left_ms| TtlLeft::For(Milliseconds(left_ms)))
}
