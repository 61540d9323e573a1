//! The product's own client against the real server shell, on a simulated network and clock, while faults happen.
//!
//! A seed determines everything: the number of clients and of the tasks that use each, what they request and when they
//! drop their futures, how fast their clocks run, and which faults happen when. After every step, all applications
//! together expect to hold no more than exists, and the server holds it for them. A disconnect shorter than a session
//! must survive loses no session, and so no place in a queue. Every answer and every loss has a cause. Then the faults
//! stop, every waiter is served, and when no application requests anything, the server holds nothing, although all
//! clients still exist. `docs/reliability.md` has the details.
//!
//! `SIGNALBOX_SEEDS=10000 cargo test --test simulation client::` sets the number of seeds, and `SIGNALBOX_SEED=7` sets
//! the first one. A failure prints the seed and the command that replays it.

mod applications;
pub mod clock;
mod directed;
pub mod drops;
pub mod expectations;
mod faults;
mod testbed;
mod wire;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::checks::{self, Checks};
use crate::disk::Disk;
use crate::network::{self, STEP, machine_name};
use crate::random::Random;
use crate::scene::{Phase, Scene, Shared};
use crate::seeds;
use crate::tasks::{Counted, spawn};
use applications::{Application, Workload};
use expectations::{ClientInfo, Expectations};
use faults::Faults;
use signalbox_client::Client;
use turmoil::Sim;

/// How long holders and waiters may take to end after the faults stop.
const END_MS_MAX: u64 = 90_000;

/// How long a session may live after its client lost power or abandoned it.
const FORGOTTEN_MS_MAX: u64 = 30_000;

/// Without faults, every client gets what it requests within this time.
const ASK_MS_MAX: u64 = 10_000;

/// How long the server may take to detect connections whose clients lost power, with some reserve.
const LEAVE_MS_MAX: u64 = 60_000;

struct Simulation<'a> {
    scene: Arc<Scene>,
    expectations: Arc<Expectations>,
    sim: Sim<'a>,
    checks: Checks,
    faults: Faults,
    clients: usize,
    work_ms: u64,
    /// The tasks that use a client, and the clients that exist.
    tasks: Arc<AtomicUsize>,
    present: Arc<AtomicUsize>,
}

impl Simulation<'_> {
    fn new(seed: u64) -> Self {
        let mut random = Random::of(seed, 0);
        let clients = random.between(1, 6) as usize;
        let machines = random.between(1, (clients as u64).min(3)) as usize;
        let latency_ms_max = random.between(2, 100);
        let work_ms = random.between(8000, 40_000);
        let workload = Workload::of(&mut random);
        let shared = (1..=random.between(1, 3)).map(|number| Shared {
            name: format!("shared {number}").into_bytes(),
            capacity: random.between_u32(1, 3),
        });
        let shared: Vec<_> = shared.collect();
        // Half of the servers store what leased sessions hold: to their clients, a restart is only a disconnect.
        let disk = random.percent(50).then(|| Disk::new(random.between(0, 40), shared.len()));
        let scene = Scene::with(machines, shared, disk);
        let expectations = Expectations::new(Arc::clone(&scene));
        let mut sim = network::simulation(seed, latency_ms_max);
        let faults = Faults::new(Arc::clone(&expectations), Random::of(seed, 1), latency_ms_max);
        let hash_seed = random.next();
        let server_scene = Arc::clone(&scene);
        sim.host(network::SERVER, move || network::serve(Arc::clone(&server_scene), hash_seed, usize::MAX));
        let (tasks, present) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for machine in 0..machines {
            let (expectations, tasks, present) =
                (Arc::clone(&expectations), Arc::clone(&tasks), Arc::clone(&present));
            let workload = workload.clone();
            sim.host(machine_name(machine), move || {
                let start = {
                    let mut state = expectations.scene.state();
                    state.machines[machine].starts += 1;
                    state.machines[machine].starts
                };
                for client in (machine..clients).step_by(machines) {
                    let random = Random::of(seed, (start << 32) + 2 + client as u64);
                    let ttl_ms = Random::of(seed, 1000 + client as u64).between(10_000, 25_000);
                    let info = ClientInfo { client, machine, ttl_ms };
                    let application = Application {
                        expectations: Arc::clone(&expectations),
                        info,
                        workload: workload.clone(),
                    };
                    tokio::task::spawn_local(live(
                        application,
                        random,
                        Arc::clone(&tasks),
                        Arc::clone(&present),
                    ));
                }
                std::future::pending()
            });
        }
        let checks = Checks::default();
        Self { scene, expectations, sim, checks, faults, clients, work_ms, tasks, present }
    }

    /// Runs to the end. Returns the hash of the trace, or a description of the failure.
    fn run(mut self) -> Result<u64, String> {
        while self.now_ms() < self.work_ms {
            self.faults.before_step(&mut self.sim, &mut self.checks);
            self.step()?;
        }
        self.faults.stop(&mut self.sim);
        self.scene.enter(Phase::Rest);
        self.wait(END_MS_MAX, |simulation| match simulation.tasks.load(Ordering::Relaxed) {
            0 => Ok(()),
            left => Err(format!("{left} tasks still wait")),
        })?;
        // The clients still exist and renew their leases, so anything that is held now is leaked.
        self.wait(FORGOTTEN_MS_MAX, |simulation| {
            let server = simulation.scene.state().server.clone().ok_or("the server is down")?;
            let ledger = server.core().ledger_stats();
            let is_free = (ledger.grants, ledger.waiters) == (0, 0);
            is_free
                .then_some(())
                .ok_or_else(|| format!("grants or waiters without a permit or a request: {ledger:?}"))
        })?;
        self.scene.enter(Phase::Ask);
        self.wait(ASK_MS_MAX, |simulation| {
            let state = simulation.scene.state();
            let all: BTreeSet<_> = (0..simulation.clients).collect();
            let left: Vec<_> = all.difference(&state.satisfied).collect();
            let is_over = left.is_empty() && simulation.present.load(Ordering::Relaxed) == 0;
            is_over.then_some(()).ok_or_else(|| format!("clients without what they requested: {left:?}"))
        })?;
        let server = self.scene.state().server.clone().expect("the loop above ends only with a server");
        self.wait(LEAVE_MS_MAX, |simulation| {
            let served = simulation.scene.state().served().len();
            let is_left = checks::has_no_sessions(&server) && served == 0;
            is_left
                .then_some(())
                .ok_or_else(|| format!("{served} connections, {:?}", server.core().ledger_stats()))
        })?;
        checks::at_rest(&server).map_err(|what| self.scene.with_events(what))?;
        Ok(self.scene.state().trace())
    }

    fn now_ms(&self) -> u64 {
        self.scene.state().now_ms
    }

    fn step(&mut self) -> Result<(), String> {
        let stepped = self.sim.step();
        self.scene.state().now_ms = self.sim.elapsed().as_millis() as u64;
        stepped.map_err(|error| self.scene.with_events(format!("a host ended: {error}")))?;
        self.checks.after_step(&self.scene);
        if let Err(what) = self.expectations.check() {
            self.scene.fail(what);
        }
        let failure = self.scene.state().failure();
        failure.map_or(Ok(()), Err)
    }

    /// Steps without new faults until the condition holds.
    fn wait(&mut self, ms_max: u64, ready: impl Fn(&Self) -> Result<(), String>) -> Result<(), String> {
        let deadline_ms = self.now_ms() + ms_max;
        while let Err(what) = ready(self) {
            if self.now_ms() > deadline_ms {
                return Err(self.scene.with_events(format!("after {ms_max} ms without faults: {what}")));
            }
            self.faults.pass_time(self.now_ms());
            self.step()?;
        }
        Ok(())
    }
}

/// An application from its start to its end.
async fn live(
    application: Application,
    mut random: Random,
    tasks: Arc<AtomicUsize>,
    present: Arc<AtomicUsize>,
) {
    let _present = Counted::new(&present);
    // Up to 1 % faster or slower than the server's clock.
    let fast_ppm = random.between(0, 20_000) as i64 - 10_000;
    let client = application.client(&mut random, fast_ppm);
    for task in 0..random.between(1, 4) {
        let random = Random::of(random.next(), task);
        spawn(application.clone().run(client.clone(), random), &tasks);
    }
    while application.expectations.scene.phase() != Phase::Ask {
        tokio::time::sleep(STEP).await;
    }
    application.ask(client.clone(), Random::of(random.next(), 0)).await;
    leave(client, &mut random).await;
}

async fn leave(client: Client, random: &mut Random) {
    if random.percent(50) {
        client.close().await;
    } else {
        drop(client);
    }
}

fn run(seed: u64) -> Result<u64, String> {
    Simulation::new(seed).run()
}

#[test]
fn under_faults_no_client_trusts_a_lost_permit_and_nothing_leaks() {
    seeds::run_all(100, "client::under_faults", run);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    seeds::assert_same_traces(run);
}
