//! Declarations and the grants of leased sessions survive the server that acknowledged them, over real sockets
//! (`docs/protocol.md`, "What is on disk"). The store is in memory here, and it crashes and fails on demand;
//! `tests/daemon/data.rs` tests the daemon and its files.

use std::net::Shutdown;
use std::task::Waker;
use std::time::Duration;

use crate::support::caller::{
    Caller, Changes, LONG, NOW, counted, declare, declare_new, declaring, list, numbered, one_of, semaphore,
};
use crate::support::failing::{FailingStorage, Fault, Faults};
use crate::support::store::{By, StoredServer};
use crate::support::{NOT_AVAILABLE, NOT_FOUND, OK, TestServer, eventually};
use signalbox_core::{BatchLimit, CommitOutcome, Moment, MonotonicMs, Record};
use signalbox_model::{
    Claim, Declaration, Generation, GrantId, GrantState, IfExists, Milliseconds, Namespace, Notice, Removal,
    RequestIds, Resizing, Revocation, SessionKey, Status, TtlLeft,
};
use signalbox_model::{Operation, SessionId, UnixSeconds};
use signalbox_protocol::{Claims, Extended, Granted, Opaque, OpenedSession, ResponseFrame};
use signalbox_storage::Memory;

const LONG_MS: u32 = 60_000;
const NOT_STORED: u8 = Status::NotStored as u8;
const GONE: u8 = Status::NotAcquired as u8;

fn caller(server: &StoredServer) -> Caller {
    Caller::new(server.server.semaphore())
}

fn callers<const COUNT: usize>(server: &StoredServer) -> [Caller; COUNT] {
    std::array::from_fn(|_| caller(server))
}

/// A connection that continues a session, with request ids above `used`.
#[track_caller]
fn continued(server: &StoredServer, session: OpenedSession, used: u64) -> Caller {
    let mut caller = caller(server);
    assert_eq!(caller.attach(session), OK);
    for _ in 0..used {
        caller.ids();
    }
    caller
}

fn resizing(ids: RequestIds, name: &[u8], how: Resizing) -> Extended<'_> {
    Extended::Change { ids, operation: Operation::Resize { expected: None, how, name } }
}

fn removing(ids: RequestIds, name: &[u8], how: Removal) -> Extended<'_> {
    Extended::Change { ids, operation: Operation::Remove { expected: None, how, name } }
}

/// Capacity, usage and generation of a declared semaphore, and a flag for its removal; `None` means not declared.
fn listed(caller: &mut Caller, name: &[u8]) -> Option<(u32, u32, Generation, bool)> {
    let entries = list(caller, name);
    let entry = entries.iter().find(|entry| &entry.name[..] == name)?;
    Some((entry.capacity, entry.in_use, entry.generation, entry.removing))
}

/// The session and the state of a grant, or the status if it is not held.
fn verify(caller: &mut Caller, grant: GrantId) -> Result<(u64, GrantState), u8> {
    let answer = caller.ask(&Extended::VerifyGrant { grant });
    if answer.status != OK {
        return Err(answer.status);
    }
    let verified = answer.verified().unwrap();
    Ok((verified.session, verified.state))
}

fn same(one: &Granted<Vec<u16>>, other: &Granted<Vec<u16>>) -> bool {
    (one.grant, one.resources, one.capacity, &one.slots)
        == (other.grant, other.resources, other.capacity, &other.slots)
}

/// The first flush after the start takes longer than the session lives without a connection.
#[test]
fn a_lease_starts_again_after_the_first_commit_of_a_start() {
    const TTL_MS: u32 = 1000;
    let memory = Memory::default();
    let server = StoredServer::start_with(&memory, By::Thread, |config| config.session.min_ttl_s = 1);
    let mut before = caller(&server);
    let session = before.open(TTL_MS);
    let grant = before.take(one_of(1, b"x")).grant;
    drop(server);
    let faults = Faults::default();
    faults.slow_down(Duration::from_millis(u64::from(TTL_MS) + 200));
    let mut storage = FailingStorage::new(memory.open(), faults);
    let server = TestServer::start_prepared(
        |_| {},
        |server| {
            server.restore(&mut storage, Waker::noop().clone()).unwrap();
        },
    );
    let mut after = Caller::new(server.semaphore());
    assert_eq!(after.attach(session), OK);
    assert_eq!(verify(&mut after, grant).unwrap().0, session.session);
}

#[test]
fn a_leased_session_keeps_its_grants_after_a_crash() {
    let server = StoredServer::start(&Memory::default());
    let mut before = caller(&server);
    let session = before.open(LONG_MS);
    declare_new(&mut before, numbered(b"slots", 10));
    let wants = [
        Claim { maximum: 7, ..semaphore(2, b"made") },
        semaphore(3, b"slots"),
        one_of(5, b"counter"),
        semaphore(1, b"slots"),
    ];
    let requests = wants.map(|claim| Extended::AcquireGrant {
        ids: before.ids(),
        claim,
        queueing: NOW,
        place: None,
        is_shared: false,
    });
    let held = requests.each_ref().map(|request| before.ask(request).granted().unwrap());
    let names = [semaphore(2, b"slots"), one_of(5, b"0"), Claim { maximum: 4, ..semaphore(4, b"all") }];
    let claims = Claims::new(&names).unwrap();
    let all = Extended::AcquireAll { ids: before.ids(), queueing: NOW, claims, place: None };
    let of_all = before.ask(&all).all_granted().unwrap();
    assert_eq!(before.give_back(held[1].grant), OK);
    let used = 7;

    let server = server.crash();
    let [mut other, mut counters] = [caller(&server), Caller::new(server.server.counter())];
    for (grant, is_held) in [(0, true), (1, false), (2, true), (3, true)].map(|(n, is)| (held[n].grant, is)) {
        let expected = if is_held { Ok((session.session, GrantState::Held)) } else { Err(GONE) };
        assert_eq!(verify(&mut other, grant), expected);
    }
    assert_eq!(other.wire.get(b"made").number(), 5, "its capacity is unchanged");
    assert_eq!(counters.wire.get(b"counter").number(), 1);
    assert_eq!(counters.wire.get(b"0").number(), 1);
    assert_eq!(other.wire.acquire(b"all", 1, 100).status, NOT_AVAILABLE);
    assert_eq!(other.take(semaphore(5, b"slots")).slots, [0, 1, 2, 6, 7], "no slot that is held");

    let mut after = continued(&server, session, used);
    for index in [0, 2, 3] {
        let again = after.ask(&requests[index]).granted().unwrap();
        assert!(same(&again, &held[index]), "{again:?}: the answer is the same");
    }
    let again = after.ask(&all).all_granted().unwrap();
    assert_eq!((again.grant, again.capacities, again.slots), (of_all.grant, of_all.capacities, of_all.slots));
    assert_eq!(after.give_back(of_all.grant), OK);
    assert_eq!(other.wire.get(b"all").number(), 4);
    assert_eq!(after.ask(&Extended::CloseSession).status, OK);
    server.check();
    let server = server.crash();
    let mut other = caller(&server);
    assert_eq!(other.attach(session), Status::NoSuchSession.code(), "a closed session stays closed");
    assert_eq!(other.wire.get(b"made").status, NOT_FOUND);
    assert_eq!(listed(&mut other, b"slots").unwrap().1, 0);
    server.check();
}

#[test]
fn a_crash_releases_what_connections_held() {
    let server = StoredServer::start(&Memory::default());
    let [mut admin, mut bound] = callers(&server);
    declare_new(&mut admin, numbered(b"a", 3));
    let held = bound.take(semaphore(1, b"a"));
    assert_eq!(bound.wire.acquire(b"a", 1, 3).status, OK);
    assert_eq!(bound.wire.acquire(b"plain", 1, 3).status, OK);
    let server = server.crash();
    let mut other = caller(&server);
    assert_eq!(verify(&mut other, held.grant), Err(GONE));
    assert_eq!(other.wire.get(b"a").number(), 3);
    assert_eq!(other.wire.get(b"plain").status, NOT_FOUND);
    server.check();
}

#[test]
fn a_restored_session_has_its_full_time_to_live() {
    let server = StoredServer::start(&Memory::default());
    let mut before = caller(&server);
    let session = before.open(2000);
    let held = before.take(one_of(1, b"a"));
    drop(before);
    // Most of its time to live has passed when the server crashes.
    let mut other = caller(&server);
    eventually("its time passes", || {
        let left = other.ask(&Extended::VerifyGrant { grant: held.grant }).verified().unwrap().ttl_left;
        matches!(left, TtlLeft::For(left) if left.0 < 700)
    });
    let server = server.crash();
    let mut other = caller(&server);
    let left = other.ask(&Extended::VerifyGrant { grant: held.grant }).verified().unwrap().ttl_left;
    assert!(matches!(left, TtlLeft::For(left) if left.0 > 1000 && left.0 <= 2000), "{left:?}");
    let waiting = other.want(one_of(1, b"a"), LONG);
    let answer = other.answer(waiting);
    assert_eq!(answer.status, OK, "when the session expires, the waiter is served");
    assert_eq!(other.attach(session), Status::NoSuchSession.code());
    server.check();
    // A crash before its end is stored would restore it once more.
    eventually("its end is stored", || server.server.server.core().is_stored());
    let server = server.crash();
    assert_eq!(caller(&server).attach(session), Status::NoSuchSession.code());
    server.check();
}

#[test]
fn a_change_is_answered_only_after_it_is_stored() {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut one, mut revoker] = callers(&server);
    let stored = |caller: &mut Caller, request: &Extended<'_>| {
        let opaque = caller.send(request);
        // Without the store they would be answered in order.
        caller.sync();
        assert!(server.store_next());
        let answer = caller.answer(opaque);
        assert_eq!(answer.status, OK, "{request:?}: {answer:?}");
        answer
    };
    stored(&mut one, &Extended::OpenSession { ttl: Some(Milliseconds(LONG_MS)), label: b"", key: None });
    let list = [counted(b"a", 2)];
    let ids = one.ids();
    stored(&mut one, &Extended::Change { ids, operation: declaring(IfExists::Fail, &list) });
    let request = Extended::AcquireGrant {
        ids: one.ids(),
        claim: semaphore(1, b"a"),
        queueing: NOW,
        place: None,
        is_shared: false,
    };
    let first = stored(&mut one, &request).granted().unwrap();
    let request = Extended::AcquireGrant {
        ids: one.ids(),
        claim: semaphore(1, b"a"),
        queueing: NOW,
        place: None,
        is_shared: false,
    };
    let second = stored(&mut one, &request).granted().unwrap();
    let ids = one.ids();
    stored(&mut one, &Extended::ReleaseGrant { ids, grant: first.grant, is_done: false });
    let (what, grace) = (Revocation::Grant(second.grant), Milliseconds(LONG_MS));
    let ids = revoker.ids();
    stored(&mut revoker, &Extended::Change { ids, operation: Operation::Revoke { what, grace } });
    let ids = one.ids();
    stored(&mut one, &resizing(ids, b"a", Resizing::To(1)));
    let ids = one.ids();
    stored(&mut one, &removing(ids, b"a", Removal::WithLastHolder));
    stored(&mut one, &Extended::CloseSession);
    server.check();
}

#[test]
fn many_changes_are_stored_together() {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let mut many: Vec<_> = (0..20).map(|_| caller(&server)).collect();
    let commits = server.faults.commits();
    let asked: Vec<_> = many
        .iter_mut()
        .map(|caller| {
            caller.send(&Extended::OpenSession { ttl: Some(Milliseconds(LONG_MS)), label: b"", key: None })
        })
        .collect();
    many.iter_mut().for_each(Caller::sync);
    assert!(server.store_next());
    for (caller, opaque) in many.iter_mut().zip(asked) {
        assert_eq!(caller.answer(opaque).status, OK);
    }
    assert_eq!(server.faults.commits() - commits, 1);
    assert_eq!(server.store(), None);
}

#[test]
fn declarations_are_unchanged_after_a_crash() {
    let server = StoredServer::start(&Memory::default());
    let [mut admin, mut holder] = callers(&server);
    let session = holder.open(LONG_MS);
    let labelled = Declaration { label: b"two lifts", ..counted(b"lift", 2) };
    let lift = declare_new(&mut admin, labelled);
    declare_new(&mut admin, numbered(b"lane", 8));
    declare_new(&mut admin, counted(b"removed", 8));
    let ids = admin.ids();
    assert_eq!(admin.ask(&removing(ids, b"removed", Removal::IfIdle)).status, OK);
    declare_new(&mut admin, counted(b"going", 8));
    let going = holder.take(semaphore(1, b"going"));
    let ids = admin.ids();
    assert_eq!(admin.ask(&removing(ids, b"going", Removal::WithLastHolder)).status, OK);
    let low = holder.take(semaphore(2, b"lane"));
    let high = holder.take(semaphore(2, b"lane"));
    let ids = admin.ids();
    let lane = admin.ask(&resizing(ids, b"lane", Resizing::To(3))).resized();

    let server = server.crash();
    let mut admin = caller(&server);
    assert_eq!(listed(&mut admin, b"lift"), Some((2, 0, lift.generation, false)));
    assert_eq!(listed(&mut admin, b"lane"), Some((3, 4, lane.generation, false)), "held above its capacity");
    assert_eq!(listed(&mut admin, b"removed"), None);
    assert!(listed(&mut admin, b"going").unwrap().3);
    assert_eq!(verify(&mut admin, low.grant), Ok((session.session, GrantState::Held)));
    assert_eq!(verify(&mut admin, high.grant), Ok((session.session, GrantState::Retiring)));
    assert_eq!(verify(&mut admin, going.grant), Ok((session.session, GrantState::Retiring)));
    assert_eq!(admin.wire.acquire(b"going", 1, 9).status, NOT_AVAILABLE);
    assert_eq!(admin.wire.acquire(b"lane", 1, 9).status, NOT_AVAILABLE);
    let mut holder = continued(&server, session, 10);
    assert_eq!(holder.give_back(going.grant), OK);
    assert_eq!(listed(&mut admin, b"going"), None);
    assert_eq!(holder.give_back(low.grant), OK);
    assert_eq!(holder.take(semaphore(1, b"lane")).slots, [0]);
    let next = declare_new(&mut admin, counted(b"next", 1)).generation;
    assert!(next > lane.generation, "generations continue");
    server.check();
    let server = server.crash();
    assert_eq!(listed(&mut caller(&server), b"going"), None);
    server.check();
}

/// A grant of the removed semaphore never belongs to the one declared since, even with crashes in between.
#[test]
fn a_grant_of_a_removed_semaphore_does_not_belong_to_one_declared_since() {
    let server = StoredServer::start(&Memory::default());
    let [mut admin, mut holder] = callers(&server);
    let session = holder.open(LONG_MS);
    declare_new(&mut admin, numbered(b"a", 2));
    let old = holder.take(semaphore(1, b"a"));
    let ids = admin.ids();
    assert_eq!(admin.ask(&removing(ids, b"a", Removal::WithLastHolder)).status, OK);
    declare_new(&mut admin, numbered(b"a", 2));
    let new = holder.take(semaphore(1, b"a"));
    assert_eq!((old.slots, new.slots), (vec![0], vec![1]));
    let server = server.crash();
    let mut service = caller(&server);
    assert_eq!(verify(&mut service, old.grant), Ok((session.session, GrantState::Retiring)));
    assert_eq!(verify(&mut service, new.grant), Ok((session.session, GrantState::Held)));
    server.check();
}

#[test]
fn a_change_repeated_after_a_crash_is_made_once() {
    let server = StoredServer::start(&Memory::default());
    let mut before = caller(&server);
    let session = before.open(LONG_MS);
    let operation = declaring(IfExists::Fail, &[counted(b"a", 1)]);
    let declare = Extended::Change { ids: before.ids(), operation };
    let grow = resizing(before.ids(), b"a", Resizing::GrowBy(1));
    let take = Extended::AcquireGrant {
        ids: before.ids(),
        claim: semaphore(1, b"a"),
        queueing: NOW,
        place: None,
        is_shared: false,
    };
    let changed = [before.ask(&declare), before.ask(&grow)].map(|answer| answer.body);
    let held = before.ask(&take).granted().unwrap();
    let server = server.crash().crash();
    let mut after = continued(&server, session, 3);
    assert_eq!([after.ask(&declare), after.ask(&grow)].map(|answer| answer.body), changed);
    assert!(same(&after.ask(&take).granted().unwrap(), &held));
    assert_eq!(listed(&mut after, b"a").map(|it| (it.0, it.1)), Some((2, 1)));
    assert_eq!(after.give_back(held.grant), OK);
    let gone = removing(after.ids(), b"a", Removal::IfIdle);
    assert_eq!(after.ask(&gone).status, OK);
    let server = server.crash();
    let mut again = continued(&server, session, 5);
    declare_new(&mut again, counted(b"a", 9));
    assert_eq!(again.ask(&gone).status, OK);
    assert_eq!(
        listed(&mut again, b"a").map(|it| it.0),
        Some(9),
        "the semaphore declared since is not removed"
    );
    server.check();
}

#[test]
fn a_request_repeated_after_a_crash_waits_again() {
    let server = StoredServer::start(&Memory::default());
    let [mut holder, mut waiter] = callers(&server);
    let (holding, waiting) = (holder.open(LONG_MS), waiter.open(LONG_MS));
    let held = holder.take(one_of(1, b"a"));
    let request = Extended::AcquireGrant {
        ids: waiter.ids(),
        claim: one_of(1, b"a"),
        queueing: LONG,
        place: None,
        is_shared: false,
    };
    waiter.send(&request);
    waiter.sync();
    let server = server.crash();
    let mut waiter = continued(&server, waiting, 1);
    let asked = waiter.send(&request);
    waiter.sync();
    let mut holder = continued(&server, holding, 1);
    assert_eq!(holder.give_back(held.grant), OK);
    let granted = waiter.answer(asked).granted().unwrap();
    assert!(granted.grant > held.grant, "ids continue after those of the previous run");
    server.check();
}

#[test]
fn a_revocation_continues_after_a_crash() {
    let server = StoredServer::start(&Memory::default());
    let [mut admin, mut one, mut other] = callers(&server);
    let (session, revoked) = (one.open(LONG_MS), other.open(LONG_MS));
    let grants = [one.take(one_of(1, b"a")), other.take(one_of(1, b"b"))].map(|granted| granted.grant);
    for what in [Revocation::Grant(grants[0]), Revocation::Session(SessionId::new(revoked.session))] {
        assert_eq!(admin.change(Operation::Revoke { what, grace: Milliseconds(300) }).status, OK);
    }
    let server = server.crash();
    let mut service = caller(&server);
    assert_eq!(verify(&mut service, grants[0]), Ok((session.session, GrantState::Retiring)));
    assert_eq!(verify(&mut service, grants[1]), Ok((revoked.session, GrantState::Retiring)));
    eventually("both are revoked", || grants.iter().all(|grant| verify(&mut service, *grant) == Err(GONE)));
    assert_eq!(service.attach(session), OK);
    server.check();
}

#[test]
fn nothing_is_granted_or_changed_that_would_have_to_be_stored_while_the_store_fails() {
    let server = StoredServer::start(&Memory::default());
    let [mut admin, mut one, mut bound, mut opener] = callers(&server);
    one.open(LONG_MS);
    let a = declare_new(&mut admin, numbered(b"a", 3));
    declare_new(&mut admin, counted(b"gone", 3));
    let held = one.take(semaphore(1, b"a"));
    server.faults.fail_all(Fault::Full);
    let asked = one.want(semaphore(1, b"a"), NOW);
    assert_eq!(one.answer(asked).status, NOT_STORED);
    assert_eq!(declare(&mut admin, IfExists::Fail, &[counted(b"b", 1)]).status, NOT_STORED);
    assert_eq!(declare(&mut admin, IfExists::Set, &[numbered(b"a", 9)]).status, NOT_STORED);
    for how in [Resizing::GrowBy(5), Resizing::ShrinkBy(1)] {
        let ids = admin.ids();
        assert_eq!(admin.ask(&resizing(ids, b"a", how)).status, NOT_STORED);
    }
    let ids = admin.ids();
    assert_eq!(admin.ask(&removing(ids, b"gone", Removal::IfIdle)).status, NOT_STORED);
    let ids = admin.ids();
    let now = Removal::Now { grace: Milliseconds(0) };
    assert_eq!(admin.ask(&removing(ids, b"a", now)).status, NOT_STORED);
    let refused = opener.ask(&Extended::OpenSession { ttl: None, label: b"", key: None });
    assert_eq!(refused.status, NOT_STORED);
    let ids = opener.ids();
    let claim = Claim { maximum: 1, ..semaphore(1, b"own") };
    let answer =
        opener.ask(&Extended::AcquireGrant { ids, claim, queueing: NOW, place: None, is_shared: false });
    assert!([OK, Status::NoSuchSession.code()].contains(&answer.status), "{answer:?}");

    assert_eq!(listed(&mut admin, b"a"), Some((3, 1, a.generation, false)));
    assert_eq!(listed(&mut admin, b"b"), None);
    assert_eq!(listed(&mut admin, b"gone").map(|it| (it.0, it.3)), Some((3, false)));
    assert_eq!(verify(&mut admin, held.grant).map(|(_, state)| state), Ok(GrantState::Held));
    assert_eq!(bound.take(semaphore(1, b"a")).slots, [1], "requests that need no store are served");
    assert_eq!(admin.wire.get(b"b").status, NOT_FOUND);
    assert_eq!(admin.wire.stat("sessions"), 1);
    assert!(admin.wire.stat("not_stored") >= 7);
    server.check();

    server.faults.stop();
    let mut slots = None;
    eventually("all requests are served when there is room again", || {
        let asked = one.want(semaphore(1, b"a"), NOW);
        slots = one.answer(asked).granted().ok().map(|granted| granted.slots);
        slots.is_some()
    });
    assert_eq!(slots.unwrap(), [2]);
    declare_new(&mut admin, counted(b"b", 1));
    let server = server.crash();
    let mut admin = caller(&server);
    assert_eq!(listed(&mut admin, b"a"), Some((3, 2, a.generation, false)));
    assert_eq!(listed(&mut admin, b"b").map(|it| it.0), Some(1));
    server.check();
}

#[test]
fn a_release_takes_effect_at_once_and_is_stored_when_the_store_works_again() {
    for is_stored_later in [false, true] {
        let server = StoredServer::start(&Memory::default());
        let [mut one, mut other] = callers(&server);
        let session = one.open(LONG_MS);
        let held = one.take(one_of(1, b"a"));
        server.faults.fail_all(Fault::Full);
        assert_eq!(one.give_back(held.grant), OK);
        let next = other.take(one_of(1, b"a"));
        assert_eq!(other.give_back(next.grant), OK);
        if is_stored_later {
            server.faults.stop();
            let is_there = |record: &Record| matches!(record, Record::Grant(_));
            eventually("it is stored", || !server.memory.records().iter().any(is_there));
        }
        let server = server.crash();
        let mut other = caller(&server);
        let expected = if is_stored_later { Err(GONE) } else { Ok((session.session, GrantState::Held)) };
        assert_eq!(verify(&mut other, held.grant), expected, "held until its lease ends, which is safe");
        server.check();
    }
}

#[test]
fn waiters_are_served_when_a_grant_cannot_be_stored() {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut leased, mut bound] = callers(&server);
    let opaque = leased.send(&Extended::OpenSession { ttl: None, label: b"", key: None });
    assert!(server.store_next());
    assert_eq!(leased.answer(opaque).status, OK);
    let asked = leased.want(one_of(1, b"a"), NOW);
    leased.sync();
    let waiting = bound.want(one_of(1, b"a"), LONG);
    bound.sync();
    server.faults.fail_nth(1, Fault::Full);
    assert!(!server.store_next());
    assert_eq!(leased.answer(asked).status, NOT_STORED);
    assert_eq!(bound.answer(waiting).status, OK);
    server.check();
}

#[test]
fn a_repeated_opening_is_answered_when_the_session_is_stored_and_after_a_restart() {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut one, mut two] = callers(&server);
    let key = Some(SessionKey(*b"chosen by client"));
    let open = Extended::OpenSession { ttl: Some(Milliseconds(LONG_MS)), label: b"", key };
    let lost = one.send(&open);
    one.sync();
    let again = two.send(&open);
    two.sync();
    server.faults.fail_nth(1, Fault::Full);
    assert!(!server.store_next());
    assert_eq!(one.next().opaque, lost);
    assert_eq!(two.answer(again).status, NOT_STORED, "it does not expose what is not stored");
    server.check();
    while server.store().is_some() {}

    let lost = one.send(&open);
    one.sync();
    let again = two.send(&open);
    two.sync();
    assert!(server.store_next());
    let opened = two.answer(again).opened().unwrap();
    drop((one, lost));
    let session = two.ask(&open).opened().unwrap();
    assert_eq!(session, opened, "a session that is stored is answered at once");
    let server = server.crash();
    let mut after = caller(&server);
    assert_eq!(after.ask(&open).opened().unwrap(), opened, "the key is stored with the session");
    server.check();
}

/// An answer exposes nothing that is not stored. A changed declaration takes effect when the store works again.
#[test]
fn answers_do_not_expose_state_that_is_not_stored() {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut one, mut other] = callers(&server);
    let declare = |ids| Extended::Change { ids, operation: declaring(IfExists::Keep, &[counted(b"a", 1)]) };
    let ids = one.ids();
    let first = one.send(&declare(ids));
    one.sync();
    let ids = other.ids();
    let second = other.send(&declare(ids));
    other.sync();
    server.faults.fail_nth(1, Fault::Full);
    assert!(!server.store_next());
    assert_eq!(one.answer(first).status, NOT_STORED);
    assert_eq!(other.answer(second).status, NOT_STORED);
    while server.store().is_some() {}
    let server = server.crash();
    assert_eq!(listed(&mut caller(&server), b"a").map(|it| it.0), Some(1));
}

/// Sets a declared semaphore, and returns before anything of that is stored.
fn send_set(caller: &mut Caller, declaration: Declaration<'_>) -> Opaque {
    let opaque = caller.begin(declaring(IfExists::Set, &[declaration]));
    caller.sync();
    opaque
}

#[test]
fn a_semaphore_becomes_numbered_with_its_new_capacity_before_that_is_stored() {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut admin, mut holder] = callers(&server);
    let first = send_set(&mut admin, counted(b"a", 100_000));
    assert!(server.store_next());
    assert_eq!(admin.answer(first).status, OK);
    let set = send_set(&mut admin, numbered(b"a", 10));
    let too_many = holder.want(semaphore(1024, b"a"), NOW);
    assert_eq!(holder.answer(too_many).status, NOT_AVAILABLE);
    assert_eq!(holder.take(semaphore(10, b"a")).slots, (0..10).collect::<Vec<u16>>());
    assert!(server.store_next());
    assert_eq!(admin.answer(set).status, OK);
    server.check();
}

/// The second change is requested while the first one is being stored.
#[test]
fn a_semaphore_whose_numbering_changes_twice_grants_what_its_last_declaration_has() {
    let now = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };
    let [with_slots, without] = [numbered(b"a", 10), counted(b"a", 100_000)];
    for [last, between] in [[with_slots, without], [without, with_slots]] {
        let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
        let [mut admin, mut holder] = callers(&server);
        let core = server.server.server.core();
        let first = send_set(&mut admin, last);
        while server.store().is_some() {}
        assert_eq!(admin.answer(first).status, OK);
        send_set(&mut admin, between);
        let batch = core.take_batch(BatchLimit::NONE).unwrap();
        send_set(&mut admin, last);
        while core.complete(&batch, CommitOutcome::Stored, 1, now) {}
        server.check();
        let many = holder.want(semaphore(1024, b"a"), NOW);
        assert_eq!(holder.answer(many).status, if last.numbered { NOT_AVAILABLE } else { OK });
        while server.store().is_some() {}
        server.check();
        let some = holder.take(semaphore(10, b"a"));
        assert_eq!(some.slots.len(), if last.numbered { 10 } else { 0 });
    }
}

#[test]
fn changes_in_flight_take_effect_in_order_when_the_store_works_again() {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut admin, mut holder] = callers(&server);
    let stored = |caller: &mut Caller, opaque: Opaque| {
        assert!(server.store_next());
        caller.answer(opaque)
    };
    let list = [numbered(b"a", 4)];
    let opaque = admin.begin(declaring(IfExists::Fail, &list));
    let declared = stored(&mut admin, opaque).declared()[0];
    let held = holder.take(semaphore(3, b"a"));
    let mut asked = Vec::new();
    for how in [Resizing::To(9), Resizing::GrowBy(1), Resizing::ShrinkBy(8)] {
        let ids = admin.ids();
        asked.push(admin.send(&resizing(ids, b"a", how)));
    }
    let ids = admin.ids();
    asked.push(admin.send(&removing(ids, b"a", Removal::WithLastHolder)));
    asked.push(admin.begin(declaring(IfExists::Fail, &list)));
    admin.sync();
    server.faults.fail_nth(1, Fault::Full);
    assert!(!server.store_next());
    let mut answers: Vec<_> = asked.iter().map(|_| admin.next()).collect();
    answers.sort_by_key(|answer| answer.opaque.0);
    assert_eq!(answers.iter().map(|answer| (answer.opaque, answer.status)).collect::<Vec<_>>(), {
        asked.iter().map(|opaque| (*opaque, NOT_STORED)).collect::<Vec<_>>()
    });
    while server.store().is_some() {}
    let now = listed(&mut admin, b"a").unwrap();
    assert!(now.2 > declared.generation && (now.0, now.1, now.3) == (4, 3, false), "{now:?}");
    assert_eq!(verify(&mut admin, held.grant).map(|(_, state)| state), Ok(GrantState::Retiring));
    let asked = holder.want(semaphore(1, b"a"), NOW);
    assert!(server.store().is_none());
    assert_eq!(holder.answer(asked).granted().unwrap().slots, [3]);
    server.check();
}

#[test]
fn nothing_is_acknowledged_after_a_failed_flush() {
    for kept in [false, true] {
        let server = StoredServer::start(&Memory::default());
        let [mut admin, mut one] = callers(&server);
        let session = one.open(LONG_MS);
        declare_new(&mut admin, counted(b"a", 3));
        let held = one.take(semaphore(1, b"a"));
        server.faults.fail_nth(1, Fault::Flush { kept });
        let asked = one.want(semaphore(1, b"a"), NOW);
        assert_eq!(one.answer(asked).status, NOT_STORED);
        server.faults.stop();
        for _ in 0..3 {
            let asked = one.want(semaphore(1, b"a"), NOW);
            assert_eq!(one.answer(asked).status, NOT_STORED, "although the next flush would succeed");
            assert_eq!(declare(&mut admin, IfExists::Set, &[counted(b"a", 9)]).status, NOT_STORED);
        }
        assert_eq!(verify(&mut admin, held.grant), Ok((session.session, GrantState::Held)));
        assert_eq!(admin.take(semaphore(1, b"a")).capacity, 3, "requests that need no store are served");
        server.check();
        let server = server.crash();
        let mut other = caller(&server);
        assert_eq!(verify(&mut other, held.grant), Ok((session.session, GrantState::Held)));
        let in_use = listed(&mut other, b"a").unwrap().1;
        assert_eq!(
            in_use,
            if kept { 2 } else { 1 },
            "an unacknowledged grant may be held until its lease ends"
        );
        let mut one = continued(&server, session, 20);
        assert_eq!(one.take(semaphore(1, b"a")).capacity, 3);
        server.check();
    }
}

#[test]
fn what_waits_for_the_store_does_not_grow_while_it_fails() {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut one, mut opener] = callers(&server);
    let opened = one.send(&Extended::OpenSession { ttl: Some(Milliseconds(LONG_MS)), label: b"", key: None });
    assert!(server.store_next());
    assert_eq!(one.answer(opened).status, OK);
    server.faults.fail_all(Fault::Full);
    for round in 0..100 {
        let declare = one.begin(declaring(IfExists::Set, &[counted(b"a", 1)]));
        let take = one.want(one_of(1, b"c"), NOW);
        let open = opener.send(&Extended::OpenSession { ttl: None, label: b"", key: None });
        // From then on, requests are refused at once.
        if round == 0 {
            one.sync();
            opener.sync();
        }
        assert!(!server.store_next());
        let mut answers = [one.next(), one.next()].map(|answer| (answer.opaque, answer.status));
        answers.sort_unstable_by_key(|(opaque, _)| opaque.0);
        assert_eq!(answers, [(declare, NOT_STORED), (take, NOT_STORED)]);
        assert_eq!(opener.answer(open).status, NOT_STORED);
    }
    let core = server.server.server.core();
    let now = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };
    let mut changes = Vec::new();
    while let Some(batch) = core.take_batch(BatchLimit::NONE) {
        changes.extend(batch.changes.iter().cloned());
        while core.complete(&batch, CommitOutcome::Stored, 1, now) {}
    }
    // The declaration with its answer; a grant and a session, and their ends.
    assert_eq!(changes.len(), 6, "{changes:?}");
}

/// Sends a request whose answer waits for the disk, stores it, and returns the answer.
#[track_caller]
fn stored(server: &StoredServer, caller: &mut Caller, request: &Extended<'_>) -> ResponseFrame {
    let opaque = caller.send(request);
    assert!(server.store_next());
    let answer = caller.answer(opaque);
    assert_eq!(answer.status, OK, "{answer:?}");
    answer
}

const A: [Declaration<'_>; 1] = [Declaration { name: b"a", capacity: 100, numbered: false, label: b"" }];

fn declaring_a(ids: RequestIds) -> Extended<'static> {
    Extended::Change { ids, operation: declaring(IfExists::Fail, &A) }
}

/// A server with a declared semaphore `a`, of which a session holds one, all stored; an administrator; and the grant.
fn held_and_stored() -> (StoredServer, Caller, GrantId) {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut admin, mut holder] = callers(&server);
    stored(
        &server,
        &mut holder,
        &Extended::OpenSession { ttl: Some(Milliseconds(LONG_MS)), label: b"", key: None },
    );
    let ids = admin.ids();
    stored(&server, &mut admin, &declaring_a(ids));
    let ids = holder.ids();
    let take = Extended::AcquireGrant {
        ids,
        claim: semaphore(1, b"a"),
        queueing: NOW,
        place: None,
        is_shared: false,
    };
    let held = stored(&server, &mut holder, &take).granted().unwrap();
    (server, admin, held.grant)
}

#[test]
fn a_removal_at_once_continues_after_a_crash_even_if_the_name_was_declared_again() {
    let (server, mut admin, held) = held_and_stored();
    let mut other = caller(&server);
    let (_, _, before, _) = listed(&mut other, b"a").unwrap();
    // Both are stored together, before the holder is notified of its grace period.
    let ids = admin.ids();
    let removed = admin.send(&removing(ids, b"a", Removal::Now { grace: Milliseconds(50) }));
    let ids = admin.ids();
    let declared = admin.send(&declaring_a(ids));
    eventually("both are in flight", || {
        listed(&mut other, b"a").is_some_and(|(_, _, now, removing)| !removing && now > before)
    });
    assert!(server.store_next());
    for opaque in [removed, declared] {
        assert_eq!(admin.answer(opaque).status, OK);
    }
    let server = server.crash();
    let mut other = caller(&server);
    eventually("it is gone", || verify(&mut other, held) == Err(GONE));
    assert!(listed(&mut other, b"a").is_some_and(|(_, in_use, _, removing)| in_use == 0 && !removing));
    server.check();
}

/// The configuration declares the semaphore while its removal is not stored yet.
#[test]
fn a_removal_at_once_continues_even_if_the_configuration_declares_the_name() {
    for is_stored in [true, false] {
        let (server, mut admin, held) = held_and_stored();
        let ids = admin.ids();
        let removed = admin.send(&removing(ids, b"a", Removal::Now { grace: Milliseconds(50) }));
        eventually("it is in flight", || {
            listed(&mut caller(&server), b"a").is_some_and(|(.., removing)| removing)
        });
        let configured = Declaration { name: b"a", capacity: 100, numbered: false, label: b"" };
        let core = server.server.server.core();
        let now = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };
        assert_eq!(core.declare_configured(&[configured], now), []);
        if !is_stored {
            server.faults.fail_all(Fault::Full);
        }
        assert_eq!(server.store_next(), is_stored);
        assert_eq!(admin.answer(removed).status, if is_stored { OK } else { NOT_STORED });
        server.faults.stop();
        while server.store().is_some() {}
        let mut other = caller(&server);
        eventually("it is gone", || verify(&mut other, held) == Err(GONE));
        assert!(listed(&mut other, b"a").is_some_and(|(_, in_use, _, removing)| in_use == 0 && !removing));
    }
}

#[test]
fn a_grant_revoked_before_it_is_stored_is_followed_by_a_notice() {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut admin, mut holder] = callers(&server);
    holder.hello("holder");
    stored(
        &server,
        &mut holder,
        &Extended::OpenSession { ttl: Some(Milliseconds(LONG_MS)), label: b"", key: None },
    );
    let taken = holder.want(one_of(1, b"c"), NOW);
    let mut grant = None;
    eventually("it is granted before it is stored", || {
        let opaque = admin.send(&Extended::Holders { namespace: Namespace::Counters, name: b"c" });
        let entries: Vec<_> = std::iter::from_fn(|| admin.answer(opaque).list_entry().ok()?).collect();
        grant = entries.first().and_then(|entry| entry.grant);
        grant.is_some()
    });
    let (what, grace) = (Revocation::Grant(grant.unwrap()), Milliseconds(LONG_MS));
    let revoked = admin.begin(Operation::Revoke { what, grace });
    let revokes = |frame: &ResponseFrame| matches!(frame.notice(), Ok(Some(Notice::GrantRevoked { .. })));
    assert!(revokes(&holder.next()), "a notice is sent at once");
    assert!(server.store_next());
    assert_eq!(holder.next().opaque, taken);
    assert!(revokes(&holder.next()), "and again, because the holder did not know the grant yet");
    assert_eq!(admin.answer(revoked).status, OK);
}

#[test]
fn requests_sent_before_a_half_close_are_answered_when_they_are_stored() {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut last, mut other] = callers(&server);
    stored(
        &server,
        &mut last,
        &Extended::OpenSession { ttl: Some(Milliseconds(LONG_MS)), label: b"", key: None },
    );
    assert_eq!(last.wire.acquire(b"plain", 1, 1).status, OK);
    let ids = last.ids();
    let declared = last.send(&declaring_a(ids));
    let taken = last.want(one_of(1, b"c"), NOW);
    last.wire.stream.shutdown(Shutdown::Write).unwrap();
    eventually("both are in flight", || server.server.server.core().ledger_stats().grants == 1);
    assert!(server.store_next());
    assert_eq!(last.answer(declared).status, OK);
    assert_eq!(last.answer(taken).status, OK);
    assert!(last.wire.is_closed());
    eventually("its plain holding is released", || other.wire.acquire(b"plain", 1, 1).status == OK);
    server.check();
}

#[test]
fn a_disk_that_hangs_does_not_delay_the_release_of_a_closed_connection() {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut last, mut other] = callers(&server);
    assert_eq!(last.wire.acquire(b"plain", 1, 1).status, OK);
    let ids = last.ids();
    last.send(&declaring_a(ids));
    last.wire.stream.shutdown(Shutdown::Write).unwrap();
    eventually("its plain holding is released", || other.wire.acquire(b"plain", 1, 1).status == OK);
    assert!(last.wire.is_closed(), "and nothing was acknowledged");
    server.check_ledger();
}
