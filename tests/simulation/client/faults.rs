//! The faults between clients and the server. Each seed has its own weights, as in the simulation of the server.

use std::sync::Arc;
use std::time::Duration;

use turmoil::Sim;

use super::expectations::Expectations;
use crate::checks::Checks;
use crate::network::{SERVER, machine_name};
use crate::random::Random;
use crate::scene::Scene;

/// The longest delay. Sessions must survive disconnects in spite of it (`expectations::survived_ms`).
const LATENCY_MS_MAX: u64 = 150;

#[derive(Clone, Copy)]
enum Fault {
    /// Messages of a machine are held back for a time, and then arrive.
    Hold,
    /// Messages of a machine are silently lost for a time.
    Partition,
    /// Messages are held back or lost for longer than a session lives.
    Long,
    /// Messages of a machine are delayed, and overtake each other.
    Delay,
    /// A machine loses power: its clients vanish silently.
    PowerLoss,
    /// The server's process ends and is started again.
    ServerStop,
}

const FAULTS: [Fault; 6] =
    [Fault::Hold, Fault::Partition, Fault::Long, Fault::Delay, Fault::PowerLoss, Fault::ServerStop];

/// The end of a fault.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repair {
    Release(usize),
    Mend(usize),
    Power(usize),
    Server,
}

pub struct Faults {
    scene: Arc<Scene>,
    expectations: Arc<Expectations>,
    random: Random,
    weights: Vec<(Fault, u64)>,
    pause_ms_max: u64,
    next_ms: u64,
    repairs: Vec<(u64, Repair)>,
    latency_ms_max: u64,
    server_is_down: bool,
    /// Set for the step in which the server stops.
    is_stopping: bool,
    starts: u64,
}

impl Faults {
    pub fn new(expectations: Arc<Expectations>, mut random: Random, latency_ms_max: u64) -> Self {
        let mut weights: Vec<_> = FAULTS.map(|fault| (fault, random.between(0, 3))).into();
        // So that the list is never empty.
        weights.push((Fault::Delay, 1));
        let pause_ms_max = random.weighted(&[(2000, 1), (8000, 2), (40_000, 2)]);
        let next_ms = random.between(0, pause_ms_max);
        let scene = Arc::clone(&expectations.scene);
        let mut faults = Self {
            scene,
            expectations,
            random,
            weights,
            pause_ms_max,
            next_ms,
            repairs: Vec::new(),
            latency_ms_max,
            server_is_down: false,
            is_stopping: false,
            starts: 0,
        };
        faults.start_server();
        faults
    }

    /// Repairs what is due, and injects a fault when its time has come.
    pub fn before_step(&mut self, sim: &mut Sim<'_>, checks: &mut Checks) {
        let now_ms = self.scene.state().now_ms;
        if std::mem::take(&mut self.is_stopping) {
            sim.crash(SERVER);
        }
        while let Some(due) = self.repairs.iter().position(|(at_ms, _)| *at_ms <= now_ms) {
            let (_, repair) = self.repairs.swap_remove(due);
            self.repair(sim, repair);
        }
        if now_ms >= self.next_ms {
            self.next_ms = now_ms + self.random.between(1, self.pause_ms_max);
            let fault = self.random.weighted(&self.weights);
            self.inject(sim, fault, checks, now_ms);
        }
        self.pass_time(now_ms);
    }

    /// Advances time, without faults.
    pub fn pass_time(&mut self, now_ms: u64) {
        let mut state = self.scene.state();
        for machine in &mut state.machines {
            if machine.is_cut_off || self.server_is_down {
                machine.disturbed_ms = now_ms;
            }
        }
        drop(state);
        self.set_clock(now_ms);
    }

    /// The server's clock leaps forward with each start, so that a grant id shows its life of the server. A server
    /// with a disk has one life; its clock leaps back, but its ids must not.
    fn set_clock(&self, now_ms: u64) -> u64 {
        let leap_s = self.starts * 100_000;
        let unix_s = match self.scene.disk {
            Some(_) => 2_000_000_000 - leap_s + now_ms / 1000,
            None => 1_000_000_000 + leap_s + now_ms / 1000,
        };
        self.scene.set_clock(unix_s);
        unix_s
    }

    fn start_server(&mut self) {
        self.starts += 1;
        let now_ms = self.scene.state().now_ms;
        let unix_s = self.set_clock(now_ms);
        if self.scene.disk.is_none() || self.starts == 1 {
            self.expectations.server_starts((unix_s * 1000) << 20);
        }
    }

    fn inject(&mut self, sim: &mut Sim<'_>, fault: Fault, checks: &mut Checks, now_ms: u64) {
        let machines = self.scene.state().machines.len() as u64;
        let machine = self.random.between(0, machines - 1) as usize;
        let name = machine_name(machine);
        let is_cut_off = self.scene.state().machines[machine].is_cut_off;
        let mut repair = None;
        match fault {
            Fault::Hold | Fault::Partition | Fault::Long if !is_cut_off => {
                let (low, high) = if let Fault::Long = fault { (12_000, 40_000) } else { (10, 10_000) };
                let duration_ms = self.random.between(low, high);
                let is_hold = match fault {
                    Fault::Hold => true,
                    Fault::Partition => false,
                    _ => self.random.percent(50),
                };
                if is_hold {
                    sim.hold(name.as_str(), SERVER);
                    repair = Some((duration_ms, Repair::Release(machine)));
                } else {
                    sim.partition(name.as_str(), SERVER);
                    repair = Some((duration_ms, Repair::Mend(machine)));
                }
                self.scene.state().machines[machine].is_cut_off = true;
                self.expectations.cut(machine, now_ms, now_ms + duration_ms);
                let what = if is_hold { "held back" } else { "lost" };
                self.scene.event(&name, format_args!("has its messages {what} for {duration_ms} ms"));
            }
            Fault::Delay => {
                let latency_ms = self.random.between(1, LATENCY_MS_MAX);
                sim.set_link_max_message_latency(name.as_str(), SERVER, Duration::from_millis(latency_ms));
                self.scene.event(&name, format_args!("is up to {latency_ms} ms away"));
            }
            Fault::PowerLoss if !is_cut_off => {
                let duration_ms = self.random.between(10, 5000);
                // The partition comes first: a machine without power closes no connections.
                sim.partition(name.as_str(), SERVER);
                sim.crash(name.as_str());
                self.expectations.forget(machine);
                self.scene.state().machines[machine].is_cut_off = true;
                self.expectations.cut(machine, now_ms, now_ms + duration_ms);
                self.scene.event(&name, format_args!("is without power for {duration_ms} ms"));
                repair = Some((duration_ms, Repair::Power(machine)));
            }
            // A server that is just being started cannot be stopped yet.
            Fault::ServerStop if self.scene.state().server.is_some() => {
                let duration_ms = self.random.between(20, 6000);
                // The server closes its connections in this step, and ends after it.
                self.scene.stop.notify_one();
                self.scene.server_stopped();
                checks.forget();
                if self.scene.disk.is_some() {
                    (0..machines as usize)
                        .for_each(|machine| self.expectations.cut(machine, now_ms, now_ms + duration_ms));
                }
                self.server_is_down = true;
                self.is_stopping = true;
                self.scene.event(SERVER, format_args!("is down for {duration_ms} ms"));
                repair = Some((duration_ms, Repair::Server));
            }
            Fault::Hold | Fault::Partition | Fault::Long | Fault::PowerLoss | Fault::ServerStop => {}
        }
        if let Some((duration_ms, repair)) = repair {
            self.repairs.push((now_ms + duration_ms, repair));
        }
    }

    fn repair(&mut self, sim: &mut Sim<'_>, repair: Repair) {
        match repair {
            Repair::Release(machine) => {
                sim.release(machine_name(machine), SERVER);
                self.scene.state().machines[machine].is_cut_off = false;
                self.scene.event(machine_name(machine), format_args!("is back"));
            }
            Repair::Mend(machine) => {
                sim.repair(machine_name(machine), SERVER);
                self.scene.state().machines[machine].is_cut_off = false;
                self.scene.event(machine_name(machine), format_args!("is back"));
            }
            Repair::Power(machine) => {
                sim.repair(machine_name(machine), SERVER);
                self.scene.state().machines[machine].is_cut_off = false;
                self.scene.event(machine_name(machine), format_args!("starts"));
                sim.bounce(machine_name(machine));
            }
            Repair::Server => {
                self.scene.event(SERVER, format_args!("starts"));
                self.start_server();
                sim.bounce(SERVER);
                self.server_is_down = false;
            }
        }
    }

    /// Repairs everything.
    pub fn stop(&mut self, sim: &mut Sim<'_>) {
        if std::mem::take(&mut self.is_stopping) {
            sim.crash(SERVER);
        }
        for (_, repair) in std::mem::take(&mut self.repairs) {
            self.repair(sim, repair);
        }
        for machine in 0..self.scene.state().machines.len() {
            let latency = Duration::from_millis(self.latency_ms_max);
            sim.set_link_max_message_latency(machine_name(machine), SERVER, latency);
        }
    }
}
