//! Lost connections and servers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use signalbox_model::sysv::{OpenedProcess, ProcessId, SetAnswer, SetId};
use signalbox_model::{Milliseconds, SessionKey, Status};
use signalbox_protocol::{
    Frame, RequestCodec, ResponseFrame, SysvOpcode, SysvRequest, compose_call, compose_opened_process,
};

use crate::relay::Relay;
use crate::stepper::{STEPPER, Stepper, preloaded};
use crate::support::TestServer;
use crate::until;

#[test]
fn a_waiting_call_survives_a_lost_connection() {
    let server = TestServer::start();
    let relay = Relay::to(server.address);
    let (mut a, mut observer) = (Stepper::start(relay.address), Stepper::start(server.address));
    let set = a.set(7, "0,5");
    assert_eq!(a.ask(format!("op {set} - 1,-1,SEM_UNDO")), "= 0");
    for _ in 0..3 {
        a.send(format!("op {set} - 0,-1,0"));
        until("a waits", || observer.ask(format!("ctl {set} 0 GETNCNT")) == "= 1");
        relay.reset(Some(server.address));
        assert_eq!(observer.ask(format!("op {set} - 0,1,0")), "= 0");
        assert_eq!(a.answer(), "= 0");
        assert_eq!(observer.values(&set), "= 0,4", "performed once, and nothing undone");
    }
    relay.reset(Some(server.address));
    assert_eq!(a.ask(format!("op {set} - 1,1,SEM_UNDO")), "= 0");
    assert_eq!(observer.values(&set), "= 0,5");
}

#[test]
fn a_call_that_waits_survives_one_outage_after_the_other() {
    const TIMEOUT: Duration = Duration::from_millis(500);
    let server = TestServer::start();
    let relay = Relay::to(server.address);
    let mut observer = Stepper::start(server.address);
    let mut command = preloaded(STEPPER, relay.address);
    let mut a = Stepper::spawn(command.env("SIGNALBOX_SYSV_TIMEOUT", "500ms"));
    let set = a.set(7, "0");
    a.send(format!("op {set} - 0,-1,0"));
    for _ in 0..3 {
        until("a waits", || observer.ask(format!("ctl {set} 0 GETNCNT")) == "= 1");
        // Outages within the time limit of each other may be one.
        std::thread::sleep(2 * TIMEOUT);
        relay.reset(Some(server.address));
    }
    assert_eq!(observer.ask(format!("op {set} - 0,1,0")), "= 0");
    assert_eq!(a.answer(), "= 0");
}

#[test]
fn a_signal_ends_a_call_that_waits_at_a_silent_server() {
    let server = TestServer::start();
    let relay = Relay::to(server.address);
    let mut command = preloaded(STEPPER, relay.address);
    let mut a = Stepper::spawn(command.env("SIGNALBOX_SYSV_TIMEOUT", "500ms"));
    let mut observer = Stepper::start(server.address);
    let set = a.set(7, "0");
    assert_eq!(a.ask("catch"), "= 0");
    a.send(format!("op {set} - 0,-1,0"));
    until("a waits", || observer.ask(format!("ctl {set} 0 GETNCNT")) == "= 1");
    relay.freeze();
    a.signal(libc::SIGUSR1);
    let answer = a.answer();
    assert!(answer.starts_with("! "), "{answer}");
}

#[test]
fn a_signal_during_an_outage_cancels_the_call_afterwards() {
    let server = TestServer::start();
    let relay = Relay::to(server.address);
    let (mut a, mut observer) = (Stepper::start(relay.address), Stepper::start(server.address));
    let set = a.set(7, "0");
    assert_eq!(a.ask("catch"), "= 0");
    a.send(format!("op {set} - 0,-1,0"));
    until("a waits", || observer.ask(format!("ctl {set} 0 GETNCNT")) == "= 1");
    relay.reset(None);
    a.signal(libc::SIGUSR1);
    relay.reset(Some(server.address));
    assert_eq!(a.answer(), "! EINTR");
    assert_eq!(observer.ask(format!("ctl {set} 0 GETNCNT")), "= 0");
}

#[test]
fn a_waiting_call_fails_with_eidrm_if_the_server_was_restarted() {
    let first = TestServer::start();
    let relay = Relay::to(first.address);
    let (mut a, mut observer) = (Stepper::start(relay.address), Stepper::start(first.address));
    let set = a.set(7, "0");
    a.send(format!("op {set} - 0,-1,0"));
    until("a waits", || observer.ask(format!("ctl {set} 0 GETNCNT")) == "= 1");
    let second = TestServer::start();
    relay.reset(Some(second.address));
    assert_eq!(a.answer(), "! EIDRM");
    let set = a.set(7, "2");
    assert_eq!(a.ask(format!("op {set} - 0,-1,SEM_UNDO")), "= 0", "the next call opens a new process");
}

#[test]
fn a_process_without_adjustments_does_not_notice_a_restart_between_its_calls() {
    let first = TestServer::start();
    let relay = Relay::to(first.address);
    let mut a = Stepper::start(relay.address);
    a.set(7, "0");
    let second = TestServer::start();
    relay.reset(Some(second.address));
    a.set(7, "1");
}

#[test]
fn without_a_server_calls_fail_after_the_time_limit() {
    let server = TestServer::start();
    let relay = Relay::to(server.address);
    let mut command = preloaded(STEPPER, relay.address);
    let mut a = Stepper::spawn(command.env("SIGNALBOX_SYSV_TIMEOUT", "300ms").stderr(Stdio::piped()));
    let set = a.set(7, "1");
    relay.reset(None);
    assert_eq!(a.ask(format!("op {set} - 0,-1,0")), "! EIDRM");
    assert_eq!(a.ask("get 7 1 0"), "! ENOMEM");
    assert_eq!(a.ask(format!("ctl {set} 0 GETVAL")), "! EIDRM");
    relay.reset(Some(server.address));
    assert_eq!(a.ask(format!("ctl {set} 0 GETVAL")), "= 1");
    relay.reset(None);
    assert_eq!(a.ask(format!("ctl {set} 0 GETVAL")), "! EIDRM");
    let said = a.end();
    assert_eq!(said.lines().count(), 2, "each outage is reported once: {said}");
    assert!(said.contains("cannot be reached") && said.contains(&relay.address.to_string()), "{said}");
}

/// As if it had waited. The server has not received it.
#[test]
fn a_call_ends_with_its_own_time_limit_in_an_outage() {
    let server = TestServer::start();
    let relay = Relay::to(server.address);
    let set = Stepper::start(server.address).set(7, "1");
    relay.reset(None);
    let mut a = Stepper::start(relay.address);
    assert_eq!(a.ask(format!("op {set} 1000000 0,-1,0")), "! EAGAIN");
    relay.reset(Some(server.address));
    assert_eq!(a.ask(format!("op {set} 1000000 0,-1,0")), "= 0");
}

/// Only `semop` may fail with EINTR.
#[test]
fn a_signal_during_an_outage_ends_no_call_that_never_waits() {
    let server = TestServer::start();
    let relay = Relay::to(server.address);
    let set = Stepper::start(server.address).set(7, "1");
    for call in [format!("ctl {set} 0 GETVAL"), "get 7 1 0".to_owned()] {
        let mut a = Stepper::start(relay.address);
        assert_eq!(a.ask("catch"), "= 0");
        relay.reset(None);
        a.send(&call);
        for _ in 0..10 {
            // Some of them come while it tries to reach the server.
            a.signal(libc::SIGUSR1);
            std::thread::sleep(Duration::from_millis(10));
        }
        relay.reset(Some(server.address));
        let answer = a.answer();
        assert!(answer.starts_with("= "), "{call}: {answer}");
    }
}

/// A server that refuses this many requests for sets, as one does that is being stopped.
fn stopping(refusals: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let left = Arc::new(AtomicUsize::new(refusals));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let left = Arc::clone(&left);
            std::thread::spawn(move || {
                let (mut codec, mut received, mut bytes) =
                    (RequestCodec::new(false), BytesMut::new(), [0; 4096]);
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    received.extend_from_slice(&bytes[..count]);
                    while let Some(mut frames) = codec.decode(&mut received).unwrap() {
                        while let Some(frame) = frames.next() {
                            let mut out = Vec::new();
                            answer_while_stopping(frame, &left, &mut out);
                            stream.write_all(&out).unwrap();
                        }
                    }
                }
            });
        }
    });
    address
}

fn answer_while_stopping(frame: Frame<'_>, left: &AtomicUsize, out: &mut Vec<u8>) {
    if let SysvRequest::OpenProcess { .. } = frame.parse_sysv().unwrap() {
        let (process, key, ttl) = (ProcessId(1), SessionKey([1; 16]), Milliseconds(60_000));
        return compose_opened_process(&OpenedProcess { process, key, ttl }, frame.opaque(), out);
    }
    if left.load(Ordering::Relaxed) > 0 {
        left.fetch_sub(1, Ordering::Relaxed);
        let (opcode, status, opaque) = (frame.opcode(), Status::ShuttingDown.code(), frame.opaque());
        return ResponseFrame { opcode, status, opaque, body: Bytes::new() }.compose(out);
    }
    compose_call(&Ok(SetAnswer::Set(SetId::FIRST, 1)), SysvOpcode::SemGet, frame.opaque(), out);
}

#[test]
fn a_call_that_a_stopping_server_refuses_is_repeated() {
    let mut a = Stepper::start(stopping(3));
    assert_eq!(a.ask("get 7 1 IPC_CREAT|0o600"), format!("= {}", SetId::FIRST.0));
}

#[test]
fn a_call_that_waits_for_long_survives_a_lost_connection_whatever_its_process_did_meanwhile() {
    let server = TestServer::start();
    let relay = Relay::to(server.address);
    let (mut a, mut observer) = (Stepper::start(relay.address), Stepper::start(server.address));
    let set = a.set(7, "0,0");
    let (mut waiter, _) = a.branch("thread");
    waiter.send(format!("op {set} - 0,-1,SEM_UNDO"));
    until("it waits", || observer.ask(format!("ctl {set} 0 GETNCNT")) == "= 1");
    for _ in 0..1200 {
        assert_eq!(a.ask(format!("op {set} - 1,1,0")), "= 0");
    }
    relay.reset(Some(server.address));
    assert_eq!(observer.ask(format!("op {set} - 0,1,0")), "= 0");
    assert_eq!(waiter.answer(), "= 0");
    assert_eq!(observer.values(&set), "= 0,1200");
}
