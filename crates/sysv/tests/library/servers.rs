//! Several addresses: those of the nodes of a cluster, of which one serves.

use std::net::TcpListener;
use std::process::Stdio;

use signalbox_storage::Memory;

use crate::relay::Relay;
use crate::stepper::{STEPPER, Stepper, preloaded};
use crate::support::failing::Faults;
use crate::support::{DURABLE_KEYS, TestServer};
use crate::until;

const KEY: i32 = *DURABLE_KEYS.start() as i32;

/// An address at which no server listens.
const REFUSED: &str = "127.0.0.1:1";

/// Two nodes on one store, of which one leads. The other one closes connections as soon as it has accepted them.
struct Nodes {
    memory: Memory,
    addresses: [Relay; 2],
    leader: usize,
    server: Option<TestServer>,
}

impl Nodes {
    fn start() -> Self {
        let memory = Memory::default();
        let server = TestServer::start_with(&memory, Faults::default());
        let addresses = [server.address; 2].map(Relay::to);
        addresses[1].reset(None);
        Self { memory, addresses, leader: 0, server: Some(server) }
    }

    fn program(&self) -> Stepper {
        Stepper::start(self.servers())
    }

    fn servers(&self) -> String {
        self.addresses.each_ref().map(|relay| relay.address.to_string()).join(",")
    }

    /// The leader ends, and the other node takes over.
    fn fail_over(&mut self) {
        self.addresses[self.leader].reset(None);
        self.take_over();
    }

    /// The leader does not end, and answers nothing more.
    fn freeze(&mut self) {
        self.addresses[self.leader].freeze();
        self.take_over();
    }

    fn take_over(&mut self) {
        drop(self.server.take());
        let next = TestServer::start_with(&self.memory, Faults::default());
        self.leader = 1 - self.leader;
        self.addresses[self.leader].reset(Some(next.address));
        self.server = Some(next);
    }
}

#[test]
fn addresses_without_a_server_are_passed_over() {
    let server = TestServer::start();
    let servers = format!("{REFUSED},no-such-host.invalid:11215,{}", server.address);
    let (mut a, mut observer) = (Stepper::start(servers), Stepper::start(server.address));
    let set = a.set(7, "1,5");
    assert_eq!(a.ask(format!("op {set} - 0,-1,SEM_UNDO")), "= 0");
    assert_eq!(observer.values(&set), "= 0,5");
    let (mut child, answer) = a.branch("fork");
    assert!(answer.starts_with("= "), "{answer}");
    assert_eq!(child.ask(format!("op {set} - 1,-1,0")), "= 0");
    a.kill();
    until("the unit is free", || observer.values(&set) == "= 1,4");
}

#[test]
fn a_server_that_accepts_connections_and_is_silent_is_passed_over() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = TestServer::start();
    let servers = format!("{},{}", silent.local_addr().unwrap(), server.address);
    let mut command = preloaded(STEPPER, servers);
    let mut a = Stepper::spawn(command.env("SIGNALBOX_SYSV_TIMEOUT", "1s"));
    let set = a.set(7, "1");
    assert_eq!(a.ask(format!("op {set} - 0,-1,SEM_UNDO")), "= 0");
}

#[test]
fn holders_and_waiting_calls_move_to_the_next_leader() {
    let mut nodes = Nodes::start();
    let (mut holder, mut waiter, mut observer) = (nodes.program(), nodes.program(), nodes.program());
    let set = holder.set(KEY, "1,7");
    assert_eq!(holder.ask(format!("op {set} - 0,-1,SEM_UNDO")), "= 0");
    waiter.send(format!("op {set} - 0,-1,SEM_UNDO"));
    until("the call waits", || observer.ask(format!("ctl {set} 0 GETNCNT")) == "= 1");
    for _ in 0..3 {
        nodes.fail_over();
        until("the call waits again", || observer.ask(format!("ctl {set} 0 GETNCNT")) == "= 1");
        assert_eq!(observer.values(&set), "= 0,7");
    }
    assert_eq!(holder.ask(format!("op {set} - 0,1,SEM_UNDO 1,-2,0")), "= 0");
    assert_eq!(waiter.answer(), "= 0");
    nodes.fail_over();
    assert_eq!(observer.values(&set), "= 0,5");
}

#[test]
fn a_program_that_ends_during_a_failover_keeps_nothing_for_longer_than_its_time_to_live() {
    let mut nodes = Nodes::start();
    let mut command = preloaded(STEPPER, nodes.servers());
    let mut holder = Stepper::spawn(command.env("SIGNALBOX_SYSV_TTL", "1s"));
    let mut observer = nodes.program();
    let set = holder.set(KEY, "1");
    assert_eq!(holder.ask(format!("op {set} - 0,-1,SEM_UNDO")), "= 0");
    nodes.addresses[nodes.leader].reset(None);
    holder.kill();
    nodes.take_over();
    until("the unit is free", || observer.values(&set) == "= 1");
}

#[test]
fn a_process_that_replaces_its_program_after_a_failover_keeps_its_adjustments() {
    let mut nodes = Nodes::start();
    let (mut a, mut observer) = (nodes.program(), nodes.program());
    let (set, pid) = (a.set(KEY, "1"), format!("= {}", a.pid()));
    assert_eq!(a.ask(format!("op {set} - 0,-1,SEM_UNDO")), "= 0");
    nodes.fail_over();
    assert_eq!(a.ask("exec execv"), pid);
    assert_eq!(observer.values(&set), "= 0");
    assert_eq!(a.ask(format!("op {set} - 0,1,SEM_UNDO")), "= 0");
    assert_eq!(a.ask(format!("op {set} - 0,-1,SEM_UNDO")), "= 0");
    a.kill();
    until("the unit is free", || observer.values(&set) == "= 1");
}

#[test]
fn a_program_that_replaces_one_whose_adjustments_are_lost_reports_it() {
    let first = TestServer::start();
    let relay = Relay::to(first.address);
    let mut a = Stepper::start(relay.address);
    let (set, pid) = (a.set(7, "1"), format!("= {}", a.pid()));
    assert_eq!(a.ask(format!("op {set} - 0,-1,SEM_UNDO")), "= 0");
    let second = TestServer::start();
    relay.reset(Some(second.address));
    assert_eq!(a.ask("exec execv"), pid);
    assert_eq!(a.ask(format!("op {set} - 0,1,SEM_UNDO")), "! EIDRM");
    a.set(7, "1");
}

#[test]
fn a_call_does_not_wait_for_ever_for_a_leader_that_is_frozen() {
    let mut nodes = Nodes::start();
    let mut command = preloaded(STEPPER, nodes.servers());
    let mut waiter = Stepper::spawn(command.env("SIGNALBOX_SYSV_TIMEOUT", "1s"));
    let mut observer = nodes.program();
    let set = waiter.set(KEY, "0");
    waiter.send(format!("op {set} - 0,-1,SEM_UNDO"));
    until("the call waits", || observer.ask(format!("ctl {set} 0 GETNCNT")) == "= 1");
    nodes.freeze();
    let mut observer = Stepper::start(nodes.addresses[nodes.leader].address);
    until("the call waits again", || observer.ask(format!("ctl {set} 0 GETNCNT")) == "= 1");
    assert_eq!(observer.ask(format!("op {set} - 0,1,0")), "= 0");
    assert_eq!(waiter.answer(), "= 0");
}

#[test]
fn if_no_address_has_a_server_calls_fail_after_the_time_limit() {
    let servers = format!("{REFUSED},no-such-host.invalid:11215");
    let mut command = preloaded(STEPPER, &servers);
    let mut a = Stepper::spawn(command.env("SIGNALBOX_SYSV_TIMEOUT", "300ms").stderr(Stdio::piped()));
    assert_eq!(a.ask("get 7 1 0"), "! ENOMEM");
    let said = a.end();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(&format!("the server \"{servers}\" cannot be reached")), "{said}");
}

#[test]
fn a_list_with_a_mistake_is_refused_as_a_whole() {
    let server = TestServer::start();
    for servers in [format!("{},,{REFUSED}", server.address), format!("{},box", server.address)] {
        let mut a = Stepper::spawn(preloaded(STEPPER, &servers).stderr(Stdio::piped()));
        assert_eq!(a.ask("get 7 1 IPC_CREAT|0o600"), "! EINVAL");
        let said = a.end();
        assert!(said.contains(&format!("SIGNALBOX_SYSV_SERVER: \"{servers}\" is not of the form")), "{said}");
    }
}
