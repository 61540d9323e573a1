//! Compares the core with a model of plain operations and of the extended rules: random histories, and the complete state
//! is compared after each step.
//!
//! The model (`crates/core/tests/model/ledger/model.rs`) is written from `counter.md`, `semaphore.md`, `docs/design.md` and
//! `docs/protocol.md`, and keeps only plain lists. `PROPTEST_CASES=700000 cargo test --release --test model ledger::` runs it for an hour; a
//! failure prints the shortest history that shows it.

mod claims;
mod model;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use model::{Attachment, Client, INTERVAL_S, Key, Model, Want, semaphore};
use proptest::prelude::*;
use signalbox_core::{
    Answer, BatchLimit, Call, CheckedNames, Claim, ClaimListing, ClientKey, ClientShare, CommitOutcome, Core,
    Due, EVENTS_MAX, Executed, GRANT_SLOTS_MAX, Kind, Lease, LedgerLimits, Limits, Listed, ListingKind,
    Mailbox, Message, Moment, MonotonicMs, NameHasher, Outcome, Permitted, Queueing, REQUESTS_MAX, SLOTS_MAX,
    Session, SessionClient, Token, Waiting,
};
use signalbox_model::{
    AddressRange, Cancellation, Declaration, Generation, Idle, Milliseconds, Operation, Revocation,
    UnixSeconds,
};
use signalbox_model::{
    ConnectionId, Event, EventKind, GrantId, IfExists, Namespace, Notice, Refusal, Removal, RequestId,
    RequestIds, Resizing, Scope, ServiceChange, SessionId, SessionKey,
};

use crate::{Changes, cases, declaring, removing, revoking};

const CONNECTIONS: usize = 3;
/// More slots than one grant may have.
const MANY: u32 = 2 * GRANT_SLOTS_MAX as u32;
/// One name is a prefix of another, and one sorts before both although it is usually created later. That one is too long to
/// live inside its object.
const NAMES: [&[u8]; 3] = [b"b", b"b\0\xff", b"a name that is too long to live inside its object"];

/// No client has the second one.
const IDENTITIES: [&str; 2] = ["token:a", "token:b"];

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        by: usize,
        ids: Ids,
        wants: Vec<Want>,
        queueing: Queueing,
    },
    Release {
        by: usize,
        ids: Ids,
        grant: usize,
        is_done: bool,
    },
    /// An administrator cancels waiting requests.
    CancelWaiting {
        by: usize,
        waiter: usize,
        of_session: bool,
    },
    Cancel {
        by: usize,
        waiter: usize,
        by_token: bool,
    },
    Verify {
        grant: usize,
    },
    RevokeGrant {
        by: usize,
        ids: Ids,
        grant: usize,
        grace_ms: u32,
    },
    RevokeSession {
        by: usize,
        ids: Ids,
        session: usize,
        grace_ms: u32,
    },
    RevokeClients {
        by: usize,
        clients: Revocation<'static>,
        grace_ms: u32,
    },
    PlainAcquire {
        by: usize,
        want: Want,
    },
    PlainRelease {
        by: usize,
        key: Key,
        resources: u32,
    },
    Open {
        by: usize,
        ttl_ms: u32,
    },
    /// Opens with the key of an earlier session.
    OpenAgain {
        by: usize,
        session: usize,
        ttl_ms: u32,
    },
    Attach {
        by: usize,
        session: usize,
        with_key: bool,
    },
    Close {
        by: usize,
    },
    KeepAlive {
        by: usize,
    },
    /// Something is received that is not a request to the core.
    Renew {
        by: usize,
    },
    /// A connection may acquire a name from now on, or no longer.
    Rights {
        by: usize,
        key: Key,
        may_acquire: bool,
    },
    /// The connection ends and a new one replaces it.
    Leave {
        by: usize,
    },
    Watch {
        by: usize,
        namespace: Namespace,
        scope: Scope<&'static [u8]>,
    },
    Unwatch {
        by: usize,
        watch: usize,
    },
    Declare {
        by: usize,
        ids: Ids,
        wanted: Vec<Declaration<'static>>,
        if_exists: IfExists,
    },
    Resize {
        by: usize,
        ids: Ids,
        name: &'static [u8],
        resizing: Resizing,
        expected: Expected,
    },
    ChangeService {
        by: usize,
        ids: Ids,
        name: &'static [u8],
        change: ServiceChange,
        expected: Expected,
    },
    Remove {
        by: usize,
        ids: Ids,
        name: &'static [u8],
        removal: Removal,
        expected: Expected,
    },
    Configure {
        wanted: Vec<Declaration<'static>>,
    },
    AwaitIdle {
        by: usize,
        key: Key,
        until: Idle,
        wait_ms: u32,
    },
    Inspect {
        key: Key,
    },
    DeleteCounter {
        name: &'static [u8],
    },
    Sweep {
        namespace: Namespace,
    },
    Time {
        by_ms: u64,
    },
    /// Seconds by which the clock is set forward or back.
    Clock {
        by_s: i64,
    },
    ShutDown,
}

/// The generation that a change of a declared semaphore expects.
#[derive(Clone, Copy, Debug)]
enum Expected {
    Any,
    Present,
    Other,
}

/// The ids of a request, relative to the earlier requests of its session.
#[derive(Clone, Copy, Debug)]
struct Ids {
    own: Own,
    lowest: Lowest,
}

#[derive(Clone, Copy, Debug)]
enum Own {
    Next,
    /// A repetition, or an id that was skipped.
    Back(u64),
    /// About as far above the lowest unanswered as permitted.
    Ahead(u64),
}

#[derive(Clone, Copy, Debug)]
enum Lowest {
    Same,
    Own,
    Behind(u64),
    Zero,
}

/// The model and the core, and the state of the clients.
struct Pair {
    model: Model,
    core: Core,
    connections: Vec<Connection>,
    /// Every leased session that was opened.
    leased: Vec<(SessionId, SessionKey, Arc<Lease>)>,
    highest_requests: BTreeMap<SessionId, u64>,
    last_token: u64,
    alarm: Arc<Alarm>,
}

struct Connection {
    session: Session,
    mailbox: Arc<Mailbox>,
    /// The names that it may not acquire.
    denied: Vec<Key>,
    /// Since its rights changed, the names of its leased session were checked up to this grant.
    checked_up_to: Option<GrantId>,
}

impl Connection {
    fn new(core: &Core, mailbox: Mailbox) -> Self {
        let (session, mailbox) = (core.open_session(), Arc::new(mailbox));
        Self { session, mailbox, denied: Vec::new(), checked_up_to: None }
    }
}

#[derive(Default)]
struct Alarm(AtomicBool);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn address(by: usize) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, by as u8)
}

/// A client with a connection of this number. All but the first have one identity.
fn shown(by: usize) -> SessionClient {
    let identity = (by > 0).then(|| IDENTITIES[0].into());
    SessionClient { address: (address(by), 1).into(), identity }
}

type Name = Box<[u8]>;

/// The messages to a connection, grouped so that only guaranteed orders are compared.
#[derive(Debug, Default, PartialEq)]
struct Received {
    answers: BTreeMap<Token, Vec<Message>>,
    notices: Vec<Notice<MonotonicMs>>,
    is_closed: bool,
    events: BTreeMap<(Token, Name), Vec<Event<Name>>>,
}

fn new_core() -> Core {
    Core::new(NonZeroU32::new(INTERVAL_S as u32).unwrap(), NameHasher::with_seeds(1, 2, 3, 4))
}

fn messages_of(mailbox: &Mailbox) -> Vec<Message> {
    std::iter::from_fn(|| mailbox.take()).collect()
}

fn list(core: &Core, key: Key, kind: ListingKind) -> Vec<Listed> {
    let mut listed = Vec::new();
    let Ok(mut listing) = core.listing(key.0, key.1, kind) else { return listed };
    loop {
        let some = core.list(&mut listing);
        if some.is_empty() {
            return listed;
        }
        listed.extend(some);
    }
}

/// Plain holdings come first. Their order is not guaranteed.
fn by_grant(mut listed: Vec<Listed>) -> Vec<Listed> {
    listed.sort_by_key(|(listed, _)| (listed.grant, listed.grant.is_none().then_some(listed.session)));
    listed
}

impl Received {
    fn of(messages: impl IntoIterator<Item = Message>) -> Self {
        let mut received = Self::default();
        for message in messages {
            match message {
                Message::Answer { token, .. } => received.answers.entry(token).or_default().push(message),
                Message::Notice(notice) => received.notices.push(notice),
                Message::Close => received.is_closed = true,
                Message::Operated { .. } => panic!("no process calls: {message:?}"),
                Message::Event { token, event } => {
                    let is_live = received.events.contains_key(&(token, Box::default()));
                    assert!(event.kind != EventKind::Present || !is_live, "Present events precede Live");
                    received.events.entry((token, event.name.clone())).or_default().push(event);
                }
            }
        }
        received
    }
}

impl Pair {
    fn new(limits: LedgerLimits, names_max: Option<u64>) -> Self {
        let core = new_core();
        core.set_ledger_limits(limits);
        for namespace in Namespace::ALL {
            core.set_limits(namespace, Limits { names_max });
        }
        let mut pair = Self {
            model: Model::new(limits, names_max),
            core,
            connections: Vec::new(),
            leased: Vec::new(),
            highest_requests: BTreeMap::new(),
            last_token: 0,
            alarm: Arc::default(),
        };
        pair.connections = (0..CONNECTIONS).map(|by| pair.connect(by)).collect();
        pair.take(&Step::Time { by_ms: 0 });
        pair
    }

    /// The connections belong to two clients, as far as shares are concerned.
    fn connect(&mut self, by: usize) -> Connection {
        let client = Client { share: ClientKey([by as u8 % 2; 16]), shown: shown(by) };
        let mailbox = Mailbox::of(client.shown.address, Some(client.share));
        client.shown.identity.iter().for_each(|identity| mailbox.identify_again(identity));
        let connection = Connection::new(&self.core, mailbox);
        let id = connection.session.id();
        let label = id.to_string();
        self.core.join(id, Some(label.as_bytes()), &connection.mailbox);
        self.model.join(id, label.as_bytes(), client);
        connection
    }

    fn now(&self) -> Moment {
        Moment { monotonic: MonotonicMs(self.model.now_ms), unix: self.model.unix() }
    }

    fn id(&self, by: usize) -> ConnectionId {
        self.connections[by].session.id()
    }

    fn token(&mut self) -> Token {
        self.last_token += 1;
        Token(self.last_token)
    }

    fn ids(&mut self, by: usize, ids: Ids) -> RequestIds {
        let Ok(session) = self.model.acting(self.id(by)) else {
            return RequestIds { own: RequestId(1), lowest_unanswered: RequestId(1) };
        };
        let floor = self.model.session(session).unwrap().floor;
        let highest = self.highest_requests.entry(session).or_default();
        let own = match ids.own {
            Own::Next => *highest + 1,
            Own::Back(by) => (*highest + 1).saturating_sub(by),
            Own::Ahead(by) => floor + REQUESTS_MAX - 2 + by,
        };
        *highest = own.max(*highest);
        let lowest_unanswered = match ids.lowest {
            Lowest::Same => floor,
            Lowest::Own => own,
            Lowest::Behind(by) => own.saturating_sub(by).max(1),
            Lowest::Zero => 0,
        };
        RequestIds { own: RequestId(own), lowest_unanswered: RequestId(lowest_unanswered) }
    }

    fn call(&mut self, by: usize, ids: Ids) -> Call {
        Call { connection: self.id(by), ids: self.ids(by, ids), token: self.token() }
    }

    /// One of the existing sessions, or one that never existed.
    fn session(&self, choice: usize) -> SessionId {
        let sessions = self.model.sessions.iter().map(|session| session.id);
        let sessions: Vec<_> = sessions.chain(SessionId::from_number(u64::MAX)).collect();
        sessions[choice % sessions.len()]
    }

    /// A grant that is held or waits, or any other id.
    fn grant(&self, choice: usize) -> GrantId {
        let alive = self.model.grants.len();
        if choice.is_multiple_of(4) || alive == 0 {
            return GrantId(choice as u64 / 4);
        }
        GrantId(self.model.grants[choice % alive].id)
    }

    fn generation(&self, name: &'static [u8], expected: Expected) -> Option<u64> {
        let present = self.model.declaration(semaphore(name)).map_or(0, |declaration| declaration.generation);
        match expected {
            Expected::Any => None,
            Expected::Present => Some(present),
            Expected::Other => Some(present + 1),
        }
    }

    fn waiting(&self, choice: usize, by_token: bool) -> Waiting {
        // Every second choice is an idle waiter, if there is one.
        if by_token && choice % 2 == 1 && !self.model.idle_waiters.is_empty() {
            return Waiting::Token(self.model.idle_waiters[choice / 2 % self.model.idle_waiters.len()].token);
        }
        let mut waiters =
            self.model.grants.iter().filter_map(|grant| Some((grant.request, grant.wait.as_ref()?)));
        let count = waiters.clone().count().max(1);
        let waiter = waiters.nth(choice % count);
        if by_token {
            let reply = waiter.and_then(|(_, wait)| wait.reply);
            return Waiting::Token(reply.map_or(Token(choice as u64), |(_, token)| token));
        }
        Waiting::Request(RequestId(waiter.map_or(choice as u64, |(request, _)| request)))
    }

    fn take(&mut self, step: &Step) {
        let now = self.now();
        match *step {
            Step::Acquire { by, ids, ref wants, queueing } => {
                let denied = self.connections[by].denied.clone();
                let is_denied = |want: &Want| want.resolves.is_none() && denied.contains(&want.key);
                if wants.iter().any(is_denied) || !self.may_renew(by) {
                    return;
                }
                let may = |key: Key| !denied.contains(&key);
                let permitted = |name| Permitted::of(|namespace| may((namespace, name)));
                let resolving =
                    |want: &Want| Want { resolves: want.resolves.map(|_| permitted(want.key.1)), ..*want };
                let wants: Vec<_> = wants.iter().map(resolving).collect();
                let call = self.call(by, ids);
                let wanted = |want: &Want| signalbox_core::Want {
                    kind: want.resolves.map_or(Kind::Of(want.key.0), Kind::Resolved),
                    name: want.key.1,
                    claim: claim(*want),
                    slot: want.slot,
                    is_shared: want.is_shared,
                };
                let wanted: Vec<_> = wants.iter().map(wanted).collect();
                let found = self.core.acquire_grant(call, &wanted, queueing, now);
                assert_eq!(found, self.model.acquire(call, &wants, queueing));
            }
            Step::Release { by, ids, grant, is_done } => {
                let (call, grant) = (self.call(by, ids), self.grant(grant));
                let found = self.core.release_grant(call, grant, is_done, now);
                assert_eq!(found, self.model.release(call, grant, is_done));
            }
            Step::CancelWaiting { by, waiter, of_session } => {
                let what = match of_session {
                    true => Cancellation::Session(self.session(waiter)),
                    false => Cancellation::Request(self.grant(waiter)),
                };
                let call = Call { connection: self.id(by), ids: RequestIds::FIRST, token: self.token() };
                let found = self.core.change(call, Operation::Cancel(what), now);
                let expected = self.model.cancel_waiting(what);
                let expected = expected.map(|requests| Outcome::Answered(Answer::Canceled { requests }));
                assert_eq!(found, expected.unwrap_or_else(Outcome::Refused));
            }
            Step::Cancel { by, waiter, by_token } => {
                let (connection, waiting) = (self.id(by), self.waiting(waiter, by_token));
                let found = self.core.cancel(connection, waiting, now);
                assert_eq!(found, self.model.cancel(connection, waiting));
            }
            Step::Verify { grant } => {
                let grant = self.grant(grant);
                assert_eq!(self.core.verify(grant, now), self.model.verify(grant));
            }
            Step::RevokeGrant { by, ids, grant, grace_ms } => {
                let (call, grant) = (self.call(by, ids), self.grant(grant));
                let found = self.core.change(call, revoking(Revocation::Grant(grant), grace_ms), now);
                assert_eq!(found, self.model.revoke_grant(call, grant, grace_ms));
            }
            Step::RevokeSession { by, ids, session, grace_ms } => {
                let call = self.call(by, ids);
                let session = self.session(session);
                let found = self.core.change(call, revoking(Revocation::Session(session), grace_ms), now);
                assert_eq!(found, self.model.revoke_session(call, session, grace_ms));
            }
            Step::RevokeClients { by, clients, grace_ms } => {
                let call = Call { connection: self.id(by), ids: RequestIds::FIRST, token: self.token() };
                let operation = revoking(clients, grace_ms);
                let asked = self.core.execute(call, &operation, now);
                assert_eq!(asked, Executed { outcome: Outcome::Waiting, is_change: true });
                self.model.revoke_clients((call.connection, call.token), clients, grace_ms);
                self.take(&Step::Time { by_ms: 0 });
            }
            Step::PlainAcquire { by, want: want @ Want { key, resources, maximum, .. } } => {
                let session = &mut self.connections[by].session;
                let claim = claim(want);
                let found = self.core.acquire(key.0, key.1, claim, session, now.unix);
                assert_eq!(found, self.model.plain_acquire(session.id(), key, resources, maximum));
            }
            Step::PlainRelease { by, key, resources } => {
                let session = &mut self.connections[by].session;
                let found = self.core.release(key.0, key.1, resources, session, now.unix);
                assert_eq!(found, self.model.plain_release(session.id(), key, resources));
            }
            Step::Open { by, ttl_ms } => self.open(by, ttl_ms),
            Step::OpenAgain { by, session, ttl_ms } => self.open_again(by, session, ttl_ms),
            Step::Attach { by, session, with_key } => {
                let connection = self.id(by);
                let some = self.leased.iter().rev().take(4).collect::<Vec<_>>();
                let Some((session, key, _)) = some.get(session % some.len().max(1)) else { return };
                let key = if with_key { *key } else { SessionKey([0; 16]) };
                let found = self.core.attach(*session, connection, &key, 0);
                let expected = self.model.attach(*session, connection, key);
                assert_eq!(found.map(|lease| lease.ttl_ms()), expected);
                if expected.is_ok() {
                    self.attached(by);
                }
            }
            Step::Close { by } => {
                let (connection, token) = (self.id(by), self.token());
                assert_eq!(self.core.close_leased(connection, token, now), self.model.close(connection));
            }
            Step::KeepAlive { by } if !self.may_renew(by) => {}
            Step::KeepAlive { by } => {
                let connection = self.id(by);
                assert_eq!(self.core.keep_alive(connection, now), self.model.keep_alive(connection));
            }
            Step::Renew { by } => self.renew(by),
            Step::Rights { by, key, may_acquire } => {
                let connection = &mut self.connections[by];
                connection.denied.retain(|denied| *denied != key);
                connection.denied.extend((!may_acquire).then_some(key));
                connection.checked_up_to = None;
            }
            Step::Leave { by } => self.leave(by),
            Step::Watch { by, namespace, scope } => {
                let (connection, token) = (self.id(by), self.token());
                let found = self.core.watch(connection, token, namespace, scope, now);
                let expected = self.model.watch(connection, token, namespace, scope);
                if let Ok(mut snapshot) = found.map_err(|refusal| assert_eq!(Err(refusal), expected)) {
                    assert_eq!(expected, Ok(()));
                    while self.core.show(&mut snapshot, 2) {}
                }
            }
            Step::Unwatch { by, watch } => {
                let connection = self.id(by);
                let watches = self.model.watches.len().max(1);
                let token = self.model.watches.get(watch % watches).map_or(Token(0), |watch| watch.token);
                let found = self.core.unwatch(connection, token, now);
                assert_eq!(found, self.model.unwatch(connection, token));
            }
            Step::Declare { by, ids, ref wanted, if_exists } => {
                let call = self.call(by, ids);
                let found = self.core.change(call, declaring(if_exists, wanted), now);
                assert_eq!(found, self.model.declare(call, wanted, if_exists));
            }
            Step::Resize { by, ids, name, resizing, expected } => {
                let (call, generation) = (self.call(by, ids), self.generation(name, expected));
                let found = self.core.change(
                    call,
                    Operation::Resize { name, how: resizing, expected: generation.map(Generation) },
                    now,
                );
                assert_eq!(found, self.model.resize(call, name, resizing, generation));
            }
            Step::ChangeService { by, ids, name, change, expected } => {
                let (call, generation) = (self.call(by, ids), self.generation(name, expected));
                let found = self.core.change(
                    call,
                    Operation::ChangeService { name, how: change, expected: generation.map(Generation) },
                    now,
                );
                assert_eq!(found, self.model.change_service(call, name, change, generation));
            }
            Step::Remove { by, ids, name, removal, expected } => {
                let (call, generation) = (self.call(by, ids), self.generation(name, expected));
                let found = self.core.change(
                    call,
                    Operation::Remove { name, how: removal, expected: generation.map(Generation) },
                    now,
                );
                assert_eq!(found, self.model.remove(call, name, removal, generation));
            }
            Step::Configure { ref wanted } => {
                let found = self.core.declare_configured(wanted, now);
                assert_eq!(found, self.model.declare_configured(wanted));
            }
            Step::AwaitIdle { by, key, until, wait_ms } => {
                let caller = (self.id(by), self.token());
                let found = self.core.await_idle(caller, key, until, wait_ms, now);
                assert_eq!(found, self.model.await_idle(caller, key, until, wait_ms));
            }
            Step::Inspect { key: (namespace, name) } => {
                let found = self.core.inspect(namespace, name, now);
                let found = found
                    .map(|found| (found.in_use, found.waiting as usize, found.capacity, found.available));
                assert_eq!(found, self.model.inspect((namespace, name)));
            }
            Step::DeleteCounter { name } => {
                let call = Call { connection: self.id(0), ids: RequestIds::FIRST, token: self.token() };
                let found = self.core.change(call, Operation::DeleteCounter { name }, now);
                let expected = self.model.delete_counter(name);
                assert_eq!(
                    found,
                    expected.map_or_else(Outcome::Refused, |()| Outcome::Answered(Answer::Done))
                );
            }
            Step::Sweep { namespace } => {
                self.model.sweep(namespace);
                let mut sweep = self.core.sweep(namespace);
                while sweep.step(3, now.unix) {}
            }
            Step::Time { by_ms } => {
                self.model.tick(by_ms);
                let plain_holders = |key: Key| {
                    let holders = list(&self.core, key, ListingKind::Holders).into_iter();
                    holders
                        .filter(|(holder, _)| holder.grant.is_none())
                        .map(|(holder, _)| ConnectionId::new(holder.session))
                        .collect()
                };
                self.model.evict(plain_holders);
                let mailbox_of = |session| {
                    let mut connections = self.connections.iter();
                    let connection = connections.find(|connection| connection.session.id() == session)?;
                    Some(Arc::clone(&connection.mailbox))
                };
                let now = self.now();
                while self.core.expire(now) || self.core.evict(now, mailbox_of) {}
            }
            Step::Clock { by_s } => self.model.clock_s += by_s,
            Step::ShutDown => {
                self.model.shut_down();
                while self.core.shut_down(now) {}
            }
        }
    }

    /// Whether a connection may acquire every name that its leased session holds or waits for. Like the server, it checks
    /// only names that it has not checked since the rights changed.
    fn may_renew(&mut self, by: usize) -> bool {
        let Connection { session, denied, checked_up_to, .. } = &mut self.connections[by];
        let passes = |namespace, name: &[u8]| denied.iter().all(|key| *key != (namespace, name));
        let may_renew = loop {
            match self.core.check_names(session.id(), *checked_up_to, passes) {
                CheckedNames::All => break true,
                CheckedNames::UpTo(grant) => *checked_up_to = Some(grant),
                CheckedNames::Failed => break false,
            }
        };
        assert_eq!(may_renew, self.model.may_have_all(session.id(), denied));
        may_renew
    }

    /// A connection was attached to a leased session, which it renews.
    fn attached(&mut self, by: usize) {
        self.connections[by].checked_up_to = None;
        self.renew(by);
    }

    fn renew(&mut self, by: usize) {
        if let Attachment::To(id) = self.model.attachment(self.id(by))
            && self.may_renew(by)
        {
            let (.., lease) = self.leased.iter().find(|(session, ..)| *session == id).unwrap();
            lease.renew(self.now().monotonic);
            self.model.renew(id);
        }
    }

    fn open(&mut self, by: usize, ttl_ms: u32) {
        let (connection, token) = (self.id(by), self.token());
        let key = SessionKey([self.leased.len() as u8 + 1; 16]);
        let expected = self.model.check_open(connection);
        match self.core.open_leased(connection, key, ttl_ms, b"leased", token, self.now()) {
            Outcome::Answered(Answer::Opened(opened)) => {
                assert_eq!((expected, opened.key.0, opened.ttl_ms), (Ok(()), key.0, ttl_ms));
                self.model.open(opened.session, connection, key, ttl_ms, b"leased");
                self.leased.push((opened.session, key, self.core.lease(connection).unwrap()));
                self.attached(by);
            }
            Outcome::Refused(refusal) => assert_eq!(expected, Err(refusal)),
            other => panic!("{other:?}"),
        }
    }

    /// Opens with the key of a session that was opened before, which may have ended.
    fn open_again(&mut self, by: usize, session: usize, ttl_ms: u32) {
        let (connection, token) = (self.id(by), self.token());
        let some = self.leased.iter().rev().take(4).collect::<Vec<_>>();
        let Some((_, key, _)) = some.get(session % some.len().max(1)) else { return };
        let key = *key;
        let expected = match self.model.open_again(connection, key) {
            Some(expected) => expected.map(Some),
            None => self.model.check_open(connection).map(|()| None),
        };
        match self.core.open_leased(connection, key, ttl_ms, b"leased", token, self.now()) {
            Outcome::Answered(Answer::Opened(opened)) => {
                assert_eq!(opened.key.0, key.0);
                match expected.unwrap() {
                    Some(expected) => {
                        assert_eq!((opened.session, opened.ttl_ms), expected);
                        self.attached(by);
                    }
                    None => {
                        assert_eq!(opened.ttl_ms, ttl_ms);
                        self.model.open(opened.session, connection, key, ttl_ms, b"leased");
                        self.leased.push((opened.session, key, self.core.lease(connection).unwrap()));
                        self.attached(by);
                    }
                }
            }
            Outcome::Refused(refusal) => assert_eq!(expected, Err(refusal)),
            other => panic!("{other:?}"),
        }
    }

    /// Releases one name after the other, because the end of a session guarantees no order.
    fn leave(&mut self, by: usize) {
        let (now, connection) = (self.now(), self.id(by));
        while self.core.leave(connection, now) {}
        self.model.leave(connection);
        let mut held = self.model.plain_holdings(connection);
        let last = held.pop();
        for (key, resources) in held {
            self.take(&Step::PlainRelease { by, key, resources });
        }
        if let Some((key, resources)) = last {
            self.model.plain_release(connection, key, resources).unwrap();
        }
        let new = self.connect(by);
        let left = std::mem::replace(&mut self.connections[by], new);
        let mut ending = self.core.end_session(left.session);
        while ending.step(1, now.unix) {}
        assert!(!self.core.leave(connection, now), "a connection that left is gone");
    }

    /// Takes a step, and compares the complete visible state.
    fn step(&mut self, step: &Step) {
        self.alarm.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&self.alarm));
        let due_ms = self.core.next_due(&waker);
        self.take(step);
        let new_due_ms = self.core.next_due(&waker);
        let is_earlier = new_due_ms.is_some_and(|new| due_ms.is_none_or(|due_ms| new < due_ms));
        assert!(
            !is_earlier || self.alarm.0.load(Ordering::Relaxed),
            "a sleep until {due_ms:?} is interrupted"
        );
        if let Some(expected) = self.model.next_due_ms() {
            assert!(
                new_due_ms.is_some_and(|new| new <= Due::At(MonotonicMs(expected))),
                "{new_due_ms:?} is after {expected}"
            );
        }
        self.compare();
        for by in 0..CONNECTIONS {
            self.may_renew(by);
            if self.compare_messages(by) {
                // The server does the same.
                self.leave(by);
                self.compare();
            }
        }
    }

    /// Compares the messages to a connection. Returns true if one of them closes it.
    fn compare_messages(&mut self, by: usize) -> bool {
        let connection = self.id(by);
        let found = Received::of(messages_of(&self.connections[by].mailbox));
        let expected = self.model.messages.extract_if(.., |(to, _)| *to == connection);
        let expected = Received::of(expected.map(|(_, message)| message).collect::<Vec<_>>());
        assert_eq!(found, expected, "the messages of connection {connection}");
        found.is_closed
    }

    fn compare(&self) {
        self.model.check();
        for namespace in Namespace::ALL {
            for name in NAMES {
                let key = (namespace, name);
                let shown = (namespace, name.escape_ascii().to_string());
                let value = self.core.value(namespace, name).map(u64::from);
                assert_eq!(value, self.model.value(key), "the value of {shown:?}");
                let waiters = list(&self.core, key, ListingKind::Waiters);
                assert_eq!(waiters, self.model.waiters(key), "the waiters for {shown:?}");
                let holders = list(&self.core, key, ListingKind::Holders);
                let held: u64 = holders.iter().map(|(holder, _)| u64::from(holder.resources)).sum();
                assert_eq!(held, self.model.consumption(key), "the consumption of {shown:?}");
                assert_eq!(by_grant(holders), by_grant(self.model.holders(key)), "the holders of {shown:?}");
            }
            let mut dump = self.core.dump(namespace);
            let now = self.now().unix;
            let mut found: Vec<_> = std::iter::from_fn(|| {
                dump.next(&self.core, now, |name, item| {
                    (name.to_vec(), item.consumption.into(), item.peak.into())
                })
            })
            .collect();
            let names = self.model.names.iter().filter(|name| name.key.0 == namespace);
            let mut expected: Vec<_> = names
                .map(|name| (name.key.1.to_vec(), self.model.consumption(name.key), self.model.peak(name)))
                .collect();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "the consumption and the peak of each {namespace:?}");
            assert_eq!(self.core.stats(namespace).objects, expected.len() as u64);
            let mut failures = Vec::new();
            let mut check = self.core.check(namespace);
            while check.step(1, &mut failures) {}
            assert_eq!(failures, []);
        }
        for prefix in [&b""[..], b"b"] {
            let mut listing = self.core.declared(prefix);
            let found: Vec<_> = std::iter::from_fn(|| {
                Some(self.core.list_declared(&mut listing)).filter(|some| !some.is_empty())
            })
            .flatten()
            .collect();
            let mut expected = self.model.list_declared();
            expected.retain(|declared| declared.record.name.starts_with(prefix));
            assert_eq!(found, expected, "the declared semaphores");
            for declared in expected {
                assert_eq!(self.core.declared_semaphore(&declared.record.name), Some(declared));
            }
        }
        let mut listing = self.core.sessions();
        let connected = |after| self.model.connected(after).into_iter().collect();
        let sessions: Vec<_> = std::iter::from_fn(|| {
            Some(self.core.list_sessions(&mut listing, connected, self.now())).filter(|some| !some.is_empty())
        })
        .flatten()
        .collect();
        assert_eq!(sessions, self.model.list_sessions());
        for session in &self.model.sessions {
            let found = claims::list(&self.core, ClaimListing::of(vec![session.id]));
            assert_eq!(found, claims::of(&self.model, &[session.id]), "the claims of {}", session.id);
        }
        let identities = IDENTITIES.map(|identity| Revocation::Identity(identity.as_bytes()));
        for clients in (0..CONNECTIONS).map(of_address).chain(identities) {
            let its = sessions.iter().filter(|session| clients.is_about(session));
            let mut its: Vec<_> = its.filter_map(|session| SessionId::from_number(session.session)).collect();
            assert_eq!(its, self.model.sessions_of(clients), "the sessions of {clients:?}");
            let expected = claims::of(&self.model, &its);
            its.reverse();
            let found = claims::list(&self.core, ClaimListing::of(its));
            assert_eq!(found, expected, "the claims of {clients:?}");
        }
        for grant in &self.model.grants {
            let grant = GrantId(grant.id);
            assert_eq!(self.core.verify(grant, self.now()), self.model.verify(grant));
        }
        assert_eq!(self.core.ledger_stats(), self.model.stats());
        assert_eq!(self.core.check_ledger(), Ok(()));
    }
}

/// A maximum of 0 means the limit of the existing name.
fn claim(want: Want) -> Claim {
    match NonZeroU32::new(want.resources).filter(|_| want.maximum == 0) {
        Some(resources) => Claim::of_existing(resources),
        None => Claim::new(want.resources, want.maximum).unwrap(),
    }
}

fn keys() -> impl Strategy<Value = Key> {
    // Most steps use one name; otherwise requests would rarely wait.
    let namespaces = prop_oneof![Just(Namespace::Counters), Just(Namespace::Semaphores)];
    (namespaces, prop_oneof![3 => Just(0), 1 => Just(1), 1 => Just(2)])
        .prop_map(|(namespace, name): (_, usize)| (namespace, NAMES[name]))
}

fn wants() -> impl Strategy<Value = Want> {
    let amounts = prop_oneof![
        6 => (1..=3u32, Just(3)),
        2 => (1..=2u32, Just(2)),
        2 => (1..=3u32, Just(0)),
        // About as many slots as one grant may have.
        1 => (GRANT_SLOTS_MAX as u32 - 1..GRANT_SLOTS_MAX as u32 + 2, Just(MANY)),
        // More than a semaphore of moderate size has.
        1 => Just((4, 5)),
        1 => (prop_oneof![Just(1), Just(2), Just(u32::MAX - 1), Just(u32::MAX)], Just(u32::MAX)),
    ];
    (keys(), amounts, kinds()).prop_map(|(key, (resources, maximum), resolves)| Want {
        key,
        resources,
        maximum,
        slot: None,
        resolves,
        is_shared: false,
    })
}

/// Whether a name is resolved. The step determines what its client may acquire.
fn kinds() -> impl Strategy<Value = Option<Permitted>> {
    prop::option::weighted(0.4, Just(Permitted { counter: true, semaphore: true }))
}

/// One slot of a semaphore.
fn slot_wants() -> impl Strategy<Value = Want> {
    (names(), slots(), kinds()).prop_map(|(name, slot, resolves)| Want {
        key: semaphore(name),
        resources: 1,
        maximum: 0,
        slot: Some(slot),
        resolves,
        is_shared: false,
    })
}

fn slots() -> impl Strategy<Value = u16> {
    prop_oneof![6 => 0..4u16, 1 => prop::sample::select(vec![63, 64, 70, u16::MAX])]
}

/// No name twice.
fn many_wants() -> impl Strategy<Value = Vec<Want>> {
    prop_oneof![
        3 => (wants(), any::<bool>()).prop_map(|(want, is_shared)| vec![Want { is_shared, ..want }]),
        1 => slot_wants().prop_map(|want| vec![want]),
        2 => prop::collection::vec(prop_oneof![3 => wants(), 1 => slot_wants()], 1..=3).prop_map(|mut wants| {
            let all = wants.clone();
            let mut place = 0;
            // A name that is resolved may be of either kind.
            let is_same = |one: &Want, other: &Want| match one.resolves.or(other.resolves) {
                Some(_) => one.key.1 == other.key.1,
                None => one.key == other.key,
            };
            wants.retain(|want| {
                place += 1;
                !all[..place - 1].iter().any(|before| is_same(want, before))
            });
            wants
        }),
    ]
}

fn names() -> impl Strategy<Value = &'static [u8]> {
    prop_oneof![3 => Just(0), 1 => Just(1), 1 => Just(2)].prop_map(|name: usize| NAMES[name])
}

fn declares() -> impl Strategy<Value = Declaration<'static>> {
    let capacities =
        prop_oneof![12 => 0..5u32, 1 => Just(MANY), 1 => Just(SLOTS_MAX + 1), 1 => Just(u32::MAX)];
    let labels = prop::sample::select(vec![&b""[..], b"label"]);
    (names(), capacities, any::<bool>(), labels).prop_map(|(name, capacity, numbered, label)| Declaration {
        name,
        capacity,
        numbered,
        label,
    })
}

/// No name twice.
fn many_declares(
    counts: std::ops::RangeInclusive<usize>,
) -> impl Strategy<Value = Vec<Declaration<'static>>> {
    prop::collection::vec(declares(), counts).prop_map(|mut declares| {
        let names: Vec<_> = declares.iter().map(|declare| declare.name).collect();
        let mut place = 0;
        declares.retain(|declare| {
            place += 1;
            !names[..place - 1].contains(&declare.name)
        });
        declares
    })
}

/// The configuration is validated before it reaches the core.
fn configurations() -> impl Strategy<Value = Vec<Declaration<'static>>> {
    many_declares(0..=2).prop_map(|mut declares| {
        declares.retain(|declare| !declare.numbered || declare.capacity <= SLOTS_MAX);
        declares
    })
}

fn resizings() -> impl Strategy<Value = Resizing> {
    prop_oneof![
        3 => (0..5u32).prop_map(Resizing::To),
        2 => (0..3u32).prop_map(Resizing::GrowBy),
        2 => (0..3u32).prop_map(Resizing::ShrinkBy),
        1 => prop::sample::select(vec![SLOTS_MAX, u32::MAX]).prop_map(Resizing::GrowBy),
        1 => Just(Resizing::To(MANY)),
    ]
}

fn removals() -> impl Strategy<Value = Removal> {
    prop_oneof![
        1 => Just(Removal::IfIdle),
        2 => Just(Removal::WithLastHolder),
        2 => graces_ms().prop_map(|ms| Removal::Now { grace: Milliseconds(ms) }),
    ]
}

fn service_changes() -> impl Strategy<Value = ServiceChange> {
    prop_oneof![
        1 => Just(ServiceChange::Pause),
        2 => Just(ServiceChange::Resume),
        2 => slots().prop_map(ServiceChange::SlotOut),
        1 => slots().prop_map(ServiceChange::SlotIn),
    ]
}

fn expectations() -> impl Strategy<Value = Expected> {
    prop_oneof![3 => Just(Expected::Any), 2 => Just(Expected::Present), 1 => Just(Expected::Other)]
}

/// Only semaphores have slots.
fn idles() -> impl Strategy<Value = (Key, Idle)> {
    prop_oneof![
        2 => (keys(), (0..3u32).prop_map(Idle::Level)),
        1 => (names().prop_map(semaphore), slots().prop_map(Idle::Slot)),
    ]
}

fn ids() -> impl Strategy<Value = Ids> {
    let own = prop_oneof![
        20 => Just(Own::Next),
        4 => (1..5u64).prop_map(Own::Back),
        1 => (0..6u64).prop_map(Own::Ahead),
    ];
    let lowest = prop_oneof![
        20 => Just(Lowest::Same),
        4 => (0..4u64).prop_map(Lowest::Behind),
        2 => Just(Lowest::Own),
        1 => Just(Lowest::Zero),
    ];
    (own, lowest).prop_map(|(own, lowest)| Ids { own, lowest })
}

fn waits_ms() -> impl Strategy<Value = u32> {
    prop_oneof![2 => Just(0), 3 => Just(60), 5 => Just(5000), 1 => Just(u32::MAX)]
}

fn if_exist() -> impl Strategy<Value = IfExists> {
    prop::sample::select(vec![IfExists::Fail, IfExists::Keep, IfExists::Set])
}

fn queueings() -> impl Strategy<Value = Queueing> {
    let queues_max = prop_oneof![1 => 0..3u32, 6 => Just(u32::MAX)];
    (waits_ms(), queues_max).prop_map(|(wait_ms, queue_max)| Queueing { wait_ms, queue_max })
}

fn graces_ms() -> impl Strategy<Value = u32> {
    prop_oneof![2 => Just(0), 1 => Just(50), 1 => Just(2500)]
}

fn of_address(by: usize) -> Revocation<'static> {
    let address = address(by).to_ipv6_mapped();
    Revocation::Addresses(AddressRange { first: address, last: address })
}

fn clients() -> impl Strategy<Value = Revocation<'static>> {
    let mapped = |by| address(by).to_ipv6_mapped();
    prop_oneof![
        2 => (0..CONNECTIONS, 0..2usize)
            .prop_map(move |(first, more)| Revocation::Addresses(AddressRange { first: mapped(first), last: mapped(first + more) })),
        1 => prop::sample::select(IDENTITIES.to_vec())
            .prop_map(|identity| Revocation::Identity(identity.as_bytes())),
    ]
}

fn ttls_ms() -> impl Strategy<Value = u32> {
    prop_oneof![1 => Just(100), 2 => Just(2500), 3 => Just(60_000)]
}

fn times_ms() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => prop::sample::select(vec![1, 9, 40, 50, 60, 100]),
        3 => prop::sample::select(vec![1000, 2500, 2999]),
        1 => prop::sample::select(vec![3000, 3001, 12_000]),
    ]
}

fn scopes() -> impl Strategy<Value = Scope<&'static [u8]>> {
    prop_oneof![
        prop::sample::select(NAMES.to_vec()).prop_map(Scope::Name),
        prop::sample::select(vec![&b""[..], b"b"]).prop_map(Scope::Prefix),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    let by = || 0..CONNECTIONS;
    let namespaces = || prop::sample::select(Namespace::ALL.to_vec());
    let choice = any::<usize>;
    prop_oneof![
        24 => (by(), ids(), many_wants(), queueings())
            .prop_map(|(by, ids, wants, queueing)| Step::Acquire { by, ids, wants, queueing }),
        12 => (by(), ids(), choice(), prop::bool::weighted(0.3))
            .prop_map(|(by, ids, grant, is_done)| Step::Release { by, ids, grant, is_done }),
        4 => (by(), choice(), any::<bool>())
            .prop_map(|(by, waiter, by_token)| Step::Cancel { by, waiter, by_token }),
        2 => (by(), choice(), any::<bool>())
            .prop_map(|(by, waiter, of_session)| Step::CancelWaiting { by, waiter, of_session }),
        2 => choice().prop_map(|grant| Step::Verify { grant }),
        3 => (by(), ids(), choice(), graces_ms())
            .prop_map(|(by, ids, grant, grace_ms)| Step::RevokeGrant { by, ids, grant, grace_ms }),
        2 => (by(), ids(), choice(), graces_ms())
            .prop_map(|(by, ids, session, grace_ms)| Step::RevokeSession { by, ids, session, grace_ms }),
        2 => (by(), clients(), graces_ms())
            .prop_map(|(by, clients, grace_ms)| Step::RevokeClients { by, clients, grace_ms }),
        6 => (by(), wants()).prop_map(|(by, want)| Step::PlainAcquire { by, want }),
        5 => (by(), keys(), 0..3u32)
            .prop_map(|(by, key, resources)| Step::PlainRelease { by, key, resources }),
        6 => (by(), ids(), many_declares(1..=3), if_exist())
            .prop_map(|(by, ids, wanted, if_exists)| Step::Declare { by, ids, wanted, if_exists }),
        5 => (by(), ids(), names(), resizings(), expectations()).prop_map(
            |(by, ids, name, resizing, expected)| Step::Resize { by, ids, name, resizing, expected }
        ),
        8 => (by(), ids(), names(), service_changes(), expectations()).prop_map(
            |(by, ids, name, change, expected)| Step::ChangeService { by, ids, name, change, expected }
        ),
        4 => (by(), ids(), names(), removals(), expectations()).prop_map(
            |(by, ids, name, removal, expected)| Step::Remove { by, ids, name, removal, expected }
        ),
        1 => configurations().prop_map(|wanted| Step::Configure { wanted }),
        4 => (by(), idles(), waits_ms())
            .prop_map(|(by, (key, until), wait_ms)| Step::AwaitIdle { by, key, until, wait_ms }),
        4 => (by(), ttls_ms()).prop_map(|(by, ttl_ms)| Step::Open { by, ttl_ms }),
        2 => (by(), choice(), ttls_ms())
            .prop_map(|(by, session, ttl_ms)| Step::OpenAgain { by, session, ttl_ms }),
        5 => (by(), choice(), prop::bool::weighted(0.9))
            .prop_map(|(by, session, with_key)| Step::Attach { by, session, with_key }),
        1 => by().prop_map(|by| Step::Close { by }),
        2 => by().prop_map(|by| Step::KeepAlive { by }),
        2 => by().prop_map(|by| Step::Renew { by }),
        4 => (by(), keys(), any::<bool>())
            .prop_map(|(by, key, may_acquire)| Step::Rights { by, key, may_acquire }),
        2 => by().prop_map(|by| Step::Leave { by }),
        3 => (by(), namespaces(), scopes())
            .prop_map(|(by, namespace, scope)| Step::Watch { by, namespace, scope }),
        1 => (by(), choice()).prop_map(|(by, watch)| Step::Unwatch { by, watch }),
        2 => keys().prop_map(|key| Step::Inspect { key }),
        2 => names().prop_map(|name| Step::DeleteCounter { name }),
        2 => namespaces().prop_map(|namespace| Step::Sweep { namespace }),
        12 => times_ms().prop_map(|by_ms| Step::Time { by_ms }),
        2 => prop_oneof![-12..12i64, Just(10), Just(-10)].prop_map(|by_s| Step::Clock { by_s }),
    ]
}

/// Usually no limits, sometimes limits so low that histories reach them.
fn limits() -> impl Strategy<Value = LedgerLimits> {
    let shares = (0..100u32).prop_map(|percent| ClientShare { percent, least: 1 });
    let shares = prop_oneof![Just(ClientShare::NONE), shares];
    let small = (1..5usize, 1..4usize, 1..5usize, 1..5usize, shares);
    let small =
        small.prop_map(|(sessions_max, grants_max, waiters_max, watches_max, client_share)| LedgerLimits {
            sessions_max,
            grants_max,
            waiters_max,
            watches_max,
            client_share,
            ..LedgerLimits::NONE
        });
    prop_oneof![3 => Just(LedgerLimits::NONE), 2 => small]
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn the_ledger_matches_the_model(
        limits in limits(),
        names_max in prop_oneof![5 => Just(None), 1 => (1..3u64).prop_map(Some)],
        history in prop::collection::vec(steps(), 1..60),
        shuts_down in any::<bool>(),
        rest in prop::collection::vec(steps(), 0..4),
    ) {
        let mut pair = Pair::new(limits, names_max);
        for step in &history {
            pair.step(step);
        }
        if shuts_down {
            pair.step(&Step::ShutDown);
        }
        for step in &rest {
            pair.step(step);
        }
        // Connections and sessions that ended consume nothing.
        for by in 0..CONNECTIONS {
            pair.step(&Step::Leave { by });
        }
        for _ in 0..25 {
            pair.take(&Step::Time { by_ms: 2900 });
        }
        for namespace in Namespace::ALL {
            pair.step(&Step::Sweep { namespace });
        }
        prop_assert_eq!(pair.core.stats(Namespace::Semaphores).objects, pair.core.ledger_stats().declared);
        pair.step(&Step::Configure { wanted: Vec::new() });
        let ids = Ids { own: Own::Next, lowest: Lowest::Own };
        let (removal, expected) = (Removal::IfIdle, Expected::Any);
        for name in NAMES {
            pair.step(&Step::Remove { by: 0, ids, name, removal, expected });
        }
        for namespace in Namespace::ALL {
            prop_assert_eq!(pair.core.stats(namespace).objects, 0);
        }
        let stats = pair.core.ledger_stats();
        prop_assert_eq!((stats.sessions, stats.grants, stats.waiters, stats.watches), (0, 0, 0, 0));
    }
}

// Cases that random histories rarely reach.

/// Neither is served with what the other one returns: the core serves no queue before both have ended.
#[test]
fn connections_that_lose_a_semaphore_at_once_end_in_one_step() {
    let mut pair = Pair::new(LedgerLimits::NONE, None);
    let ids = Ids { own: Own::Next, lowest: Lowest::Own };
    let want = |key, resources, maximum| Want {
        key,
        resources,
        maximum,
        slot: None,
        resolves: None,
        is_shared: false,
    };
    let queueing = Queueing { wait_ms: u32::MAX, queue_max: u32::MAX };
    let name = NAMES[0];
    for by in [1, 2] {
        pair.step(&Step::PlainAcquire { by, want: want(semaphore(name), 1, 2) });
    }
    // Each holds what the other one waits for, because either may end first.
    for (by, key) in [(1, ONE), (2, TWO), (1, TWO), (2, ONE)] {
        pair.step(&Step::Acquire { by, ids, wants: vec![want(key, 1, 1)], queueing });
    }
    assert_eq!(pair.core.ledger_stats().waiters, 2);
    let wanted = vec![Declaration { name, capacity: 2, numbered: false, label: b"" }];
    pair.step(&Step::Declare { by: 0, ids, wanted, if_exists: IfExists::Fail });
    let removal = Removal::Now { grace: Milliseconds(0) };
    pair.step(&Step::Remove { by: 0, ids, name, removal, expected: Expected::Any });
    pair.step(&Step::Time { by_ms: 1 });
    assert_eq!(pair.core.ledger_stats().waiters, 0);
}

/// A core with connections, at the time 0.
struct Server {
    core: Core,
    connections: Vec<Connection>,
    requests: u64,
}

const START: Moment = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };
const ONE: Key = (Namespace::Counters, b"one");
const TWO: Key = (Namespace::Counters, b"two");

fn at(monotonic_ms: u64) -> Moment {
    Moment { monotonic: MonotonicMs(monotonic_ms), ..START }
}

impl Server {
    fn new(connections: usize) -> Self {
        let core = new_core();
        let connect = |_| Connection::new(&core, Mailbox::default());
        let connections: Vec<_> = (0..connections).map(connect).collect();
        for connection in &connections {
            core.join(connection.session.id(), None, &connection.mailbox);
        }
        core.expire(START);
        Self { core, connections, requests: 0 }
    }

    /// Requests resources of names under this maximum, without a deadline.
    fn acquire(&mut self, by: usize, keys: &[Key], resources: u32, maximum: u32) -> Outcome {
        let claim = Claim::new(resources, maximum).unwrap();
        let want = |key: &Key| signalbox_core::Want {
            kind: Kind::Of(key.0),
            name: key.1,
            claim,
            slot: None,
            is_shared: false,
        };
        let wants: Vec<_> = keys.iter().map(want).collect();
        let queueing = Queueing { wait_ms: u32::MAX, queue_max: u32::MAX };
        let call = self.call(by);
        self.core.acquire_grant(call, &wants, queueing, START)
    }

    fn granted(&mut self, by: usize, keys: &[Key], resources: u32, maximum: u32) -> GrantId {
        match self.acquire(by, keys, resources, maximum) {
            Outcome::Answered(Answer::Granted(granted)) => granted.grant,
            other => panic!("{other:?}"),
        }
    }

    fn call(&mut self, by: usize) -> Call {
        self.requests += 1;
        let ids = RequestIds { own: RequestId(self.requests), lowest_unanswered: RequestId(self.requests) };
        Call { connection: self.id(by), ids, token: Token(self.requests) }
    }

    fn open(&self, by: usize, ttl_ms: u32, now: Moment) -> Arc<Lease> {
        let key = SessionKey([by as u8 + 1; 16]);
        let outcome = self.core.open_leased(self.id(by), key, ttl_ms, b"", Token(0), now);
        assert!(matches!(outcome, Outcome::Answered(Answer::Opened(_))), "{outcome:?}");
        self.core.lease(self.id(by)).unwrap()
    }

    fn id(&self, by: usize) -> ConnectionId {
        self.connections[by].session.id()
    }

    fn release(&mut self, by: usize, grant: GrantId) {
        let call = self.call(by);
        assert_eq!(self.core.release_grant(call, grant, false, START), Outcome::Answered(Answer::Done));
    }

    fn value(&self, key: Key) -> u32 {
        self.core.value(key.0, key.1).unwrap()
    }

    fn watch(&self, by: usize, key: Key) {
        let scope = Scope::Name(key.1);
        let mut snapshot = self.core.watch(self.id(by), Token(0), key.0, scope, START).unwrap();
        while self.core.show(&mut snapshot, 100) {}
        messages_of(&self.connections[by].mailbox);
    }

    /// Sends requests that wait until a name is idle, with the tokens of a range.
    fn await_idle(&self, by: usize, key: Key, until: Idle, wait_ms: u32, tokens: Range<u64>) {
        for token in tokens {
            let outcome = self.core.await_idle((self.id(by), Token(token)), key, until, wait_ms, START);
            assert_eq!(outcome, Outcome::Waiting);
        }
    }

    /// The new answers to requests that waited until a name is idle.
    fn idle_answers(&self, by: usize) -> Vec<(u64, Result<u32, Refusal>)> {
        let outcome = |message| match message {
            Message::Answer { token, outcome: Ok(Answer::Idle { in_use }) } => (token.0, Ok(in_use)),
            Message::Answer { token, outcome: Err(refusal) } => (token.0, Err(refusal)),
            other => panic!("{other:?}"),
        };
        messages_of(&self.connections[by].mailbox).into_iter().map(outcome).collect()
    }

    /// The grants of the new answers.
    fn answers(&self, by: usize) -> Vec<GrantId> {
        let grant = |message| match message {
            Message::Answer { outcome: Ok(Answer::Granted(granted)), .. } => granted.grant,
            other => panic!("{other:?}"),
        };
        messages_of(&self.connections[by].mailbox).into_iter().map(grant).collect()
    }
}

#[test]
fn a_session_with_many_grants_ends_in_steps_and_gets_nothing_meanwhile() {
    const GRANTS: u32 = 1000;
    for is_closed in [false, true] {
        let mut server = Server::new(3);
        let theirs = server.granted(1, &[ONE], 1, 1);
        server.open(0, 100, START);
        assert_eq!(server.acquire(0, &[ONE], 1, 1), Outcome::Waiting);
        let grants: Vec<_> = (0..GRANTS).map(|_| server.granted(0, &[TWO], 1, GRANTS)).collect();
        assert_eq!(server.acquire(1, &[TWO], GRANTS, GRANTS), Outcome::Waiting);
        let session = SessionId::new(list(&server.core, ONE, ListingKind::Waiters)[0].0.session);
        server.watch(2, TWO);
        let (holder, now) = (server.id(0), at(100));
        assert!(server.core.verify(grants[0], at(99)).is_ok());
        if is_closed {
            let closed = server.core.close_leased(holder, Token(0), START);
            assert_eq!(closed, Outcome::Answered(Answer::Done));
        } else {
            assert!(server.core.expire(now));
            assert_eq!(server.acquire(0, &[TWO], 1, GRANTS), Outcome::Refused(Refusal::NoSuchSession));
            assert_eq!(server.core.verify(grants[0], now), Err(Refusal::NotAcquired), "its lease is over");
        }
        let attached = server.core.attach(session, server.id(2), &SessionKey([1; 16]), 0);
        assert_eq!(attached.err(), Some(Refusal::NoSuchSession));
        server.release(1, theirs);
        assert_eq!(server.value(ONE), 0, "its waiters are not served");
        let mut steps = 1;
        while server.core.expire(now) {
            assert_eq!(server.core.check_ledger(), Ok(()));
            assert!(server.value(TWO) > 0, "everything is released, and steps remain");
            assert_eq!(server.answers(1), [], "not everything is released yet");
            steps += 1;
        }
        assert!(steps > 4, "one step releases only a few");
        assert_eq!(server.answers(1).len(), 1);
        assert_eq!(server.core.keep_alive(holder, now), Err(Refusal::NoSuchSession));
        let stats = server.core.ledger_stats();
        assert_eq!((stats.sessions, stats.expired_sessions, stats.grants), (0, u64::from(!is_closed), 1));
        let why = if is_closed { EventKind::Released } else { EventKind::Expired };
        let ends = messages_of(&server.connections[2].mailbox)
            .into_iter()
            .filter(|message| matches!(message, Message::Event { event, .. } if event.kind == why));
        assert_eq!(ends.count(), GRANTS as usize);
    }
}

/// A step checks a bounded number of sessions, and sessions that are opened after the request stay.
#[test]
fn sessions_of_a_client_are_revoked_in_steps_and_later_ones_stay() {
    const SESSIONS: u64 = 100;
    let mut pair = Pair::new(LedgerLimits::NONE, None);
    for _ in 0..SESSIONS {
        pair.open(1, 1000);
    }
    let call = Call { connection: pair.id(0), ids: RequestIds::FIRST, token: Token(0) };
    let what = Revocation::Identity(IDENTITIES[0].as_bytes());
    assert_eq!(pair.core.change(call, revoking(what, 0), pair.now()), Outcome::Waiting);
    assert!(pair.core.evict(pair.now(), |_| None));
    let revoked = pair.core.ledger_stats().revoked;
    assert!((1..SESSIONS).contains(&revoked), "{revoked} of {SESSIONS} sessions in one step");
    pair.open(1, 1000);
    while pair.core.expire(pair.now()) | pair.core.evict(pair.now(), |_| None) {}
    let outcome = Ok(Answer::Revoked { sessions: SESSIONS });
    assert_eq!(messages_of(&pair.connections[0].mailbox), [Message::Answer { token: Token(0), outcome }]);
    assert_eq!(pair.core.ledger_stats().sessions, 1, "the session that was opened later stays");
}

#[test]
fn a_second_revoke_never_delays_the_first() {
    for is_session in [false, true] {
        let mut server = Server::new(2);
        let (grant, session) = (server.granted(0, &[ONE], 1, 1), server.id(0).session());
        for (grace_ms, left_ms) in [(500, 500), (900, 500), (200, 200)] {
            let call = server.call(1);
            let (outcome, notice) = if is_session {
                let notice = Notice::SessionRevoked { session: session.number(), end: at(left_ms).monotonic };
                (server.core.change(call, revoking(Revocation::Session(session), grace_ms), START), notice)
            } else {
                let notice = Notice::GrantRevoked { grant, end: at(left_ms).monotonic };
                (server.core.change(call, revoking(Revocation::Grant(grant), grace_ms), START), notice)
            };
            assert_eq!(outcome, Outcome::Answered(Answer::Done));
            assert_eq!(messages_of(&server.connections[0].mailbox), [Message::Notice(notice)]);
        }
        for (at_ms, grants) in [(199, 1), (200, 0)] {
            assert!(!server.core.expire(at(at_ms)));
            assert_eq!(server.core.ledger_stats().grants, grants);
        }
    }
}

#[test]
fn many_waiters_are_served_in_steps_and_in_order() {
    const WAITERS: usize = 1000;
    let mut server = Server::new(2);
    let all = server.granted(0, &[ONE], WAITERS as u32, WAITERS as u32);
    for _ in 0..WAITERS {
        assert_eq!(server.acquire(1, &[ONE], 1, WAITERS as u32), Outcome::Waiting);
    }
    let order: Vec<_> = list(&server.core, ONE, ListingKind::Waiters)
        .into_iter()
        .filter_map(|(waiter, _)| waiter.grant)
        .collect();
    assert_eq!(order.len(), WAITERS);
    server.release(0, all);
    let mut served = server.answers(1);
    let mut is_done = false;
    while !is_done {
        assert!(!served.is_empty() && served.len() < WAITERS, "{} were served", served.len());
        // No request overtakes the remaining waiters.
        let claim = Claim::new(1, u32::MAX).unwrap();
        let session = &mut server.connections[0].session;
        let overtaking = server.core.acquire(ONE.0, ONE.1, claim, session, START.unix);
        assert_eq!(overtaking, Err(Refusal::NotAvailable));
        is_done = !server.core.expire(START);
        assert_eq!(server.core.check_ledger(), Ok(()));
        served.extend(server.answers(1));
    }
    assert_eq!(served, order);
}

#[test]
fn many_idle_waiters_are_answered_in_steps_with_the_state_at_that_moment() {
    const REQUESTS: u64 = 200;
    const WAIT_MS: u32 = 10;
    let mut server = Server::new(2);
    let grant = server.granted(0, &[ONE], 1, 2);
    server.await_idle(1, ONE, Idle::Level(0), WAIT_MS, 0..REQUESTS / 2);
    server.await_idle(1, ONE, Idle::Level(0), u32::MAX, REQUESTS / 2..REQUESTS);
    let alarm = Arc::<Alarm>::default();
    assert_eq!(
        server.core.next_due(&Waker::from(Arc::clone(&alarm))),
        Some(Due::At(MonotonicMs(WAIT_MS.into())))
    );
    server.release(0, grant);
    assert!(alarm.0.load(Ordering::Relaxed), "a sleep until the next deadline is interrupted");
    assert_eq!(server.core.check_ledger(), Ok(()));
    let mut answered = server.idle_answers(1);
    assert!(!answered.is_empty() && answered.len() < REQUESTS as usize, "{} were answered", answered.len());
    // An acquire comes after that moment, and so does a new idle waiter with a token that is free again.
    let session = &mut server.connections[0].session;
    let claim = Claim::new(2, 2).unwrap();
    server.core.acquire(ONE.0, ONE.1, claim, session, START.unix).unwrap();
    let last = Waiting::Token(Token(REQUESTS - 1));
    assert_eq!(server.core.cancel(server.id(1), last, START), Ok(()));
    assert_eq!(server.idle_answers(1), [(REQUESTS - 1, Err(Refusal::Canceled))]);
    server.await_idle(1, ONE, Idle::Level(0), u32::MAX, REQUESTS - 1..REQUESTS);
    // The remaining idle waiters do not time out.
    let later = at(u64::from(WAIT_MS) + 1);
    while server.core.expire(later) {
        assert_eq!(server.core.check_ledger(), Ok(()));
        answered.extend(server.idle_answers(1));
    }
    answered.extend(server.idle_answers(1));
    assert!(answered.into_iter().eq((0..REQUESTS - 1).map(|token| (token, Ok(0)))));
    let session = &mut server.connections[0].session;
    server.core.release(ONE.0, ONE.1, 2, session, later.unix).unwrap();
    assert_eq!(server.idle_answers(1), [(REQUESTS - 1, Ok(0))]);
}

#[test]
fn idle_waiters_are_answered_in_steps_if_grants_are_released_while_queues_are_served() {
    let mut server = Server::new(2);
    let name = |number: u32| &*format!("{number:03}").leak();
    let keys: Vec<Key> = (0..200).map(|number| (Namespace::Counters, name(number).as_bytes())).collect();
    let grants: Vec<_> = keys.chunks(50).map(|keys| server.granted(0, keys, 1, 1)).collect();
    for (key, token) in keys.iter().zip(0..) {
        server.await_idle(1, *key, Idle::Level(0), u32::MAX, token..token + 1);
    }
    let all = server.granted(0, &[ONE], 1000, 1000);
    for _ in 0..1000 {
        assert_eq!(server.acquire(0, &[ONE], 1, 1000), Outcome::Waiting);
    }
    server.release(0, all);
    for grant in grants {
        server.release(0, grant);
    }
    assert_eq!(server.idle_answers(1), [], "the queue comes first");
    let mut answered = Vec::new();
    while server.core.expire(START) {
        let some = server.idle_answers(1);
        assert!(some.len() < 100, "{} were answered in one step", some.len());
        answered.extend(some);
    }
    answered.extend(server.idle_answers(1));
    answered.sort_by_key(|(token, _)| *token);
    assert!(answered.into_iter().eq((0..200).map(|token| (token, Ok(0)))));
}

/// Requests that were received together with the revocation are still executed, while it ends and afterwards.
#[test]
fn requests_of_a_connection_whose_session_is_revoked_are_refused() {
    const REQUESTS: u64 = 200;
    let mut server = Server::new(4);
    server.granted(0, &[ONE], 1, 1);
    server.open(2, 1000, START);
    server.granted(2, &[TWO], 1, 1);
    let session = SessionId::new(list(&server.core, TWO, ListingKind::Holders)[0].0.session);
    server.await_idle(1, ONE, Idle::Level(0), u32::MAX, 0..REQUESTS);
    let (revoked, call) = (server.id(1), server.call(0));
    let outcome = server.core.change(call, revoking(Revocation::Session(revoked.session()), 0), START);
    assert_eq!(outcome, Outcome::Answered(Answer::Done));
    let gone = Refusal::NoSuchSession;
    for is_over in [false, true] {
        let core = &server.core;
        let idle = core.await_idle((revoked, Token(1000)), ONE, Idle::Level(0), 1, START);
        assert_eq!(idle, Outcome::Refused(gone));
        let watch = core.watch(revoked, Token(1001), ONE.0, Scope::Prefix(&b""[..]), START);
        assert_eq!(watch.err(), Some(gone));
        assert_eq!(core.attach(session, revoked, &SessionKey([3; 16]), 0).err(), Some(gone));
        // With the key of no session, and of the one that exists.
        for key in [9, 3] {
            let opened = core.open_leased(revoked, SessionKey([key; 16]), 1000, b"", Token(1002), START);
            assert_eq!(opened, Outcome::Refused(gone));
        }
        assert_eq!(server.acquire(1, &[TWO], 1, 2), Outcome::Refused(gone));
        assert_eq!(server.connections[1].mailbox.is_closed(), is_over, "the work takes more than one step");
        while server.core.expire(START) {}
    }
    while server.core.leave(revoked, START) {}
    assert_eq!(server.core.check_ledger(), Ok(()));
    // The session has the connection that it had, and can get another.
    assert!(server.core.attach(session, server.id(3), &SessionKey([3; 16]), 0).is_ok());
}

#[test]
fn a_stopping_server_answers_completed_waits_before_it_refuses_the_others() {
    const REQUESTS: u64 = 100;
    let mut server = Server::new(2);
    let [one, _two] = [ONE, TWO].map(|key| server.granted(0, &[key], 1, 1));
    server.await_idle(1, ONE, Idle::Level(0), u32::MAX, 0..REQUESTS);
    server.await_idle(1, TWO, Idle::Level(0), u32::MAX, REQUESTS..2 * REQUESTS);
    server.release(0, one);
    while server.core.shut_down(START) {
        assert_eq!(server.core.check_ledger(), Ok(()));
    }
    let messages = messages_of(&server.connections[1].mailbox);
    let outcome = |message: &Message| match message {
        Message::Answer { token, outcome } => Some((token.0, outcome.clone())),
        _ => None,
    };
    let is_as_expected = |(token, outcome): (u64, Result<Answer, Refusal>)| {
        outcome == if token < REQUESTS { Ok(Answer::Idle { in_use: 0 }) } else { Err(Refusal::ShuttingDown) }
    };
    let outcomes: Vec<_> = messages.iter().filter_map(outcome).collect();
    assert_eq!(outcomes.len(), 2 * REQUESTS as usize);
    assert!(outcomes.into_iter().all(is_as_expected));
}

#[test]
fn a_connection_with_many_waiting_requests_ends_in_steps() {
    const REQUESTS: u32 = 200;
    let mut server = Server::new(3);
    let grant = server.granted(0, &[ONE], REQUESTS, REQUESTS);
    server.open(1, 1000, START);
    for _ in 0..REQUESTS {
        assert_eq!(server.acquire(1, &[ONE], 1, REQUESTS), Outcome::Waiting);
    }
    let last = RequestIds { own: RequestId(server.requests), lowest_unanswered: RequestId(server.requests) };
    server.await_idle(1, ONE, Idle::Level(0), u32::MAX, 0..REQUESTS.into());
    let gone = server.id(1);
    let mut steps = 1;
    while server.core.leave(gone, START) {
        assert_eq!(server.core.check_ledger(), Ok(()));
        steps += 1;
    }
    assert!(steps > 2, "one step removes only a few");
    assert_eq!(
        server.core.ledger_stats().waiters,
        u64::from(REQUESTS),
        "the waiters of the session remain without a connection"
    );
    // Another connection gets the answer of the request that it repeats.
    let session = SessionId::new(list(&server.core, ONE, ListingKind::Waiters)[0].0.session);
    server.core.attach(session, server.id(2), &SessionKey([2; 16]), 0).unwrap();
    let wants = [signalbox_core::Want {
        kind: Kind::Of(ONE.0),
        name: ONE.1,
        claim: Claim::new(1, REQUESTS).unwrap(),
        slot: None,
        is_shared: false,
    }];
    let queueing = Queueing { wait_ms: u32::MAX, queue_max: u32::MAX };
    let call = Call { connection: server.id(2), ids: last, token: Token(7) };
    assert_eq!(server.core.acquire_grant(call, &wants, queueing, START), Outcome::Waiting);
    server.release(0, grant);
    while server.core.expire(START) {}
    assert_eq!(server.answers(2).len(), 1);
    assert_eq!(messages_of(&server.connections[1].mailbox), []);
    assert_eq!(server.value(ONE), REQUESTS);
}

#[test]
fn another_connection_can_take_over_the_session_of_a_connection_that_ends_in_steps() {
    const REQUESTS: u32 = 200;
    let mut server = Server::new(3);
    server.granted(0, &[ONE], 1, 1);
    server.open(1, 1000, START);
    for _ in 0..REQUESTS {
        assert_eq!(server.acquire(1, &[ONE], 1, 1), Outcome::Waiting);
    }
    let session = SessionId::new(list(&server.core, ONE, ListingKind::Waiters)[0].0.session);
    assert!(server.core.leave(server.id(1), START), "the work takes more than one step");
    let lease = server.core.attach(session, server.id(2), &SessionKey([2; 16]), 0);
    while server.core.leave(server.id(1), START) {}
    assert_eq!(server.core.check_ledger(), Ok(()));
    assert!(lease.is_ok());
    assert!(
        server.core.keep_alive(server.id(2), START).is_ok(),
        "the session belongs to the other connection"
    );
}

#[test]
fn the_live_event_is_published_when_the_mailbox_has_room() {
    let mut server = Server::new(1);
    let names: Vec<_> = (0..EVENTS_MAX).map(|number| number.to_string()).collect();
    for name in &names {
        let claim = Claim::new(1, 1).unwrap();
        let session = &mut server.connections[0].session;
        server.core.acquire(Namespace::Counters, name.as_bytes(), claim, session, START.unix).unwrap();
    }
    let watcher = server.id(0);
    let all = Scope::Prefix(&b""[..]);
    let mut snapshot = server.core.watch(watcher, Token(1), Namespace::Counters, all, START).unwrap();
    assert!(server.core.show(&mut snapshot, 2 * EVENTS_MAX), "there is no room for Live");
    let present = messages_of(&server.connections[0].mailbox);
    assert_eq!(present.len(), EVENTS_MAX);
    assert!(!server.core.show(&mut snapshot, 1));
    let [Message::Event { event, .. }] = &messages_of(&server.connections[0].mailbox)[..] else { panic!() };
    assert_eq!(event.kind, EventKind::Live);
}

proptest! {
    #![proptest_config(cases(50))]

    /// The consumption of the counter identifies the event: each event raises it by one.
    #[test]
    fn a_slow_watcher_learns_how_many_events_it_missed(
        rounds in prop::collection::vec((0..3000u32, 0..2000usize), 1..6),
    ) {
        let mut server = Server::new(1);
        let watcher = server.id(0);
        let scope = Scope::Name(ONE.1);
        let mut snapshot = server.core.watch(watcher, Token(1), ONE.0, scope, START).unwrap();
        prop_assert!(!server.core.show(&mut snapshot, 1));
        let mailbox = Arc::clone(&server.connections[0].mailbox);
        let live = mailbox.take();
        prop_assert!(live.is_some());
        let (mut received, mut happened, mut was_full) = (0, 0, false);
        for (events, reads) in rounds.into_iter().chain([(0, usize::MAX)]) {
            let unread = happened - received;
            for _ in 0..events {
                let claim = Claim::new(1, u32::MAX).unwrap();
                let session = &mut server.connections[0].session;
                server.core.acquire(ONE.0, ONE.1, claim, session, START.unix).unwrap();
                happened += 1;
            }
            was_full |= (unread + events) as usize > EVENTS_MAX;
            for message in std::iter::from_fn(|| mailbox.take()).take(reads) {
                let Message::Event { event, .. } = message else { panic!("{message:?}") };
                if event.kind == EventKind::Missed {
                    prop_assert!(was_full && event.resources > 0);
                    was_full = false;
                    received += event.resources;
                } else {
                    received += 1;
                    prop_assert_eq!((event.kind, event.in_use), (EventKind::Granted, received));
                }
            }
            prop_assert!(received <= happened);
        }
        prop_assert_eq!(received, happened, "every event is received or counted as missed");
    }
}

/// Stores everything that is pending.
fn store(core: &Core) {
    while let Some(batch) = core.take_batch(BatchLimit::NONE) {
        while core.complete(&batch, CommitOutcome::Stored, 1, START) {}
    }
}

impl Server {
    /// A server with a journal, and a connection that has a leased session.
    fn with_journal(connections: usize, ttl_ms: u32) -> (Self, SessionId, Arc<Lease>) {
        let server = Self::new(connections);
        server.core.keep_journal(Waker::noop().clone(), None);
        server.core.begin_serving(START.monotonic, START);
        let id = server.id(0);
        let outcome = server.core.open_leased(id, SessionKey([1; 16]), ttl_ms, b"", Token(0), START);
        assert_eq!(outcome, Outcome::Waiting);
        store(&server.core);
        let [Message::Answer { outcome: Ok(Answer::Opened(opened)), .. }] =
            messages_of(&server.connections[0].mailbox)[..]
        else {
            panic!("the session is opened")
        };
        let lease = server.core.lease(id).unwrap();
        (server, opened.session, lease)
    }
}

fn want_one() -> signalbox_core::Want<'static> {
    signalbox_core::Want {
        kind: Kind::Of(ONE.0),
        name: ONE.1,
        claim: Claim::new(1, 1).unwrap(),
        slot: None,
        is_shared: false,
    }
}

/// A request waits for what another one has, or for the store.
#[test]
fn the_time_to_live_of_a_repeated_request_counts_from_the_repetition() {
    for is_durable in [false, true] {
        let (mut server, theirs, lease) = if is_durable {
            let (server, _, lease) = Server::with_journal(1, 90_000);
            (server, None, lease)
        } else {
            let mut server = Server::new(2);
            let theirs = server.granted(1, &[ONE], 1, 1);
            let lease = server.open(0, 90_000, START);
            (server, Some(theirs), lease)
        };
        let call = server.call(0);
        let queueing = Queueing { wait_ms: 80_000, queue_max: u32::MAX };
        for (at_ms, token) in [(0, Token(1)), (50_000, Token(2))] {
            lease.renew(MonotonicMs(at_ms));
            let outcome =
                server.core.acquire_grant(Call { token, ..call }, &[want_one()], queueing, at(at_ms));
            assert_eq!(outcome, Outcome::Waiting);
        }
        match theirs {
            Some(grant) => server.release(1, grant),
            None => store(&server.core),
        }
        let messages = messages_of(&server.connections[0].mailbox);
        let [_, Message::Answer { token: Token(2), outcome: Ok(Answer::Granted(granted)) }] = &messages[..]
        else {
            panic!("{messages:?}")
        };
        assert_eq!(granted.ttl_left_ms, Some(90_000), "from the repetition, not from the first request");
    }
}

#[test]
fn a_connection_that_lost_its_session_gets_no_answer_to_a_request_that_is_being_stored() {
    let (mut server, session, _) = Server::with_journal(2, 90_000);
    let call = server.call(0);
    let wants = [want_one()];
    let queueing = Queueing { wait_ms: 0, queue_max: 1 };
    assert_eq!(server.core.acquire_grant(call, &wants, queueing, START), Outcome::Waiting);
    let other = server.id(1);
    server.core.attach(session, other, &SessionKey([1; 16]), 0).unwrap();
    let notice = Message::Notice(Notice::AttachedElsewhere { session: session.number() });
    let refused = Message::Answer { token: call.token, outcome: Err(Refusal::NoSuchSession) };
    assert_eq!(messages_of(&server.connections[0].mailbox), [refused, notice]);
    store(&server.core);
    assert_eq!(messages_of(&server.connections[0].mailbox), []);
    let outcome = server.core.acquire_grant(Call { connection: other, ..call }, &wants, queueing, START);
    assert!(matches!(outcome, Outcome::Answered(Answer::Granted(_))), "{outcome:?}");
}

const LAST: Key = (Namespace::Semaphores, b"the last");

impl Server {
    /// Declares [`LAST`] with one resource.
    fn declare_last(&mut self, by: usize) {
        let declare = Declaration { name: LAST.1, capacity: 1, numbered: false, label: b"" };
        let call = self.call(by);
        let outcome = self.core.change(call, declaring(IfExists::Fail, &[declare]), START);
        assert!(matches!(outcome, Outcome::Answered(Answer::Declared(_))), "{outcome:?}");
    }

    fn remove_last(&mut self, by: usize) {
        let call = self.call(by);
        let outcome = self.core.change(call, removing(LAST.1, Removal::WithLastHolder), START);
        assert_eq!(outcome, Outcome::Answered(Answer::Declared(Box::default())));
    }
}

#[test]
fn resources_reserved_by_a_waiter_for_a_removed_semaphore_go_to_the_next_waiter_at_once() {
    let mut server = Server::new(3);
    server.declare_last(2);
    server.granted(2, &[LAST], 1, 1);
    assert_eq!(server.acquire(0, &[ONE, LAST], 1, 1), Outcome::Waiting);
    assert_eq!(server.acquire(1, &[ONE], 1, 1), Outcome::Waiting);
    server.remove_last(2);
    assert_eq!(server.answers(1).len(), 1);
}

#[test]
fn a_removed_semaphore_is_deleted_when_shutdown_refuses_the_waiter_that_reserved_it() {
    let mut server = Server::new(2);
    let behind = (Namespace::Semaphores, &b"then"[..]);
    server.declare_last(1);
    server.granted(1, &[behind], 1, 1);
    assert_eq!(server.acquire(0, &[LAST, behind], 1, 1), Outcome::Waiting);
    server.remove_last(1);
    while server.core.shut_down(START) {}
    assert_eq!(server.core.ledger_stats().declared, 0);
}

#[test]
fn waiters_for_a_removed_semaphore_are_refused_even_if_it_is_declared_again_at_once() {
    const WAITERS: usize = 300;
    let mut server = Server::new(3);
    let declare = Declaration { name: b"one", capacity: 1, numbered: false, label: b"" };
    let call = server.call(2);
    let outcome = server.core.change(call, declaring(IfExists::Fail, &[declare]), START);
    assert!(matches!(outcome, Outcome::Answered(Answer::Declared(_))), "{outcome:?}");
    server.granted(0, &[semaphore(b"one")], 1, 1);
    for _ in 0..WAITERS {
        assert_eq!(server.acquire(1, &[semaphore(b"one")], 1, 1), Outcome::Waiting);
    }
    let call = server.call(2);
    let outcome = server.core.change(call, removing(b"one", Removal::WithLastHolder), START);
    assert_eq!(outcome, Outcome::Answered(Answer::Declared(Box::default())));
    let call = server.call(2);
    let again = Declaration { capacity: 1000, ..declare };
    let outcome = server.core.change(call, declaring(IfExists::Fail, &[again]), START);
    assert!(matches!(outcome, Outcome::Answered(Answer::Declared(_))), "{outcome:?}");
    while server.core.expire(START) {}
    let mut answered = 0;
    for message in messages_of(&server.connections[1].mailbox) {
        let Message::Answer { outcome, .. } = message else { panic!("{message:?}") };
        assert_eq!(outcome, Err(Refusal::Removed));
        answered += 1;
    }
    assert_eq!(answered, WAITERS);
}

impl Server {
    /// A request of a single flight for [`ONE`].
    fn share(&mut self, by: usize) -> Outcome {
        let call = self.call(by);
        let want = signalbox_core::Want { is_shared: true, ..want_one() };
        let queueing = Queueing { wait_ms: u32::MAX, queue_max: u32::MAX };
        self.core.acquire_grant(call, &[want], queueing, START)
    }
}

#[test]
fn the_waiters_of_the_moment_of_the_release_are_told_done_in_steps_and_later_requests_begin_anew() {
    const WAITERS: usize = 300;
    let mut server = Server::new(4);
    let Outcome::Answered(Answer::Granted(first)) = server.share(0) else { panic!("no client holds it") };
    for number in 0..WAITERS {
        assert_eq!(server.share(1), Outcome::Waiting);
        // An ordinary request among them is served in its turn.
        if number == WAITERS / 2 {
            assert_eq!(server.acquire(2, &[ONE], 1, 1), Outcome::Waiting);
        }
    }
    let call = server.call(0);
    let released = server.core.release_grant(call, first.grant, true, START);
    assert_eq!(released, Outcome::Answered(Answer::Done));
    assert_eq!(server.share(3), Outcome::Waiting);
    let mut told = Vec::new();
    loop {
        let some = messages_of(&server.connections[1].mailbox);
        assert!(some.len() < WAITERS, "all of them in one step");
        told.extend(some);
        assert_eq!(server.core.check_ledger(), Ok(()));
        if !server.core.expire(START) {
            break;
        }
    }
    told.extend(messages_of(&server.connections[1].mailbox));
    assert_eq!(told.len(), WAITERS);
    for message in told {
        assert!(matches!(message, Message::Answer { outcome: Err(Refusal::Done), .. }), "{message:?}");
    }
    let [ordinary] = server.answers(2)[..] else { panic!("it was served once") };
    let call = server.call(2);
    let refused = server.core.release_grant(call, ordinary, true, START);
    assert_eq!(refused, Outcome::Refused(Refusal::NotShared));
    assert_eq!(server.answers(3), [], "the ordinary request still holds it");
    server.release(2, ordinary);
    assert_eq!(server.answers(3).len(), 1, "it works itself");
    let stats = server.core.ledger_stats();
    assert_eq!((stats.flights, stats.told_done), (1, WAITERS as u64));
}

/// A waiter that a step leaves is told in the next one, or when its turn comes; either way, only ordinary requests work.
#[test]
fn all_are_told_done_however_many_they_are_and_whoever_is_among_them() {
    for (waiters, ordinary) in [(1, 0), (2, 1), (64, 0), (65, 0), (80, 2), (96, 2), (97, 1), (200, 2)] {
        let mut server = Server::new(3);
        let Outcome::Answered(Answer::Granted(first)) = server.share(0) else { panic!("no client holds it") };
        // The work is passed on once.
        assert_eq!(server.share(0), Outcome::Waiting);
        for number in 0..waiters {
            if number + ordinary >= waiters {
                assert_eq!(server.acquire(2, &[ONE], 1, 1), Outcome::Waiting);
            }
            assert_eq!(server.share(1), Outcome::Waiting);
        }
        server.release(0, first.grant);
        let [worker] = server.answers(0)[..] else { panic!("the next one works") };
        assert_eq!(server.core.check_ledger(), Ok(()));
        let call = server.call(0);
        let released = server.core.release_grant(call, worker, true, START);
        assert_eq!(released, Outcome::Answered(Answer::Done));
        while server.core.expire(START) {
            assert_eq!(server.core.check_ledger(), Ok(()));
        }
        let told = messages_of(&server.connections[1].mailbox);
        assert_eq!(told.len(), waiters, "{ordinary} ordinary requests");
        for message in told {
            assert!(matches!(message, Message::Answer { outcome: Err(Refusal::Done), .. }), "{message:?}");
        }
        assert_eq!(server.answers(2).len(), ordinary.min(1));
        assert_eq!(server.core.check_ledger(), Ok(()));
    }
}

/// Connections on different threads read the clock and renew the lease in any order.
#[test]
fn a_renewal_with_an_earlier_time_does_not_shorten_a_lease() {
    let mut server = Server::new(1);
    let lease = server.open(0, 1000, START);
    server.granted(0, &[ONE], 1, 1);
    lease.renew(MonotonicMs(500));
    lease.renew(MonotonicMs(400));
    for (at_ms, sessions) in [(1000, 1), (1499, 1), (1500, 0)] {
        assert!(!server.core.expire(at(at_ms)));
        assert_eq!(server.core.ledger_stats().sessions, sessions, "at {at_ms} ms");
    }
}

/// A semaphore becomes numbered while the head of its queue already has as many slots as one grant may have.
#[test]
fn a_waiter_gets_no_more_slots_than_one_grant_may_have() {
    const OTHERS: u32 = 200;
    for slots in [GRANT_SLOTS_MAX as u32 - 1, GRANT_SLOTS_MAX as u32] {
        let mut server = Server::new(3);
        let declare = |server: &mut Server, name, capacity, numbered| {
            let declare = Declaration { name, capacity, numbered, label: b"" };
            let call = server.call(2);
            let outcome = server.core.change(call, declaring(IfExists::Set, &[declare]), START);
            assert!(matches!(outcome, Outcome::Answered(Answer::Declared(_))), "{outcome:?}");
        };
        declare(&mut server, b"a", MANY, true);
        declare(&mut server, b"b", 1, false);
        let last = server.granted(1, &[semaphore(b"b")], 1, 1);
        let want = |name, resources| signalbox_core::Want {
            kind: Kind::Of(Namespace::Semaphores),
            name,
            claim: Claim::new(resources, resources).unwrap(),
            slot: None,
            is_shared: false,
        };
        let queueing = Queueing { wait_ms: u32::MAX, queue_max: u32::MAX };
        let call = server.call(0);
        let outcome = server.core.acquire_grant(call, &[want(b"a", slots), want(b"b", 1)], queueing, START);
        assert_eq!(outcome, Outcome::Waiting);
        // Enough others are served first that the release and the change fall between two steps.
        let all = server.granted(1, &[ONE], OTHERS, OTHERS);
        for _ in 0..OTHERS {
            assert_eq!(server.acquire(1, &[ONE], 1, OTHERS), Outcome::Waiting);
        }
        server.release(1, all);
        server.release(1, last);
        assert_eq!(messages_of(&server.connections[0].mailbox), [], "others are served first");
        declare(&mut server, b"b", 1, true);
        while server.core.expire(START) {}
        let [Message::Answer { outcome, .. }] = &messages_of(&server.connections[0].mailbox)[..] else {
            panic!("there is one answer")
        };
        match outcome {
            Ok(Answer::Granted(granted)) => {
                assert_eq!(granted.slots.iter().map(|slots| slots.len()).sum::<usize>(), GRANT_SLOTS_MAX);
                assert_eq!(slots as usize, GRANT_SLOTS_MAX - 1);
            }
            outcome => {
                assert_eq!(outcome, &Err(Refusal::NotAvailable));
                assert_eq!(slots as usize, GRANT_SLOTS_MAX);
            }
        }
        assert_eq!(server.core.check_ledger(), Ok(()));
    }
}

#[test]
fn an_ended_watch_leaves_no_events_and_no_count_of_missed_ones() {
    let mut server = Server::new(2);
    let (watcher, token) = (server.id(0), Token(1));
    let mailbox = Arc::clone(&server.connections[0].mailbox);
    let watch = |server: &Server| {
        let scope = Scope::Name(ONE.1);
        let mut snapshot = server.core.watch(watcher, token, ONE.0, scope, START).unwrap();
        assert!(!server.core.show(&mut snapshot, 2));
        messages_of(&mailbox)
    };
    let take = |server: &mut Server| {
        let session = &mut server.connections[1].session;
        let claim = Claim::new(1, u32::MAX).unwrap();
        server.core.acquire(ONE.0, ONE.1, claim, session, START.unix).unwrap();
    };
    take(&mut server);
    let shown = watch(&server);
    for _ in 0..EVENTS_MAX + 3 {
        take(&mut server);
    }
    server.core.unwatch(watcher, token, START).unwrap();
    mailbox.drop_events(token);
    assert_eq!(messages_of(&mailbox), [], "no event and no count of missed ones");
    assert_eq!(watch(&server).len(), shown.len(), "the next watch starts with room for all events");
    take(&mut server);
    let [Message::Event { event, .. }] = &messages_of(&mailbox)[..] else { panic!("there is one event") };
    assert_eq!(event.kind, EventKind::Granted);
}

/// A sweep may run at any moment, and collects names that nothing refers to.
#[test]
fn a_sweep_does_not_collect_a_semaphore_that_is_being_declared() {
    let names: Vec<_> = (0..500).map(|number| format!("{number}").into_bytes()).collect();
    let declares: Vec<_> =
        names.iter().map(|name| Declaration { name, capacity: 1, numbered: false, label: b"" }).collect();
    let is_over = AtomicBool::new(false);
    let mut server = Server::new(1);
    let calls: Vec<_> = (0..100).map(|_| server.call(0)).collect();
    let core = &server.core;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let mut sweep = core.sweep(Namespace::Semaphores);
                while sweep.step(64, START.unix) {}
            }
        });
        let mut outcome = Ok(());
        for call in calls {
            core.change(call, declaring(IfExists::Fail, &declares), START);
            outcome = core.check_ledger();
            if outcome.is_err() {
                break;
            }
            core.declare_configured(&declares, START);
            core.declare_configured(&[], START);
            while core.expire(START) {}
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(outcome, Ok(()));
    });
}

/// One of several changes that are stored together may end a semaphore that a later one changes. The end is then the last event.
#[test]
fn a_watch_gets_no_event_of_a_removed_semaphore_after_its_removal() {
    let mut server = Server::new(2);
    server.core.keep_journal(Waker::noop().clone(), None);
    server.core.begin_serving(START.monotonic, START);
    store(&server.core);
    let declare = Declaration { name: b"one", capacity: 2, numbered: false, label: b"" };
    let call = server.call(1);
    server.core.change(call, declaring(IfExists::Fail, &[declare]), START);
    store(&server.core);
    server.watch(0, semaphore(b"one"));
    for _ in 0..2 {
        let call = server.call(1);
        server.core.change(call, declaring(IfExists::Keep, &[declare]), START);
        let call = server.call(1);
        server.core.change(call, removing(b"one", Removal::IfIdle), START);
    }
    store(&server.core);
    let kind = |message| match message {
        Message::Event { event, .. } => event.kind,
        other => panic!("{other:?}"),
    };
    let kinds: Vec<_> = messages_of(&server.connections[0].mailbox).into_iter().map(kind).collect();
    assert_eq!(kinds, [EventKind::Declared, EventKind::Removed], "the removal before is over at once");
    assert_eq!(server.core.check_ledger(), Ok(()));
}
