//! Three nodes of a cluster and the product's own clients, on a simulated network and an etcd in memory, while faults happen.
//!
//! A seed determines everything: the clocks of the nodes, which differ by up to 8 % in rate; how long requests to etcd take
//! and which get lost or arrive seconds late; which node is killed, shut down, frozen or cut off from etcd, from
//! clients or from another node, also in one direction, which one an operator drains, and when; and what the clients
//! request. The nodes run the product's own leadership, relays, chain of commits and server, and the operator
//! the product's own command. Clients connect to any node.
//!
//! After every step at most one node may answer clients; no node sends anything under an epoch that is over; every permit that a
//! client believes in is stored, known to the node that serves, and within the capacity. When a leader answers, no running node
//! has a connection to an earlier leader or forwards its output, and no two programs without leases hold the same name at
//! once. A revocation that was acknowledged takes effect, and not before its grace period ends. Then the faults stop, a node
//! serves, every client gets what it requests, and when all have left, only declarations are stored. `docs/reliability.md` has
//! the details.
//!
//! `SIGNALBOX_SEEDS=10000 cargo test --test simulation cluster::` sets the number of seeds, and `SIGNALBOX_SEED=7` sets
//! the first one. A failure prints the seed and the command that replays it.

mod applications;
mod beliefs;
mod blocking;
mod clock;
mod drains;
mod etcd;
mod faults;
mod node;
mod plain;
mod process;
mod queues;
mod revocations;
mod socket;
mod transport;
mod world;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use signalbox_core::Record;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::sleep;
use turmoil::Sim;

use crate::network::{self, STEP, machine_name};
use crate::random::Random;
use crate::scene::Phase;
use crate::seeds;
use crate::tasks::{Counted, spawn};
use applications::{Application, Workload};
use beliefs::Resource;
use drains::Totals;
use faults::{Aims, Faults};
use plain::Program;
use world::{NODES, World, node_name};

/// How long a command of the operator may take: the time that it waits for the node and for the next leader, and its calls.
const DRAIN_MS_MAX: u64 = 60_000;

/// How long holders and waiters may take to end after a node serves again.
const END_MS_MAX: u64 = 90_000;

/// How long a session may live after its client lost power, even if another node takes over in between.
const FORGOTTEN_MS_MAX: u64 = 40_000;

/// Without faults, every client gets what it requests within this time.
const ASK_MS_MAX: u64 = 15_000;

/// How long sessions may stay in the store after their clients have left.
const LEAVE_MS_MAX: u64 = 60_000;

/// Takeovers in all seeds that have ended, requests that kept their places over one, connections that were relayed, and grants
/// without leases.
static TAKEOVERS: AtomicU64 = AtomicU64::new(0);
static KEPT_PLACES: AtomicU64 = AtomicU64::new(0);
static RELAYED: AtomicU64 = AtomicU64::new(0);
static PLAIN_GRANTS: AtomicU64 = AtomicU64::new(0);

/// Revocations that were acknowledged, those that told a holder, and those whose grace period ran when a node took over.
static REVOKED: AtomicU64 = AtomicU64::new(0);
static TOLD: AtomicU64 = AtomicU64::new(0);
static RESTORED: AtomicU64 = AtomicU64::new(0);

/// The outcomes of the drains in all seeds.
static DRAINS: Totals = Totals::new();

/// Programs without leases on each machine of clients.
const PROGRAMS: usize = 2;

/// The users of the cluster, and how long they use it.
struct Users {
    clients: usize,
    /// The machines on which they run.
    machines: usize,
    work_ms: u64,
    latency_ms_max: u64,
    workload: Workload,
    resources: Vec<Resource>,
    renew_deadline: Duration,
}

impl Users {
    fn of(random: &mut Random) -> Self {
        let clients = random.between(2, 6) as usize;
        let machines = random.between(1, (clients as u64).min(3)) as usize;
        let work_ms = random.between(15_000, 60_000);
        let latency_ms_max = random.between(2, 50);
        let workload = Workload::of(random);
        let resources = resources(random.between(1, 3), random);
        let renew_deadline = Duration::from_secs(random.weighted(&[(2, 1), (3, 3), (5, 1)]));
        Self { clients, machines, work_ms, latency_ms_max, workload, resources, renew_deadline }
    }
}

fn resources(count: u64, random: &mut Random) -> Vec<Resource> {
    let resource = |number| Resource {
        name: format!("resource {number}").into_bytes(),
        capacity: random.between_u32(1, 3),
    };
    (1..=count).map(resource).collect()
}

struct Simulation<'a> {
    world: Arc<World>,
    sim: Sim<'a>,
    faults: Faults,
    clients: usize,
    work_ms: u64,
    /// The tasks that use a client, and the clients that exist.
    tasks: Arc<AtomicUsize>,
    present: Arc<AtomicUsize>,
}

impl Simulation<'_> {
    fn new(seed: u64, users: Users, aims: Aims, mut random: Random) -> Self {
        let Users { clients, machines, work_ms, latency_ms_max, workload, resources, renew_deadline } = users;
        let world = World::new(seed, machines, resources, renew_deadline, &mut random);
        let mut sim = network::simulation(seed, latency_ms_max);
        for node in 0..NODES {
            let world = Arc::clone(&world);
            sim.host(node_name(node), move || node::run(Arc::clone(&world), node));
        }
        let (tasks, present) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for machine in 0..machines {
            let (world, tasks, present) = (Arc::clone(&world), Arc::clone(&tasks), Arc::clone(&present));
            let starts = AtomicU64::new(0);
            sim.host(machine_name(machine), move || {
                let start = starts.fetch_add(1, Ordering::Relaxed) + 1;
                for client in (machine..clients).step_by(machines) {
                    let random = Random::of(seed, (start << 32) + 2 + client as u64);
                    let application = Application { world: Arc::clone(&world), client, workload };
                    tokio::task::spawn_local(live(
                        application,
                        random,
                        Arc::clone(&tasks),
                        Arc::clone(&present),
                    ));
                }
                for program in 0..PROGRAMS {
                    let number = machine * PROGRAMS + program;
                    let random = Random::of(seed, (start << 32) + 1000 + number as u64);
                    let program = Program { world: Arc::clone(&world), number, random };
                    tokio::task::spawn_local(program.run());
                }
                std::future::pending()
            });
        }
        let (commands, requests) = unbounded_channel();
        let (of_operator, requests) = (Arc::clone(&world), Cell::new(Some(requests)));
        sim.host("operator", move || {
            let requests = requests.take().expect("this machine starts once");
            drains::run(Arc::clone(&of_operator), requests)
        });
        let faults = Faults::new(Arc::clone(&world), Random::of(seed, 1), aims, commands);
        Self { world, sim, faults, clients, work_ms, tasks, present }
    }

    /// Runs to the end. Returns the hash of the trace, or a description of the failure.
    fn run(mut self) -> Result<u64, String> {
        while self.now_ms() < self.work_ms {
            self.faults.before_step(&mut self.sim);
            self.step()?;
        }
        self.faults.stop(&mut self.sim);
        self.settle()?;
        self.wait(LEAVE_MS_MAX, |simulation| {
            let is_kept = |record: &Record| {
                matches!(record, Record::Mark(_) | Record::PlaceKey(_) | Record::Declaration(_))
            };
            let mut records = simulation.world.etcd.records();
            records.retain(|record| !is_kept(record));
            if records.is_empty() { Ok(()) } else { Err(format!("still stored: {records:?}")) }
        })?;
        TAKEOVERS.fetch_add(self.world.takeovers(), Ordering::Relaxed);
        KEPT_PLACES.fetch_add(self.world.queues.kept(), Ordering::Relaxed);
        RELAYED.fetch_add(self.world.relays(), Ordering::Relaxed);
        PLAIN_GRANTS.fetch_add(self.world.plain.grants(), Ordering::Relaxed);
        let (revoked, told, restored) = self.world.revocations.counts();
        REVOKED.fetch_add(revoked, Ordering::Relaxed);
        TOLD.fetch_add(told, Ordering::Relaxed);
        RESTORED.fetch_add(restored, Ordering::Relaxed);
        DRAINS.add(self.world.drains.counts());
        let trace = self.world.scene.state().trace();
        Ok(trace)
    }

    /// Checks that, once the faults have stopped, a node serves and all clients get what they request.
    fn settle(&mut self) -> Result<(), String> {
        self.wait(DRAIN_MS_MAX, |simulation| {
            let is_running = simulation.world.drains.is_running();
            (!is_running).then_some(()).ok_or_else(|| "the operator still waits".to_owned())
        })?;
        self.wait(self.serve_ms_max(), |simulation| {
            simulation.serves().then_some(()).ok_or_else(|| "no node serves".to_owned())
        })?;
        self.world.scene.enter(Phase::Rest);
        self.wait(END_MS_MAX, |simulation| match simulation.tasks.load(Ordering::Relaxed) {
            0 => Ok(()),
            left => Err(format!("{left} tasks still wait")),
        })?;
        // The clients still exist and renew their leases, so anything that is held now is leaked. Waiters of clients that have
        // lost power may still be granted something.
        self.wait(FORGOTTEN_MS_MAX, |simulation| {
            let leader = simulation.world.leader();
            let server = leader.and_then(|leader| leader.server()).ok_or("no node serves")?;
            let ledger = server.core().ledger_stats();
            let is_free = (ledger.grants, ledger.waiters) == (0, 0);
            is_free
                .then_some(())
                .ok_or_else(|| format!("grants or waiters without a permit or a request: {ledger:?}"))
        })?;
        self.world.scene.enter(Phase::Ask);
        self.wait(ASK_MS_MAX, |simulation| {
            let state = simulation.world.scene.state();
            let all: BTreeSet<_> = (0..simulation.clients).collect();
            let left: Vec<_> = all.difference(&state.satisfied).collect();
            let is_over = left.is_empty() && simulation.present.load(Ordering::Relaxed) == 0;
            is_over.then_some(()).ok_or_else(|| format!("clients without what they requested: {left:?}"))
        })
    }

    /// Whether a node serves.
    fn serves(&self) -> bool {
        self.world.leader().is_some_and(|leader| leader.server().is_some())
    }

    /// How long the cluster may have no serving node after the faults have stopped: the leases of a node's previous run and of
    /// the previous leader may have to end first.
    fn serve_ms_max(&self) -> u64 {
        let lease_ms = self.world.timing.lease_duration().as_millis() as u64;
        2 * lease_ms + self.world.load_ms_max + self.world.restart_ms + 3000
    }

    fn now_ms(&self) -> u64 {
        self.world.scene.state().now_ms
    }

    fn step(&mut self) -> Result<(), String> {
        self.world.etcd.before_step();
        let stepped = self.sim.step();
        self.world.scene.state().now_ms = self.sim.elapsed().as_millis() as u64;
        stepped.map_err(|error| self.world.scene.with_events(format!("a host ended: {error}")))?;
        self.world.check();
        let failure = self.world.scene.state().failure();
        failure.map_or(Ok(()), Err)
    }

    /// Steps without new faults until the condition holds.
    fn wait(&mut self, ms_max: u64, ready: impl Fn(&Self) -> Result<(), String>) -> Result<(), String> {
        let deadline_ms = self.now_ms() + ms_max;
        while let Err(what) = ready(self) {
            if self.now_ms() > deadline_ms {
                return Err(self
                    .world
                    .scene
                    .with_events(format!("after {ms_max} ms without faults: {what}")));
            }
            self.faults.restart(&mut self.sim);
            self.step()?;
        }
        Ok(())
    }
}

/// A program from its start to its end.
async fn live(
    application: Application,
    mut random: Random,
    tasks: Arc<AtomicUsize>,
    present: Arc<AtomicUsize>,
) {
    let _present = Counted::new(&present);
    let client = application.client(&mut random);
    if application.client == 0 {
        spawn(application.clone().declare(client.clone()), &tasks);
    }
    for task in 0..random.between(1, 3) {
        let random = Random::of(random.next(), task);
        spawn(application.clone().run(client.clone(), task, random), &tasks);
    }
    while application.world.scene.phase() != Phase::Ask {
        sleep(STEP).await;
    }
    application.ask(&client, &mut random).await;
    if random.percent(50) {
        client.close().await;
    }
}

fn run(seed: u64) -> Result<u64, String> {
    run_with(seed, Aims::Everything)
}

fn run_with(seed: u64, aims: Aims) -> Result<u64, String> {
    let mut random = Random::of(seed, 0);
    let users = Users::of(&mut random);
    Simulation::new(seed, users, aims, random).run()
}

#[test]
fn under_faults_one_node_serves_and_what_it_told_clients_is_kept() {
    seeds::run_all(30, "cluster::under_faults", run);
    let counts = [&TAKEOVERS, &KEPT_PLACES, &RELAYED, &PLAIN_GRANTS, &REVOKED, &TOLD, &RESTORED];
    let [takeovers, places, relayed, grants, revoked, told, restored] =
        counts.map(|count| count.load(Ordering::Relaxed));
    println!(
        "{takeovers} takeovers, {places} kept places, {relayed} relayed connections, {grants} grants without leases, {revoked} revocations, {told} holders that were told, {restored} grace periods that continued at another node"
    );
    println!("{}", DRAINS.get());
}

/// Partitions, freezes and kills follow soon after a drain, and hit the leader, its successor or a connection of the two.
#[test]
fn drains_with_partitions_lose_nothing() {
    seeds::run_all(20, "cluster::drains_with", |seed| run_with(seed, Aims::Drains));
    println!("{}", DRAINS.get());
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    seeds::assert_same_traces(run);
}
