//! Clients that misbehave during the handshake.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::certificates::{Authority, for_loopback};
use crate::support::*;
use crate::wire::{client_side, connect};

fn server() -> (Authority, TestServer) {
    let (authority, files) = for_loopback();
    let server = TestServer::start();
    server.server.load_tls(&files.config()).unwrap();
    (authority, server)
}

/// All that the server sends until it closes the connection.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut received = Vec::new();
    // A reset comes where the server has not read everything.
    let _ = stream.read_to_end(&mut received);
    received
}

#[test]
fn garbage_behind_the_first_byte_of_tls_ends_the_connection() {
    let (_, server) = server();
    for garbage in [
        &[0x16; 12][..],
        &[0x16; 40_000],
        b"\x16\x03\x01\xff\xff\x01\0\0\0\0\0\0\0\0",
        b"\x16\x03\x01\0\x10garbage-garbage-garbage",
    ] {
        let mut stream = TcpStream::connect(server.counters).unwrap();
        // The server may have closed it before it has taken everything.
        let _ = stream.write_all(garbage);
        let received = rest(&mut stream);
        assert!(received.is_empty() || received[0] == 0x15, "an alert, if anything: {received:?}");
    }
    assert_eq!(server.counter().stat("failed_handshakes"), 4);
}

#[test]
fn a_handshake_that_never_ends_in_size_is_ended() {
    let (_, server) = server();
    let mut stream = TcpStream::connect(server.counters).unwrap();
    // A ClientHello that announces 16 MB, in records of 16 KB that continue it.
    let mut begun = false;
    for _ in 0..100 {
        let mut record = vec![0x16, 0x03, 0x01, 0x40, 0x00];
        let body = if begun { vec![0; 0x4000] } else { [&[1, 0xff, 0xff, 0xff][..], &[0; 0x3ffc]].concat() };
        record.extend(body);
        begun = true;
        if stream.write_all(&record).is_err() {
            break;
        }
    }
    rest(&mut stream);
    eventually("it is counted", || server.counter().stat("failed_handshakes") == 1);
}

#[test]
fn a_handshake_that_stops_is_ended_after_its_time_and_disturbs_nobody() {
    let (authority, server) = server();
    let mut slow = TcpStream::connect(server.counters).unwrap();
    // The start of a record of 512 bytes.
    slow.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\0").unwrap();
    let mut wire = connect(server.counters, &authority);
    assert_eq!(wire.ask(NOOP, &[]).status, OK);
    assert!(rest(&mut slow).is_empty());
    assert_eq!(wire.stat("failed_handshakes"), 1);
}

#[test]
fn a_single_first_byte_is_a_started_frame() {
    let (_authority, files) = for_loopback();
    let server = TestServer::start_with(|config| config.frame_timeout_s = 1);
    server.server.load_tls(&files.config()).unwrap();
    let mut slow = TcpStream::connect(server.counters).unwrap();
    slow.write_all(&[0x16]).unwrap();
    assert!(rest(&mut slow).is_empty());
    assert_eq!(server.counter().stat("frame_timeouts"), 1);
}

#[test]
fn a_handshake_may_come_in_pieces_but_not_be_closed_without_encryption() {
    let (authority, server) = server();
    for is_closed in [false, true] {
        let mut client = client_side(&authority, None);
        let mut hello = Vec::new();
        client.write_tls(&mut hello).unwrap();
        if is_closed {
            // close_notify, which an attacker on the path could send.
            hello.extend(b"\x15\x03\x03\0\x02\x01\0");
        }
        let mut stream = TcpStream::connect(server.counters).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        for piece in hello.chunks(100) {
            stream.write_all(piece).unwrap();
        }
        if is_closed {
            assert!(!rest(&mut stream).is_empty(), "the answer to the first message");
        } else {
            client.complete_io(&mut stream).unwrap();
            assert!(!client.is_handshaking());
        }
    }
    assert_eq!(server.counter().stat("failed_handshakes"), 1);
}

/// The server signs before a client has shown that its message is not a recorded one.
#[test]
fn replayed_first_messages_get_few_answers_and_delay_no_other_client() {
    let (authority, server) = server();
    let mut hello = Vec::new();
    client_side(&authority, None).write_tls(&mut hello).unwrap();
    let replay = || {
        let mut stream = connect_from("127.0.0.2", server.counters);
        stream.write_all(&hello).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    };
    let is_answered = |stream: &TcpStream| stream.peek(&mut [0]).is_ok_and(|read| read > 0);
    let other_client_is_served = || {
        for _ in 0..5 {
            assert_eq!(connect(server.counters, &authority).ask(NOOP, &[]).status, OK);
        }
    };
    let replayed: Vec<_> = (0..300).map(|_| replay()).collect();
    let answered = || replayed.iter().filter(|stream| is_answered(stream)).count();
    eventually("as many are answered as may be in progress", || answered() >= 32);
    other_client_is_served();
    // Twice as many, in case this takes so long that the first ones expire.
    assert!(answered() <= 64, "{}", answered());
    // They are still in progress, for as long as they may take.
    drop(replayed);
    let further: Vec<_> = (0..300).map(|_| replay()).collect();
    other_client_is_served();
    assert!(further.iter().filter(|stream| is_answered(stream)).count() <= 64);
}

#[test]
fn a_handshake_sends_no_more_than_it_needs() {
    let (_, server) = server();
    let mut stream = TcpStream::connect(server.counters).unwrap();
    // The start of a message of 24 KB, in two records.
    let first = [&b"\x16\x03\x01\x3f\xff\x01\x00\x60\x00"[..], &[0; 0x3ffb]].concat();
    stream.write_all(&[&first[..], b"\x16\x03\x01\x20\x00", &[0; 100]].concat()).unwrap();
    rest(&mut stream);
    eventually("it is counted", || server.counter().stat("failed_handshakes") == 1);
}

#[test]
fn a_forged_record_ends_the_connection_with_an_alert() {
    let (authority, server) = server();
    let mut wire = connect(server.counters, &authority);
    assert_eq!(wire.acquire(b"held", 1, 1).status, OK);
    wire.stream.sock.write_all(&[&b"\x17\x03\x03\x00\x20"[..], &[7; 32]].concat()).unwrap();
    let alert = wire.stream.read(&mut [0; 1]).unwrap_err();
    assert!(alert.to_string().contains("BadRecordMac"), "{alert}");
    let mut plain = server.counter();
    eventually("what it held is free", || plain.get(b"held").number() == 0);
}

#[test]
fn handshakes_count_against_the_limit_of_connections() {
    let (_authority, files) = for_loopback();
    let server = TestServer::start_with(|config| config.counter.port.max_connections = 2);
    server.server.load_tls(&files.config()).unwrap();
    let begun: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = TcpStream::connect(server.counters).unwrap();
            stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\0").unwrap();
            stream
        })
        .collect();
    // Its own connection counts: it is served only when one of the others has ended.
    let mut third = Wire::connect(server.counters);
    assert!(third.is_closed());
    drop(begun);
    eventually("there is room", || {
        let mut wire = Wire::connect(server.counters);
        wire.stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let _ = wire.stream.write_all(&frame(NOOP, [0; 4], &[]));
        wire.try_answer().is_ok()
    });
}
