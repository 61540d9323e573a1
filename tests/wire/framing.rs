//! Frame boundaries: pipelining, split frames, and the errors that close a connection.

use std::io::Write;
use std::time::Duration;

use crate::support::*;
use signalbox::server::steps::LEDGER_REQUESTS;
use signalbox_model::Namespace;
use signalbox_protocol::{Extended, Opaque};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = AnyServer::start();
    for namespace in Namespace::ALL {
        let Some(mut wire) = server.connect(namespace) else { continue };
        let name = unique("pipeline");
        let rounds = 5000u32;
        let mut burst = Vec::new();
        for round in 0..rounds {
            burst.extend(frame(ACQUIRE, round.to_be_bytes(), &named(&[1, 2], &name)));
            burst.extend(frame(RELEASE, round.to_be_bytes(), &named(&[1], &name)));
            burst.extend(frame(NOOP, round.to_be_bytes(), &[]));
        }
        let mut writer = wire.stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || writer.write_all(&burst).unwrap());
        for round in 0..rounds {
            for opcode in [ACQUIRE, RELEASE, NOOP] {
                let answer = wire.answer();
                assert_eq!((answer.opcode, answer.status, answer.opaque), (opcode, OK, round.to_be_bytes()));
            }
        }
        sender.join().unwrap();
    }
}

#[test]
fn a_sequence_of_frames_may_be_split_anywhere() {
    let server = AnyServer::start();
    let Some(mut wire) = server.connect(Namespace::Counters) else { return };
    let mut other = server.connect(Namespace::Counters).unwrap();
    let name = unique("cut");
    let mut run = Vec::new();
    for serial in 0..4u32 {
        run.extend(frame(ACQUIRE, serial.to_be_bytes(), &named(&[1, 4], &name)));
    }
    run.extend(frame(RELEASE, 4u32.to_be_bytes(), &named(&[4], &name)));
    for cut in 1..run.len() {
        wire.send(&run[..cut]);
        // The first piece is read separately: a round trip of another connection separates the two.
        assert_eq!(other.ask(NOOP, &[]).status, OK);
        wire.send(&run[cut..]);
        for serial in 0..5u32 {
            let answer = wire.answer();
            assert_eq!((answer.status, answer.opaque), (OK, serial.to_be_bytes()), "cut at {cut}");
        }
    }
}

#[test]
fn a_body_of_128_kib_is_accepted_and_a_longer_one_closes_the_connection() {
    let server = TestServer::start();
    let mut wire = server.counter();
    assert_eq!(wire.ask(NOOP, &vec![7; 128 * 1024]).status, OK);
    // Earlier requests are answered first.
    let mut bytes = frame(NOOP, *b"last", &[]);
    bytes.extend_from_slice(&[0x90, NOOP, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0]);
    wire.send(&bytes);
    assert_eq!(wire.answer().opaque, *b"last");
    assert!(wire.is_closed());
    assert_eq!(server.counter().stat("bad_input"), 1);
}

#[test]
fn a_wrong_magic_is_answered_once_after_earlier_requests_and_closes_the_connection() {
    let server = TestServer::start();
    let mut wire = server.counter();
    let mut bytes = frame(NOOP, *b"good", &[]);
    bytes.extend_from_slice(&[0x80, GET, 0, 0, 0, 0, 0, 4, b'b', b'a', b'd', b'!']);
    bytes.extend(frame(NOOP, *b"late", &[]));
    bytes.extend(vec![0x55; 100_000]);
    wire.send(&bytes);
    assert_eq!(wire.answer().opaque, *b"good");
    let answer = wire.answer();
    assert_eq!((answer.opcode, answer.status, answer.opaque), (GET, INVALID, *b"bad!"));
    assert_eq!(answer.body, b"Invalid arguments");
    assert!(wire.is_closed());
    assert_eq!(server.counter().stat("bad_input"), 1);
}

#[test]
fn a_started_frame_must_be_completed_in_time() {
    let server = TestServer::start_with(|config| config.frame_timeout_s = 1);
    let mut wire = server.counter();
    let request = frame(NOOP, *b"slow", &[]);
    wire.send(&request[..11]);
    assert!(wire.is_closed(), "half a frame keeps a connection no longer than the limit");
    assert_eq!(server.counter().stat("frame_timeouts"), 1);
}

#[tokio::test(start_paused = true)]
async fn trickling_bytes_do_not_extend_the_time_for_a_frame() {
    let server = NearServer::start();
    let mut peer = server.connect(4096);
    let request = frame(NOOP, *b"slow", &[7; 100]);
    let mut sent = 0;
    while sent < request.len() && peer.write_all(&request[sent..=sent]).await.is_ok() {
        sent += 1;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!((10..=11).contains(&sent), "a frame may take 10 s, and its connection was open for {sent} s");
}

#[tokio::test(start_paused = true)]
async fn the_frame_timer_restarts_with_each_frame() {
    let server = NearServer::start();
    let mut peer = server.connect(4096);
    let request = frame(NOOP, *b"slow", &[]);
    // Each write completes one frame and starts the next: altogether longer than the 10 s that one frame may take.
    peer.write_all(&request[..6]).await.unwrap();
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(9)).await;
        peer.write_all(&[&request[6..], &request[..6]].concat()).await.unwrap();
        let mut answer = [0; 12];
        peer.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer[8..], *b"slow");
    }
}

#[tokio::test(start_paused = true)]
async fn unsent_answers_do_not_pause_the_frame_timer_while_requests_are_read() {
    let server = NearServer::start();
    let mut peer = server.connect(4096);
    // The peer reads none of these answers of 12 KB: more than the connection buffers, less than stops reading.
    peer.write_all(&frame(NOOP, *b"many", &[]).repeat(1000)).await.unwrap();
    peer.write_all(&frame(NOOP, *b"half", &[])[..6]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(11)).await;
    let error = peer.write_all(&[0]).await.expect_err("half a frame keeps a connection for 10 s");
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
}

#[tokio::test(start_paused = true)]
async fn the_frame_timer_is_paused_while_nothing_is_read() {
    const KEPT: usize = 1 << 20;
    let server = NearServer::start();
    let mut peer = server.connect(KEPT);
    // Answers that fill the buffers of the connection, and enough more to stop reading, with half a frame read.
    let frames = (KEPT + 64 * 1024) / 12 + 1;
    let request = frame(NOOP, *b"half", &[]);
    peer.write_all(&[&frame(NOOP, *b"many", &[]).repeat(frames), &request[..6]].concat()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    peer.read_exact(&mut vec![0; frames * 12]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    peer.write_all(&request[6..]).await.unwrap();
    let mut answer = [0; 12];
    peer.read_exact(&mut answer).await.expect("the rest arrives within 5 s after reading resumed");
    assert_eq!(answer[8..], *b"half");
}

#[tokio::test(start_paused = true)]
async fn other_connections_are_served_between_extended_requests_of_one_read() {
    const MORE: usize = 10;
    let server = NearServer::start();
    let mut peer = server.connect(1 << 16);
    let mut request = Vec::new();
    Extended::KeepAlive.compose(Opaque(*b"many"), &mut request);
    let mut answers = [0; 1 << 12];
    peer.write_all(&request).await.unwrap();
    let bytes = peer.read(&mut answers).await.unwrap();
    peer.write_all(&request.repeat(LEDGER_REQUESTS + MORE)).await.unwrap();
    // This test is one of the other tasks: it finds what was answered in the first turn of the connection.
    assert_eq!(peer.read(&mut answers).await.unwrap(), LEDGER_REQUESTS * bytes);
    peer.read_exact(&mut answers[..MORE * bytes]).await.expect("the rest is answered in the next turn");
}
