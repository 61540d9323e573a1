//! Durable sets: programs continue when the server is restarted.

use signalbox_storage::Memory;

use crate::relay::Relay;
use crate::stepper::Stepper;
use crate::support::failing::{Fault, Faults};
use crate::support::{DURABLE_KEYS, TestServer};
use crate::until;

const KEY: i32 = *DURABLE_KEYS.start() as i32;

/// A server that is replaced by another one on the same store.
struct Durable {
    memory: Memory,
    faults: Faults,
    server: Option<TestServer>,
    relay: Relay,
}

impl Durable {
    fn start() -> Self {
        let (memory, faults) = (Memory::default(), Faults::default());
        let server = TestServer::start_with(&memory, faults.clone());
        let relay = Relay::to(server.address);
        Self { memory, faults, server: Some(server), relay }
    }

    /// A program, which reaches each of the servers.
    fn program(&self) -> Stepper {
        Stepper::start(self.relay.address)
    }

    /// Ends the server without any notice, and starts the next one.
    fn crash(&mut self) {
        self.relay.reset(None);
        drop(self.server.take());
        let next = TestServer::start_with(&self.memory, self.faults.clone());
        self.relay.reset(Some(next.address));
        self.server = Some(next);
    }
}

#[test]
fn holders_and_waiting_calls_survive_a_crash_of_the_server() {
    let mut world = Durable::start();
    let (mut holder, mut waiter, mut observer) = (world.program(), world.program(), world.program());
    let set = holder.set(KEY, "1,7");
    assert_eq!(holder.ask(format!("op {set} - 0,-1,SEM_UNDO")), "= 0");
    waiter.send(format!("op {set} - 0,-1,SEM_UNDO"));
    until("the call waits", || observer.ask(format!("ctl {set} 0 GETNCNT")) == "= 1");
    for _ in 0..3 {
        world.crash();
        // Each of them connects again by itself.
        until("the call waits again", || observer.ask(format!("ctl {set} 0 GETNCNT")) == "= 1");
        assert_eq!(observer.values(&set), "= 0,7");
    }
    assert_eq!(holder.ask(format!("op {set} - 0,1,SEM_UNDO 1,-2,0")), "= 0");
    assert_eq!(waiter.answer(), "= 0");
    world.crash();
    assert_eq!(observer.values(&set), "= 0,5");
    // The adjustment of the waiter survived as well.
    assert_eq!(waiter.ask(format!("ctl {set} 1 SETVAL 6")), "= 0");
    waiter.kill();
    until("the unit is free", || observer.values(&set) == "= 1,6");
}

#[test]
fn sets_of_other_keys_do_not_survive() {
    let mut world = Durable::start();
    let (mut a, mut observer) = (world.program(), world.program());
    let (durable, volatile) = (a.set(KEY, "1"), a.set(7, "1"));
    assert_eq!(a.ask(format!("op {durable} - 0,-1,SEM_UNDO")), "= 0");
    assert_eq!(a.ask(format!("op {volatile} - 0,-1,SEM_UNDO")), "= 0");
    a.send(format!("op {volatile} - 0,-1,SEM_UNDO"));
    until("the call waits", || observer.ask(format!("ctl {volatile} 0 GETNCNT")) == "= 1");
    world.crash();
    assert_eq!(a.answer(), "! EIDRM", "the process lives on, and its other set is gone");
    assert_eq!(observer.values(&durable), "= 0");
    assert_eq!(observer.ask(format!("ctl {volatile} 0 GETVAL")), "! EINVAL");
}

#[test]
fn a_store_that_fails_fails_calls_and_loses_none_that_were_performed() {
    let mut world = Durable::start();
    let (mut a, mut b, mut observer) = (world.program(), world.program(), world.program());
    let (set, other) = (a.set(KEY, "2"), observer.set(7, "1"));
    world.faults.fail_all(Fault::Full);
    let commits = world.faults.commits();
    a.send(format!("op {set} - 0,-1,SEM_UNDO"));
    // The call is performed, and not answered. When the store is tried again, the failure is known.
    until("another attempt", || world.faults.commits() >= commits + 2);
    assert!(a.is_silent());
    assert_eq!(b.ask(format!("op {set} - 0,-1,IPC_NOWAIT|SEM_UNDO")), "! EIO");
    assert_eq!(observer.ask(format!("ctl {set} 0 GETVAL")), "! EIO");
    assert_eq!(observer.ask(format!("op {other} - 0,-1,0")), "= 0", "other sets are not affected");
    world.faults.stop();
    assert_eq!(a.answer(), "= 0");
    until("the store works", || observer.ask(format!("ctl {set} 0 GETVAL")) == "= 1");
    world.crash();
    assert_eq!(observer.ask(format!("ctl {set} 0 GETVAL")), "= 1");
}
