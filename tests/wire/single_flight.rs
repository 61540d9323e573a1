//! Single flight (`docs/protocol.md`, "Single flight"): one client works, and those that wait meanwhile use its result.

use crate::support::caller::{Caller, LONG, NOW, limit, one_of, semaphore};
use crate::support::store::StoredServer;
use crate::support::{INVALID, NOT_AVAILABLE, OK, TestServer, eventually};
use signalbox_model::{Claim, GrantId, Milliseconds, Operation, RequestIds, Revocation, Status};
use signalbox_protocol::{Extended, Opaque, Queueing};
use signalbox_storage::Memory;

const DONE: u8 = Status::Done as u8;
const TTL_MS: u32 = 60_000;

fn callers<const COUNT: usize>(server: &TestServer) -> [Caller; COUNT] {
    std::array::from_fn(|_| Caller::new(server.counter()))
}

fn shared(ids: RequestIds, claim: Claim<'_>, queueing: Queueing) -> Extended<'_> {
    Extended::AcquireGrant { ids, claim, queueing, place: None, is_shared: true }
}

fn share(caller: &mut Caller, name: &[u8], queueing: Queueing) -> Opaque {
    let ids = caller.ids();
    caller.send(&shared(ids, one_of(1, name), queueing))
}

#[track_caller]
fn work(caller: &mut Caller, name: &[u8]) -> GrantId {
    let opaque = share(caller, name, NOW);
    let answer = caller.answer(opaque);
    assert_eq!(answer.status, OK, "{answer:?}");
    answer.granted().unwrap().grant
}

fn finish(caller: &mut Caller, grant: GrantId) -> u8 {
    let ids = caller.ids();
    caller.ask(&Extended::ReleaseGrant { ids, grant, is_done: true }).status
}

#[track_caller]
fn wait_for_waiters(server: &TestServer, count: u64) {
    eventually(&format!("{count} requests wait"), || server.server.core().ledger_stats().waiters == count);
}

#[test]
fn those_that_wait_when_the_work_is_done_are_told_so_again_and_again() {
    let server = TestServer::start();
    let [mut worker, mut first, mut ordinary, mut second] = callers(&server);
    let grant = work(&mut worker, b"page");
    first.open(TTL_MS);
    let ids = first.ids();
    let request = shared(ids, one_of(1, b"page"), LONG);
    let asked = first.send(&request);
    wait_for_waiters(&server, 1);
    let in_between = ordinary.want(one_of(1, b"page"), LONG);
    wait_for_waiters(&server, 2);
    let behind = share(&mut second, b"page", LONG);
    wait_for_waiters(&server, 3);
    assert_eq!(finish(&mut worker, grant), OK);
    let told = first.answer(asked);
    assert_eq!((told.status, &told.body[..]), (DONE, &b"Done"[..]));
    assert_eq!(second.answer(behind).status, DONE);
    assert_eq!(first.ask(&request).status, DONE, "the repetition gets the same answer");
    let held = ordinary.answer(in_between).granted().unwrap().grant;
    assert_eq!(ordinary.give_back(held), OK);
    let grant = work(&mut second, b"page");
    assert_eq!(finish(&mut second, grant), OK, "a later request begins a new flight");
    server.server.core().check_ledger().unwrap();
    server.assert_books_balance();
}

#[test]
fn work_that_is_not_done_goes_to_the_next_waiter() {
    let end: [fn(Caller, GrantId, &mut Caller); 3] = [
        |mut worker, grant, _| assert_eq!(worker.give_back(grant), OK),
        |worker, _, _| drop(worker),
        |_worker, grant, admin| {
            let what = Revocation::Grant(grant);
            assert_eq!(admin.change(Operation::Revoke { what, grace: Milliseconds(0) }).status, OK);
        },
    ];
    for end in end {
        let server = TestServer::start();
        let [mut worker, mut next, mut last, mut admin] = callers(&server);
        let grant = work(&mut worker, b"page");
        let asked = share(&mut next, b"page", LONG);
        wait_for_waiters(&server, 1);
        let behind = share(&mut last, b"page", LONG);
        wait_for_waiters(&server, 2);
        end(worker, grant, &mut admin);
        let grant = next.answer(asked).granted().unwrap().grant;
        assert_eq!(finish(&mut next, grant), OK);
        assert_eq!(last.answer(behind).status, DONE);
    }
}

#[test]
fn an_ordinary_grant_is_not_released_with_done() {
    let server = TestServer::start();
    let [mut holder, mut waiter] = callers(&server);
    let grant = holder.take(one_of(1, b"page")).grant;
    let asked = share(&mut waiter, b"page", LONG);
    wait_for_waiters(&server, 1);
    assert_eq!(finish(&mut holder, grant), INVALID);
    assert_eq!(holder.give_back(grant), OK, "it was held until now");
    let grant = waiter.answer(asked).granted().unwrap().grant;
    assert_eq!(finish(&mut holder, grant), Status::NotAcquired as u8, "a grant of another session");
}

#[test]
fn a_shared_request_is_for_one_resource_of_one_and_waits_as_others_do() {
    let server = TestServer::start();
    let [mut worker, mut other] = callers(&server);
    let two = Claim { resources: 2, maximum: 2, ..one_of(1, b"page") };
    let slot = Claim { slot: Some(0), maximum: 1, ..semaphore(1, b"page") };
    for claim in [two, one_of(2, b"page"), limit(0, b"page"), semaphore(1, b"page"), slot] {
        let ids = worker.ids();
        assert_eq!(worker.ask(&shared(ids, claim, NOW)).status, INVALID, "{claim:?}");
    }
    let grant = work(&mut worker, b"page");
    let refused = share(&mut other, b"page", NOW);
    assert_eq!(other.answer(refused).status, NOT_AVAILABLE);
    let full = share(&mut other, b"page", Queueing { queue_max: Some(0), ..LONG });
    assert_eq!(other.answer(full).status, Status::QueueFull as u8);
    assert_eq!(finish(&mut worker, grant), OK);
}

/// No record says that a grant is shared.
#[test]
fn a_worker_whose_grant_was_kept_over_a_restart_tells_those_that_wait_since() {
    let server = StoredServer::start(&Memory::default());
    let mut worker = Caller::new(server.server.counter());
    let session = worker.open(TTL_MS);
    let grant = work(&mut worker, b"page");
    let server = server.crash();
    let [mut worker, mut waiter] = callers(&server.server);
    assert_eq!(worker.attach(session), OK);
    worker.ids();
    let asked = share(&mut waiter, b"page", LONG);
    wait_for_waiters(&server.server, 1);
    assert_eq!(finish(&mut worker, grant), OK);
    assert_eq!(waiter.answer(asked).status, DONE);
    server.check();
}
