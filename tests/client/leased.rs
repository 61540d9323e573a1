//! The leased client against a real server over real sockets.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::started;
use crate::support::caller::Caller;
use crate::support::fake_server::soon;
use crate::support::proxy::{Mode, Proxy};
use crate::support::{TestServer, eventually};
use crate::{change_service, declare, revoke};
use signalbox_client::{
    Address, Admission, Builder, Claim, Client, Declaration, Disconnect, ErrorKind, EventKind, Flight, Lost,
    Maximum, Namespace, PlainClient, Resources, Revocation, Scope, Status, blocking,
};
use signalbox_model::{Operation, ServiceChange, SessionKind};
use signalbox_protocol::Extended;

/// Short enough that a test can wait for its end.
const SHORT: Duration = Duration::from_secs(1);

const LONG: Duration = Duration::from_secs(60);

fn builder(address: SocketAddr) -> Builder {
    Client::builder(address.to_string().parse().unwrap()).label("a test")
}

async fn connected(server: &TestServer) -> Client {
    builder(server.counters).ttl(LONG).connect().await.unwrap()
}

fn waiters(server: &TestServer) -> u64 {
    server.server.core().ledger_stats().waiters
}

/// The leased sessions with a connection.
fn attached_sessions(caller: &mut Caller) -> usize {
    let opaque = caller.send(&Extended::Sessions);
    let entries = std::iter::from_fn(|| caller.answer(opaque).session_entry().unwrap());
    entries.filter(|entry| entry.kind == SessionKind::Leased && entry.attached).count()
}

fn grants(server: &TestServer) -> u64 {
    server.server.core().ledger_stats().grants
}

fn sessions(server: &TestServer) -> u64 {
    server.server.core().ledger_stats().sessions
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_permit_is_held_until_it_is_dropped_or_released() {
    let server = started(|_| {});
    let client = connected(&server).await;
    let permit = client.semaphore("a").capacity(1).acquire().await.unwrap();
    assert!(permit.is_held());
    assert!(permit.time_left().unwrap() > LONG / 2 && permit.time_left().unwrap() < LONG);
    assert_eq!((permit.capacities(), permit.claims()), (&[1][..], &[Claim::semaphore("a", 1)][..]));
    let busy = client.semaphore("a").capacity(1).try_acquire().await;
    assert_eq!(busy.unwrap_err().status(), Some(Status::ResourceNotAvailable));
    assert_eq!(permit.differing_capacities().count(), 0);
    let larger = client.semaphore("b").capacity(3).acquire().await.unwrap();
    let smaller = client.semaphore("b").capacity(2).acquire().await.unwrap();
    let differing: Vec<_> = smaller.differing_capacities().collect();
    assert_eq!(differing, [(&Claim::semaphore("b", 2), 3)]);
    drop((larger, smaller));
    permit.release().await.unwrap();

    let permit = client.semaphore("a").capacity(1).try_acquire().await.unwrap();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.semaphore("a").capacity(1).acquire().await }
    });
    eventually("another waits", || waiters(&server) == 1);
    let first = permit.id();
    drop(permit);
    let second = soon("the next permit", waiting).await.unwrap().unwrap();
    assert!(second.id() > first);
    drop((second, client));
    eventually("all is released and the session closed", || grants(&server) == 0 && sessions(&server) == 0);
    server.assert_books_balance();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn refusals_have_distinct_errors() {
    let server = started(|_| {});
    let client = connected(&server).await;
    let held = client.counter("a").maximum(2).resources(2).acquire().await.unwrap();
    let request = || client.counter("a").maximum(2);
    let timed_out = request().timeout(Duration::from_millis(50)).acquire().await;
    assert_eq!(timed_out.unwrap_err().status(), Some(Status::TimedOut));
    let full = request().queue_max(0).acquire().await;
    assert_eq!(full.unwrap_err().status(), Some(Status::QueueFull));
    let invalid = request().resources(3).acquire().await;
    assert!(matches!(invalid.unwrap_err().kind(), ErrorKind::Claims(_)));
    let empty = client.semaphore("a").capacity(0).acquire().await.unwrap_err();
    assert!(matches!(empty.kind(), ErrorKind::NoCapacity), "{empty:?}");
    assert!(empty.to_string().contains("semaphore \"a\""), "{empty}");
    // On the wire, 0 means that no maximum is given.
    let empty = client.limit("a").maximum(0).acquire().await.unwrap_err();
    assert!(matches!(empty.kind(), ErrorKind::NoCapacity), "{empty:?}");
    let nameless = client.counter("").maximum(1).acquire().await;
    assert!(matches!(nameless.unwrap_err().kind(), ErrorKind::Claims(_)));
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn several_names_have_one_permit() {
    let server = started(|_| {});
    let client = connected(&server).await;
    let claims = || [Claim::counter("b", 5).resources(2), Claim::semaphore("a", 3)];
    let permit = client.acquire_all(claims()).acquire().await.unwrap();
    assert_eq!(permit.capacities(), [5, 3]);
    assert_eq!(server.counter().get(b"b").number(), 2);
    let most = client.acquire_all([Claim::counter("b", 5).resources(4), Claim::semaphore("c", 3)]);
    assert!(most.try_acquire().await.is_err());
    permit.release().await.unwrap();
    assert_eq!(server.counter().get(b"b").number(), 0);
    let twice = client.acquire_all([Claim::counter("b", 5), Claim::counter("b", 5)]).acquire().await;
    assert!(matches!(twice.unwrap_err().kind(), ErrorKind::Claims(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_disconnect_loses_neither_permits_nor_queue_places() {
    let server = started(|_| {});
    let proxy = Proxy::to(server.counters);
    let client = builder(proxy.address).ttl(LONG).connect().await.unwrap();
    let held = client.counter("held").maximum(1).acquire().await.unwrap();
    let mut other = Caller::new(server.counter());
    let theirs = other.take(crate::support::caller::one_of(1, b"wanted"));
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.counter("wanted").maximum(1).acquire().await }
    });
    eventually("it waits", || waiters(&server) == 1);
    let behind = other.want(crate::support::caller::one_of(1, b"wanted"), crate::support::caller::LONG);
    eventually("another waits behind", || waiters(&server) == 2);

    proxy.set(Mode::Cut);
    let released = tokio::spawn(held.release());
    eventually("the server notices the end of the connection", || attached_sessions(&mut other) == 0);
    assert_eq!(waiters(&server), 2, "the places in the queue are kept");
    assert_eq!(grants(&server), 2, "the grants are kept");
    proxy.set(Mode::To(server.counters));
    soon("the pending release", released).await.unwrap().unwrap();
    assert_eq!(other.give_back(theirs.grant), 0);
    let permit = soon("the permit", waiting).await.unwrap().unwrap();
    assert!(permit.is_held());
    permit.release().await.unwrap();
    assert_eq!(other.answer(behind).status, 0, "the request behind it is granted afterwards");
    server.server.core().check_ledger().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_lease_that_cannot_be_renewed_ends_at_the_client() {
    let server = started(|_| {});
    let proxy = Proxy::to(server.counters);
    let client = builder(proxy.address).ttl(SHORT).connect().await.unwrap();
    let permit = client.counter("a").maximum(1).acquire().await.unwrap();
    proxy.set(Mode::Silent);
    let lost = soon("the loss", permit.lost()).await;
    assert_eq!(lost, Lost::Unreachable);
    assert!(!permit.is_held());
    assert!(permit.time_left().is_none());
    let released = permit.release().await;
    assert!(matches!(released.unwrap_err().kind(), ErrorKind::Lost(Lost::Unreachable)));
    eventually("the server ends it", || grants(&server) == 0);
    proxy.set(Mode::To(server.counters));
    let again = soon("a permit of another session", client.counter("a").maximum(1).acquire()).await;
    assert!(again.unwrap().is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_release_does_not_extend_the_lease() {
    let server = started(|_| {});
    let client = builder(server.counters).ttl(10 * LONG).connect().await.unwrap();
    let kept = client.counter("a").maximum(2).acquire().await.unwrap();
    let released = client.counter("a").maximum(2).acquire().await.unwrap();
    let left = kept.time_left().unwrap();
    let end_max = Instant::now() + left;
    tokio::time::sleep(SHORT / 2).await;
    released.release().await.unwrap();
    let now = Instant::now();
    assert!(now + kept.time_left().unwrap() <= end_max);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_release_without_an_answer_is_bounded_and_goes_on_in_the_background() {
    let server = started(|_| {});
    let proxy = Proxy::to(server.counters);
    let client = builder(proxy.address).ttl(Duration::from_secs(3600)).connect().await.unwrap();
    let permit = client.counter("a").maximum(1).acquire().await.unwrap();
    proxy.set(Mode::Silent);
    let released = soon("the end of the wait", permit.release()).await.unwrap_err();
    assert!(matches!(released.kind(), ErrorKind::Unanswered { .. }), "{released}");
    assert_eq!(grants(&server), 1);
    proxy.set(Mode::To(server.counters));
    eventually("it is released", || grants(&server) == 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn guarded_work_ends_with_the_permit() {
    let server = started(|_| {});
    let client = connected(&server).await;
    let permit = client.counter("a").maximum(1).acquire().await.unwrap();
    assert_eq!(permit.guard(async { 7 }).await.unwrap(), 7);
    let direct = client.direct().await.unwrap();
    revoke(&direct, Revocation::Grant(permit.id()), Duration::from_secs(2)).await;
    soon("the notice", permit.revocation()).await;
    assert!(permit.time_left().is_none_or(|left| left < Duration::from_secs(2)));
    let work = permit.guard(std::future::pending::<()>());
    assert_eq!(soon("the loss", work).await.unwrap_err().lost(), Some(Lost::Revoked));
    assert!(!permit.is_held());
    eventually("the server has freed it", || grants(&server) == 0);
    assert_eq!(server.counter().get(b"a").number(), 0);
    let again = client.counter("a").maximum(1).acquire().await.unwrap();
    assert!(again.is_held(), "the session continues");
}

/// A link over which every attachment succeeds, and which breaks soon after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_link_that_breaks_again_and_again_is_unreachable() {
    let server = started(|_| {});
    let holder = connected(&server).await;
    let held = holder.counter("a").maximum(1).acquire().await.unwrap();
    let proxy = Proxy::to(server.counters);
    let limit = Duration::from_secs(3);
    let client = builder(proxy.address).ttl(LONG).unreachable_after(limit).connect().await.unwrap();
    let flapping = async {
        loop {
            tokio::time::sleep(Duration::from_millis(300)).await;
            proxy.set(Mode::Cut);
            tokio::task::yield_now().await;
            proxy.set(Mode::To(server.counters));
        }
    };
    let acquiring = async { client.counter("a").maximum(1).acquire().await };
    let result = tokio::select! {
        result = soon("the request fails", acquiring) => result,
        () = flapping => unreachable!("the link breaks forever"),
    };
    assert!(matches!(result.unwrap_err().kind(), ErrorKind::Unreachable { .. }));
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_permit_is_handed_over_without_the_requests_that_wait_in_its_session() {
    let server = started(|_| {});
    let client = connected(&server).await;
    let other = connected(&server).await.counter("b").maximum(1).acquire().await.unwrap();
    let permit = client.counter("a").maximum(1).acquire().await.unwrap();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.counter("b").maximum(1).acquire().await }
    });
    eventually("a request waits", || waiters(&server) == 1);
    let handed = permit.hand_over().await.unwrap();
    eventually("it waits again", || waiters(&server) == 1);
    drop(other);
    let granted = soon("the waiting request is granted", waiting).await.unwrap().unwrap();
    let direct = client.direct().await.unwrap();
    let session = direct.verify(granted.id()).await.unwrap().session;
    assert_ne!(session, handed.session, "it is not part of what was handed over");
    assert_eq!(direct.verify(handed.grant).await.unwrap().session, handed.session);
    drop(granted);
    eventually("only what was handed over is held", || grants(&server) == 1);
}

#[tokio::test]
async fn a_request_that_starts_beside_a_handover_is_not_part_of_it() {
    let server = started(|_| {});
    // The client's driver is a task of this thread, so both are there before it handles the first.
    let client = builder(server.counters).ttl(LONG).in_this_runtime().connect().await.unwrap();
    let permit = client.counter("a").maximum(1).acquire().await.unwrap();
    let both = async { tokio::join!(permit.hand_over(), client.counter("b").maximum(1).acquire()) };
    let (handed, granted) = soon("both are done", both).await;
    let (handed, granted) = (handed.unwrap(), granted.unwrap());
    let verified = client.direct().await.unwrap().verify(granted.id()).await.unwrap();
    assert_ne!(verified.session, handed.session);
    assert!(granted.is_held());
}

#[tokio::test]
async fn guarded_work_takes_no_step_after_the_end_of_the_lease() {
    let server = started(|_| {});
    // The client's driver is a task of this thread, so it cannot run before the work continues.
    let client = builder(server.counters).ttl(SHORT).in_this_runtime().connect().await.unwrap();
    let permit = client.counter("a").maximum(1).acquire().await.unwrap();
    let steps = Cell::new(0);
    let work = poll_fn(|_| {
        steps.set(steps.get() + 1);
        std::thread::sleep(2 * SHORT);
        Poll::<()>::Pending
    });
    let mut guarded = pin!(permit.guard(work));
    poll_fn(|context| {
        // Twice in one poll, so that no other task runs in between.
        for _ in 0..2 {
            assert!(guarded.as_mut().poll(context).is_pending());
        }
        Poll::Ready(())
    })
    .await;
    let lost = soon("the loss", guarded).await;
    assert_eq!(lost.unwrap_err().lost(), Some(Lost::Unreachable));
    assert_eq!(steps.get(), 1, "the second step would run without a permit");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_caller_chooses_whether_to_proceed_without_a_server() {
    let server = started(|_| {});
    let proxy = Proxy::to(server.counters);
    let limit = Duration::from_millis(100);
    let client = builder(proxy.address).ttl(LONG).unreachable_after(limit).connect().await.unwrap();
    proxy.set(Mode::Cut);
    let request = || client.counter("a").maximum(1);
    let closed = soon("the end of the attempts", request().acquire()).await;
    let closed = closed.unwrap_err();
    assert!(matches!(closed.kind(), ErrorKind::Unreachable { .. }));
    assert!(!closed.is_refusal());
    let open = soon("the end of the attempts", request().try_acquire_or_proceed()).await.unwrap();
    assert!(matches!(open, Admission::Unguarded(_)), "{open:?}");
    proxy.set(Mode::To(server.counters));
    let permit = soon("the server", async {
        loop {
            if let Admission::Held(permit) = request().acquire_or_proceed().await.unwrap() {
                break permit;
            }
        }
    });
    assert!(permit.await.is_held());
    let _held = request().acquire().await.unwrap();
    let refused = request().try_acquire_or_proceed().await;
    assert!(refused.is_err_and(|error| error.is_refusal()), "a refusal stays a refusal");
}

#[tokio::test]
async fn a_program_that_blocks_its_runtime_keeps_its_leases() {
    let server = started(|_| {});
    let client = builder(server.counters).ttl(SHORT).connect().await.unwrap();
    let permit = client.counter("a").maximum(1).acquire().await.unwrap();
    // This runtime has only this thread.
    std::thread::sleep(3 * SHORT);
    assert!(permit.is_held());
    assert_eq!(grants(&server), 1);
}

#[test]
fn a_program_without_a_runtime_can_wait() {
    let server = TestServer::start();
    let client = blocking::Client::connect_with(builder(server.counters).ttl(LONG)).unwrap();
    let permit = client.wait(client.counter("a").maximum(1).acquire()).unwrap();
    assert!(permit.is_held());
    client.wait(permit.release()).unwrap();
    let permit = client.wait(client.counter("a").maximum(1).acquire()).unwrap();
    client.close();
    assert_eq!(sessions(&server), 0, "closed before the function returned");
    assert!(!permit.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_session_can_be_handed_over_to_another_process() {
    let server = started(|_| {});
    let client = connected(&server).await;
    let permit = client.counter("a").maximum(1).acquire().await.unwrap();
    let handed = permit.hand_over().await.unwrap();
    drop(client);
    let observer = connected(&server).await;
    let direct = observer.direct().await.unwrap();
    let verified = direct.verify(handed.grant).await.unwrap();
    assert_eq!(verified.session, handed.session);
    let left = direct.attach_session(handed.session, handed.key).await.unwrap();
    assert_eq!(left, handed.ttl);
    direct.close_session().await.unwrap();
    assert!(matches!(
        direct.verify(handed.grant).await.unwrap_err().kind(),
        ErrorKind::Status(Status::NotAcquired)
    ));
    assert_eq!(server.counter().get(b"a").number(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn holders_and_events_are_available_over_a_direct_connection() {
    let server = started(|_| {});
    let client = connected(&server).await;
    let permit = client.counter("a").maximum(1).acquire().await.unwrap();
    let direct = client.direct().await.unwrap();
    let mut watch = direct.watch(Namespace::Counters, Scope::Prefix(b"")).await.unwrap();
    let mut holders = direct.holders(Namespace::Counters, b"a").await.unwrap();
    let holder = holders.next().await.unwrap().unwrap();
    assert_eq!((holder.grant, &holder.label[..]), (Some(permit.id()), &b"a test"[..]));
    assert!(holders.next().await.is_none());
    let mut dump = direct.dump().await.unwrap();
    assert_eq!(dump.next().await.unwrap().unwrap().name, "a");
    assert!(dump.next().await.is_none());
    for expected in [EventKind::Present, EventKind::Live] {
        assert_eq!(watch.next().await.unwrap().unwrap().1.kind, expected);
    }
    let usage = direct.inspect(Namespace::Counters, b"a").await.unwrap();
    assert_eq!((usage.in_use, usage.waiting, usage.capacity), (1, 0, 0));
    let delete = Operation::DeleteCounter { name: b"a" };
    assert_eq!(direct.change(&delete).await.unwrap_err().status(), Some(Status::InUse));
    permit.release().await.unwrap();
    let (_, released) = soon("the event", watch.next()).await.unwrap().unwrap();
    assert_eq!((released.kind, &released.name[..]), (EventKind::Released, &b"a"[..]));
    direct.change(&delete).await.unwrap();
    let (_, removed) = soon("the event", watch.next()).await.unwrap().unwrap();
    assert_eq!((removed.kind, &removed.name[..]), (EventKind::Removed, &b"a"[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_plain_client_can_introduce_itself() {
    let server = started(|_| {});
    let address: Address = server.counters.to_string().parse().unwrap();
    let plain = PlainClient::connect(&address).await.unwrap();
    let answer = plain.introduce(b"a plain client", None).await.unwrap().unwrap();
    assert_eq!(answer.port, Namespace::Counters);
    plain.acquire(b"a", Resources(1), Maximum(1)).await.unwrap();
    let direct = connected(&server).await.direct().await.unwrap();
    let mut holders = direct.holders(Namespace::Counters, b"a").await.unwrap();
    assert_eq!(&holders.next().await.unwrap().unwrap().label[..], b"a plain client");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_timeout_of_the_caller_does_not_let_it_proceed_without_a_permit() {
    let server = started(|_| {});
    let proxy = Proxy::to(server.counters);
    let client = builder(proxy.address).ttl(LONG).unreachable_after(LONG).connect().await.unwrap();
    proxy.set(Mode::Silent);
    let request = || client.counter("a").maximum(1).timeout(Duration::from_millis(20));
    proxy.set(Mode::Cut);
    let over = soon("the end of the wait", request().acquire_or_proceed()).await;
    assert_eq!(over.unwrap_err().status(), Some(Status::TimedOut));
    proxy.set(Mode::To(server.counters));
    soon("a permit", client.counter("a").maximum(1).acquire()).await.unwrap().release().await.unwrap();
    let _held = client.counter("a").maximum(1).acquire().await.unwrap();
    let over = client.counter("a").maximum(1).timeout(Duration::ZERO).acquire().await;
    assert_eq!(over.unwrap_err().status(), Some(Status::TimedOut));
}

/// Accepts this many connections, and answers this many requests of each with this status and body.
fn answering(listener: &TcpListener, connections: usize, requests: usize, status: u8, body: &[u8]) {
    for _ in 0..connections {
        let (mut stream, _) = listener.accept().unwrap();
        for _ in 0..requests {
            let mut header = [0; 12];
            if stream.read_exact(&mut header).is_err() {
                break;
            }
            let body_bytes = u32::from_be_bytes(*header[4..].first_chunk().unwrap());
            stream.read_exact(&mut vec![0; body_bytes as usize]).unwrap();
            let mut answer = vec![0x91, header[1], status, 0];
            answer.extend((body.len() as u32).to_be_bytes());
            answer.extend(&header[8..]);
            answer.extend(body);
            if stream.write_all(&answer).is_err() {
                break;
            }
        }
    }
}

/// A body of this byte, which is long enough for the success of any operation.
fn success(byte: u8) -> [u8; 68] {
    let mut body = [byte; 68];
    // The position of the number of slots in a grant.
    body[20..24].fill(0);
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_server_that_closes_new_connections_is_not_flooded() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::task::spawn_blocking(move || {
        let from = std::time::Instant::now();
        // Hello, and what opens the session or attaches to it.
        answering(&listener, 20, 2, 0, &success(1));
        from.elapsed()
    });
    let _client = soon("a session", builder(address).connect()).await.unwrap();
    let took = soon("20 connections", server).await.unwrap();
    assert!(took > Duration::from_millis(500), "20 connections within {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_particular_slot_is_acquired_in_and_out_of_service() {
    let server = started(|_| {});
    let client = builder(server.counters).connect().await.unwrap();
    let direct = client.direct().await.unwrap();
    let gpus = Declaration { name: b"gpu", capacity: 4, numbered: true, label: b"" };
    declare(&direct, gpus).await;
    let third = || client.semaphore("gpu").declared().slot(3);
    let permit = third().acquire().await.unwrap();
    assert_eq!(permit.slots(), [3]);
    change_service(&direct, b"gpu", ServiceChange::SlotOut(3)).await;
    permit.release().await.unwrap();
    let none = third().try_acquire().await;
    assert_eq!(none.unwrap_err().status(), Some(Status::ResourceNotAvailable));
    let waiting = third().acquire();
    change_service(&direct, b"gpu", ServiceChange::SlotIn(3)).await;
    assert_eq!(soon("the slot", waiting).await.unwrap().slots(), [3]);
    let beyond = client.semaphore("gpu").declared().slot(4).acquire().await;
    assert_eq!(beyond.unwrap_err().status(), Some(Status::NoSuchSlot));

    change_service(&direct, b"gpu", ServiceChange::Pause).await;
    let paused = client.semaphore("gpu").declared().try_acquire().await;
    assert_eq!(paused.unwrap_err().status(), Some(Status::ResourceNotAvailable));
    change_service(&direct, b"gpu", ServiceChange::Resume).await;
    drop(client.semaphore("gpu").declared().try_acquire().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn one_reachable_address_of_several_is_enough() {
    let server = started(|_| {});
    let closed = Proxy::to(server.counters);
    closed.set(Mode::Cut);
    for seed in 0..4 {
        let address = server.counters.to_string().parse().unwrap();
        let client = builder(closed.address).address(address).seed(seed).connect();
        let client = soon("a connection", client).await.unwrap();
        client.counter("a").maximum(1).acquire().await.unwrap().release().await.unwrap();
        client.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_server_without_sessions_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // If a connection is lost before its answer arrives, the client opens another one.
    let status = crate::support::UNKNOWN_COMMAND;
    std::thread::spawn(move || answering(&listener, usize::MAX, usize::MAX, status, b"Unknown command"));
    let error = soon("a refusal", builder(address).connect()).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Status(Status::UnknownCommand)), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_dropped_plain_permit_is_released() {
    let server = started(|_| {});
    let client = PlainClient::connect(&server.counters.to_string().parse().unwrap()).await.unwrap();
    let permit = client.hold(b"a", Resources(2), Maximum(3)).await.unwrap();
    assert_eq!(permit.resources(), Resources(2));
    assert!(client.hold(b"a", Resources(2), Maximum(3)).await.is_err());
    drop(permit);
    assert_eq!(client.get(b"a").await.unwrap(), Resources(0));
    let permit = client.hold(b"a", Resources(2), Maximum(3)).await.unwrap();
    permit.release().await.unwrap();
    assert_eq!(client.get(b"a").await.unwrap(), Resources(0));
    // A caller that drops its future before the answer leaves nothing behind, either.
    let mut holding = Box::pin(client.hold(b"a", Resources(1), Maximum(3)));
    tokio::select! {
        biased;
        // If the answer has already arrived, because this thread was slow, the resource is released as well.
        held = &mut holding => drop(held),
        () = std::future::ready(()) => drop(holding),
    }
    // The server processes the connection's requests in order, but a separate task queues this one.
    let mut watcher = server.counter();
    let asked = |wire: &mut crate::support::Wire| wire.stat("command:acquire");
    eventually("it was requested", || asked(&mut watcher) == 4);
    eventually("it was released", || watcher.get(b"a").number() == 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_server_bounds_the_time_to_live() {
    let server = started(|config| config.session.max_ttl_s = 2);
    let client = builder(server.counters).ttl(LONG).connect().await.unwrap();
    let permit = client.counter("a").maximum(1).acquire().await.unwrap();
    assert!(permit.time_left().unwrap() <= Duration::from_secs(2));
    // This requests the shortest time to live, not the default.
    let shortest = builder(server.counters).ttl(Duration::ZERO).connect().await.unwrap();
    let permit = shortest.counter("b").maximum(1).acquire().await.unwrap();
    let ttl_min = shortest.direct().await.unwrap().server().ttl_min;
    assert!(permit.time_left() <= Some(ttl_min.into()));
}

/// Polls a future once and drops it.
async fn begin<T>(future: impl Future<Output = T>) {
    let mut future = pin!(future);
    poll_fn(|context| {
        assert!(future.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn a_grant_that_its_caller_never_received_is_released() {
    let server = started(|_| {});
    // The task that keeps the session runs only while this one waits.
    let client = builder(server.counters).ttl(LONG).in_this_runtime().connect().await.unwrap();
    let mut acquire = Box::pin(client.semaphore("a").capacity(1).acquire());
    begin(acquire.as_mut()).await;
    // Its answer comes after the one to the first, on the same connection.
    let later = client.semaphore("b").capacity(1).acquire().await.unwrap();
    assert_eq!(grants(&server), 2);
    drop(acquire);
    later.release().await.unwrap();
    assert_eq!(grants(&server), 0);
}

/// A client opens another session when one has no room for further requests.
#[tokio::test]
async fn acquires_that_fail_or_are_dropped_take_no_room_of_a_session() {
    let server = started(|_| {});
    let other = connected(&server).await;
    let _held = other.counter("a").maximum(1).acquire().await.unwrap();
    // The task that keeps the session runs only while this one waits.
    let client = builder(server.counters).ttl(LONG).in_this_runtime().connect().await.unwrap();
    // It keeps its session open, even if the client opens another one.
    let _kept = client.counter("b").maximum(1).acquire().await.unwrap();
    for _ in 0..12 {
        for _ in 0..50 {
            begin(client.counter("a").maximum(1).acquire()).await;
        }
        for _ in 0..50 {
            let refused = client.counter("a").maximum(1).try_acquire().await;
            assert_eq!(refused.unwrap_err().status(), Some(Status::ResourceNotAvailable));
        }
    }
    assert_eq!(sessions(&server), 2);
}

#[tokio::test]
async fn simultaneous_acquires_leave_room_for_their_releases() {
    let server = started(|_| {});
    let other = connected(&server).await;
    let held = other.counter("slow").maximum(1).acquire().await.unwrap();
    // The task that keeps the sessions cannot run before all acquires are queued.
    let client = builder(server.counters).ttl(LONG).in_this_runtime().connect().await.unwrap();
    let ask = |name: &'static str| {
        let client = client.clone();
        tokio::spawn(async move { client.counter(name).maximum(2_000).acquire().await })
    };
    let slow = tokio::spawn({
        let client = client.clone();
        async move { client.counter("slow").maximum(1).acquire().await }
    });
    let fast: Vec<_> = (0..800).map(|_| ask("fast")).collect();
    let mut permits = Vec::new();
    for asked in fast {
        permits.push(soon("a permit", asked).await.unwrap().unwrap());
    }
    let released: Vec<_> = permits.into_iter().map(|permit| tokio::spawn(permit.release())).collect();
    for release in released {
        soon("a release", release).await.unwrap().unwrap();
    }
    held.release().await.unwrap();
    soon("the slow one", slow).await.unwrap().unwrap().release().await.unwrap();
}

/// A runtime of one thread, which a task occupies until it awaits.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn an_acquire_fails_after_the_runtime_of_the_client_has_ended() {
    let server = TestServer::start();
    let first = runtime();
    let client = builder(server.counters).ttl(LONG).in_this_runtime();
    let client = first.block_on(async { client.connect().await }).unwrap();
    drop(first);
    let request = client.counter("a").maximum(1).acquire();
    let failed = runtime().block_on(async { soon("a failure", request).await });
    assert!(matches!(failed.unwrap_err().kind(), ErrorKind::ConnectionLost(Disconnect::Stopped)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn sessions_that_end_at_once_are_reopened_with_pauses() {
    const SESSIONS: usize = 20;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = builder(listener.local_addr().unwrap()).build().unwrap();
    let server = tokio::task::spawn_blocking(move || {
        let from = std::time::Instant::now();
        // The time to live is 0.
        answering(&listener, SESSIONS, usize::MAX, 0, &success(0));
        from.elapsed()
    });
    let waiting = tokio::spawn(async move { client.counter("a").maximum(1).acquire().await });
    let took = soon("sessions", server).await.unwrap();
    waiting.abort();
    assert!(took > Duration::from_millis(300), "{SESSIONS} sessions within {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_duplicate_grant_fails_no_waiting_caller() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = builder(listener.local_addr().unwrap()).build().unwrap();
    let server = std::thread::spawn(move || answering(&listener, 1, usize::MAX, 0, &success(1)));
    let first = soon("a permit", client.counter("a").maximum(1).acquire()).await.unwrap();
    let second = soon("the same", client.counter("b").maximum(1).acquire()).await.unwrap();
    assert_eq!(first.id(), second.id());
    soon("an end", client.close()).await;
    for permit in [first, second] {
        soon("the loss", permit.lost()).await;
        assert!(soon("an answer", permit.release()).await.is_err());
    }
    server.join().unwrap();
}

#[tokio::test]
async fn an_abandoned_hand_over_releases_the_grant() {
    let server = started(|_| {});
    let client = builder(server.counters).ttl(LONG).in_this_runtime().connect().await.unwrap();
    for turns in [0, 1_000] {
        let permit = client.counter("a").maximum(1).acquire().await.unwrap();
        let mut handing = Box::pin(permit.hand_over());
        tokio::select! {
            biased;
            handed = &mut handing => panic!("before an answer was possible: {handed:?}"),
            () = std::future::ready(()) => {}
        }
        // Whether or not the session's task has answered.
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        drop(handing);
        let given_back = async {
            while grants(&server) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon("the release", given_back).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn texts_too_long_for_the_wire_do_no_harm() {
    let server = started(|_| {});
    let long = vec![b'x'; 70_000];
    let client = builder(server.counters).ttl(LONG).label(&long);
    let client = soon("a connection", client.connect()).await.unwrap();
    let _held = client.counter("a").maximum(1).acquire().await.unwrap();
    let direct = client.direct().await.unwrap();
    let refused = direct.watch(Namespace::Counters, Scope::Prefix(&long)).await;
    assert!(matches!(refused.unwrap_err().kind(), ErrorKind::NameLength { bytes: 70_000 }));
    let mut holders = direct.holders(Namespace::Counters, b"a").await.unwrap();
    assert_eq!(holders.next().await.unwrap().unwrap().label, long[..255]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_revoked_permit_is_not_handed_over() {
    let server = started(|_| {});
    let client = connected(&server).await;
    let permit = client.counter("a").maximum(1).acquire().await.unwrap();
    let direct = client.direct().await.unwrap();
    revoke(&direct, Revocation::Grant(permit.id()), Duration::ZERO).await;
    assert_eq!(soon("the loss", permit.lost()).await, Lost::Revoked);
    let handed = soon("an answer", permit.hand_over()).await;
    assert!(matches!(handed.unwrap_err().kind(), ErrorKind::Lost(Lost::Revoked)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn of_a_single_flight_one_client_works_and_the_others_are_told_when_it_is_done() {
    let server = started(|_| {});
    let [worker, other] = [connected(&server).await, connected(&server).await];
    let Flight::Held(permit) = worker.limit("page").shared().await.unwrap() else { panic!("not granted") };
    let share = |client: &Client| {
        let client = client.clone();
        tokio::spawn(async move { client.limit("page").shared().await.unwrap() })
    };
    // The work is not done: the next one works.
    let next = share(&other);
    eventually("one waits", || waiters(&server) == 1);
    drop(permit);
    let Flight::Held(permit) = next.await.unwrap() else { panic!("the work is not done") };
    let waiting = [share(&worker), share(&other)];
    eventually("two wait", || waiters(&server) == 2);
    permit.release_done().await.unwrap();
    for flight in waiting {
        assert!(matches!(flight.await.unwrap(), Flight::Done));
    }
    let Flight::Held(later) = other.limit("page").try_shared().await.unwrap() else {
        panic!("no new flight begins")
    };
    let busy = worker.limit("page").try_shared().await.unwrap_err();
    assert_eq!(busy.status(), Some(Status::ResourceNotAvailable));
    later.release().await.unwrap();
    let ordinary = worker.limit("page").maximum(1).acquire().await.unwrap();
    assert_eq!(ordinary.release_done().await.unwrap_err().status(), Some(Status::InvalidArguments));
    for request in [worker.limit("a").maximum(2), worker.counter("a").maximum(1).resources(2)] {
        assert!(matches!(request.shared().await.unwrap_err().kind(), ErrorKind::Claims(_)));
    }
    let two = worker.acquire_all([Claim::limit("a"), Claim::limit("b")]).shared().await;
    assert!(matches!(two.unwrap_err().kind(), ErrorKind::Claims(_)));
}
