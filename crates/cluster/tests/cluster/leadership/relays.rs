//! The relays of a node of a history, and what a node that leads knows of those of others.
//!
//! Connections are opened at random to each leader that the node knows. They close as the tasks and the guard of a real node
//! close them: a while after the node has learned that their term is over, or that its deadline has passed; at once when the
//! process ends; not while the node is frozen.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use signalbox_cluster::leadership::{Machine, Term};
use signalbox_cluster::members::{Members, OldRelays, Reading, RelayWait};
use signalbox_cluster::relays::{Relay, Relays};
use signalbox_cluster::timing::BootTime;
use signalbox_cluster::timing::Fence;

use super::{node, timing};

/// The maximum number of connections of a node.
const OPEN_MAX: usize = 3;

/// The relays of one run of a node.
pub struct NodeRelays {
    relays: Relays,
    /// The time on the clock of the machine, in nanoseconds.
    clock: Arc<AtomicU64>,
    /// The connections, with the epochs of their leaders.
    open: Vec<(Relay, u32)>,
    needs_poll: Arc<AtomicBool>,
    members: Members,
    /// The term in which this run leads, and its wait for the relays of others.
    term: Option<(Term, RelayWait)>,
    /// Whether it answers clients: it no longer waits for the relays of others.
    pub answers: bool,
}

impl NodeRelays {
    pub fn new() -> Self {
        let clock = Arc::new(AtomicU64::new(0));
        let shown = Arc::clone(&clock);
        let relays =
            Relays::new(Fence::new(move || BootTime(Duration::from_nanos(shown.load(Ordering::Relaxed)))));
        let needs_poll = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&needs_poll);
        relays.on_poll_needed(move || set.store(true, Ordering::Relaxed));
        Self {
            relays,
            clock,
            open: Vec::new(),
            needs_poll,
            members: Members::default(),
            term: None,
            answers: false,
        }
    }

    pub fn set_clock(&self, local: BootTime) {
        self.clock.store(u64::try_from(local.0.as_nanos()).unwrap(), Ordering::Relaxed);
    }

    /// Prepares the machine for its next step, as the daemon does.
    pub fn before_step(&self, machine: &mut Machine, local: BootTime) {
        if self.needs_poll.swap(false, Ordering::Relaxed) {
            machine.poll_now(local);
        }
        machine.set_relay_report(self.relays.report());
    }

    /// Applies what the machine has learned, as the daemon does.
    pub fn apply(&self, machine: &Machine) {
        self.relays.apply(machine.relay_target());
    }

    /// Opens a connection, if there is a leader to which it can be opened.
    pub fn open(&mut self) -> bool {
        let Some(term) = self.relays.leader() else { return false };
        let opened = self.relays.open(&term).filter(|relay| relay.may_forward());
        let Some(relay) = opened.filter(|_| self.open.len() < OPEN_MAX) else { return false };
        self.open.push((relay, term.epoch()));
        true
    }

    /// Closes one connection, as its client does.
    pub fn close_one(&mut self) {
        self.open.pop();
    }

    /// Closes all connections, as a node does before it leads or leaves.
    pub fn close_all(&mut self) {
        self.open.clear();
    }

    /// Closes the connections whose term is over or whose deadline has passed. Returns whether there were any.
    pub fn close_what_is_over(&mut self) -> bool {
        self.relays.close_overdue();
        let before = self.open.len();
        self.open.retain(|(relay, _)| relay.may_forward());
        self.open.len() < before
    }

    /// Whether other nodes wait for the next heartbeat.
    pub fn needs_poll(&self) -> bool {
        self.needs_poll.load(Ordering::Relaxed)
    }

    /// Whether it has a connection to a leader of an epoch before this one.
    pub fn is_open_below(&self, epoch: u32) -> bool {
        self.open.iter().any(|(_, of)| *of < epoch)
    }

    /// Whether it would forward something to or from a leader of an epoch before this one.
    pub fn forwards_below(&self, epoch: u32) -> bool {
        self.open.iter().any(|(relay, of)| *of < epoch && relay.may_forward())
    }

    /// Lets the run lead: it closes its own relays, then waits for the relays of others.
    pub fn lead(&mut self, term: Term, run: u32, local: BootTime) {
        self.close_all();
        let incarnation = node(run).incarnation;
        self.term = Some((term, RelayWait::new(term, incarnation, timing().lease_duration(), local)));
    }

    /// Applies a reading of the other nodes. Returns whether the leader has just stopped waiting for them.
    pub fn observe(&mut self, reading: Reading, local: BootTime) -> bool {
        self.members.update(reading, local);
        let Some((_, wait)) = self.term.as_mut().filter(|_| !self.answers) else { return false };
        self.answers = match wait.check(&self.members, local) {
            OldRelays::Open => false,
            // A node whose heartbeats are stored and whose answers are lost seems faulty: it has closed its relays at its deadline.
            OldRelays::Closed | OldRelays::Faulty(_) => true,
        };
        self.answers
    }

    /// The epoch in which it leads.
    pub fn epoch(&self) -> Option<u32> {
        self.term.as_ref().map(|(term, _)| term.epoch)
    }

    /// Whether it leads, and waits for the relays of others.
    pub fn waits(&self) -> bool {
        self.term.is_some() && !self.answers
    }
}
