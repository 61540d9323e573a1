//! The limits that protect a server.

use std::io::Read;
use std::time::Duration;

use crate::support::caller::{Caller, LONG, NOW, one_of};
use crate::support::*;
use bytes::BytesMut;
use signalbox_model::{
    Idle, Limit, Milliseconds, Namespace, ReachedLimit, RequestId, RequestIds, Scope, Status,
};
use signalbox_protocol::{Extended, Features, ResponseFrame, Shares, Wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn a_connection_above_the_limit_is_closed_at_once_and_counted() {
    let server = TestServer::start_with(|config| config.counter.port.max_connections = 2);
    let (mut one, mut two) = (server.counter(), server.counter());
    assert_eq!(one.ask(NOOP, &[]).status, OK);
    assert_eq!(two.ask(NOOP, &[]).status, OK);
    assert!(server.counter().is_closed());
    assert_eq!(one.stat("refused_connections"), 1);
    assert_eq!(one.stat("curr_connections"), 2);
    assert_eq!(server.semaphore().ask(NOOP, &[]).status, OK, "the limit applies to one port");
    drop(two);
    eventually("another connection is admitted", || {
        let mut next = server.counter();
        next.send(&frame(NOOP, [0; 4], &[]));
        next.try_answer().is_ok()
    });
}

#[test]
fn a_name_above_the_limit_is_out_of_memory() {
    let server = TestServer::start_with(|config| config.counter.port.max_names = 2);
    let mut wire = server.counter();
    assert_eq!(wire.acquire(b"a", 1, 9).status, OK);
    assert_eq!(wire.acquire(b"b", 1, 9).status, OK);
    let refused = wire.acquire(b"c", 1, 9);
    assert_eq!((refused.status, &refused.body[..]), (OUT_OF_MEMORY, &b"OutOfMemory"[..]));
    assert_eq!(wire.acquire(b"a", 1, 9).status, OK, "existing names are not affected");
    assert_eq!(wire.stat("refused_names"), 1);
    assert_eq!(wire.stat("objects"), 2);
}

#[track_caller]
fn assert_limit(answer: &ResponseFrame, limit: Limit, max: u64) {
    assert_eq!(answer.status, Status::LimitReached.code(), "{answer:?}");
    assert_eq!(answer.reached_limit(), Some(ReachedLimit { limit, max, is_share: false }), "{answer:?}");
}

#[test]
fn a_refusal_because_of_a_limit_names_the_limit_and_its_value() {
    let server = TestServer::start_with(|config| {
        config.session.max_sessions = 1;
        config.session.max_grants = 3;
        config.session.max_waiters = 2;
        config.session.max_watches = 1;
    });
    let mut caller = Caller::new(server.counter());
    caller.hello("");
    let mut other = Caller::new(server.counter());
    other.open(60_000);
    let session =
        caller.ask(&Extended::OpenSession { ttl: Some(Milliseconds(60_000)), label: b"", key: None });
    assert_limit(&session, Limit::Sessions, 1);
    assert_eq!(&session.body[..], b"Limit reached: session.max_sessions=1");

    let watch = Extended::Watch { namespace: Namespace::Counters, scope: Scope::Name(b"watched") };
    let mut watcher = Caller::new(server.counter());
    watcher.hello("");
    watcher.send(&watch);
    watcher.next();
    assert_limit(&caller.ask(&watch), Limit::Watches, 1);

    let held = [b"a", b"b", b"c"].map(|name| caller.take(one_of(1, name)));
    let asked = caller.want(one_of(1, b"d"), NOW);
    assert_limit(&caller.answer(asked), Limit::Grants, 3);
    assert_eq!(caller.give_back(held[2].grant), OK);

    // Two of another connection wait, which is the most for this name.
    for _ in 0..2 {
        other.want(one_of(1, b"a"), LONG);
    }
    other.sync();
    let asked = caller.want(one_of(1, b"a"), LONG);
    assert_limit(&caller.answer(asked), Limit::Waiters, 2);

    let ids = RequestIds { own: RequestId(1026), lowest_unanswered: RequestId(1) };
    let far =
        Extended::AcquireGrant { ids, claim: one_of(1, b"e"), queueing: NOW, place: None, is_shared: false };
    assert_limit(&caller.ask(&far), Limit::Requests, 1024);
}

#[test]
fn hello_reports_the_shares_of_a_client() {
    let server = TestServer::start_with(|config| {
        config.client_share = 25;
        config.counter.port.max_connections = 1_000;
        config.session.max_sessions = 2_000;
        config.session.max_waiters = 3_000;
        config.session.max_watches = 10;
        config.memory_max = Some(1 << 30);
    });
    let answer = Caller::new(server.counter()).introduce("", Features::default());
    // A small limit is not divided.
    let shares = Shares { connections: 250, sessions: 500, waiters: 750, watches: 10, memory: 1 << 28 };
    assert_eq!(answer.shares, shares);
}

#[test]
fn a_refused_await_idle_names_the_limit_of_the_connection_or_of_the_name() {
    let server = TestServer::start_with(|config| {
        config.session.max_grants = 2;
        config.session.max_waiters = 3;
    });
    let [mut holder, mut first, mut second] = std::array::from_fn(|_| Caller::new(server.counter()));
    holder.take(one_of(1, b"a"));
    let idle = Extended::AwaitIdle {
        wait: Wait::ServerDefault,
        until: Idle::Level(0),
        namespace: Namespace::Counters,
        name: b"a",
    };
    first.send(&idle);
    first.send(&idle);
    assert_limit(&first.ask(&idle), Limit::Grants, 2);
    second.send(&idle);
    assert_limit(&second.ask(&idle), Limit::Waiters, 3);
}

/// Fills a server with `names` names of 200 bytes, held by the returned connection.
fn fill(server: &TestServer, names: u32) -> Wire {
    let mut holder = server.counter();
    for i in 0..names {
        assert_eq!(holder.acquire(format!("{i:0>200}").as_bytes(), 1, 1).status, OK);
    }
    holder
}

#[test]
fn a_client_that_does_not_read_its_dump_does_not_block_others() {
    let server = TestServer::start();
    let _holder = fill(&server, 20_000);
    let mut reader = server.counter();
    for _ in 0..100 {
        reader.send(&frame(DUMP, *b"dump", &[]));
    }
    // Meanwhile, both workers serve others, and names can be created, acquired and released.
    for _ in 0..4 {
        let mut other = server.counter();
        for i in 0..100u32 {
            let name = format!("{i:0>200}");
            assert_eq!(other.acquire(name.as_bytes(), 1, 2).status, OK);
            assert_eq!(other.release(name.as_bytes(), 1).status, OK);
        }
    }
    // A Dump has 20,000 entries of 222 bytes; the server sends only what the sockets buffer.
    let sent = server.counter().stat("bytes_sent");
    assert!(sent < 40_000_000, "{sent} bytes were sent to a client that reads nothing");
    let mut entries = 0;
    while !reader.answer().body.is_empty() {
        entries += 1;
    }
    assert_eq!(entries, 20_000);
}

#[tokio::test(start_paused = true)]
async fn requests_are_not_read_while_answers_are_unread() {
    let server = NearServer::start();
    let (mut greedy, mut other) = (server.connect(4096), server.connect(4096));
    let burst: Vec<u8> = (0..20_000u32).flat_map(|i| frame(NOOP, i.to_be_bytes(), &[])).collect();
    let mut written = 0;
    // The time passes only when the server has nothing to do.
    while let Ok(bytes) = tokio::time::timeout(Duration::from_secs(1), greedy.write(&burst[written..])).await
    {
        written += bytes.unwrap();
        assert!(written < burst.len(), "the server read all requests of a peer that reads no answers");
    }
    other.write_all(&frame(NOOP, *b"noop", &[])).await.unwrap();
    other.read_exact(&mut [0; 12]).await.unwrap();
    // When the peer finally reads, it gets its answers in order.
    let (mut answers, mut requests) = tokio::io::split(greedy);
    let read = async {
        for serial in 0..20_000u32 {
            let mut header = [0; 12];
            answers.read_exact(&mut header).await.unwrap();
            assert_eq!(header[8..], serial.to_be_bytes());
        }
    };
    let ((), written) = tokio::join!(read, requests.write_all(&burst[written..]));
    written.unwrap();
}

#[test]
fn a_client_that_reads_byte_by_byte_gets_everything_in_order() {
    let server = TestServer::start();
    let mut wire = server.counter();
    let burst: Vec<u8> = (0..200u32).flat_map(|i| frame(STATS, i.to_be_bytes(), &[])).collect();
    wire.send(&burst);
    wire.stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut received = Vec::new();
    let mut byte = [0];
    while wire.stream.read(&mut byte).unwrap() > 0 {
        received.push(byte[0]);
    }
    let mut rest = &received[..];
    for serial in 0..200u32 {
        assert_eq!(rest[8..12], serial.to_be_bytes());
        let body_bytes = u32::from_be_bytes(rest[4..8].try_into().unwrap()) as usize;
        rest = &rest[12 + body_bytes..];
    }
    assert!(rest.is_empty());
}

#[tokio::test]
async fn other_connections_are_served_during_a_burst_of_requests_with_long_answers() {
    let server = NearServer::start();
    let (mut one, mut other) = (server.connect(4 << 20), server.connect(4096));
    let burst = frame(STATS, *b"many", &[]).repeat(1365);
    assert!(burst.len() < 16 * 1024, "it is read at once");
    one.write_all(&burst).await.unwrap();
    other.write_all(&frame(NOOP, *b"noop", &[])).await.unwrap();
    other.read_exact(&mut [0; 12]).await.unwrap();
    // Count the answers before that of the other connection; a read that would block ends the loop.
    let mut answers = BytesMut::with_capacity(4 << 20);
    let _ = tokio::time::timeout(Duration::ZERO, one.read_buf(&mut answers)).await;
    let answered = answers.windows(4).filter(|bytes| bytes == b"many").count();
    assert!(answered < 1000, "the other connection waited until {answered} of 1365 requests were answered");
}
