//! The real server shell and many clients on a simulated network and clock, while faults happen.
//!
//! A seed determines everything: the number of clients, their behavior, and which faults happen when. After every
//! step, the server's accounting is consistent, and clients expect to hold no more than the server accounts for. Every
//! answer is possible and in order, and queues are served in order. A lease lasts as long as its client counts on it,
//! also over restarts if the server has a disk. When all clients have left, nothing is in use or stored on the disk;
//! then every client gets what it requests within 10 s. `docs/reliability.md` has the details.
//!
//! `SIGNALBOX_SEEDS=10000 cargo test --release --test simulation server::` sets the number of seeds, and
//! `SIGNALBOX_SEED=7` sets the first one. A failure prints the seed and the command that replays it. If the core ends
//! the process, `server-under_faults.seeds` in the target's folder for temporary files has the seeds that were running.

mod accounting;
mod answers;
mod clients;
mod connection;
mod faults;
mod leased_client;
mod request_answers;
mod session;
mod session_connection;
mod session_view;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::checks::{self, Checks};
use crate::disk::Disk;
use crate::network::{self, machine_name};
use crate::random::Random;
use crate::scene::{Phase, Scene, Shared};
use crate::seeds;
use clients::{Client, Workload};
use faults::Faults;
use leased_client::{LeasedClient, LeasedWorkload};
use turmoil::Sim;

/// The longest time until the server detects a vanished peer, with some reserve.
const REST_MS_MAX: u64 = 60_000;

/// The server collects names at the end of an interval, with the next sweep.
const SWEEP_MS_MAX: u64 = 3000;

/// Without faults, every client gets what it requests within this time.
const ASK_MS_MAX: u64 = 10_000;

struct Simulation<'a> {
    scene: Arc<Scene>,
    sim: Sim<'a>,
    checks: Checks,
    faults: Faults,
    clients: usize,
    work_ms: u64,
}

impl Simulation<'_> {
    fn new(seed: u64) -> Self {
        let mut random = Random::of(seed, 0);
        let clients = random.weighted(&[((2, 4), 5), ((5, 12), 3), ((13, 50), 1)]);
        let clients = random.between(clients.0, clients.1) as usize;
        let machines = random.between(1, (clients as u64).min(5)) as usize;
        let latency_ms_max = random.between(2, 100);
        let work_ms = random.between(5000, 20_000);
        let write_bytes_max = random.weighted(&[(64, 1), (500, 1), (usize::MAX, 2)]);
        let workload = Workload::of(&mut random);
        let shared = (1..=random.between(1, 4)).map(|number| Shared {
            name: format!("shared {number}").into_bytes(),
            capacity: random.between_u32(1, 4),
        });
        let shared: Vec<_> = shared.collect();
        // Half of the servers store what leased sessions hold.
        let numbered = random.between(0, shared.len() as u64) as usize;
        let disk = random.percent(50).then(|| Disk::new(random.between(0, 60), numbered));
        let scene = Scene::with(machines, shared, disk);
        let leased_workload = LeasedWorkload::of(&mut random);
        // The share of leased clients ranges from none to nearly all.
        let leased_percent = random.weighted(&[(0, 1), (50, 2), (90, 1)]);

        let mut sim = network::simulation(seed, latency_ms_max);
        let mut faults = Faults::new(Arc::clone(&scene), Random::of(seed, 1), latency_ms_max);
        faults.pass_time(0);
        let hash_seed = random.next();
        let server_scene = Arc::clone(&scene);
        sim.host(network::SERVER, move || {
            network::serve(Arc::clone(&server_scene), hash_seed, write_bytes_max)
        });
        for machine in 0..machines {
            let (scene, workload, leased_workload) =
                (Arc::clone(&scene), workload.clone(), leased_workload.clone());
            sim.host(machine_name(machine), move || {
                let start = {
                    let mut state = scene.state();
                    state.machines[machine].starts += 1;
                    state.machines[machine].starts
                };
                for number in (machine..clients).step_by(machines) {
                    let scene = Arc::clone(&scene);
                    let mut random = Random::of(seed, (start << 32) + 2 + number as u64);
                    if random.percent(leased_percent) {
                        let leased_client =
                            LeasedClient::new(scene, number, machine, random, leased_workload.clone());
                        tokio::task::spawn_local(leased_client.run());
                    } else {
                        let client = Client { scene, number, machine, random, workload: workload.clone() };
                        tokio::task::spawn_local(client.run());
                    }
                }
                std::future::pending()
            });
        }
        Self { scene, sim, checks: Checks::default(), faults, clients, work_ms }
    }

    /// Runs to the end. Returns the hash of the trace, or a description of the failure.
    fn run(mut self) -> Result<u64, String> {
        while self.now_ms() < self.work_ms || !self.faults.may_stop() {
            self.faults.before_step(&mut self.sim, &mut self.checks);
            self.step()?;
        }
        self.faults.stop(&mut self.sim);
        self.scene.enter(Phase::Rest);
        self.wait(REST_MS_MAX, |simulation| {
            let state = simulation.scene.state();
            let served = state.served();
            let Some(server) = &state.server else { return Err("the server is down".to_owned()) };
            let is_at_rest = served.is_empty() && checks::has_no_sessions(server);
            let ledger = server.core().ledger_stats();
            is_at_rest.then_some(()).ok_or_else(|| format!("still connected: {served:?}; {ledger:?}"))
        })?;
        let server = self.scene.state().server.clone().expect("the loop above ends only with a server");
        checks::at_rest(&server).map_err(|what| self.scene.with_events(what))?;
        self.faults.end_every_interval();
        self.wait(SWEEP_MS_MAX, |simulation| {
            checks::is_empty(&server, simulation.scene.disk.as_ref()).then_some(()).ok_or_else(|| {
                "unused names are left, or records of names that are not held are still stored".to_owned()
            })
        })?;
        self.scene.enter(Phase::Ask);
        self.wait(ASK_MS_MAX, |simulation| {
            let state = simulation.scene.state();
            let all: BTreeSet<_> = (0..simulation.clients).collect();
            let left: Vec<_> = all.difference(&state.satisfied).collect();
            left.is_empty()
                .then_some(())
                .ok_or_else(|| format!("clients without what they requested: {left:?}"))
        })?;
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

fn run(seed: u64) -> Result<u64, String> {
    Simulation::new(seed).run()
}

#[test]
fn under_faults_the_server_never_overgrants_and_then_serves_every_client() {
    seeds::run_all(30, "server::under_faults", run);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    seeds::assert_same_traces(run);
}
