//! The operator, who drains nodes with the product's own command, on a machine that reaches etcd.
//!
//! Checked when the command ends: a node that has left the cluster neither leads nor relays, and one that refuses continues to
//! serve. A command that has failed has left no request behind, if etcd has received all that it sent.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use signalbox_cluster::coordinator::Persistent;
use signalbox_cluster::drain::{Drained, drain};
use signalbox_cluster::error::AdminError;
use signalbox_cluster::keys::{Drain, Incarnation, Node, decode};
use tokio::sync::mpsc::UnboundedReceiver;

use super::blocking;
use super::clock::NodeClock;
use super::process::Process;
use super::world::{NODES, World, node_name};

/// The number of the operator's machine, after those of the nodes.
pub const OPERATOR: usize = NODES;

/// Members of etcd in the operator's configuration: each call makes some attempts for each.
const MEMBERS: usize = 3;

/// How long one of the command's calls waits for an answer, as in the program.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// A command of the operator.
#[derive(Clone, Debug)]
pub struct Request {
    pub node: usize,
    pub to: Option<String>,
    pub limit: Duration,
}

/// The running commands, and the counts of those that have ended.
#[derive(Default)]
pub struct Drains(Mutex<State>);

#[derive(Default)]
struct State {
    /// The nodes that commands drain.
    running: BTreeSet<usize>,
    counts: Counts,
}

/// The number of drains by outcome, and of handovers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub drained: u64,
    pub given_up: u64,
    pub handovers: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { drained, given_up, handovers } = self;
        write!(f, "{drained} drained nodes, {given_up} drains given up, {handovers} handovers")
    }
}

/// The counts of all seeds of a test.
pub struct Totals(Mutex<Counts>);

impl Totals {
    pub const fn new() -> Self {
        Self(Mutex::new(Counts { drained: 0, given_up: 0, handovers: 0 }))
    }

    pub fn add(&self, counts: Counts) {
        let mut totals = self.0.lock().expect("nothing panics while it adds");
        totals.drained += counts.drained;
        totals.given_up += counts.given_up;
        totals.handovers += counts.handovers;
    }

    pub fn get(&self) -> Counts {
        *self.0.lock().expect("nothing panics while it adds")
    }
}

impl Drains {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while it changes drains")
    }

    /// Notes that a command for this node begins; `false` if another one runs.
    pub fn begin(&self, node: usize) -> bool {
        self.state().running.insert(node)
    }

    pub fn is_running(&self) -> bool {
        !self.state().running.is_empty()
    }

    pub fn handed_over(&self) {
        self.state().counts.handovers += 1;
    }

    pub fn counts(&self) -> Counts {
        self.state().counts
    }
}

/// The operator's machine.
pub async fn run(world: Arc<World>, mut requests: UnboundedReceiver<Request>) -> turmoil::Result {
    let clock = NodeClock::new(Arc::clone(&world.scene), 0, Duration::ZERO);
    let process = Process::new(Arc::clone(&world), OPERATOR, 0, clock);
    while let Some(request) = requests.recv().await {
        tokio::task::spawn_local(command(Arc::clone(&process), request));
    }
    Ok(())
}

async fn command(process: Arc<Process>, request: Request) {
    let world = Arc::clone(&process.world);
    world.scene.event("operator", format_args!("{request:?}"));
    let lost_before = world.etcd.lost(OPERATOR);
    let Request { node, to, limit } = request;
    let target = world.process(node);
    let keys = world.keys.clone();
    let work = move |remote| {
        let mut etcd = Persistent::new(remote, MEMBERS);
        drain(&mut etcd, &keys, &node_name(node), to.as_deref(), limit)
    };
    let outcome = blocking::run(&process, REQUEST_TIMEOUT, work).await;
    world.scene.event("operator", format_args!("node {node}: {outcome:?}"));
    if let Some(target) = target {
        let is_received = world.etcd.lost(OPERATOR) == lost_before;
        if let Err(what) = check(&target, &outcome, is_received) {
            world.scene.fail(format!("node {node} {what}"));
        }
    }
    let mut state = world.drains.state();
    state.running.remove(&node);
    match &outcome {
        Ok(_) => state.counts.drained += 1,
        Err(_) => state.counts.given_up += 1,
    }
}

/// Checks a node after a command. `is_received` says whether etcd received all requests of the command in time.
fn check(
    target: &Process,
    outcome: &Result<Drained, AdminError>,
    is_received: bool,
) -> Result<(), &'static str> {
    let is_asked = is_asked(&target.world, target.node, &target.incarnation());
    if outcome.is_err() && is_received && is_asked {
        return Err("is still asked to leave, although the command has failed");
    }
    if target.is_over() {
        return Ok(());
    }
    let leads = target.leading().is_some();
    match outcome {
        Ok(_) if !is_member(target) && (leads || !target.sockets_to_leaders().is_empty()) => {
            Err("has left the cluster, but still leads or relays")
        }
        Err(AdminError::Refused(..)) if !(target.is_to_stop() || leads && target.server().is_some()) => {
            Err("has refused to hand over, but does not serve")
        }
        _ => Ok(()),
    }
}

/// Whether a run of a node is asked to leave, and has not refused.
fn is_asked(world: &World, node: usize, incarnation: &Incarnation) -> bool {
    let key = world.keys.drain(&node_name(node));
    let entry = world.etcd.with_store(|store| store.get(&key));
    entry.is_some_and(|entry| {
        let drain: Drain = decode(&key, &entry.value).expect("only the product writes it");
        drain.incarnation == *incarnation && drain.refused.is_none()
    })
}

/// Whether a run is part of the cluster.
fn is_member(process: &Process) -> bool {
    let key = process.world.keys.node(&node_name(process.node));
    let entry = process.world.etcd.with_store(|store| store.get(&key));
    entry.is_some_and(|entry| {
        let node: Node = decode(&key, &entry.value).expect("only nodes write it");
        node.incarnation == process.incarnation()
    })
}
