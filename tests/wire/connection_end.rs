//! A connection releases everything that it holds when it ends, in whatever way it ends.

use std::net::Shutdown;
use std::time::Duration;

use crate::support::*;
use signalbox_model::Namespace;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Acquires two names on a connection, ends it, and checks that both are free again.
fn ends_and_releases(namespace: Namespace, end: impl FnOnce(Wire) -> Option<Wire>) {
    let server = AnyServer::start();
    let Some(mut holder) = server.connect(namespace) else { return };
    let mut other = server.connect(namespace).unwrap();
    let names = [unique("first"), unique("second")];
    for name in &names {
        assert_eq!(holder.acquire(name, 2, 3).status, OK);
        assert_eq!(other.acquire(name, 1, 3).status, OK);
        assert_eq!(other.acquire(name, 2, 3).status, NOT_AVAILABLE);
    }
    let kept = end(holder);
    for name in &names {
        eventually("the holdings of the ended connection are released", || {
            other.acquire(name, 2, 3).status == OK
        });
    }
    drop(kept);
    if let AnyServer::Own(server) = &server {
        server.assert_books_balance();
    }
}

#[test]
fn a_closed_connection_releases_what_it_held() {
    for namespace in Namespace::ALL {
        ends_and_releases(namespace, |_| None);
    }
}

#[test]
fn a_half_closed_connection_releases_what_it_held() {
    ends_and_releases(Namespace::Counters, |wire| {
        wire.stream.shutdown(Shutdown::Write).unwrap();
        Some(wire)
    });
}

#[test]
fn a_reset_connection_releases_what_it_held() {
    ends_and_releases(Namespace::Counters, |wire| {
        socket2::SockRef::from(&wire.stream).set_linger(Some(Duration::ZERO)).unwrap();
        None
    });
}

#[test]
fn a_connection_that_sent_half_a_frame_releases_what_it_held() {
    ends_and_releases(Namespace::Counters, |mut wire| {
        let request = frame(ACQUIRE, *b"half", &named(&[1, 1], b"never"));
        wire.send(&request[..request.len() - 1]);
        None
    });
}

#[test]
fn a_connection_closed_for_a_wrong_magic_releases_what_it_held() {
    let server = TestServer::start();
    let (mut holder, mut other) = (server.counter(), server.counter());
    assert_eq!(holder.acquire(b"held", 1, 1).status, OK);
    holder.send(b"GET / HTTP/1.1\r\n\r\n");
    eventually("the name is free", || other.acquire(b"held", 1, 1).status == OK);
    let answer = holder.answer();
    assert_eq!((answer.status, answer.opcode), (INVALID, b'E'));
    assert!(holder.is_closed());
}

#[test]
fn a_connection_closed_for_a_body_that_is_too_long_releases_what_it_held() {
    let server = TestServer::start();
    let (mut holder, mut other) = (server.counter(), server.counter());
    assert_eq!(holder.acquire(b"held", 1, 1).status, OK);
    holder.send(&[0x90, NOOP, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0]);
    assert!(holder.is_closed());
    assert_eq!(other.get(b"held").number(), 0, "released before the connection is closed");
}

#[test]
fn requests_sent_before_a_half_close_are_answered() {
    let server = AnyServer::start();
    let Some(mut wire) = server.connect(Namespace::Counters) else { return };
    let name = unique("burst");
    let mut burst = Vec::new();
    for serial in 0..1000u32 {
        burst.extend(frame(ACQUIRE, serial.to_be_bytes(), &named(&[1, 1000], &name)));
    }
    wire.send(&burst);
    wire.stream.shutdown(Shutdown::Write).unwrap();
    for serial in 0..1000u32 {
        let answer = wire.answer();
        assert_eq!((answer.status, answer.opaque), (OK, serial.to_be_bytes()));
    }
    assert!(wire.is_closed());
}

#[test]
fn a_dump_requested_before_a_half_close_arrives_completely() {
    let server = TestServer::start();
    let mut holder = server.counter();
    let name = |i: u32| format!("{i:0>200}").into_bytes();
    for i in 0..2000 {
        assert_eq!(holder.acquire(&name(i), 1, 1).status, OK);
    }
    let mut reader = server.counter();
    reader.send(&frame(DUMP, *b"dump", &[]));
    reader.stream.shutdown(Shutdown::Write).unwrap();
    let mut entries = 0;
    while !reader.answer().body.is_empty() {
        entries += 1;
    }
    assert_eq!(entries, 2000);
    assert!(reader.is_closed());
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_that_holds_something_stays_open() {
    let server = NearServer::start();
    let mut holder = server.connect(4096);
    let mut answer = [0; 16];
    holder.write_all(&frame(ACQUIRE, *b"take", &named(&[1, 1], b"held"))).await.unwrap();
    holder.read_exact(&mut answer).await.unwrap();
    assert_eq!((answer[2], &answer[8..12]), (OK, &b"take"[..]));
    // Many times longer than a frame may take.
    tokio::time::sleep(Duration::from_secs(3600)).await;
    holder.write_all(&frame(RELEASE, *b"give", &named(&[1], b"held"))).await.unwrap();
    holder.read_exact(&mut answer[..12]).await.unwrap();
    assert_eq!((answer[2], &answer[8..12]), (OK, &b"give"[..]));
}

#[test]
fn a_holder_of_very_many_names_releases_them_all() {
    let server = TestServer::start();
    let mut holder = server.counter();
    let names = 50_000u32;
    for chunk in (0..names).collect::<Vec<_>>().chunks(1000) {
        let burst: Vec<u8> = chunk
            .iter()
            .flat_map(|i| frame(ACQUIRE, i.to_be_bytes(), &named(&[1, 1], format!("name-{i}").as_bytes())))
            .collect();
        holder.send(&burst);
        for _ in chunk {
            assert_eq!(holder.answer().status, OK);
        }
    }
    let mut other = server.counter();
    assert_eq!(other.stat("objects"), u64::from(names));
    drop(holder);
    eventually("every name is free", || other.dump().iter().all(|entry| entry.0 == 0));
    server.assert_books_balance();
}
