//! The state that the nodes, the clients, the faults and the checks share.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use signalbox::config::Config;
use signalbox::server::Server;
use signalbox_cluster::keys::Keys;
use signalbox_cluster::timing::Fence;
use signalbox_cluster::timing::Timing;

use super::beliefs::{Beliefs, Resource};
use super::clock::{DRIFT_PPM_MAX, NodeClock};
use super::drains::{Drains, OPERATOR};
use super::etcd::Etcd;
use super::plain::PlainBeliefs;
use super::process::Process;
use super::queues::Queues;
use super::revocations::{Disturbances, Revocations};
use crate::network::machine_name;
use crate::random::Random;
use crate::scene::Scene;

pub const NODES: usize = 3;

/// The host name of a node's machine.
pub fn node_name(node: usize) -> String {
    format!("node-{node}")
}

pub struct World {
    /// The time, the phase and the trace.
    pub scene: Arc<Scene>,
    pub seed: u64,
    pub keys: Keys,
    pub timing: Timing,
    /// The longest time for which a node loads records, and the time that it takes to start again.
    pub load_ms_max: u64,
    pub restart_ms: u64,
    pub etcd: Etcd,
    pub beliefs: Beliefs,
    pub queues: Queues,
    pub revocations: Revocations,
    /// What clients without leases believe.
    pub plain: PlainBeliefs,
    /// The nodes that the operator drains.
    pub drains: Drains,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The clocks of the machines, and their processes.
    nodes: Vec<(NodeClock, Option<Arc<Process>>)>,
    runs: u64,
    /// The fences of all processes, also of those that have ended.
    fences: Vec<(usize, u64, Fence)>,
    takeovers: u64,
    disturbed_ms: u64,
    /// The sockets of relays, with the epochs of the leaders that have accepted them.
    relays: BTreeMap<SocketAddr, u32>,
    /// The highest epoch whose leader answers clients: it has waited for the relays of earlier ones.
    answering: u32,
}

impl World {
    pub fn new(
        seed: u64,
        machines: usize,
        resources: Vec<Resource>,
        renew_deadline: Duration,
        random: &mut Random,
    ) -> Arc<Self> {
        let scene = Scene::new(machines, Vec::new());
        let keys = Keys::new("simulated");
        let clock = |random: &mut Random| {
            let fast_ppm = match random.between(0, 2) {
                0 => -(DRIFT_PPM_MAX as i64),
                1 => DRIFT_PPM_MAX as i64,
                _ => random.between(0, 2 * DRIFT_PPM_MAX) as i64 - DRIFT_PPM_MAX as i64,
            };
            let offset = Duration::from_millis(random.between(0, 100_000_000));
            (NodeClock::new(Arc::clone(&scene), fast_ppm, offset), None)
        };
        let nodes = (0..NODES).map(|_| clock(random)).collect();
        Arc::new(Self {
            seed,
            timing: Timing::new(renew_deadline).expect("it is within the limits"),
            load_ms_max: random.weighted(&[(0, 1), (300, 2), (1500, 1)]),
            restart_ms: random.between(100, 1000),
            etcd: Etcd::new(Arc::clone(&scene), keys.clone(), OPERATOR + 1, Random::of(seed, 3)),
            beliefs: Beliefs::new(Arc::clone(&scene), resources),
            queues: Queues::new(Arc::clone(&scene)),
            revocations: Revocations::new(Arc::clone(&scene)),
            plain: PlainBeliefs::default(),
            drains: Drains::default(),
            state: Mutex::new(State { nodes, ..State::default() }),
            keys,
            scene,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it changes the world")
    }

    pub fn config(&self) -> Config {
        let machines = self.scene.state().machines.len();
        let administrators: Vec<IpAddr> =
            (0..machines).map(|machine| turmoil::lookup(machine_name(machine))).collect();
        super::node::config(administrators)
    }

    /// Another run of a node's process, which is going to start.
    pub fn start_process(self: &Arc<Self>, node: usize) -> (Arc<Process>, Random) {
        let mut state = self.state();
        state.runs += 1;
        let (run, clock) = (state.runs, state.nodes[node].0.clone());
        drop(state);
        (Process::new(Arc::clone(self), node, run, clock), Random::of(self.seed, 1_000_000 + run))
    }

    pub fn has_started(&self, process: &Arc<Process>) {
        let mut state = self.state();
        state.fences.push((process.node, process.run, process.fence.clone()));
        state.nodes[process.node].1 = Some(Arc::clone(process));
    }

    /// The process of a node, unless it is just being started.
    pub fn process(&self, node: usize) -> Option<Arc<Process>> {
        self.state().nodes[node].1.clone()
    }

    /// Forgets the process of a node, which has ended.
    pub fn remove_process(&self, node: usize) {
        self.state().nodes[node].1 = None;
    }

    /// The process that leads, as far as etcd knows.
    pub fn leader(&self) -> Option<Arc<Process>> {
        let epoch = self.etcd.epoch();
        let processes: Vec<_> =
            self.state().nodes.iter().filter_map(|(_, process)| process.clone()).collect();
        processes.into_iter().find(|process| !process.is_over() && process.leading() == Some(epoch))
    }

    /// A node has restored the records, and is about to serve.
    pub fn has_restored(&self, process: &Process, server: &Server) {
        self.state().takeovers += 1;
        process.event(format_args!("serves: {:?}", server.core().ledger_stats()));
        self.queues.restored(process.leading().unwrap_or_default());
        let restored = self.beliefs.check_restored(server);
        if let Err(what) = restored.and_then(|()| self.revocations.check_restored(server)) {
            self.scene.fail(format!("node {}: {what}", process.node));
        }
    }

    pub fn takeovers(&self) -> u64 {
        self.state().takeovers
    }

    /// A leader has accepted a connection of a relay.
    pub fn accepted_relay(&self, relay: SocketAddr, epoch: u32) {
        self.state().relays.insert(relay, epoch);
    }

    /// How many connections of relays were accepted.
    pub fn relays(&self) -> u64 {
        self.state().relays.len() as u64
    }

    /// A leader begins to answer clients.
    pub fn answers(&self, epoch: u32) {
        let mut state = self.state();
        state.answering = state.answering.max(epoch);
    }

    /// A process has forwarded bytes between a client and a leader, which it reaches with this socket.
    pub fn check_relayed(&self, process: &Process, leader: SocketAddr) {
        let state = self.state();
        let (epoch, answering) = (state.relays.get(&leader).copied(), state.answering);
        drop(state);
        if epoch.is_some_and(|epoch| epoch < answering) {
            self.scene.fail(format!(
                "node {} relays a client to the leader of epoch {epoch:?}, while that of {answering} answers",
                process.node
            ));
        }
    }

    /// When a leader answers, no connection to an earlier one may be open at a node that runs.
    fn check_relays(&self) {
        let state = self.state();
        let processes = state.nodes.iter().filter_map(|(_, process)| process.as_ref());
        for process in processes.filter(|process| process.is_attentive()) {
            for socket in process.sockets_to_leaders() {
                let epoch = state.relays.get(&socket).copied();
                if epoch.is_some_and(|epoch| epoch < state.answering) {
                    self.scene.fail(format!(
                        "node {} has a client connected to the leader of epoch {epoch:?}, while that of {} answers",
                        process.node, state.answering
                    ));
                }
            }
        }
    }

    /// A process has sent bytes to a client.
    pub fn check_output(&self, process: &Process) {
        let (epoch, leading) = (self.etcd.epoch(), process.leading());
        if leading != Some(epoch) {
            self.scene.fail(format!(
                "node {} sends to a client as the leader of epoch {leading:?}, but the epoch is {epoch}",
                process.node
            ));
        }
    }

    /// Checks after each step that at most one node may answer clients, counting those that have died meanwhile, and that what
    /// clients believe is true.
    pub fn check(&self) {
        let mut state = self.state();
        let State { nodes, fences, .. } = &mut *state;
        let alive: Vec<_> =
            nodes.iter().filter_map(|(_, process)| process.as_ref().map(|it| it.run)).collect();
        fences.retain(|(_, run, fence)| alive.contains(run) || !fence.is_past());
        let leading: Vec<_> = fences.iter().filter(|(.., fence)| !fence.is_past()).collect();
        if let [(one, one_run, _), (other, other_run, _), ..] = &leading[..] {
            self.scene.fail(format!(
                "node {one} (run {one_run}) and node {other} (run {other_run}) may both answer clients"
            ));
        }
        let attentive: Vec<_> = nodes.iter().filter_map(|(_, process)| process.clone()).collect();
        drop(state);
        self.check_relays();
        let has = |client| attentive.iter().any(|process| process.is_attentive() && process.has(client));
        if let Err(what) = self.plain.check(has) {
            self.scene.fail(what);
        }
        let server = self.leader().and_then(|process| process.server());
        let disturbances = self.disturbances();
        let believed = self.beliefs.check(&self.etcd, server.as_deref(), &self.revocations, disturbances);
        let served = server.map_or(Ok(()), |server| {
            self.revocations.check(&server, disturbances)?;
            self.queues.check(&server, &self.beliefs.resources)
        });
        if let Err(what) = believed.and(served) {
            self.scene.fail(what);
        }
    }

    /// Whether all clients can reach a node that serves, and whether messages of clients may be held back or lost.
    pub fn note_disturbance(&self, is_disturbed: bool, delays_messages: bool) {
        if delays_messages {
            self.revocations.note_delay();
        }
        if is_disturbed || self.leader().is_none_or(|leader| leader.server().is_none() || leader.is_frozen())
        {
            self.state().disturbed_ms = self.scene.state().now_ms;
        }
    }

    fn disturbances(&self) -> Disturbances {
        let now_ms = self.scene.state().now_ms;
        Disturbances { now_ms, any_ms: self.state().disturbed_ms }
    }

    /// The last time at which a client could not reach a node that serves.
    pub fn disturbed_ms(&self) -> u64 {
        self.state().disturbed_ms
    }
}
