//! The faults between and below the clients and the server: links, machines, the clock, the disk.
//!
//! Each seed has its own weights, so that some simulations have one kind of fault many times and others have all
//! kinds.

use std::sync::Arc;
use std::time::Duration;

use turmoil::Sim;

use crate::checks::Checks;
use crate::network::{SERVER, STAT_INTERVAL_S, machine_name};
use crate::random::Random;
use crate::scene::Scene;
use crate::support::failing::Fault as DiskFault;

#[derive(Clone, Copy)]
enum Fault {
    /// Messages of a machine are held back for a while.
    Hold,
    /// Messages of a machine are held back for longer than the server waits for a peer.
    HoldLong,
    /// Messages of a machine are delayed, and overtake each other.
    Delay,
    /// A machine loses power: its connections vanish silently.
    PowerLoss,
    /// The server's process ends and is started again.
    ServerStop,
    /// The server's clock is set forward or back.
    ClockStep,
    /// The server's disk is full for a while.
    DiskFull,
    /// A flush of the server's disk fails. Until the server is restarted, all flushes fail.
    FlushFailure,
}

const FAULTS: [Fault; 6] =
    [Fault::Hold, Fault::HoldLong, Fault::Delay, Fault::PowerLoss, Fault::ServerStop, Fault::ClockStep];

/// The end of a fault.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repair {
    Release(usize),
    Power(usize),
    Server,
    Disk,
}

pub struct Faults {
    scene: Arc<Scene>,
    random: Random,
    weights: Vec<(Fault, u64)>,
    pause_ms_max: u64,
    next_ms: u64,
    repairs: Vec<(u64, Repair)>,
    latency_ms_max: u64,
    server_is_down: bool,
    /// Set for the step in which the server stops.
    is_stopping: bool,
    /// When the server will be restarted, because only that repairs its disk.
    restart_ms: Option<u64>,
    /// The difference between the server's clock and the simulation's time, and its greatest value so far.
    clock_offset_s: u64,
    clock_offset_s_max: u64,
}

impl Faults {
    pub fn new(scene: Arc<Scene>, mut random: Random, latency_ms_max: u64) -> Self {
        let mut weights: Vec<_> = FAULTS.map(|fault| (fault, random.between(0, 3))).into();
        // So that the list is never empty.
        weights.push((Fault::ClockStep, 1));
        if scene.disk.is_some() {
            weights.push((Fault::ServerStop, 2));
            let disk_percent = random.weighted(&[(0, 1), (100, 1)]);
            let disk_faults = [Fault::DiskFull, Fault::FlushFailure];
            weights.extend(disk_faults.map(|fault| (fault, random.between(1, 3) * disk_percent / 100)));
        }
        let pause_ms_max = random.between(300, 6000);
        let next_ms = random.between(0, pause_ms_max);
        // The middle of an interval, some years after 1970.
        let clock_offset_s = 1_000_000_005;
        Self {
            scene,
            random,
            weights,
            pause_ms_max,
            next_ms,
            repairs: Vec::new(),
            latency_ms_max,
            server_is_down: false,
            is_stopping: false,
            restart_ms: None,
            clock_offset_s,
            clock_offset_s_max: clock_offset_s,
        }
    }

    /// Advances the clock, repairs what is due, and injects a fault when its time has come.
    pub fn before_step(&mut self, sim: &mut Sim<'_>, checks: &mut Checks) {
        let now_ms = self.scene.state().now_ms;
        if std::mem::take(&mut self.is_stopping) {
            sim.crash(SERVER);
        }
        while let Some(due) = self.repairs.iter().position(|(at_ms, _)| *at_ms <= now_ms) {
            let (_, repair) = self.repairs.swap_remove(due);
            self.repair(sim, repair);
        }
        if self.restart_ms.is_some_and(|restart_ms| now_ms >= restart_ms) {
            self.inject(sim, Fault::ServerStop, checks, now_ms);
        }
        if now_ms >= self.next_ms {
            self.next_ms = now_ms + self.random.between(1, self.pause_ms_max);
            let fault = self.random.weighted(&self.weights);
            self.inject(sim, fault, checks, now_ms);
        }
        self.pass_time(now_ms);
    }

    /// Whether the server can continue in its present state when the faults stop.
    pub fn may_stop(&self) -> bool {
        self.restart_ms.is_none()
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
        self.scene.set_clock(self.clock_offset_s + now_ms / 1000);
    }

    fn inject(&mut self, sim: &mut Sim<'_>, fault: Fault, checks: &mut Checks, now_ms: u64) {
        let machines = self.scene.state().machines.len() as u64;
        let machine = self.random.between(0, machines - 1) as usize;
        let name = machine_name(machine);
        let is_cut_off = self.scene.state().machines[machine].is_cut_off;
        let mut repair = None;
        match fault {
            Fault::Hold | Fault::HoldLong if !is_cut_off => {
                let (low, high) = if let Fault::Hold = fault { (10, 4000) } else { (36_000, 45_000) };
                let duration_ms = self.random.between(low, high);
                sim.hold(name.as_str(), SERVER);
                self.scene.state().machines[machine].is_cut_off = true;
                self.scene.event(&name, format_args!("is cut off for {duration_ms} ms"));
                repair = Some((duration_ms, Repair::Release(machine)));
            }
            Fault::Delay => {
                let latency_ms = self.random.between(1, 300);
                sim.set_link_max_message_latency(name.as_str(), SERVER, Duration::from_millis(latency_ms));
                self.scene.event(&name, format_args!("is up to {latency_ms} ms away"));
            }
            Fault::PowerLoss if !is_cut_off => {
                let duration_ms = self.random.between(10, 5000);
                // The partition comes first: a machine without power closes no connections.
                sim.partition(name.as_str(), SERVER);
                sim.crash(name.as_str());
                self.scene.state().machines[machine].is_cut_off = true;
                self.scene.event(&name, format_args!("is without power for {duration_ms} ms"));
                repair = Some((duration_ms, Repair::Power(machine)));
            }
            // A server that is just being started cannot be stopped yet.
            Fault::ServerStop if self.scene.state().server.is_some() => {
                let duration_ms = self.random.between(20, 3000);
                // The server closes its connections in this step, and ends after it.
                self.scene.stop.notify_one();
                self.scene.server_stopped();
                checks.forget();
                self.server_is_down = true;
                self.is_stopping = true;
                self.restart_ms = None;
                self.scene.event(SERVER, format_args!("is down for {duration_ms} ms"));
                repair = Some((duration_ms, Repair::Server));
            }
            Fault::ClockStep => {
                let interval_s = u64::from(STAT_INTERVAL_S);
                let by_s = if self.random.percent(50) { interval_s } else { self.random.between(1, 40) };
                if self.random.percent(50) {
                    self.clock_offset_s += by_s;
                } else {
                    self.clock_offset_s -= by_s;
                }
                self.clock_offset_s_max = self.clock_offset_s_max.max(self.clock_offset_s);
                self.scene.event("clock", format_args!("is at offset {}", self.clock_offset_s));
            }
            Fault::DiskFull => {
                let duration_ms = self.random.between(20, 3000);
                if let Some(disk) = &self.scene.disk {
                    disk.faults.fail_all(DiskFault::Full);
                }
                self.scene.event("disk", format_args!("is full for {duration_ms} ms"));
                repair = Some((duration_ms, Repair::Disk));
            }
            Fault::FlushFailure if !self.server_is_down && self.restart_ms.is_none() => {
                let kept = self.random.percent(50);
                if let Some(disk) = &self.scene.disk {
                    disk.faults.fail_nth(self.random.between(1, 3), DiskFault::Flush { kept });
                }
                self.scene.event("disk", format_args!("is not flushed; kept: {kept}"));
                self.restart_ms = Some(now_ms + self.random.between(20, 4000));
            }
            Fault::Hold | Fault::HoldLong | Fault::PowerLoss | Fault::ServerStop | Fault::FlushFailure => {}
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
            Repair::Power(machine) => {
                sim.repair(machine_name(machine), SERVER);
                self.scene.state().machines[machine].is_cut_off = false;
                self.scene.event(machine_name(machine), format_args!("starts"));
                sim.bounce(machine_name(machine));
            }
            Repair::Disk => self.repair_disk(),
            Repair::Server => {
                self.scene.event(SERVER, format_args!("starts"));
                // Pending disk faults were for the previous server.
                self.repair_disk();
                sim.bounce(SERVER);
                self.server_is_down = false;
            }
        }
    }

    fn repair_disk(&self) {
        if let Some(disk) = &self.scene.disk {
            disk.faults.stop();
        }
        self.scene.event("disk", format_args!("is repaired"));
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

    /// Sets the clock to an interval that no name has seen yet.
    pub fn end_every_interval(&mut self) {
        self.clock_offset_s = self.clock_offset_s_max + 2 * u64::from(STAT_INTERVAL_S);
    }
}
