//! Leased sessions, which outlive connections, over real sockets (`docs/protocol.md`, "Extended operations").

use crate::support::caller::{Caller, LONG, NOW, one_of};
use crate::support::{TestServer, eventually};
use signalbox_model::{Milliseconds, Namespace, Notice, Scope, SessionKey, Status, TtlLeft};
use signalbox_protocol::{Extended, Opaque};

fn caller(server: &TestServer) -> Caller {
    Caller::new(server.counter())
}

const LONG_MS: u32 = 60_000;

/// Requests a name that is held, and returns the request so that it can be repeated.
fn wait_for<'a>(server: &TestServer, caller: &mut Caller, name: &'a [u8]) -> Extended<'a> {
    let request = Extended::AcquireGrant {
        ids: caller.ids(),
        claim: one_of(1, name),
        queueing: LONG,
        place: None,
        is_shared: false,
    };
    caller.send(&request);
    eventually("it waits", || server.server.core().ledger_stats().waiters == 1);
    request
}

#[test]
fn a_leased_session_keeps_its_grants_and_waiters_after_a_disconnect() {
    let server = TestServer::start();
    let mut before = caller(&server);
    let session = before.open(LONG_MS);
    let held = before.take(one_of(1, b"held"));
    assert!(matches!(held.ttl_left, TtlLeft::For(left) if left.0 <= LONG_MS && left.0 > LONG_MS / 2));
    let mut other = caller(&server);
    let theirs = other.take(one_of(1, b"wanted"));
    let request = wait_for(&server, &mut before, b"wanted");
    drop(before);

    let mut late = caller(&server);
    let behind = late.want(one_of(1, b"wanted"), LONG);
    eventually("another waiter is behind it", || server.server.core().ledger_stats().waiters == 2);
    let mut after = caller(&server);
    assert_eq!(after.attach(session), 0);
    assert_eq!(
        after.ask(&Extended::VerifyGrant { grant: held.grant }).verified().unwrap().session,
        session.session
    );
    let asked = after.send(&request);
    after.sync();
    assert_eq!(other.give_back(theirs.grant), 0);
    let granted = after.answer(asked).granted().unwrap();
    assert_eq!(after.ask(&request).granted().unwrap().grant, granted.grant, "the repetition changes nothing");
    after.ids();
    assert_eq!(after.ask(&Extended::CloseSession).status, 0);
    assert_eq!(late.answer(behind).status, 0, "the end of the session serves the next waiter");
    server.server.core().check_ledger().unwrap();
}

#[test]
fn the_time_left_of_a_repeated_request_counts_from_the_repetition() {
    let server = TestServer::start();
    let [mut holder, mut before] = [caller(&server), caller(&server)];
    let held = holder.take(one_of(1, b"a"));
    let session = before.open(LONG_MS);
    let request = wait_for(&server, &mut before, b"a");
    std::thread::sleep(std::time::Duration::from_millis(20));
    let mut after = caller(&server);
    assert_eq!(after.attach(session), 0);
    let asked = after.send(&request);
    // Wait until the server has it; nothing sent after it may renew the lease.
    assert_eq!(before.next().status, Status::NoSuchSession.code());
    assert_eq!(holder.give_back(held.grant), 0);
    let granted = after.answer(asked).granted().unwrap();
    assert!(matches!(granted.ttl_left, TtlLeft::For(left) if left.0 <= LONG_MS), "{granted:?}");
}

#[test]
fn the_newest_attachment_wins_and_the_previous_connection_is_notified() {
    let server = TestServer::start();
    let [mut before, mut after] = [caller(&server), caller(&server)];
    before.hello("before");
    let session = before.open(LONG_MS);
    let held = before.take(one_of(1, b"a"));
    let waiting = before.want(one_of(1, b"a"), LONG);
    eventually("it waits", || server.server.core().ledger_stats().waiters == 1);
    assert_eq!(after.attach(session), 0);
    assert_eq!(before.answer(waiting).status, Status::NoSuchSession.code());
    let notice = before.next().notice().unwrap();
    assert_eq!(notice, Some(Notice::AttachedElsewhere { session: session.session }));
    let refused = before.want(one_of(5, b"b"), LONG);
    assert_eq!(
        before.answer(refused).status,
        Status::NoSuchSession.code(),
        "a request for one session is not executed for another"
    );
    assert_eq!(
        after.give_back(held.grant),
        Status::InvalidArguments.code(),
        "the request id belongs to another request"
    );
    for _ in 0..3 {
        after.ids();
    }
    assert_eq!(after.give_back(held.grant), 0);
    server.server.core().check_ledger().unwrap();
}

#[test]
fn a_repeated_opening_with_the_same_key_returns_the_same_session() {
    let server = TestServer::start();
    let [mut one, mut two, mut other] = [(); 3].map(|()| caller(&server));
    one.hello("one");
    let open = |key: Option<SessionKey>| Extended::OpenSession {
        ttl: Some(Milliseconds(LONG_MS)),
        label: b"leased",
        key,
    };
    let chosen = SessionKey(*b"chosen by client");
    let first = one.ask(&open(Some(chosen))).opened().unwrap();
    assert_eq!((first.key, first.ttl), (chosen, Milliseconds(LONG_MS)));
    let held = one.take(one_of(1, b"a"));
    let again = two.ask(&open(Some(chosen))).opened().unwrap();
    assert_eq!(again, first);
    assert_eq!(server.server.core().ledger_stats().sessions, 1);
    let notice = one.next().notice().unwrap();
    assert_eq!(notice, Some(Notice::AttachedElsewhere { session: first.session }));
    two.ids();
    assert_eq!(two.give_back(held.grant), 0, "the connection is attached to the session");

    let different = other.ask(&open(Some(SessionKey(*b"chosen by others")))).opened().unwrap();
    assert_ne!(different.session, first.session);
    let made = one.ask(&open(None)).opened().unwrap();
    assert!(made.session != first.session && made.key != chosen);
    assert_eq!(two.ask(&Extended::CloseSession).status, 0);
    let anew = two.ask(&open(Some(chosen))).opened().unwrap();
    assert_ne!(anew.session, first.session, "a session that was closed is not opened again");
    server.server.core().check_ledger().unwrap();
}

#[test]
fn a_wrong_key_attaches_to_no_session() {
    let server = TestServer::start();
    let [mut one, mut other] = [caller(&server), caller(&server)];
    let mut session = one.open(LONG_MS);
    assert_eq!(format!("{:?}", session.key), "SessionKey(secret)");
    let SessionKey(key) = &mut session.key;
    key[15] ^= 1;
    assert_eq!(other.attach(session), Status::NoSuchSession.code());
    assert_eq!(other.ask(&Extended::KeepAlive).status, Status::NoSuchSession.code());
}

#[test]
fn a_silent_session_expires_and_its_resources_go_to_the_waiters() {
    let server = TestServer::start();
    let [mut silent, mut waiter] = [caller(&server), caller(&server)];
    // The shortest time to live that the server allows. The session cannot end between two requests that come together.
    let mut bytes = Vec::new();
    let [open, take] = [1_u8, 2].map(|number| Opaque([number; 4]));
    Extended::OpenSession { ttl: Some(Milliseconds(1)), label: b"", key: None }.compose(open, &mut bytes);
    let ids = silent.ids();
    Extended::AcquireGrant { ids, claim: one_of(1, b"a"), queueing: NOW, place: None, is_shared: false }
        .compose(take, &mut bytes);
    silent.wire.send(&bytes);
    assert_eq!(silent.answer(open).status, 0);
    let held = silent.answer(take).granted().unwrap();
    let asked = waiter.want(one_of(1, b"a"), LONG);
    assert_eq!(waiter.answer(asked).status, 0, "it is granted when the lease ends");
    assert_eq!(waiter.ask(&Extended::VerifyGrant { grant: held.grant }).status, Status::NotAcquired.code());
    assert_eq!(silent.give_back(held.grant), Status::NoSuchSession.code());
    assert_eq!(server.server.core().ledger_stats().expired_sessions, 1);
    server.server.core().check_ledger().unwrap();
}

#[test]
fn plain_holdings_end_with_their_connection_even_if_a_session_is_attached() {
    let server = TestServer::start();
    let [mut one, mut other] = [caller(&server), caller(&server)];
    one.open(LONG_MS);
    let granted = one.take(one_of(2, b"a"));
    assert_eq!(one.wire.acquire(b"a", 1, 2).status, 0);
    drop(one);
    eventually("the plain holding is released", || other.wire.get(b"a").number() == 1);
    assert!(
        other.ask(&Extended::VerifyGrant { grant: granted.grant }).verified().is_ok(),
        "the grant is still held"
    );
    server.server.core().check_ledger().unwrap();
}

#[test]
fn a_lost_session_is_not_mistaken_for_the_next_one() {
    let server = TestServer::start();
    let [mut one, mut other] = [caller(&server), caller(&server)];
    one.hello("one");
    let first = one.open(LONG_MS);
    let name = vec![b'n'; 60_000];
    let watch = one.send(&Extended::Watch { namespace: Namespace::Counters, scope: Scope::Name(&name) });
    one.answer(watch);
    // It reads nothing, so the notice waits behind unsent events.
    for _ in 0..200 {
        assert_eq!(other.wire.acquire(&name, 1, 1).status, 0);
        assert_eq!(other.wire.release(&name, 1).status, 0);
    }
    assert_eq!(other.attach(first), 0);
    let opened = one.send(&Extended::OpenSession { ttl: Some(Milliseconds(LONG_MS)), label: b"", key: None });
    while one.next().opaque != opened {}
    // Every frame that is received renews it, even a Noop.
    let mut left = || {
        let opaque = other.send(&Extended::Sessions);
        let entries = std::iter::from_fn(|| other.answer(opaque).session_entry().unwrap());
        let of_second = entries.filter(|entry| entry.session != first.session);
        let mut left = of_second.filter_map(|entry| match entry.ttl_left {
            TtlLeft::For(left) => Some(left.0),
            TtlLeft::Connection => None,
        });
        let of_second = left.next().expect("the second session has a lease");
        assert_eq!(left.next(), None);
        of_second
    };
    let before = left();
    eventually("some of the lease passes", || left() < before);
    let passed = left();
    eventually("it is renewed", || {
        one.wire.send(&crate::support::frame(crate::support::NOOP, [7; 4], &[]));
        while one.next().opaque.0 != [7; 4] {}
        left() > passed
    });
}
