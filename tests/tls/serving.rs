//! Requests over TLS: what holds for plain connections holds here too.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use signalbox::config::PlainRule;
use signalbox_model::Namespace;

use crate::certificates::{Files, for_loopback};
use crate::support::*;
use crate::wire::{SecureWire, connect, over};

fn server(files: &Files) -> TestServer {
    let server = TestServer::start();
    server.server.load_tls(&files.config()).unwrap();
    server
}

fn assert_serves(mut wire: SecureWire, name: &[u8]) {
    assert_eq!(wire.acquire(name, 1, 1).status, OK);
    assert_eq!(wire.acquire(name, 1, 1).status, NOT_AVAILABLE);
    assert_eq!(wire.release(name, 1).status, OK);
}

#[test]
fn both_ports_serve_connections_with_and_without_tls() {
    let (authority, files) = for_loopback();
    let server = server(&files);
    for namespace in Namespace::ALL {
        let address = server.address(namespace);
        let mut plain = Wire::connect(address);
        assert_eq!(plain.ask(NOOP, &[]).status, OK);
        assert_serves(connect(address, &authority), b"secure");
        assert_eq!(plain.acquire(b"plain", 1, 1).status, OK);
    }
    assert_eq!(server.counter().stat("tls_connections"), 1);
    assert_eq!(server.semaphore().stat("tls_connections"), 1);
    server.assert_books_balance();
}

#[test]
fn what_a_connection_holds_is_released_when_it_ends_in_order_or_is_cut_off() {
    let (authority, files) = for_loopback();
    let server = server(&files);
    for in_order in [true, false] {
        let mut wire = connect(server.counters, &authority);
        assert_eq!(wire.acquire(b"held", 1, 1).status, OK);
        if in_order {
            wire.stream.conn.send_close_notify();
            wire.stream.flush().unwrap();
            assert_eq!(
                wire.stream.read(&mut [0; 1]).unwrap(),
                0,
                "close_notify is answered with close_notify"
            );
        }
        drop(wire);
        let mut plain = server.counter();
        eventually("the resource is free", || plain.get(b"held").number() == 0);
    }
}

#[test]
fn requests_before_close_notify_are_answered_and_those_of_a_connection_cut_off_are_not_lost_silently() {
    let (authority, files) = for_loopback();
    let server = server(&files);
    let mut wire = connect(server.counters, &authority);
    wire.send(&[frame(NOOP, *b"1111", &[]), frame(NOOP, *b"2222", &[])].concat());
    wire.stream.conn.send_close_notify();
    wire.stream.flush().unwrap();
    wire.stream.sock.shutdown(Shutdown::Write).unwrap();
    assert_eq!([wire.answer().opaque, wire.answer().opaque], [*b"1111", *b"2222"]);
    assert_eq!(wire.stream.read(&mut [0; 1]).unwrap(), 0, "the server sends close_notify");

    // Without close_notify, the client cannot have meant to end.
    let mut wire = connect(server.counters, &authority);
    assert_eq!(wire.ask(NOOP, &[]).status, OK);
    wire.stream.sock.shutdown(Shutdown::Write).unwrap();
    let cut_off = wire.stream.read(&mut [0; 1]).unwrap_err();
    assert_eq!(cut_off.kind(), std::io::ErrorKind::UnexpectedEof, "{cut_off}");
}

#[test]
fn large_pipelines_and_dumps_pass_in_any_pieces() {
    const NAMES: usize = 3000;
    let (authority, files) = for_loopback();
    let server = server(&files);
    let mut wire = connect(server.counters, &authority);
    let name = |number: usize| format!("{number:0100}").into_bytes();
    let requests: Vec<u8> = (0..NAMES)
        .flat_map(|n| frame(ACQUIRE, (n as u32).to_be_bytes(), &named(&[1, 1], &name(n))))
        .collect();
    // Pieces that are independent of frames and records.
    for piece in requests.chunks(40_001) {
        wire.send(piece);
    }
    for number in 0..NAMES {
        let answer = wire.answer();
        assert_eq!((answer.status, answer.opaque), (OK, (number as u32).to_be_bytes()));
    }
    let mut dumped: Vec<_> = wire.dump().into_iter().map(|(_, _, name)| name).collect();
    dumped.sort();
    assert!(dumped == (0..NAMES).map(name).collect::<Vec<_>>(), "{} names", dumped.len());
}

#[test]
fn a_client_that_does_not_read_is_slowed_down_and_gets_every_answer() {
    let (authority, files) = for_loopback();
    let server = server(&files);
    let mut holder = server.counter();
    for number in 0..50_u32 {
        let name = [&number.to_be_bytes()[..], &[b'x'; 60_000]].concat();
        assert_eq!(holder.acquire(&name, 1, 1).status, OK);
    }
    let mut wire = connect(server.counters, &authority);
    wire.send(&frame(DUMP, *b"dump", &[]));
    // The socket's buffers hold less than 3 MB: the server waits with the rest.
    let mut plain = server.counter();
    let mut sent = 0;
    eventually("the server cannot send more", || {
        let before = std::mem::replace(&mut sent, plain.stat("bytes_sent"));
        before > 100_000 && sent < before + 10_000
    });
    let mut entries = 0;
    while !wire.answer().body.is_empty() {
        entries += 1;
    }
    assert_eq!(entries, 50);
    assert_eq!(wire.ask(NOOP, &[]).status, OK);
}

#[test]
fn tls_that_begins_behind_a_request_is_not_accepted() {
    let (authority, files) = for_loopback();
    let server = server(&files);
    let mut plain = server.counter();
    assert_eq!(plain.ask(NOOP, &[]).status, OK);
    // What an attacker sends before the first bytes of a client must not be taken for requests of that client.
    let refused = over(plain.stream.try_clone().unwrap(), &authority, None);
    assert!(refused.is_err_and(|error| error.to_string().contains("corrupt message")));
    assert_eq!(server.counter().stat("bad_input"), 1);
}

#[test]
fn tls_is_not_accepted_where_it_is_not_configured_nor_within_tls() {
    let (authority, files) = for_loopback();
    let without = TestServer::start();
    let refused = over(TcpStream::connect(without.counters).unwrap(), &authority, None);
    assert!(refused.is_err_and(|error| error.to_string().contains("corrupt message")));
    assert_eq!(without.counter().stat("bad_input"), 1);

    let server = server(&files);
    let mut wire = connect(server.counters, &authority);
    wire.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\0");
    assert_eq!(wire.answer().status, INVALID);
    assert_eq!(wire.stream.read(&mut [0; 1]).unwrap(), 0);
    assert_eq!(server.counter().stat("bad_input"), 1);
}

#[test]
fn plain_requests_are_refused_where_tls_is_required() {
    let (authority, files) = for_loopback();
    let server = TestServer::start();
    let mut config = files.config();
    config.plain = PlainRule::Refuse;
    server.server.load_tls(&config).unwrap();
    let mut plain = server.counter();
    plain.send(&frame(ACQUIRE, *b"abcd", &named(&[1, 1], b"name")));
    let answer = plain.answer();
    assert_eq!((answer.opcode, answer.opaque, answer.status), (ACQUIRE, *b"abcd", 0x87));
    assert_eq!(answer.body, b"TLS required");
    assert!(plain.is_closed());
    // The first byte alone is enough.
    let mut stream = TcpStream::connect(server.counters).unwrap();
    stream.write_all(&[0x90]).unwrap();
    drop(stream);
    let mut wire = connect(server.counters, &authority);
    assert_eq!(wire.get(b"name").status, NOT_FOUND, "it was not executed");
    assert_eq!(wire.stat("refused_plain"), 1);
}

#[test]
fn where_plain_requests_are_for_loopback_alone_the_address_of_a_proxys_client_counts() {
    let (authority, files) = for_loopback();
    let server = TestServer::start_with(|config| config.proxies = vec!["127.0.0.2".parse().unwrap()]);
    let mut config = files.config();
    config.plain = PlainRule::Loopback;
    server.server.load_tls(&config).unwrap();
    assert_eq!(server.counter().ask(NOOP, &[]).status, OK);
    let header = |client: [u8; 4]| {
        let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
        header.extend(client);
        header.extend(b"\xc0\0\x02\x01\x12\x34\x2b\xcf");
        header
    };
    let mut behind = Wire::connect_from("127.0.0.2", server.counters);
    behind.send(&[header([203, 0, 113, 7]), frame(NOOP, [0; 4], &[])].concat());
    assert_eq!(behind.answer().status, 0x87);
    let mut local = Wire::connect_from("127.0.0.2", server.counters);
    local.send(&[header([127, 0, 0, 1]), frame(NOOP, [0; 4], &[])].concat());
    assert_eq!(local.answer().status, OK);
    // TLS begins after the header.
    let mut secure = Wire::connect_from("127.0.0.2", server.counters);
    secure.send(&header([203, 0, 113, 7]));
    let secure = over(secure.stream.try_clone().unwrap(), &authority, None).unwrap();
    assert_serves(secure, b"behind");
}

#[test]
fn the_keys_of_a_connection_can_be_updated_in_use() {
    let (authority, files) = for_loopback();
    let server = server(&files);
    let mut wire = connect(server.counters, &authority);
    for _ in 0..10 {
        assert_eq!(wire.ask(NOOP, &[]).status, OK);
        wire.stream.conn.refresh_traffic_keys().unwrap();
    }
    assert_eq!(wire.acquire(b"name", 1, 1).status, OK);
}
