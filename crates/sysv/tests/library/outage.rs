//! Lost connections and servers.

use std::process::Stdio;
use std::time::Duration;

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
    let said = a.end();
    assert_eq!(said.lines().count(), 1, "reported once: {said}");
    assert!(said.contains("cannot be reached") && said.contains(&relay.address.to_string()), "{said}");
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
