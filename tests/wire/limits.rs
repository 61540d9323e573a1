//! The limits that protect a server.

use std::io::{Read, Write};
use std::time::Duration;

use crate::support::*;
use bytes::BytesMut;
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
    eventually("its place is free again", || {
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

#[test]
fn limits_change_while_the_server_runs() {
    let server = TestServer::start_with(|config| config.counter.port.max_names = 1);
    let mut wire = server.counter();
    assert_eq!(wire.acquire(b"a", 1, 9).status, OK);
    assert_eq!(wire.acquire(b"b", 1, 9).status, OUT_OF_MEMORY);
    let mut config = signalbox::config::Config::without_file();
    config.counter.port.max_names = 0;
    server.server.apply(&config);
    assert_eq!(wire.acquire(b"b", 1, 9).status, OK);
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
    // During that both workers serve others, and names can be created, acquired and released.
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

#[test]
fn requests_are_not_read_while_answers_are_unread() {
    let server = TestServer::start();
    let mut greedy = server.counter();
    greedy.stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let burst: Vec<u8> = (0..10_000u32).flat_map(|i| frame(STATS, i.to_be_bytes(), &[])).collect();
    // Every 12 bytes request about 600. A server that read them all would buffer gigabytes of answers.
    let mut written = 0;
    while written < 200_000_000 {
        match greedy.stream.write(&burst) {
            Ok(bytes) => written += bytes,
            Err(_) => break,
        }
    }
    assert!(written < 100_000_000, "the server read {written} bytes of requests");
    let mut other = server.counter();
    assert_eq!(other.ask(NOOP, &[]).status, OK);
    let executed = other.stat("command:stats");
    assert!(executed < 100_000, "{executed} requests were executed for a peer that reads no answers");
    // When the peer reads at last, it gets its answers in order.
    for serial in 0..10_000u32 {
        assert_eq!(greedy.answer().opaque, serial.to_be_bytes());
    }
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
