//! Steps of what the core does for sessions, grants and queues, with as many of each as the limits allow.

use std::hint::black_box;
use std::sync::Arc;

use signalbox::server::steps::WATCH_NAMES;
use signalbox_core::{
    Answer, Call, Claim, Core, Kind, ListingKind, Mailbox, Moment, MonotonicMs, Outcome, Queueing, Token,
    Waiting, Want,
};
use signalbox_model::{
    ConnectionId, GrantId, Idle, Namespace, RequestId, RequestIds, Scope, SessionId, SessionKey,
};

use super::{NOW, Steps, empty, filled};

/// Waiters of one name, and leased sessions: their default limits.
const MANY: u32 = 100_000;

/// Grants of one session, which is its limit.
const GRANTS: u32 = 10_000;

/// Waiters of one session: fewer than the requests that it may have in flight.
const WAITERS_OF_A_SESSION: u32 = 1000;

/// Watches, which is their limit.
const WATCHES: u32 = 1000;

/// How long all wait, and how long leases last, in milliseconds.
const TTL_MS: u32 = 10_000;

/// Holders by plain Acquires.
const PLAIN_HOLDERS: u32 = 10_000;

const SPACE: Namespace = Namespace::Semaphores;
const NAME: &[u8] = b"one name for all";
const KEY: SessionKey = SessionKey([0; 16]);

/// 100,000 waiters time out at once.
pub fn time_out(steps: &mut Steps) {
    let (core, ..) = awaited(MANY);
    while steps.time(|| core.expire(at(TTL_MS))) {}
    assert_eq!(core.ledger_stats().timed_out, u64::from(MANY));
}

/// 100,000 leased sessions expire at once, each with a grant of a name of its own.
pub fn expire(steps: &mut Steps) {
    let core = empty();
    leased(&core, |connection, number| ask(&core, connection, 1, &own_name(number), 1, 1));
    while steps.time(|| core.expire(at(TTL_MS))) {}
    assert_eq!(core.ledger_stats().expired_sessions, u64::from(MANY));
}

/// 100,000 leased sessions expire at once, and what each had of the one name goes to the next of 100,000 waiters.
pub fn hand_over(steps: &mut Steps) {
    let core = empty();
    leased(&core, |connection, _| ask(&core, connection, 1, NAME, 1, MANY));
    wait_for_the_name(&core, MANY, 2 * TTL_MS);
    while steps.time(|| core.expire(at(TTL_MS))) {}
    let stats = core.ledger_stats();
    assert_eq!((stats.expired_sessions, stats.grants, stats.waiters), (u64::from(MANY), u64::from(MANY), 0));
}

/// A release frees what 100,000 waiters wait for.
pub fn release(steps: &mut Steps) {
    let (core, holder, grant) = awaited(MANY);
    give_back(steps, &core, holder, grant);
    assert_eq!(core.ledger_stats().waiters, 0);
}

/// A release frees what 100,000 waiters wait for, and 1,000 watches are about other names.
pub fn watched_elsewhere(steps: &mut Steps) {
    watched(steps, MANY, |number| Scope::Name(own_name(number)));
}

/// A release frees what 10,000 waiters wait for, and 1,000 watches are informed.
pub fn watched_by_all(steps: &mut Steps) {
    watched(steps, MANY / 10, |_| Scope::Prefix(Vec::new()));
}

fn watched(steps: &mut Steps, waiters: u32, scope: impl Fn(u32) -> Scope<Vec<u8>>) {
    let (core, holder, grant) = awaited(waiters);
    for number in 0..WATCHES {
        let scope = scope(number);
        let scope = match &scope {
            Scope::Name(name) => Scope::Name(&name[..]),
            Scope::Prefix(prefix) => Scope::Prefix(&prefix[..]),
        };
        let mut tour = core.watch(connect(&core), Token(1), SPACE, scope, at(0)).expect("there is room");
        while core.show(&mut tour, WATCH_NAMES) {}
    }
    give_back(steps, &core, holder, grant);
    assert_eq!(core.ledger_stats().waiters, 0);
}

/// Releases a grant, and does all the work that follows from it.
fn give_back(steps: &mut Steps, core: &Core, holder: ConnectionId, grant: GrantId) {
    steps
        .time(|| core.release_grant(call(holder, 2), grant, false, at(0)) == Outcome::Answered(Answer::Done));
    while steps.time(|| core.expire(at(0))) {}
}

/// A connection ends whose own session has 10,000 grants.
pub fn leave(steps: &mut Steps) {
    let core = empty();
    let connection = connect(&core);
    take_many(&core, connection);
    while steps.time(|| core.leave(connection, at(0))) {}
    assert_eq!(core.ledger_stats().grants, 0);
}

/// The server stops while 100,000 wait.
pub fn shut_down(steps: &mut Steps) {
    let (core, ..) = awaited(MANY);
    while steps.time(|| core.shut_down(at(0))) {}
    assert_eq!(core.ledger_stats().waiters, 0);
}

/// A listing of 100,000 waiters.
pub fn list_waiters(steps: &mut Steps) {
    let (core, ..) = awaited(MANY);
    list(steps, &core, ListingKind::Waiters, MANY);
}

/// A listing of 100,000 holders.
pub fn list_holders(steps: &mut Steps) {
    let core = empty();
    leased(&core, |connection, _| ask(&core, connection, 1, NAME, 1, MANY));
    list(steps, &core, ListingKind::Holders, MANY);
}

/// A listing of holders by plain Acquires.
pub fn list_plain_holders(steps: &mut Steps) {
    let core = empty();
    for _ in 0..PLAIN_HOLDERS {
        let mut session = core.open_session();
        core.acquire(SPACE, NAME, claim(1, PLAIN_HOLDERS), &mut session, NOW).expect("there is enough");
        core.join(session.id(), None, &Arc::default());
    }
    list(steps, &core, ListingKind::Holders, PLAIN_HOLDERS);
}

/// A leased session for which 10,000 requests wait is attached to another connection.
pub fn attach(steps: &mut Steps) {
    let core = empty();
    let [before, after] = [(); 2].map(|()| connect(&core));
    let session = open(&core, before);
    wait_often(&core, before);
    steps.time(|| core.attach(session, after, &KEY, 0).is_ok());
}

/// A connection ends for whose leased session 10,000 requests wait.
pub fn detach(steps: &mut Steps) {
    let core = empty();
    let connection = connect(&core);
    open(&core, connection);
    wait_often(&core, connection);
    while steps.time(|| core.leave(connection, at(0))) {}
    assert_eq!(core.ledger_stats().waiters, u64::from(GRANTS));
}

/// 100,000 requests wait until a name is idle, a thousand of each connection, and it becomes so.
pub fn idle(steps: &mut Steps) {
    let core = empty();
    let holder = connect(&core);
    let grant = granted(ask(&core, holder, 1, NAME, 1, 1));
    let mailboxes: Vec<_> =
        (0..MANY / WAITERS_OF_A_SESSION).map(|_| await_idle(&core, WAITERS_OF_A_SESSION).1).collect();
    give_back(steps, &core, holder, grant);
    let told = mailboxes.iter().map(|mailbox| std::iter::from_fn(|| mailbox.take()).count());
    assert_eq!(told.sum::<usize>(), MANY as usize);
}

/// A connection ends of which 10,000 requests wait until a name is idle.
pub fn leave_idle(steps: &mut Steps) {
    let core = empty();
    granted(ask(&core, connect(&core), 1, NAME, 1, 1));
    let (connection, _) = await_idle(&core, GRANTS);
    while steps.time(|| core.leave(connection, at(0))) {}
}

/// The last of 10,000 requests that one connection waits for is canceled.
pub fn cancel(steps: &mut Steps) {
    let core = empty();
    let waiter = connect(&core);
    wait_often(&core, waiter);
    let last = Waiting::Token(Token(GRANTS.into()));
    steps.time(|| core.cancel(waiter, last, at(0)).is_ok());
}

/// A watch begins over a million names, and its reader keeps up.
pub fn show(steps: &mut Steps, names: u32) {
    let (core, _held) = filled(names);
    let mailbox = Arc::default();
    let connection = connect_with(&core, &mailbox);
    let all = Scope::Prefix(&[][..]);
    let mut tour = core.watch(connection, Token(1), SPACE, all, at(0)).expect("there is room");
    while steps.time(|| core.show(&mut tour, WATCH_NAMES)) {
        while let Some(message) = mailbox.take() {
            black_box(message);
        }
    }
}

fn list(steps: &mut Steps, core: &Core, kind: ListingKind, expected: u32) {
    let mut listing = core.listing(SPACE, NAME, kind).expect("the name is there");
    let mut listed = 0;
    while steps.time(|| {
        let some = core.list(&mut listing);
        listed += some.len();
        !some.is_empty()
    }) {}
    assert_eq!(listed, expected as usize);
}

/// A core in which this many wait for what one connection holds.
fn awaited(waiters: u32) -> (Core, ConnectionId, GrantId) {
    let core = empty();
    let holder = connect(&core);
    let grant = granted(ask(&core, holder, 1, NAME, waiters, waiters));
    wait_for_the_name(&core, waiters, TTL_MS);
    (core, holder, grant)
}

/// Requests for the one name, of as many connections as it takes.
fn wait_for_the_name(core: &Core, waiters: u32, wait_ms: u32) {
    for _ in 0..waiters / WAITERS_OF_A_SESSION {
        let connection = connect(core);
        for request in 1..=WAITERS_OF_A_SESSION {
            let asked = ask_for(core, connection, request.into(), NAME, claim(1, waiters), wait_ms);
            assert_eq!(asked, Outcome::Waiting);
        }
    }
}

/// 10,000 requests of one connection for the one name, which another holds.
fn wait_often(core: &Core, connection: ConnectionId) {
    granted(ask(core, connect(core), 1, NAME, 1, 1));
    for request in 1..=GRANTS {
        let asked = ask(core, connection, request.into(), NAME, 1, 1);
        assert_eq!(asked, Outcome::Waiting);
    }
}

/// A connection of which this many requests wait until the one name is idle.
fn await_idle(core: &Core, requests: u32) -> (ConnectionId, Arc<Mailbox>) {
    let mailbox = Arc::default();
    let connection = connect_with(core, &mailbox);
    for request in 0..requests {
        let asked = core.await_idle(
            (connection, Token(request.into())),
            (SPACE, NAME),
            Idle::Level(0),
            TTL_MS,
            at(0),
        );
        assert_eq!(asked, Outcome::Waiting);
    }
    (connection, mailbox)
}

/// Opens 100,000 sessions, and gives each something to hold.
fn leased(core: &Core, hold: impl Fn(ConnectionId, u32) -> Outcome) {
    let connection = connect(core);
    for number in 0..MANY {
        open(core, connection);
        granted(hold(connection, number));
    }
}

/// Takes 10,000 grants, each of a name of its own.
fn take_many(core: &Core, connection: ConnectionId) {
    for number in 0..GRANTS {
        granted(ask(core, connection, u64::from(number) + 1, &own_name(number), 1, 1));
    }
}

fn connect(core: &Core) -> ConnectionId {
    connect_with(core, &Arc::default())
}

fn connect_with(core: &Core, mailbox: &Arc<Mailbox>) -> ConnectionId {
    let connection = core.open_session().id();
    core.join(connection, None, mailbox);
    connection
}

fn ask(core: &Core, connection: ConnectionId, request: u64, name: &[u8], resources: u32, of: u32) -> Outcome {
    ask_for(core, connection, request, name, claim(resources, of), TTL_MS)
}

fn ask_for(
    core: &Core,
    connection: ConnectionId,
    request: u64,
    name: &[u8],
    claim: Claim,
    wait_ms: u32,
) -> Outcome {
    let want = Want { kind: Kind::Of(SPACE), name, claim, slot: None, is_shared: false };
    let queueing = Queueing { wait_ms, queue_max: u32::MAX };
    core.acquire_grant(call(connection, request), &[want], queueing, at(0))
}

fn granted(asked: Outcome) -> GrantId {
    match asked {
        Outcome::Answered(Answer::Granted(granted)) => granted.grant,
        other => panic!("{other:?} where there is enough"),
    }
}

fn open(core: &Core, connection: ConnectionId) -> SessionId {
    match core.open_leased(connection, KEY, TTL_MS, b"", Token(0), at(0)) {
        Outcome::Answered(Answer::Opened(opened)) => opened.session,
        other => panic!("{other:?} where there is room"),
    }
}

/// A request of a client that has its answers to all but the last thousand.
fn call(connection: ConnectionId, own: u64) -> Call {
    let lowest_unanswered = own.saturating_sub(u64::from(WAITERS_OF_A_SESSION)).max(1);
    Call {
        connection,
        ids: RequestIds { own: RequestId(own), lowest_unanswered: RequestId(lowest_unanswered) },
        token: Token(own),
    }
}

fn claim(resources: u32, of: u32) -> Claim {
    Claim::new(resources, of).expect("some of no less")
}

fn own_name(number: u32) -> Vec<u8> {
    format!("held-{number:011}").into_bytes()
}

fn at(monotonic_ms: u32) -> Moment {
    Moment { monotonic: MonotonicMs(monotonic_ms.into()), unix: NOW }
}
