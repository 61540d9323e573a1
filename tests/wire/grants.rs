//! Grants and their queues, over real sockets (`docs/protocol.md`, "Extended operations").

use crate::support::caller::{Caller, LONG, NOW, for_ms, one_of};
use crate::support::{ACQUIRE, DUMP, GET, NearServer, TestServer, eventually, frame, named};
use bytes::BytesMut;
use signalbox_model::sysv::{Caller as User, SetCommand, SetId};
use signalbox_model::{
    Cancellation, Changed, Claim, EventKind, GraceLeft, GrantState, Idle, Milliseconds, Namespace, Notice,
    Operation, RequestIds, Revocation, Scope, SessionId, Status,
};
use signalbox_protocol::{
    Claims, Extended, Opaque, Operations, Queueing, ResponseCodec, ResponseFrame, SysvRequest, Wait,
    WaitingRequest,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use std::time::Duration;

fn callers<const COUNT: usize>(server: &TestServer) -> [Caller; COUNT] {
    std::array::from_fn(|_| Caller::new(server.counter()))
}

fn code(status: Status) -> u8 {
    status.code()
}

/// Waits until this number of requests wait at the server.
fn wait_for_waiters(server: &TestServer, count: u64) {
    eventually(&format!("{count} requests wait"), || server.server.core().ledger_stats().waiters == count);
}

fn check(server: &TestServer) {
    server.server.core().check_ledger().unwrap();
    server.assert_books_balance();
}

#[test]
fn resources_released_by_plain_clients_go_to_waiters() {
    let server = TestServer::start();
    let [mut plain, mut first, mut second] = callers(&server);
    assert_eq!(plain.wire.acquire(b"a", 2, 2).status, 0);
    let first_asked = first.want(one_of(2, b"a"), LONG);
    wait_for_waiters(&server, 1);
    let second_asked = second.want(one_of(2, b"a"), LONG);
    wait_for_waiters(&server, 2);
    assert_eq!(plain.wire.release(b"a", 1).status, 0);
    assert_eq!(first.answer(first_asked).status, 0);
    drop(plain);
    assert_eq!(second.answer(second_asked).status, 0, "the end of a connection releases too");
    check(&server);
}

#[test]
fn each_way_in_which_a_wait_ends_has_its_own_status() {
    let server = TestServer::start();
    let [mut holder, mut waiter] = callers(&server);
    holder.take(one_of(1, b"a"));
    let asked = waiter.want(one_of(1, b"a"), for_ms(20));
    assert_eq!(waiter.answer(asked).status, code(Status::TimedOut));

    let asked = waiter.want(one_of(1, b"a"), LONG);
    wait_for_waiters(&server, 1);
    let short = Queueing { wait: Wait::ServerDefault, queue_max: Some(1) };
    let refused = waiter.want(one_of(1, b"a"), short);
    assert_eq!(waiter.answer(refused).status, code(Status::QueueFull));
    let cancel = waiter.send(&Extended::Cancel(WaitingRequest::Opaque(asked)));
    let statuses = [waiter.next(), waiter.next()];
    let of = |opaque| statuses.iter().find(|answer| answer.opaque == opaque).unwrap().status;
    assert_eq!((of(asked), of(cancel)), (code(Status::Canceled), 0));
    let cancel = waiter.ask(&Extended::Cancel(WaitingRequest::Opaque(asked)));
    assert_eq!(cancel.status, code(Status::NotFound));

    let never =
        Claim { namespace: Some(Namespace::Semaphores), resources: 1, maximum: 1, name: b"s", slot: None };
    holder.take(never);
    let never = Claim { resources: 2, maximum: 2, ..never };
    let asked = waiter.want(never, LONG);
    assert_eq!(waiter.answer(asked).status, code(Status::ResourceNotAvailable), "more than the capacity");
    check(&server);
}

#[test]
fn a_repeated_request_gets_the_same_answer() {
    let server = TestServer::start();
    let [mut caller, mut other] = callers(&server);
    let ids = caller.ids();
    let request =
        Extended::AcquireGrant { ids, claim: one_of(5, b"a"), queueing: NOW, place: None, is_shared: false };
    let first = caller.ask(&request).granted().unwrap();
    let second = caller.ask(&request).granted().unwrap();
    assert_eq!(first, second);
    assert_eq!(other.wire.get(b"a").number(), 1);
    let release = Extended::ReleaseGrant { ids: caller.ids(), grant: first.grant, is_done: false };
    assert_eq!(caller.ask(&release).status, 0);
    assert_eq!(caller.ask(&release).status, 0, "the repetition gets the same answer");
    assert_eq!(caller.give_back(first.grant), code(Status::NotAcquired), "a new request finds no grant");
    let theirs = other.take(one_of(5, b"a"));
    assert_eq!(caller.give_back(theirs.grant), code(Status::NotAcquired), "a grant of another session");
    check(&server);
}

#[test]
fn the_opaque_of_a_waiting_request_is_refused_for_another_request() {
    let server = TestServer::start();
    let [mut holder, mut waiter] = callers(&server);
    holder.take(one_of(1, b"a"));
    let asked = waiter.want(one_of(1, b"a"), LONG);
    wait_for_waiters(&server, 1);
    let mut bytes = Vec::new();
    let ids = waiter.ids();
    Extended::AcquireGrant { ids, claim: one_of(1, b"b"), queueing: NOW, place: None, is_shared: false }
        .compose(asked, &mut bytes);
    waiter.wire.send(&bytes);
    assert_eq!(waiter.answer(asked).status, code(Status::InvalidArguments));
    check(&server);
}

/// This includes requests that are answered at once: the client could not distinguish the two answers.
#[test]
fn no_request_is_taken_with_an_opaque_that_is_in_use() {
    let server = TestServer::start();
    let [mut holder, mut caller] = callers(&server);
    holder.take(one_of(1, b"a"));
    caller.hello("caller");
    let held = caller.take(one_of(1, b"held")).grant;
    let waiting = caller.want(one_of(1, b"a"), LONG);
    wait_for_waiters(&server, 1);
    let watch = caller.send(&Extended::Watch { namespace: Namespace::Counters, scope: Scope::Name(b"none") });
    assert_eq!(caller.answer(watch).event().unwrap().1.kind, EventKind::Live);
    let (namespace, name) = (Namespace::Counters, &b"a"[..]);
    let claims = [one_of(1, b"b"), one_of(1, b"c")];
    let user = User { uid: 1, gid: 1 };
    for opaque in [waiting, watch] {
        let ids = caller.ids();
        let all = Claims::new(&claims).unwrap();
        let (set, command) = (SetId(1), SetCommand::Stat);
        let requests = [
            Extended::OpenSession { ttl: None, label: b"", key: None },
            Extended::CloseSession,
            Extended::AcquireAll { ids, queueing: NOW, claims: all, place: None },
            Extended::ReleaseGrant { ids, grant: held, is_done: false },
            Extended::AwaitIdle { wait: Wait::NotAtAll, until: Idle::Level(0), namespace, name },
            Extended::Watch { namespace, scope: Scope::Name(name) },
            Extended::Export,
            Extended::Change { ids, operation: Operation::DeleteCounter { name } },
        ];
        let calls = [
            SysvRequest::SemGet { ids, caller: user, key: 1, count: 1, flags: 0 },
            SysvRequest::SemOp { ids, caller: user, set, wait_ms: 0, operations: Operations::default() },
            SysvRequest::SemCtl { ids, caller: user, set, command },
        ];
        let composed = requests.iter().map(|request| {
            let mut bytes = Vec::new();
            request.compose(opaque, &mut bytes);
            (format!("{request:?}"), bytes)
        });
        let composed_calls = calls.iter().map(|request| {
            let mut bytes = Vec::new();
            request.compose(opaque, &mut bytes);
            (format!("{request:?}"), bytes)
        });
        for (request, bytes) in composed.chain(composed_calls).collect::<Vec<_>>() {
            caller.wire.send(&bytes);
            assert_eq!(caller.answer(opaque).status, code(Status::InvalidArguments), "{request}");
        }
    }
    assert_eq!(caller.give_back(held), 0);
    check(&server);
}

#[test]
fn several_names_are_granted_together_or_not_at_all() {
    let server = TestServer::start();
    let [mut one, mut other] = callers(&server);
    let held = one.take(one_of(1, b"b"));
    let list = [one_of(1, b"c"), one_of(1, b"b"), one_of(1, b"a")];
    let ids = other.ids();
    let request =
        Extended::AcquireAll { ids, queueing: NOW, claims: Claims::new(&list).unwrap(), place: None };
    assert_eq!(other.ask(&request).status, code(Status::ResourceNotAvailable));
    assert_eq!(one.wire.get(b"a").number(), 0, "the reserved resources are released");
    let ids = other.ids();
    let request =
        Extended::AcquireAll { ids, queueing: LONG, claims: Claims::new(&list).unwrap(), place: None };
    let asked = other.send(&request);
    wait_for_waiters(&server, 1);
    assert_eq!(one.wire.get(b"a").number(), 1, "reserved, in the order of bytes");
    assert_eq!(one.wire.get(b"c").status, code(Status::NotFound), "not reserved yet");
    assert_eq!(one.give_back(held.grant), 0);
    let granted = other.answer(asked).all_granted().unwrap();
    assert_eq!(granted.capacities, [1, 1, 1]);
    assert_eq!(other.give_back(granted.grant), 0);
    for name in [b"a", b"b", b"c"] {
        assert_eq!(one.wire.get(name).number(), 0, "released whole");
    }
    check(&server);
}

#[test]
fn holders_and_waiters_are_listed() {
    let server = TestServer::start();
    let [mut plain, mut holder, mut waiter] = callers(&server);
    assert_eq!(plain.wire.acquire(b"a", 1, 3).status, 0);
    let holder_session = holder.hello("deploy@web-1");
    let held = holder.take(Claim { resources: 2, ..one_of(3, b"a") });
    waiter.want(one_of(3, b"a"), LONG);
    wait_for_waiters(&server, 1);
    let (namespace, name) = (Namespace::Counters, &b"a"[..]);
    let mut list = |request: Extended<'_>| {
        let opaque = plain.send(&request);
        std::iter::from_fn(|| plain.answer(opaque).list_entry().unwrap()).collect::<Vec<_>>()
    };
    let holders = list(Extended::Holders { namespace, name });
    let amounts: Vec<_> =
        holders.iter().map(|entry| (entry.grant, entry.resources, entry.position)).collect();
    assert_eq!(amounts, [(None, 1, 0), (Some(held.grant), 2, 0)]);
    assert_eq!((holders[1].session, &holders[1].label[..]), (holder_session, &b"deploy@web-1"[..]));
    assert_eq!(holders[1].address, holder.wire.stream.local_addr().unwrap().to_string());
    assert_eq!(holders[1].since, Some(1_000_000_050));
    let waiters = list(Extended::Waiters { namespace, name });
    assert_eq!(waiters.iter().map(|entry| (entry.resources, entry.position)).collect::<Vec<_>>(), [(1, 1)]);
    let absent = plain.ask(&Extended::Holders { namespace, name: b"absent" });
    assert_eq!(absent.status, code(Status::NotFound));
}

#[test]
fn a_watch_publishes_the_present_state_and_then_the_changes() {
    let server = TestServer::start();
    let [mut watcher, mut plain, mut waiter] = callers(&server);
    assert_eq!(plain.wire.acquire(b"app/a", 1, 1).status, 0);
    let namespace = Namespace::Counters;
    let watch = Extended::Watch { namespace, scope: Scope::Prefix(b"app/") };
    assert_eq!(watcher.ask(&watch).status, code(Status::NotPermitted), "without Hello");
    watcher.hello("watcher");
    let opaque = watcher.send(&watch);
    let mut number = 0;
    let mut next = |watcher: &mut Caller| {
        let (now, event) = watcher.answer(opaque).event().unwrap();
        number += 1;
        assert_eq!(now, number, "without gaps");
        (event.kind, event.name.to_vec(), event.resources, event.in_use, event.waiting)
    };
    assert_eq!(next(&mut watcher), (EventKind::Present, b"app/a".to_vec(), 0, 1, 0));
    assert_eq!(next(&mut watcher).0, EventKind::Live);
    let asked = waiter.want(one_of(1, b"app/a"), LONG);
    assert_eq!(next(&mut watcher), (EventKind::Queued, b"app/a".to_vec(), 1, 1, 1));
    assert_eq!(plain.wire.release(b"app/a", 1).status, 0);
    assert_eq!(next(&mut watcher), (EventKind::Released, b"app/a".to_vec(), 1, 0, 1));
    assert_eq!(next(&mut watcher), (EventKind::Granted, b"app/a".to_vec(), 1, 1, 0));
    assert_eq!(waiter.answer(asked).status, 0);
    assert_eq!(plain.wire.acquire(b"app/new", 2, 2).status, 0);
    assert_eq!(next(&mut watcher), (EventKind::Granted, b"app/new".to_vec(), 2, 2, 0));
    assert_eq!(plain.wire.acquire(b"other", 1, 1).status, 0);
    drop(plain);
    assert_eq!(next(&mut watcher), (EventKind::Released, b"app/new".to_vec(), 2, 0, 0));
    assert_eq!(watcher.ask(&Extended::Unwatch { watch: opaque }).status, 0);
    drop(waiter);
    watcher.sync();
    check(&server);
}

#[test]
fn a_revoked_grant_is_released_after_its_grace_period() {
    let server = TestServer::start();
    let [mut admin, mut holder, mut waiter] = callers(&server);
    holder.hello("holder");
    let held = holder.take(one_of(1, b"a"));
    let asked = waiter.want(one_of(1, b"a"), LONG);
    wait_for_waiters(&server, 1);
    let what = Revocation::Grant(held.grant);
    let grace = Milliseconds(30);
    // The notice counts from the receipt of the last request.
    let request = holder.send(&Extended::Where);
    holder.answer(request);
    let quiet = Duration::from_millis(50);
    std::thread::sleep(quiet);
    assert_eq!(admin.change(Operation::Revoke { what, grace }).status, 0);
    let notice = holder.next().notice().unwrap();
    let Some(Notice::GrantRevoked { grant, end }) = notice else { panic!("{notice:?}") };
    assert_eq!((grant, end.request), (held.grant, request));
    assert!(Duration::from(end.after) >= quiet + Duration::from(grace), "{end:?}");
    assert_eq!(waiter.answer(asked).status, 0);
    assert_eq!(holder.give_back(held.grant), code(Status::NotAcquired));
    assert_eq!(admin.change(Operation::Revoke { what, grace }).status, code(Status::NotAcquired));
    check(&server);
}

#[test]
fn an_administrator_cancels_waiting_requests_and_their_session_keeps_what_it_holds() {
    let server = TestServer::start();
    let [mut admin, mut holder, mut waiter, mut next] = callers(&server);
    let held = holder.take(one_of(1, b"a"));
    let session = SessionId::new(waiter.hello("waiter"));
    let kept = waiter.take(one_of(1, b"b"));
    let asked: Vec<_> = (1..=3)
        .map(|count| {
            let asked = waiter.want(one_of(1, b"a"), LONG);
            wait_for_waiters(&server, count);
            asked
        })
        .collect();
    let last = next.want(one_of(1, b"a"), LONG);
    wait_for_waiters(&server, 4);

    let opaque = admin.send(&Extended::Waiters { namespace: Namespace::Counters, name: b"a" });
    let listed: Vec<_> = std::iter::from_fn(|| admin.answer(opaque).list_entry().unwrap()).collect();
    let cancel = |what| Operation::Cancel(what);
    let canceled = |answer: ResponseFrame| answer.changed(&cancel(Cancellation::Session(session))).unwrap();
    let first = cancel(Cancellation::Request(listed[0].grant.unwrap()));
    assert_eq!(canceled(admin.change(first.clone())), Changed::Count(1));
    assert_eq!(waiter.answer(asked[0]).status, code(Status::Canceled));
    assert_eq!(admin.change(first).status, code(Status::NotFound), "the request no longer waits");

    assert_eq!(canceled(admin.change(cancel(Cancellation::Session(session)))), Changed::Count(2));
    let ended = [waiter.next(), waiter.next()];
    assert!(ended.iter().all(|answer| answer.status == code(Status::Canceled)), "{ended:?}");
    assert!(ended.iter().all(|answer| asked[1..].contains(&answer.opaque)), "{ended:?}");
    assert_eq!(canceled(admin.change(cancel(Cancellation::Session(session)))), Changed::Count(0));

    assert_eq!(holder.give_back(held.grant), 0);
    assert_eq!(next.answer(last).status, 0, "the request behind the canceled ones is served");
    assert_eq!(waiter.give_back(kept.grant), 0, "the session keeps what it holds");
    assert_eq!(
        admin.change(cancel(Cancellation::Session(SessionId::new(1 << 40)))).status,
        code(Status::NoSuchSession)
    );
    check(&server);
}

#[test]
fn verify_grant_reports_the_grace_period_of_the_grant_or_its_session_whichever_ends_first() {
    let server = TestServer::start();
    let [mut admin, mut holder, mut other] = callers(&server);
    holder.hello("holder");
    let held = holder.take(one_of(1, b"a"));
    let session = other.ask(&Extended::VerifyGrant { grant: held.grant }).verified().unwrap();
    assert_eq!(session.grace_left, GraceLeft::NotRevoked);
    let mut grace_left_after = |what, grace| {
        assert_eq!(admin.change(Operation::Revoke { what, grace: Milliseconds(grace) }).status, 0);
        let verified = other.ask(&Extended::VerifyGrant { grant: held.grant }).verified().unwrap();
        assert_eq!(verified.state, GrantState::Retiring);
        let GraceLeft::For(Milliseconds(left)) = verified.grace_left else { panic!("{verified:?}") };
        left
    };
    let of_grant = grace_left_after(Revocation::Grant(held.grant), 3_000_000);
    assert!(of_grant > 2_000_000 && of_grant <= 3_000_000, "{of_grant}");
    let of_session = grace_left_after(Revocation::Session(SessionId::new(session.session)), 1_000_000);
    assert!(of_session > 500_000 && of_session <= 1_000_000, "{of_session}");
    let later = grace_left_after(Revocation::Grant(held.grant), 2_000_000);
    assert!(later <= of_session, "{later}");
    check(&server);
}

#[test]
fn a_connection_whose_session_is_revoked_is_closed() {
    let server = TestServer::start();
    let [mut admin, mut plain] = callers(&server);
    assert_eq!(plain.wire.acquire(b"a", 1, 1).status, 0);
    let name = Extended::Holders { namespace: Namespace::Counters, name: b"a" };
    let opaque = admin.send(&name);
    let session = admin.answer(opaque).list_entry().unwrap().unwrap().session;
    assert!(admin.answer(opaque).list_entry().unwrap().is_none());
    let what = Revocation::Session(SessionId::new(session));
    assert_eq!(admin.change(Operation::Revoke { what, grace: Milliseconds(0) }).status, 0);
    assert!(plain.wire.is_closed());
    eventually("its holding is released", || admin.wire.get(b"a").number() == 0);
    check(&server);
}

/// Sends bytes, and returns this number of answers.
async fn answers(stream: &mut DuplexStream, bytes: &[u8], count: usize) -> Vec<ResponseFrame> {
    stream.write_all(bytes).await.unwrap();
    let (mut received, mut frames) = (BytesMut::new(), Vec::new());
    while frames.len() < count {
        assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0, "it is closed");
        frames.extend(std::iter::from_fn(|| ResponseCodec.decode(&mut received).unwrap()));
    }
    frames
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_reads_nothing_can_be_revoked_like_any_other() {
    let server = NearServer::start_with(|config| config.admin_from = vec!["192.0.2.1".parse().unwrap()]);
    let (mut admin, mut plain) = (server.connect(4096), server.connect(4096));
    for number in 0..1000 {
        let name = format!("{number:0>200}");
        let taken = answers(&mut plain, &frame(ACQUIRE, [0; 4], &named(&[1, 1], name.as_bytes())), 1).await;
        assert_eq!(taken[0].status, 0);
    }
    let name = format!("{:0>200}", 0);
    let name = name.as_bytes();
    plain.write_all(&frame(DUMP, [0; 4], &[])).await.unwrap();
    // The time passes only when the server has nothing to do: it waits for the peer to read.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut bytes = Vec::new();
    Extended::Holders { namespace: Namespace::Counters, name }.compose(Opaque([1; 4]), &mut bytes);
    let holders = answers(&mut admin, &bytes, 2).await;
    let what = Revocation::Session(SessionId::new(holders[0].list_entry().unwrap().unwrap().session));
    let operation = Operation::Revoke { what, grace: Milliseconds(0) };
    bytes.clear();
    Extended::Change { ids: RequestIds::FIRST, operation }.compose(Opaque([2; 4]), &mut bytes);
    assert_eq!(answers(&mut admin, &bytes, 1).await[0].status, 0);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let found = answers(&mut admin, &frame(GET, [0; 4], &named(&[], name)), 1).await;
    assert_eq!(found[0].resources(), Ok(0), "its holding is released");
}

#[test]
fn a_watch_gets_no_events_of_an_earlier_watch_with_the_same_opaque() {
    let server = TestServer::start();
    let [mut watcher, mut plain] = callers(&server);
    assert_eq!(plain.wire.acquire(b"a", 1, 1).status, 0);
    watcher.hello("watcher");
    let mut bytes = Vec::new();
    let [watch, unwatch] = [1_u8, 2].map(|number| signalbox_protocol::Opaque([number; 4]));
    let scope = Scope::Prefix(&b""[..]);
    Extended::Watch { namespace: Namespace::Counters, scope }.compose(watch, &mut bytes);
    Extended::Unwatch { watch }.compose(unwatch, &mut bytes);
    Extended::Watch { namespace: Namespace::Semaphores, scope }.compose(watch, &mut bytes);
    watcher.wire.send(&bytes);
    assert_eq!(watcher.answer(unwatch).status, 0);
    assert_eq!(watcher.answer(watch).event().unwrap().1.kind, EventKind::Live, "there are no semaphores");
    watcher.sync();
    check(&server);
}
