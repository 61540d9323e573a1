//! Signals during calls.

use crate::stepper::Stepper;
use crate::support::TestServer;
use crate::until;

#[test]
fn a_caught_signal_ends_a_wait_even_with_sa_restart() {
    let server = TestServer::start();
    let (mut a, mut observer) = (Stepper::start(server.address), Stepper::start(server.address));
    let set = a.set(7, "0");
    assert_eq!(a.ask("catch"), "= 0");
    a.send(format!("op {set} - 0,-1,0"));
    until("a waits", || observer.ask(format!("ctl {set} 0 GETNCNT")) == "= 1");
    a.signal(libc::SIGUSR1);
    assert_eq!(a.answer(), "! EINTR");
    assert_eq!(observer.ask(format!("ctl {set} 0 GETNCNT")), "= 0");
    assert_eq!(a.ask("caught"), "= 1 0");
    assert_eq!(a.ask(format!("op {set} - 0,1,0")), "= 0", "the connection continues");
}

#[test]
fn a_call_that_was_performed_is_never_interrupted() {
    let server = TestServer::start();
    let (mut a, mut poster) = (Stepper::start(server.address), Stepper::start(server.address));
    let set = a.set(7, "0");
    assert_eq!(a.ask("catch"), "= 0");
    let (mut performed, mut interrupted) = (0, 0);
    for _ in 0..300 {
        a.send(format!("op {set} - 0,-1,0"));
        until("a waits", || poster.ask(format!("ctl {set} 0 GETNCNT")) == "= 1");
        poster.send(format!("op {set} - 0,1,0"));
        a.signal(libc::SIGUSR1);
        let (answer, posted) = (a.answer(), poster.answer());
        assert_eq!(posted, "= 0");
        match answer.as_str() {
            "= 0" => performed += 1,
            "! EINTR" => {
                interrupted += 1;
                assert_eq!(poster.ask(format!("op {set} - 0,-1,IPC_NOWAIT")), "= 0", "nothing was taken");
            }
            other => panic!("{other}"),
        }
        assert_eq!(poster.values(&set), "= 0");
    }
    assert_eq!(performed + interrupted, 300);
}

#[test]
fn a_handler_may_call_semop_while_its_thread_waits_in_one() {
    let server = TestServer::start();
    let (mut a, mut observer) = (Stepper::start(server.address), Stepper::start(server.address));
    let set = a.set(7, "0,0");
    assert_eq!(a.ask(format!("catch-and-op {set} 1,1,SEM_UNDO")), "= 0");
    for round in 1..=3 {
        a.send(format!("op {set} - 0,-1,0"));
        until("a waits", || observer.ask(format!("ctl {set} 0 GETNCNT")) == "= 1");
        a.signal(libc::SIGUSR2);
        assert_eq!(a.answer(), "! EINTR");
        assert_eq!(observer.values(&set), format!("= 0,{round}"));
    }
    assert_eq!(a.ask("caught"), "= 3 0");
    a.kill();
    until("the handler acted for the process", || observer.values(&set) == "= 0,0");
}

#[test]
fn signals_between_calls_break_no_frame() {
    let server = TestServer::start();
    let mut a = Stepper::start(server.address);
    let set = a.set(7, "0");
    assert_eq!(a.ask("catch"), "= 0");
    for _ in 0..500 {
        a.send(format!("op {set} - {}", "0,1,0 0,-1,0 ".repeat(100)));
    }
    for _ in 0..500 {
        a.signal(libc::SIGUSR1);
        assert_eq!(a.answer(), "= 0", "an operation that does not wait is not interrupted");
    }
    assert_eq!(a.values(&set), "= 0");
}
