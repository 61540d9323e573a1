//! The faults of nodes, of etcd, and between all machines. Each seed has its own weights.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use turmoil::Sim;

use super::drains::Request;
use super::etcd::{CALM, Link, Weather};
use super::process::Process;
use super::world::{NODES, World, node_name};
use crate::network::machine_name;
use crate::random::Random;

/// How long the operator waits for a node to leave, and how soon a fault follows a drain that it is to hit.
const DRAIN_MS_MAX: u64 = 20_000;
const FOLLOW_MS_MAX: u64 = 2500;

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A node's process is killed.
    Kill,
    /// A node is shut down.
    Stop,
    /// An operator drains a node, with or without a named successor. Often, another fault follows soon.
    Drain,
    /// A node's process is frozen, for up to twice the lease duration.
    Freeze,
    /// A node's machine loses power: its connections vanish silently.
    NodePowerLoss,
    /// Requests of a node to etcd get lost, or the answers, or both.
    CutFromEtcd,
    /// A node and some machines of clients do not reach each other.
    CutFromClients,
    /// Two nodes do not reach each other, or one of them does not reach the other.
    CutBetweenNodes,
    /// etcd has no leader.
    Leaderless,
    /// etcd is slow, its answers get lost, or requests arrive seconds late.
    Slow,
    LostAnswers,
    Late,
    /// etcd refuses commits.
    Refuses,
    /// A machine of clients loses power.
    ClientPowerLoss,
    /// A machine of clients reaches no node.
    ClientCut,
}

const FAULTS: [Fault; 15] = [
    Fault::Kill,
    Fault::Stop,
    Fault::Drain,
    Fault::Freeze,
    Fault::NodePowerLoss,
    Fault::CutFromEtcd,
    Fault::CutFromClients,
    Fault::CutBetweenNodes,
    Fault::Leaderless,
    Fault::Slow,
    Fault::LostAnswers,
    Fault::Late,
    Fault::Refuses,
    Fault::ClientPowerLoss,
    Fault::ClientCut,
];

/// The faults of a seed.
#[derive(Clone, Copy, Debug)]
pub enum Aims {
    /// All, with weights of its own.
    Everything,
    /// Those that hit drains.
    Drains,
}

/// The names of two machines.
type Pair = (String, String);

/// The end of a fault.
enum Repair {
    Thaw(Arc<Process>),
    Link(usize),
    Release(Vec<Pair>),
    Mend(Vec<Pair>),
    Weather,
    NodePower(usize, Vec<Pair>),
    ClientPower(usize, Vec<Pair>),
}

pub struct Faults {
    world: Arc<World>,
    random: Random,
    weights: Vec<(Fault, u64)>,
    pause_ms_max: u64,
    next_ms: u64,
    machines: usize,
    repairs: Vec<(u64, Repair)>,
    /// Pairs between which no message passes.
    cut: BTreeSet<Pair>,
    /// Nodes without power.
    dark: BTreeSet<usize>,
    /// The commands for the operator.
    commands: UnboundedSender<Request>,
}

impl Faults {
    pub fn new(
        world: Arc<World>,
        mut random: Random,
        aims: Aims,
        commands: UnboundedSender<Request>,
    ) -> Self {
        let (weights, pause_ms_max) = match aims {
            Aims::Everything => {
                let mut weights: Vec<_> = FAULTS.map(|fault| (fault, random.between(0, 3))).into();
                // So that the list is never empty.
                weights.push((Fault::Kill, 1));
                (weights, random.weighted(&[(2000, 1), (8000, 2), (20_000, 1)]))
            }
            Aims::Drains => {
                let others = [Fault::CutFromEtcd, Fault::CutBetweenNodes, Fault::Freeze, Fault::Kill];
                let others = others.map(|fault| (fault, random.between(0, 3)));
                ([(Fault::Drain, 4)].into_iter().chain(others).collect(), 8000)
            }
        };
        let next_ms = random.between(0, pause_ms_max);
        let machines = world.scene.state().machines.len();
        let (cut, dark) = Default::default();
        let repairs = Vec::new();
        Self { world, random, weights, pause_ms_max, next_ms, machines, repairs, cut, dark, commands }
    }

    /// Restarts what has ended, repairs what is due, and injects a fault when its time has come.
    pub fn before_step(&mut self, sim: &mut Sim<'_>) {
        let now_ms = self.world.scene.state().now_ms;
        self.restart(sim);
        while let Some(due) = self.repairs.iter().position(|(at_ms, _)| *at_ms <= now_ms) {
            let (_, repair) = self.repairs.swap_remove(due);
            self.repair(sim, repair);
        }
        if now_ms >= self.next_ms {
            self.next_ms = now_ms + self.random.between(1, self.pause_ms_max);
            let fault = self.random.weighted(&self.weights);
            if let Some((duration_ms, repair)) = self.inject(sim, fault) {
                self.repairs.push((now_ms + duration_ms, repair));
            }
        }
        let delays_messages =
            self.repairs.iter().any(|(_, repair)| !matches!(repair, Repair::Link(_) | Repair::Weather));
        self.world.note_disturbance(!self.repairs.is_empty(), delays_messages);
    }

    /// Restarts nodes as a service manager does; the machine itself makes the pause before that.
    pub fn restart(&self, sim: &mut Sim<'_>) {
        for node in (0..NODES).filter(|node| !self.dark.contains(node)) {
            if self.world.process(node).is_some_and(|process| process.is_over()) {
                sim.crash(node_name(node));
                self.world.remove_process(node);
                sim.bounce(node_name(node));
            }
        }
    }

    /// Most faults hit the node that leads. While a node is drained, the successor is hit as often.
    fn target(&mut self) -> Option<Arc<Process>> {
        let leader_percent = if self.world.drains.is_running() { 30 } else { 70 };
        let leader = self.world.leader().filter(|_| self.random.percent(leader_percent));
        let other = self.random.between(0, NODES as u64 - 1) as usize;
        let process = leader.or_else(|| self.world.process(other));
        process.filter(|process| !process.is_over() && !self.dark.contains(&process.node))
    }

    /// Returns the repair, and the time until then.
    fn inject(&mut self, sim: &mut Sim<'_>, fault: Fault) -> Option<(u64, Repair)> {
        let scene = Arc::clone(&self.world.scene);
        let target = self.target();
        let long_ms = 2 * self.world.timing.lease_duration().as_millis() as u64;
        let machine = self.random.between(0, self.machines as u64 - 1) as usize;
        let short_ms = self.random.between(10, long_ms);
        scene.event("fault", format_args!("{fault:?}"));
        match fault {
            Fault::Kill => target?.kill(),
            Fault::Stop => target?.stop(),
            Fault::Drain => {
                let node =
                    target.map(|process| process.node).filter(|node| self.world.drains.begin(*node))?;
                let to = self.random.between(0, NODES as u64 - 1) as usize;
                let to = self.random.percent(40).then_some(to);
                let limit_ms = self.random.weighted(&[(short_ms, 1), (DRAIN_MS_MAX, 3)]);
                if self.random.percent(60) {
                    self.next_ms = scene.state().now_ms + self.random.between(1, FOLLOW_MS_MAX);
                }
                let limit = Duration::from_millis(limit_ms);
                let request = Request { node, to: to.map(node_name), limit };
                self.commands.send(request).expect("the operator is always there");
            }
            Fault::Freeze => {
                let process = target.filter(|process| !process.is_frozen())?;
                process.freeze();
                return Some((short_ms, Repair::Thaw(process)));
            }
            Fault::CutFromEtcd => {
                let node = target?.node;
                let [loses_requests, loses_answers] =
                    self.random.weighted(&[([true, false], 1), ([false, true], 1), ([true, true], 1)]);
                self.world.etcd.set_link(node, Link { loses_requests, loses_answers });
                return Some((short_ms, Repair::Link(node)));
            }
            Fault::Leaderless => {
                let ms = self.random.between(200, 5000);
                self.world.etcd.lose_leader(ms);
            }
            Fault::Slow | Fault::LostAnswers | Fault::Late | Fault::Refuses => {
                let weather = match fault {
                    Fault::Slow => Weather { delay_ms_max: self.random.between(50, 500), ..CALM },
                    Fault::LostAnswers => Weather {
                        lost_answers_percent: self.random.between(5, 60),
                        lost_requests_percent: self.random.between(0, 30),
                        ..CALM
                    },
                    Fault::Refuses => Weather {
                        refused_percent: self.random.between(20, 100),
                        lost_answers_percent: self.random.between(0, 30),
                        ..CALM
                    },
                    _ => Weather { late_percent: self.random.between(5, 60), ..CALM },
                };
                scene.event("etcd", format_args!("{weather:?}"));
                self.world.etcd.set_weather(weather);
                return Some((short_ms, Repair::Weather));
            }
            Fault::CutFromClients => {
                let node = target?.node;
                let machines = if self.random.percent(50) { 0..self.machines } else { machine..machine + 1 };
                let pairs = machines.map(|machine| (machine_name(machine), node_name(node))).collect();
                return self.cut(sim, pairs);
            }
            Fault::ClientCut => {
                return self.cut(sim, self.links_of_clients(machine));
            }
            Fault::CutBetweenNodes => {
                let node = target?.node;
                let other = (node + self.random.between(1, NODES as u64 - 1) as usize) % NODES;
                let [mut from, mut to] = [node, other].map(node_name);
                if self.random.percent(50) {
                    std::mem::swap(&mut from, &mut to);
                }
                if self.random.percent(50) {
                    return self.cut(sim, vec![(from, to)]);
                }
                let pairs = vec![(from, to)];
                self.note_cut(&pairs)?;
                for (from, to) in &pairs {
                    sim.partition_oneway(from.as_str(), to.as_str());
                }
                return Some((self.random.between(10, 10_000), Repair::Mend(pairs)));
            }
            Fault::NodePowerLoss => {
                let repair = self.lose_power(sim, target?)?;
                return Some((short_ms, repair));
            }
            Fault::ClientPowerLoss => {
                let pairs = self.links_of_clients(machine);
                self.partition(sim, &pairs)?;
                scene.event(machine_name(machine), format_args!("loses power"));
                sim.crash(machine_name(machine));
                return Some((short_ms, Repair::ClientPower(machine, pairs)));
            }
        }
        None
    }

    /// The machine of a process loses power, unless one of its links is cut.
    fn lose_power(&mut self, sim: &mut Sim<'_>, process: Arc<Process>) -> Option<Repair> {
        let node = process.node;
        let machines = (0..self.machines).map(machine_name);
        let others = (0..NODES).filter(|other| *other != node).map(node_name);
        let pairs: Vec<_> = machines.chain(others).map(|other| (other, node_name(node))).collect();
        // The partition comes first: a machine without power closes no connections.
        self.partition(sim, &pairs)?;
        process.lose_power();
        sim.crash(node_name(node));
        self.dark.insert(node);
        Some(Repair::NodePower(node, pairs))
    }

    fn links_of_clients(&self, machine: usize) -> Vec<Pair> {
        (0..NODES).map(|node| (machine_name(machine), node_name(node))).collect()
    }

    /// Holds back or loses all messages of these pairs.
    fn cut(&mut self, sim: &Sim<'_>, pairs: Vec<Pair>) -> Option<(u64, Repair)> {
        let duration_ms = self.random.between(10, 10_000);
        if self.random.percent(50) {
            self.partition(sim, &pairs)?;
            return Some((duration_ms, Repair::Mend(pairs)));
        }
        self.note_cut(&pairs)?;
        for (one, other) in &pairs {
            sim.hold(one.as_str(), other.as_str());
        }
        Some((duration_ms, Repair::Release(pairs)))
    }

    fn partition(&mut self, sim: &Sim<'_>, pairs: &[Pair]) -> Option<()> {
        self.note_cut(pairs)?;
        for (one, other) in pairs {
            sim.partition(one.as_str(), other.as_str());
        }
        Some(())
    }

    /// Notes that these pairs are cut, unless one of them is already.
    fn note_cut(&mut self, pairs: &[Pair]) -> Option<()> {
        let is_cut = |(one, other): &Pair| {
            self.cut.contains(&(one.clone(), other.clone()))
                || self.cut.contains(&(other.clone(), one.clone()))
        };
        if pairs.iter().any(is_cut) {
            return None;
        }
        self.world.scene.event("fault", format_args!("cuts {pairs:?}"));
        self.cut.extend(pairs.iter().cloned());
        Some(())
    }

    fn mend(&mut self, sim: &Sim<'_>, pairs: &[Pair]) {
        for pair @ (one, other) in pairs {
            sim.repair(one.as_str(), other.as_str());
            self.cut.remove(pair);
        }
    }

    fn repair(&mut self, sim: &mut Sim<'_>, repair: Repair) {
        match repair {
            Repair::Thaw(process) => process.thaw(),
            Repair::Link(node) => self.world.etcd.set_link(node, Link::default()),
            Repair::Weather => self.world.etcd.set_weather(CALM),
            Repair::Mend(pairs) => self.mend(sim, &pairs),
            Repair::Release(pairs) => {
                for pair @ (one, other) in &pairs {
                    sim.release(one.as_str(), other.as_str());
                    self.cut.remove(pair);
                }
            }
            Repair::NodePower(node, pairs) => {
                self.mend(sim, &pairs);
                self.dark.remove(&node);
                self.restart(sim);
            }
            Repair::ClientPower(machine, pairs) => {
                self.mend(sim, &pairs);
                self.world.scene.event(machine_name(machine), format_args!("starts"));
                sim.bounce(machine_name(machine));
            }
        }
    }

    /// Repairs everything.
    pub fn stop(&mut self, sim: &mut Sim<'_>) {
        for (_, repair) in std::mem::take(&mut self.repairs) {
            self.repair(sim, repair);
        }
        self.world.etcd.recover();
    }
}
