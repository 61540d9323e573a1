//! What is declared and what leased sessions hold outlives the server that was told of it, over real sockets
//! (`docs/protocol.md`, "What is on disk"). The store is memory here, which crashes and fails when a test says so;
//! `tests/daemon/data.rs` has the daemon and its files.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Shutdown;

use crate::support::caller::{Caller, LONG, NOW, on_wire, one_of};
use crate::support::store::{By, StoredServer};
use crate::support::{NOOP, NOT_AVAILABLE, NOT_FOUND, OK, eventually, frame};
use signalbox::core::{
    Change, CommitOutcome, Declare, Key, Moment, MonotonicMs, Namespace, Record, UnixSeconds,
};
use signalbox::protocol::{
    AS_DECLARED, Claim, Claims, Declaration, Declarations, DeclaredState, Extended, ExtendedOpcode,
    Generation, GrantId, GrantState, Granted, IfExists, Milliseconds, Notice, Opaque, OpenedSession, Removal,
    RequestId, RequestIds, Resizing, ResponseFrame, Revocation, Status, TtlLeft,
};
use signalbox::storage::{Fault, Memory};

const LONG_MS: u32 = 60_000;
const NOT_STORED: u8 = Status::NotStored as u8;
const GONE: u8 = Status::NotAcquired as u8;

fn semaphore(resources: u32, name: &[u8]) -> Claim<'_> {
    Claim { namespace: on_wire(Namespace::Semaphores), name, resources, maximum: AS_DECLARED }
}

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

fn counted(name: &[u8], capacity: u32) -> Declaration<'_> {
    Declaration { name, capacity, numbered: false, label: b"" }
}

fn numbered(name: &[u8], capacity: u32) -> Declaration<'_> {
    Declaration { name, capacity, numbered: true, label: b"" }
}

fn declare(caller: &mut Caller, if_exists: IfExists, declaration: Declaration<'_>) -> ResponseFrame {
    let ids = caller.ids();
    let list = [declaration];
    caller.ask(&Extended::Declare { ids, if_exists, declarations: Declarations::new(&list).unwrap() })
}

#[track_caller]
fn declare_new(caller: &mut Caller, declaration: Declaration<'_>) -> DeclaredState {
    let answer = declare(caller, IfExists::Fail, declaration);
    assert_eq!(answer.status, OK, "{answer:?}");
    answer.declared().unwrap()[0]
}

fn resizing(ids: RequestIds, name: &[u8], how: Resizing) -> Extended<'_> {
    Extended::Resize { ids, expected: None, how, name }
}

fn removing(ids: RequestIds, name: &[u8], how: Removal) -> Extended<'_> {
    Extended::Remove { ids, expected: None, how, name }
}

/// Capacity, use and generation of a declared semaphore, and whether it is being removed; `None`: it is not declared.
fn listed(caller: &mut Caller, name: &[u8]) -> Option<(u32, u32, Generation, bool)> {
    let opaque = caller.send(&Extended::List { prefix: name });
    let entries: Vec<_> = std::iter::from_fn(|| caller.answer(opaque).declared_entry().unwrap()).collect();
    let entry = entries.iter().find(|entry| &entry.name[..] == name)?;
    Some((entry.capacity, entry.in_use, entry.generation, entry.removing))
}

/// Whose a grant is, and how it stands; the status where it is not held.
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

#[test]
fn what_a_leased_session_holds_is_its_own_after_a_crash() {
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
    let requests = wants.map(|claim| Extended::AcquireGrant { ids: before.ids(), claim, queueing: NOW });
    let held = requests.map(|request| before.ask(&request).granted().unwrap());
    let names = [semaphore(2, b"slots"), one_of(5, b"0"), Claim { maximum: 4, ..semaphore(4, b"all") }];
    let claims = Claims::new(&names).unwrap();
    let all = Extended::AcquireAll { ids: before.ids(), queueing: NOW, claims };
    let of_all = before.ask(&all).all_granted().unwrap();
    assert_eq!(before.give_back(held[1].grant), OK);
    let used = 7;

    let server = server.crash();
    let [mut other, mut counters] = [caller(&server), Caller::new(server.server.counter())];
    for (grant, is_held) in [(0, true), (1, false), (2, true), (3, true)].map(|(n, is)| (held[n].grant, is)) {
        let expected = if is_held { Ok((session.session, GrantState::Held)) } else { Err(GONE) };
        assert_eq!(verify(&mut other, grant), expected);
    }
    assert_eq!(other.wire.get(b"made").number(), 5, "its capacity is what it was");
    assert_eq!(counters.wire.get(b"counter").number(), 1);
    assert_eq!(counters.wire.get(b"0").number(), 1);
    assert_eq!(other.wire.acquire(b"all", 1, 100).status, NOT_AVAILABLE);
    assert_eq!(other.take(semaphore(5, b"slots")).slots, [0, 1, 2, 6, 7], "none that is held");

    let mut after = continued(&server, session, used);
    for index in [0, 2, 3] {
        let again = after.ask(&requests[index]).granted().unwrap();
        assert!(same(&again, &held[index]), "{again:?}: it is told as it was");
    }
    let again = after.ask(&all).all_granted().unwrap();
    assert_eq!((again.grant, again.capacities, again.slots), (of_all.grant, of_all.capacities, of_all.slots));
    assert_eq!(after.give_back(of_all.grant), OK);
    assert_eq!(other.wire.get(b"all").number(), 4);
    assert_eq!(after.ask(&Extended::CloseSession).status, OK);
    server.check();
    let server = server.crash();
    let mut other = caller(&server);
    assert_eq!(other.attach(session), Status::NoSuchSession.code(), "a closed one is closed for good");
    assert_eq!(other.wire.get(b"made").status, NOT_FOUND);
    assert_eq!(listed(&mut other, b"slots").unwrap().1, 0);
    server.check();
}

#[test]
fn what_connections_hold_ends_with_them() {
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
fn a_session_has_its_full_time_to_come_back() {
    let server = StoredServer::start(&Memory::default());
    let mut before = caller(&server);
    let session = before.open(2000);
    let held = before.take(one_of(1, b"a"));
    drop(before);
    // Most of its time is over when the server crashes.
    let mut other = caller(&server);
    eventually("its time goes by", || {
        let left = other.ask(&Extended::VerifyGrant { grant: held.grant }).verified().unwrap().ttl_left;
        matches!(left, TtlLeft::For(left) if left.0 < 700)
    });
    let server = server.crash();
    let mut other = caller(&server);
    let left = other.ask(&Extended::VerifyGrant { grant: held.grant }).verified().unwrap().ttl_left;
    assert!(matches!(left, TtlLeft::For(left) if left.0 > 1000 && left.0 <= 2000), "{left:?}");
    let waiting = other.want(one_of(1, b"a"), LONG);
    let answer = other.answer(waiting);
    assert_eq!(answer.status, OK, "and when it does not come, others have their turn");
    assert_eq!(other.attach(session), Status::NoSuchSession.code());
    server.check();
    // A crash before its end is stored brings it back once more.
    eventually("its end is stored", || server.server.server.core().is_stored());
    let server = server.crash();
    assert_eq!(caller(&server).attach(session), Status::NoSuchSession.code());
    server.check();
}

#[test]
fn a_change_is_answered_when_it_is_stored_and_not_before() {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut one, mut revoker] = callers(&server);
    let stored = |caller: &mut Caller, request: &Extended<'_>| {
        let opaque = caller.send(request);
        // Answered in order, were it not for the store.
        caller.sync();
        assert!(server.store_next());
        let answer = caller.answer(opaque);
        assert_eq!(answer.status, OK, "{request:?}: {answer:?}");
        answer
    };
    stored(&mut one, &Extended::OpenSession { ttl: Some(Milliseconds(LONG_MS)), label: b"" });
    let list = [counted(b"a", 2)];
    let declarations = Declarations::new(&list).unwrap();
    let if_exists = IfExists::Fail;
    let ids = one.ids();
    stored(&mut one, &Extended::Declare { ids, if_exists, declarations });
    let request = Extended::AcquireGrant { ids: one.ids(), claim: semaphore(1, b"a"), queueing: NOW };
    let first = stored(&mut one, &request).granted().unwrap();
    let request = Extended::AcquireGrant { ids: one.ids(), claim: semaphore(1, b"a"), queueing: NOW };
    let second = stored(&mut one, &request).granted().unwrap();
    let ids = one.ids();
    stored(&mut one, &Extended::ReleaseGrant { ids, grant: first.grant });
    let (ids, what) = (revoker.ids(), Revocation::Grant(second.grant));
    stored(&mut revoker, &Extended::Revoke { ids, what, grace: Milliseconds(LONG_MS) });
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
        .map(|caller| caller.send(&Extended::OpenSession { ttl: Some(Milliseconds(LONG_MS)), label: b"" }))
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
fn what_is_declared_is_as_it_was_after_a_crash() {
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
    let lane = admin.ask(&resizing(ids, b"lane", Resizing::To(3))).resized().unwrap();

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
    assert!(next > lane.generation, "generations go on");
    server.check();
    let server = server.crash();
    assert_eq!(listed(&mut caller(&server), b"going"), None);
    server.check();
}

/// What was granted of the one before is not of the one that was declared since, whatever crashes in between.
#[test]
fn a_grant_of_what_was_removed_is_told_from_one_of_what_was_declared_since() {
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
fn a_change_that_is_sent_again_after_a_crash_is_made_once() {
    let server = StoredServer::start(&Memory::default());
    let mut before = caller(&server);
    let session = before.open(LONG_MS);
    let list = [counted(b"a", 1)];
    let declarations = Declarations::new(&list).unwrap();
    let declare = Extended::Declare { ids: before.ids(), if_exists: IfExists::Fail, declarations };
    let grow = resizing(before.ids(), b"a", Resizing::GrowBy(1));
    let take = Extended::AcquireGrant { ids: before.ids(), claim: semaphore(1, b"a"), queueing: NOW };
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
    assert_eq!(listed(&mut again, b"a").map(|it| it.0), Some(9), "what was declared since is not removed");
    server.check();
}

#[test]
fn who_waited_waits_again_when_he_asks_again() {
    let server = StoredServer::start(&Memory::default());
    let [mut holder, mut waiter] = callers(&server);
    let (holding, waiting) = (holder.open(LONG_MS), waiter.open(LONG_MS));
    let held = holder.take(one_of(1, b"a"));
    let request = Extended::AcquireGrant { ids: waiter.ids(), claim: one_of(1, b"a"), queueing: LONG };
    waiter.send(&request);
    waiter.sync();
    let server = server.crash();
    let mut waiter = continued(&server, waiting, 1);
    let asked = waiter.send(&request);
    waiter.sync();
    let mut holder = continued(&server, holding, 1);
    assert_eq!(holder.give_back(held.grant), OK);
    let granted = waiter.answer(asked).granted().unwrap();
    assert!(granted.grant > held.grant, "ids go on from those of the run before");
    server.check();
}

#[test]
fn a_revocation_goes_on_after_a_crash() {
    let server = StoredServer::start(&Memory::default());
    let [mut admin, mut one, mut other] = callers(&server);
    let (session, revoked) = (one.open(LONG_MS), other.open(LONG_MS));
    let grants = [one.take(one_of(1, b"a")), other.take(one_of(1, b"b"))].map(|granted| granted.grant);
    for what in [Revocation::Grant(grants[0]), Revocation::Session(revoked.session)] {
        let ids = admin.ids();
        assert_eq!(admin.ask(&Extended::Revoke { ids, what, grace: Milliseconds(300) }).status, OK);
    }
    let server = server.crash();
    let mut service = caller(&server);
    assert_eq!(verify(&mut service, grants[0]), Ok((session.session, GrantState::Retiring)));
    assert_eq!(verify(&mut service, grants[1]), Ok((revoked.session, GrantState::Retiring)));
    eventually("both are gone", || grants.iter().all(|grant| verify(&mut service, *grant) == Err(GONE)));
    assert_eq!(service.attach(session), OK);
    server.check();
}

#[test]
fn what_cannot_be_stored_is_taken_back_before_it_is_answered() {
    let server = StoredServer::start(&Memory::default());
    let [mut admin, mut one, mut bound, mut opener] = callers(&server);
    one.open(LONG_MS);
    let a = declare_new(&mut admin, numbered(b"a", 3));
    declare_new(&mut admin, counted(b"gone", 3));
    let held = one.take(semaphore(1, b"a"));
    server.faults.fail_all(Fault::Full);
    let asked = one.want(semaphore(1, b"a"), NOW);
    assert_eq!(one.answer(asked).status, NOT_STORED);
    assert_eq!(declare(&mut admin, IfExists::Fail, counted(b"b", 1)).status, NOT_STORED);
    assert_eq!(declare(&mut admin, IfExists::Set, numbered(b"a", 9)).status, NOT_STORED);
    for how in [Resizing::GrowBy(5), Resizing::ShrinkBy(1)] {
        let ids = admin.ids();
        assert_eq!(admin.ask(&resizing(ids, b"a", how)).status, NOT_STORED);
    }
    let ids = admin.ids();
    assert_eq!(admin.ask(&removing(ids, b"gone", Removal::IfIdle)).status, NOT_STORED);
    let ids = admin.ids();
    let now = Removal::Now { grace: Milliseconds(0) };
    assert_eq!(admin.ask(&removing(ids, b"a", now)).status, NOT_STORED);
    let refused = opener.ask(&Extended::OpenSession { ttl: None, label: b"" });
    assert_eq!(refused.status, NOT_STORED);
    let ids = opener.ids();
    let claim = Claim { maximum: 1, ..semaphore(1, b"own") };
    let answer = opener.ask(&Extended::AcquireGrant { ids, claim, queueing: NOW });
    assert!([OK, Status::NoSuchSession.code()].contains(&answer.status), "{answer:?}");

    assert_eq!(listed(&mut admin, b"a"), Some((3, 1, a.generation, false)));
    assert_eq!(listed(&mut admin, b"b"), None);
    assert_eq!(listed(&mut admin, b"gone").map(|it| (it.0, it.3)), Some((3, false)));
    assert_eq!(verify(&mut admin, held.grant).map(|(_, standing)| standing), Ok(GrantState::Held));
    assert_eq!(bound.take(semaphore(1, b"a")).slots, [1], "what needs no store goes on");
    assert_eq!(admin.wire.get(b"b").status, NOT_FOUND);
    assert_eq!(admin.wire.stat("sessions"), 1);
    assert!(admin.wire.stat("not_stored") >= 7);
    server.check();

    server.faults.stop();
    assert_eq!(one.take(semaphore(1, b"a")).slots, [2], "and all goes on when there is room again");
    declare_new(&mut admin, counted(b"b", 1));
    let server = server.crash();
    let mut admin = caller(&server);
    assert_eq!(listed(&mut admin, b"a"), Some((3, 2, a.generation, false)));
    assert_eq!(listed(&mut admin, b"b").map(|it| it.0), Some(1));
    server.check();
}

#[test]
fn what_was_given_back_stands_and_is_stored_when_it_can_be() {
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
        assert_eq!(verify(&mut other, held.grant), expected, "held until its lease ends, to be safe");
        server.check();
    }
}

/// The releases are acknowledged when the write fails, and the next write stores them.
#[test]
fn releases_that_come_while_a_write_fails_are_stored_with_the_next_one() {
    const GRANTS: u32 = 10;
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut one, mut admin] = callers(&server);
    let opened = one.send(&Extended::OpenSession { ttl: Some(Milliseconds(LONG_MS)), label: b"" });
    assert!(server.store_next());
    assert_eq!(one.answer(opened).status, OK);
    let asked = [(); GRANTS as usize].map(|()| one.want(one_of(GRANTS, b"a"), NOW));
    one.sync();
    assert!(server.store_next());
    let held = asked.map(|opaque| one.answer(opaque).granted().unwrap().grant);
    let ids = admin.ids();
    let declared = admin.send(&declaring_a(ids));
    admin.sync();

    let core = server.server.server.core();
    let batch = core.take_batch(usize::MAX).unwrap();
    let released = held.map(|grant| {
        let ids = one.ids();
        one.send(&Extended::ReleaseGrant { ids, grant })
    });
    one.sync();
    let now = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };
    assert!(!core.complete(&batch, CommitOutcome::RolledBack, usize::MAX, now));
    let mut answers = released.map(|_| one.next()).map(|answer| (answer.opaque, answer.status));
    answers.sort_unstable_by_key(|(opaque, _)| opaque.0);
    assert_eq!(answers, released.map(|opaque| (opaque, OK)));
    assert_eq!(admin.answer(declared).status, NOT_STORED);
    assert!(server.store_next());

    let server = server.crash();
    let mut other = caller(&server);
    assert_eq!(held.map(|grant| verify(&mut other, grant)), [Err(GONE); GRANTS as usize]);
    other.take(Claim { resources: GRANTS, ..one_of(GRANTS, b"a") });
    server.check();
}

#[test]
fn who_waits_for_what_could_not_be_stored_is_served() {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut leased, mut bound] = callers(&server);
    let opaque = leased.send(&Extended::OpenSession { ttl: None, label: b"" });
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

/// Of the answer to a request, nothing that is not stored: it may come to nothing.
#[test]
fn nobody_is_told_that_there_is_what_is_not_stored() {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut one, mut other] = callers(&server);
    let list = [counted(b"a", 1)];
    let declarations = Declarations::new(&list).unwrap();
    let declare = |ids| Extended::Declare { ids, if_exists: IfExists::Keep, declarations };
    let ids = one.ids();
    let first = one.send(&declare(ids));
    one.sync();
    let ids = other.ids();
    let second = other.send(&declare(ids));
    other.sync();
    server.faults.fail_nth(1, Fault::Full);
    assert!(!server.store_next());
    assert_eq!(one.answer(first).status, NOT_STORED);
    assert_eq!(other.answer(second).status, NOT_STORED, "it is not there");
    assert_eq!(listed(&mut other, b"a"), None);
}

/// Several changes of one semaphore that are on their way together are taken back together.
#[test]
fn changes_that_build_on_one_another_are_taken_back_in_turn() {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut admin, mut holder] = callers(&server);
    let stored = |caller: &mut Caller, opaque: Opaque| {
        assert!(server.store_next());
        caller.answer(opaque)
    };
    let list = [numbered(b"a", 4)];
    let declarations = Declarations::new(&list).unwrap();
    let ids = admin.ids();
    let opaque = admin.send(&Extended::Declare { ids, if_exists: IfExists::Fail, declarations });
    let settled = stored(&mut admin, opaque).declared().unwrap()[0];
    let held = holder.take(semaphore(3, b"a"));
    let mut asked = Vec::new();
    for how in [Resizing::To(9), Resizing::GrowBy(1), Resizing::ShrinkBy(8)] {
        let ids = admin.ids();
        asked.push(admin.send(&resizing(ids, b"a", how)));
    }
    let ids = admin.ids();
    asked.push(admin.send(&removing(ids, b"a", Removal::WithLastHolder)));
    let ids = admin.ids();
    asked.push(admin.send(&Extended::Declare { ids, if_exists: IfExists::Fail, declarations }));
    admin.sync();
    server.faults.fail_nth(1, Fault::Full);
    assert!(!server.store_next());
    let mut answers: Vec<_> = asked.iter().map(|_| admin.next()).collect();
    answers.sort_by_key(|answer| answer.opaque.0);
    assert_eq!(answers.iter().map(|answer| (answer.opaque, answer.status)).collect::<Vec<_>>(), {
        asked.iter().map(|opaque| (*opaque, NOT_STORED)).collect::<Vec<_>>()
    });
    assert_eq!(listed(&mut admin, b"a"), Some((4, 3, settled.generation, false)));
    assert_eq!(verify(&mut admin, held.grant).map(|(_, standing)| standing), Ok(GrantState::Held));
    assert_eq!(holder.take(semaphore(1, b"a")).slots, [3]);
    server.check();
}

/// The last holder left while it was to be declared anew, which came to nothing.
#[test]
fn a_removal_ends_though_declaring_anew_was_taken_back() {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut admin, mut holder] = callers(&server);
    let list = [counted(b"a", 4)];
    let declarations = Declarations::new(&list).unwrap();
    let declare = |ids| Extended::Declare { ids, if_exists: IfExists::Fail, declarations };
    let ids = admin.ids();
    let first = admin.send(&declare(ids));
    assert!(server.store_next());
    assert_eq!(admin.answer(first).status, OK);
    let held = holder.take(semaphore(1, b"a"));
    let ids = admin.ids();
    let gone = admin.send(&removing(ids, b"a", Removal::WithLastHolder));
    assert!(server.store_next());
    assert_eq!(admin.answer(gone).status, OK);
    let ids = admin.ids();
    let anew = admin.send(&declare(ids));
    admin.sync();
    assert_eq!(holder.give_back(held.grant), OK);
    server.faults.fail_nth(1, Fault::Full);
    assert!(!server.store_next());
    assert_eq!(admin.answer(anew).status, NOT_STORED);
    assert_eq!(listed(&mut admin, b"a"), None, "nobody holds what was removed");
    assert_eq!(holder.wire.acquire(b"a", 1, 1).status, OK);
    server.check();
}

#[test]
fn after_a_flush_that_failed_nothing_is_promised_any_more() {
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
            assert_eq!(
                one.answer(asked).status,
                NOT_STORED,
                "though the next flush would say that all is well"
            );
            assert_eq!(declare(&mut admin, IfExists::Set, counted(b"a", 9)).status, NOT_STORED);
        }
        assert_eq!(verify(&mut admin, held.grant), Ok((session.session, GrantState::Held)));
        assert_eq!(admin.take(semaphore(1, b"a")).capacity, 3, "what needs no store goes on");
        server.check();
        let server = server.crash();
        let mut other = caller(&server);
        assert_eq!(verify(&mut other, held.grant), Ok((session.session, GrantState::Held)));
        let in_use = listed(&mut other, b"a").unwrap().1;
        assert_eq!(
            in_use,
            if kept { 2 } else { 1 },
            "what was not acknowledged may be there, until its lease ends"
        );
        let mut one = continued(&server, session, 20);
        assert_eq!(one.take(semaphore(1, b"a")).capacity, 3);
        server.check();
    }
}

#[test]
fn what_came_to_nothing_is_not_kept_for_when_the_store_works_again() {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut one, mut opener, mut admin] = callers(&server);
    let opened = one.send(&Extended::OpenSession { ttl: Some(Milliseconds(LONG_MS)), label: b"" });
    assert!(server.store_next());
    assert_eq!(one.answer(opened).status, OK);
    server.faults.fail_all(Fault::Full);
    for _ in 0..100 {
        let list = [counted(b"a", 1)];
        let declarations = Declarations::new(&list).unwrap();
        let ids = one.ids();
        let declare = one.send(&Extended::Declare { ids, if_exists: IfExists::Fail, declarations });
        let take = one.want(one_of(1, b"c"), NOW);
        let open = opener.send(&Extended::OpenSession { ttl: None, label: b"" });
        one.sync();
        opener.sync();
        assert!(!server.store_next());
        assert_eq!(
            [one.next(), one.next()].map(|answer| (answer.opaque, answer.status)),
            [(take, NOT_STORED), (declare, NOT_STORED)]
        );
        assert_eq!(opener.answer(open).status, NOT_STORED);
    }
    let core = server.server.server.core();
    let batch = core.take_batch(usize::MAX).unwrap();
    let Some(Change::Delete(Key::Declaration(_))) = batch.changes.first() else { panic!("{batch:?}") };
    assert_eq!(batch.changes.len(), 1, "{batch:?}");
    assert_eq!(listed(&mut admin, b"a"), None);
}

/// Whatever fails and crashes: what was acknowledged is there, and nobody has what another has.
#[test]
fn random_failures_and_crashes_lose_nothing_that_was_acknowledged() {
    for seed in 0..12 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut server = StoredServer::start(&Memory::default());
        let session = {
            let mut caller = caller(&server);
            declare_new(&mut caller, numbered(b"a", 6));
            caller.open(LONG_MS)
        };
        let mut request = 0;
        let mut held: Vec<(GrantId, Vec<u16>)> = Vec::new();
        let (mut capacity, mut last) = (6, GrantId(0));
        for round in 0..12 {
            let mut one = continued(&server, session, request);
            for _ in 0..random.u8(1..20) {
                if random.u8(0..3) == 0 {
                    server.faults.fail_nth(random.u64(1..4), Fault::Full);
                }
                request += 1;
                match random.u8(0..4) {
                    0 | 1 => {
                        let asked = one.want(semaphore(random.u32(1..3), b"a"), NOW);
                        let answer = one.answer(asked);
                        if let Ok(granted) = answer.granted().map_err(|_| answer.status)
                            && answer.status == OK
                        {
                            assert!(granted.grant > last, "seed {seed}, round {round}");
                            last = granted.grant;
                            held.push((granted.grant, granted.slots));
                        }
                    }
                    2 if !held.is_empty() => {
                        let (grant, _) = held.swap_remove(random.usize(0..held.len()));
                        assert_eq!(one.give_back(grant), OK);
                    }
                    _ => {
                        let to = random.u32(1..12);
                        let ids = one.ids();
                        if one.ask(&resizing(ids, b"a", Resizing::To(to))).status == OK {
                            capacity = to;
                        }
                    }
                }
            }
            server.check();
            // What was given back may be held again if it was not stored.
            server.faults.stop();
            eventually("all is stored", || server.server.server.core().is_stored());
            server = server.crash();
            let mut other = caller(&server);
            let (listed, in_use, ..) = listed(&mut other, b"a").unwrap();
            let slots = held.iter().map(|(_, slots)| slots.len()).sum::<usize>();
            assert_eq!((listed, in_use as usize), (capacity, slots), "seed {seed}, round {round}");
            let mut all: Vec<_> = held.iter().flat_map(|(_, slots)| slots).collect();
            all.sort_unstable();
            assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "seed {seed}, round {round}: {all:?}");
            for (grant, _) in &held {
                assert_eq!(verify(&mut other, *grant).map(|it| it.0), Ok(session.session), "seed {seed}");
            }
            server.check();
        }
    }
}

/// A session of the random test below, and what it was told.
struct Party {
    caller: Caller,
    session: OpenedSession,
    request: u64,
    /// Requests that are not answered, with the grant that they give back.
    pending: BTreeMap<[u8; 4], Option<GrantId>>,
    held: BTreeMap<GrantId, Vec<u16>>,
    released: BTreeSet<GrantId>,
}

impl Party {
    fn ids(&mut self) -> RequestIds {
        self.request += 1;
        let oldest = self.request.saturating_sub(500).max(1);
        RequestIds { own: RequestId(self.request), lowest_unanswered: RequestId(oldest) }
    }

    fn send(&mut self, request: &Extended<'_>, given_back: Option<GrantId>) {
        let opaque = self.caller.send(request);
        self.pending.insert(opaque.0, given_back);
    }

    /// Takes up what was answered so far.
    fn read(&mut self) {
        let sync = *b"sync";
        self.caller.wire.send(&frame(NOOP, sync, &[]));
        loop {
            let answer = self.caller.next();
            if answer.opaque.0 == sync {
                return;
            }
            match self.pending.remove(&answer.opaque.0).unwrap() {
                Some(grant) if answer.status == OK => {
                    assert!(self.released.insert(grant));
                }
                Some(grant) => panic!("{grant:?} is not given back: {answer:?}"),
                None if answer.status == OK && answer.opcode == ExtendedOpcode::AcquireGrant.code() => {
                    let granted = answer.granted().unwrap();
                    assert!(self.held.insert(granted.grant, granted.slots).is_none());
                }
                None => {}
            }
        }
    }
}

/// Several sessions with many requests on their way, waiting ones and such as change the semaphore that they are for. The
/// store takes its time, fails in every other seed, and is lost at any moment.
#[test]
fn whatever_is_on_its_way_at_a_crash_is_there_as_a_whole_or_not_at_all() {
    for seed in 0..30 {
        let mut random = fastrand::Rng::with_seed(seed);
        let memory = Memory::default();
        let is_failing = seed % 2 == 1;
        let mut parties = {
            let server = StoredServer::start(&memory);
            declare_new(&mut caller(&server), numbered(b"a", 6));
            let opened = || {
                let mut caller = caller(&server);
                let session = caller.open(LONG_MS);
                let (pending, held, released) = Default::default();
                Party { caller, session, request: 0, pending, held, released }
            };
            [opened(), opened(), opened()]
        };
        for round in 0..6 {
            let what = format!("seed {seed}, round {round}");
            let server = StoredServer::start_with(&memory, By::Test, |_| {});
            let mut service = caller(&server);
            let mut taken = BTreeSet::new();
            let mut in_use = 0;
            for party in &mut parties {
                party.caller = continued(&server, party.session, 0);
                let lost = std::mem::take(&mut party.pending);
                let opaque = service
                    .send(&Extended::Holders { namespace: on_wire(Namespace::Semaphores), name: b"a" });
                let mut found = BTreeMap::new();
                loop {
                    let answer = service.answer(opaque);
                    if answer.status == NOT_FOUND {
                        break;
                    }
                    let Some(entry) = answer.list_entry().unwrap() else { break };
                    if entry.session == party.session.session {
                        in_use += entry.resources;
                        assert!(entry.slots.iter().all(|slot| taken.insert(*slot)), "{what}: {taken:?}");
                        found.insert(entry.grant.unwrap(), entry.slots);
                    }
                }
                for (grant, slots) in &party.held {
                    let is_leaving = lost.values().any(|other| *other == Some(*grant));
                    let is_there = found.get(grant) == Some(slots);
                    // What was given back when it could not be stored counts as held again.
                    let is_back = is_failing && party.released.contains(grant);
                    if party.released.contains(grant) {
                        assert!(!is_there || is_back, "{what}: {grant:?} is back");
                    } else {
                        assert!(is_there || is_leaving, "{what}: {grant:?} is lost");
                    }
                }
                party.held = found;
                party.released.clear();
            }
            let (_, listed_in_use, ..) = listed(&mut service, b"a").unwrap_or((0, 0, Generation(0), false));
            assert_eq!(listed_in_use, in_use, "{what}");
            for _ in 0..random.u32(10..120) {
                let party = &mut parties[random.usize(0..3)];
                let ids = party.ids();
                let is_leaving = |grant: &GrantId| party.pending.values().any(|other| *other == Some(*grant));
                let is_free = |grant: &&GrantId| !party.released.contains(grant) && !is_leaving(grant);
                let free: Vec<_> = party.held.keys().filter(is_free).copied().collect();
                match random.u8(0..12) {
                    0..5 => {
                        let queueing = if random.bool() { NOW } else { LONG };
                        let claim = semaphore(random.u32(1..4), b"a");
                        party.send(&Extended::AcquireGrant { ids, claim, queueing }, None);
                    }
                    5..8 => {
                        if let Some(grant) = random.choice(free) {
                            party.send(&Extended::ReleaseGrant { ids, grant }, Some(grant));
                        }
                    }
                    8 => party.send(&resizing(ids, b"a", Resizing::To(random.u32(1..10))), None),
                    9 if random.u8(0..3) == 0 => {
                        party.send(&removing(ids, b"a", Removal::WithLastHolder), None);
                    }
                    9 => {
                        let list = [numbered(b"a", random.u32(3..8))];
                        let declarations = Declarations::new(&list).unwrap();
                        party.send(&Extended::Declare { ids, if_exists: IfExists::Set, declarations }, None);
                    }
                    _ => {
                        if is_failing && random.u8(0..3) == 0 {
                            server.faults.fail_nth(1, Fault::Full);
                        }
                        server.store();
                    }
                }
                parties.iter_mut().for_each(Party::read);
                server.check_ledger();
            }
        }
    }
}

/// Removed at once, and the server crashes before it has told the holders.
/// Sends a request whose answer waits for the disk, has it stored, and gives the answer.
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
    Extended::Declare { ids, if_exists: IfExists::Fail, declarations: Declarations::new(&A).unwrap() }
}

/// A server where a session holds one of a declared semaphore `a`, all of it stored; who may remove it, and the grant.
fn held_and_stored() -> (StoredServer, Caller, GrantId) {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut admin, mut holder] = callers(&server);
    stored(&server, &mut holder, &Extended::OpenSession { ttl: Some(Milliseconds(LONG_MS)), label: b"" });
    let ids = admin.ids();
    stored(&server, &mut admin, &declaring_a(ids));
    let ids = holder.ids();
    let take = Extended::AcquireGrant { ids, claim: semaphore(1, b"a"), queueing: NOW };
    let held = stored(&server, &mut holder, &take).granted().unwrap();
    (server, admin, held.grant)
}

#[test]
fn a_removal_at_once_goes_on_after_a_crash_though_it_was_declared_anew() {
    let (server, mut admin, held) = held_and_stored();
    let mut other = caller(&server);
    let (_, _, before, _) = listed(&mut other, b"a").unwrap();
    // Both are stored together, before the holder is told that he has a grace.
    let ids = admin.ids();
    let removed = admin.send(&removing(ids, b"a", Removal::Now { grace: Milliseconds(50) }));
    let ids = admin.ids();
    let declared = admin.send(&declaring_a(ids));
    eventually("both are on their way", || {
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

/// The configuration takes the semaphore over while its removal is not stored yet.
#[test]
fn a_removal_at_once_goes_on_though_the_configuration_declares_it() {
    for is_stored in [true, false] {
        let (server, mut admin, held) = held_and_stored();
        let ids = admin.ids();
        let removed = admin.send(&removing(ids, b"a", Removal::Now { grace: Milliseconds(50) }));
        eventually("it is on its way", || {
            listed(&mut caller(&server), b"a").is_some_and(|(.., removing)| removing)
        });
        let configured = Declare { name: b"a", capacity: 100, numbered: false, label: b"" };
        let core = server.server.server.core();
        let now = Moment { monotonic: MonotonicMs(0), unix: UnixSeconds(0) };
        assert_eq!(core.declare_configured(&[configured], now), []);
        if !is_stored {
            server.faults.fail_all(Fault::Full);
        }
        assert_eq!(server.store_next(), is_stored);
        assert_eq!(admin.answer(removed).status, if is_stored { OK } else { NOT_STORED });
        let mut other = caller(&server);
        if is_stored {
            eventually("it is gone", || verify(&mut other, held) == Err(GONE));
        } else {
            server.faults.stop();
            assert!(server.store_next());
            assert!(verify(&mut other, held).is_ok_and(|(_, standing)| standing == GrantState::Held));
        }
        let in_use = u32::from(!is_stored);
        let as_it_is = |listed: (u32, u32, Generation, bool)| listed.1 == in_use && !listed.3;
        assert!(listed(&mut other, b"a").is_some_and(as_it_is));
        if !is_stored {
            let server = server.crash();
            let mut other = caller(&server);
            assert!(verify(&mut other, held).is_ok_and(|(_, standing)| standing == GrantState::Held));
            server.check();
        }
    }
}

#[test]
fn a_removal_at_once_goes_on_after_a_crash() {
    let (server, mut admin, held) = held_and_stored();
    let ids = admin.ids();
    stored(&server, &mut admin, &removing(ids, b"a", Removal::Now { grace: Milliseconds(50) }));
    let server = server.crash();
    let mut other = caller(&server);
    eventually("it is gone", || verify(&mut other, held) == Err(GONE));
    assert_eq!(listed(&mut other, b"a"), None);
    server.check();
}

#[test]
fn who_is_granted_what_was_revoked_meanwhile_is_told_so_after_the_grant() {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut admin, mut holder] = callers(&server);
    holder.hello("holder");
    stored(&server, &mut holder, &Extended::OpenSession { ttl: Some(Milliseconds(LONG_MS)), label: b"" });
    let taken = holder.want(one_of(1, b"c"), NOW);
    let mut grant = None;
    eventually("it stands before it is stored", || {
        let opaque = admin.send(&Extended::Holders { namespace: on_wire(Namespace::Counters), name: b"c" });
        let entries: Vec<_> = std::iter::from_fn(|| admin.answer(opaque).list_entry().ok()?).collect();
        grant = entries.first().and_then(|entry| entry.grant);
        grant.is_some()
    });
    let what = Revocation::Grant(grant.unwrap());
    let ids = admin.ids();
    let revoked = admin.send(&Extended::Revoke { ids, what, grace: Milliseconds(LONG_MS) });
    let revokes = |frame: &ResponseFrame| matches!(frame.notice(), Ok(Some(Notice::GrantRevoked { .. })));
    assert!(revokes(&holder.next()), "a notice is sent at once");
    assert!(server.store_next());
    assert_eq!(holder.next().opaque, taken);
    assert!(revokes(&holder.next()), "and once more, as the holder did not know what was meant");
    assert_eq!(admin.answer(revoked).status, OK);
}

#[test]
fn what_was_asked_before_a_half_close_is_answered_when_it_is_stored() {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut last, mut other] = callers(&server);
    stored(&server, &mut last, &Extended::OpenSession { ttl: Some(Milliseconds(LONG_MS)), label: b"" });
    assert_eq!(last.wire.acquire(b"plain", 1, 1).status, OK);
    let ids = last.ids();
    let declared = last.send(&declaring_a(ids));
    let taken = last.want(one_of(1, b"c"), NOW);
    last.wire.stream.shutdown(Shutdown::Write).unwrap();
    eventually("both are on their way", || server.server.server.core().ledger_stats().grants == 1);
    assert!(server.store_next());
    assert_eq!(last.answer(declared).status, OK);
    assert_eq!(last.answer(taken).status, OK);
    assert!(last.wire.is_closed());
    eventually("what it held itself is free", || other.wire.acquire(b"plain", 1, 1).status == OK);
    server.check();
}

#[test]
fn a_disk_that_hangs_does_not_keep_what_a_closed_connection_held() {
    let server = StoredServer::start_with(&Memory::default(), By::Test, |_| {});
    let [mut last, mut other] = callers(&server);
    assert_eq!(last.wire.acquire(b"plain", 1, 1).status, OK);
    let ids = last.ids();
    last.send(&declaring_a(ids));
    last.wire.stream.shutdown(Shutdown::Write).unwrap();
    eventually("what it held itself is free", || other.wire.acquire(b"plain", 1, 1).status == OK);
    assert!(last.wire.is_closed(), "and nothing was promised");
    server.check_ledger();
}
