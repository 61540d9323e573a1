//! Drains of the leader, each interrupted at one of its steps by one fault. A seed is one of all pairs of a step and a fault, and
//! determines the rest: how long the fault lasts, the clocks, the network and the clients.
//!
//! Besides what is checked after every step: the command ends in time, since the node leaves, refuses or falls silent. A node
//! serves within the usual time; where the fault concerns only the command or what the two nodes say to each other, clients
//! notice a handover at most. All nodes come back, and no request is left that a node has not answered. Then the next leader is
//! drained without a fault, which succeeds. Then all clients get what they request, in half of the cases.
//!
//! `SIGNALBOX_SEEDS=10000 cargo test --test simulation cluster::interrupted_drains` also interrupts some time after each step.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use signalbox::cluster::admin::AdminError;
use signalbox::cluster::coordinator::Revision;
use signalbox::cluster::drain::Drained;
use signalbox::cluster::keys::{Handover, decode};

use super::applications::Workload;
use super::drains::{Totals, is_asked, is_member};
use super::etcd::STEADY;
use super::interruptions::Interruption::{self, CutFromEtcd, Freeze};
use super::interruptions::{Parties, Party};
use super::steps::{Step, Write};
use super::world::{NODES, node_name};
use super::{DRAIN_MS_MAX, Simulation, Users, resources};
use crate::random::Random;
use crate::seeds;
use crate::support::etcd::FakeStore;

/// All pairs of a step and an interruption.
const CASES: u64 = (Step::ALL.len() * Interruption::ALL.len()) as u64;

/// How long the cluster may take until it is in use, and a drain until it has reached any of its steps.
const BEGIN_MS_MAX: u64 = 10_000;
const STEPS_MS_MAX: u64 = 10_000;

/// How long a drain without a fault may take, besides the time to load.
const CALM_DRAIN_MS_MAX: u64 = 4000;

/// How long clients may notice a handover, besides the time to load.
const HANDOVER_MS_MAX: u64 = 1500;

/// How long a command calls etcd without an answer until it gives up: each call has six attempts of a second.
const GIVES_UP_MS: u64 = 6500;

/// How long a request may be in etcd that its command has left behind.
const REQUEST_MS_MAX: u64 = 20_000;

/// How long after a step it may be interrupted, in seeds after the first ones.
const LATER_MS_MAX: u64 = 150;

/// Of the first seeds: cases whose interruption has hit, and those in which whom it was to hit had ended already.
static HIT: Mutex<BTreeSet<(Step, Interruption)>> = Mutex::new(BTreeSet::new());
static ENDED_BEFORE: Mutex<BTreeSet<(Step, Interruption)>> = Mutex::new(BTreeSet::new());

/// What has become of drains in all cases.
static DRAINS: Totals = Totals::new();

struct Case<'a> {
    step: Step,
    interruption: Interruption,
    /// Whether it is one of the first seeds, which interrupt at the step itself.
    is_first: bool,
    /// How long after the step it comes, and how long it lasts.
    later_ms: u64,
    duration_ms: u64,
    /// Whether all clients are to get what they request at the end. That takes as long as the drain, so it is seen in half of the
    /// cases.
    settles: bool,
    simulation: Simulation<'a>,
    random: Random,
    /// The revision of etcd when the interruption was over; 0 before.
    repaired_at: Revision,
    /// When a node last served, and for how long none did at most.
    served_ms: u64,
    unserved_ms: u64,
}

fn users(random: &mut Random) -> Users {
    let workload = Workload {
        drops_percent: 0,
        waits_percent: 80,
        hold_ms_max: random.weighted(&[(500, 1), (5000, 1)]),
        pause_ms_max: 1000,
        unreachable_ms: 60_000,
    };
    let resources = resources(2, random);
    let renew_deadline = Duration::from_secs(random.weighted(&[(2, 5), (3, 1)]));
    Users { clients: 2, machines: 1, work_ms: 0, latency_ms_max: 20, workload, resources, renew_deadline }
}

impl Case<'_> {
    fn new(seed: u64) -> Self {
        let case = ((seed - 1) % CASES) as usize;
        let (step, interruption) = (case / Interruption::ALL.len(), case % Interruption::ALL.len());
        let mut random = Random::of(seed, 0);
        let users = users(&mut random);
        let simulation = Simulation::new(seed, users, Random::of(seed, 5));
        simulation.world.etcd.set_calm(STEADY);
        let lease_ms = simulation.world.timing.lease_duration().as_millis() as u64;
        let fault = Interruption::ALL[interruption];
        let duration_ms = match (random.percent(50), fault) {
            (true, _) => random.between(50, 800),
            (false, CutFromEtcd(Party::Command, _)) => GIVES_UP_MS + random.between(0, 2000),
            (false, _) => random.between(lease_ms / 2, 2 * lease_ms),
        };
        Self {
            step: Step::ALL[step],
            interruption: fault,
            is_first: seed <= CASES,
            later_ms: if seed > CASES { random.between(0, LATER_MS_MAX) } else { 0 },
            duration_ms,
            settles: (step + interruption).is_multiple_of(2) || seed > CASES,
            simulation,
            random,
            repaired_at: 0,
            served_ms: 0,
            unserved_ms: 0,
        }
    }

    fn run(mut self) -> Result<u64, String> {
        self.until(BEGIN_MS_MAX, |case| case.is_in_use().ok_or("the cluster is not in use"))?;
        let work_ms = self.random.between(0, 1000);
        self.pass(work_ms)?;
        let world = self.simulation.world.clone();
        let leader = world.leader().ok_or("nobody leads")?.node;
        let successor = (leader + self.random.between(1, NODES as u64 - 1) as usize) % NODES;
        // Only before the handover is written does it have to be known whom the leader will choose.
        let is_named = !self.step.is_from(Step::Written(Write::Handover)) || self.random.percent(50);
        world.steps.watch();
        self.simulation.faults.drain(leader, is_named.then_some(successor));
        self.served_ms = self.simulation.now_ms();
        self.unserved_ms = 0;
        self.until(STEPS_MS_MAX, |case| {
            case.simulation
                .world
                .steps
                .has(case.step)
                .then_some(())
                .ok_or("the drain does not reach its step")
        })?;
        self.pass(self.later_ms)?;
        let successor = self.successor().unwrap_or(successor);
        self.interrupt(&Parties { leader, successor })?;
        self.until(DRAIN_MS_MAX, |case| {
            (!case.simulation.world.drains.is_running()).then_some(()).ok_or("the operator still waits")
        })?;
        self.check_end(leader)?;
        self.until(self.simulation.serve_ms_max(), |case| {
            case.simulation.serves().then_some(()).ok_or("no node serves")
        })?;
        self.check_pause()?;
        self.until(REQUEST_MS_MAX, |case| case.is_at_rest().ok_or("nodes are missing, or asked to leave"))?;
        let counts = world.drains.counts();
        self.drain_again()?;
        DRAINS.add(counts);
        if self.settles {
            self.simulation.settle()?;
        }
        Ok(self.simulation.world.scene.state().trace())
    }

    /// All nodes take part, one of them serves, and a client has a permit.
    fn is_in_use(&self) -> Option<()> {
        let world = &self.simulation.world;
        (self.is_at_rest().is_some() && world.beliefs.are_some_held()).then_some(())
    }

    /// One node serves, all take part and have given heartbeats since the interruption, and nobody is asked to leave.
    fn is_at_rest(&self) -> Option<()> {
        let world = &self.simulation.world;
        let rests = |node| {
            let process = world.process(node)?;
            let is_asked = is_asked(world, node, &process.incarnation());
            (is_member(&process) && process.is_attentive() && self.is_heard(node) && !is_asked).then_some(())
        };
        (self.simulation.serves() && (0..NODES).all(|node| rests(node).is_some())).then_some(())
    }

    /// Whether a node has given a heartbeat since the interruption. Until then, a leader does not choose it.
    fn is_heard(&self, node: usize) -> bool {
        let world = &self.simulation.world;
        let key = world.keys.heartbeat(&node_name(node));
        let heartbeat = world.etcd.with_store(|store| store.get(&key));
        heartbeat.is_some_and(|heartbeat| heartbeat.modified > self.repaired_at)
    }

    /// The node that is to read the records, as the leader has written.
    fn successor(&self) -> Option<usize> {
        let world = &self.simulation.world;
        let key = world.keys.handover();
        let entry = world.etcd.with_store(|store| store.get(&key))?;
        let handover: Handover = decode(&key, &entry.value).expect("only nodes write it");
        (0..NODES).find(|node| node_name(*node) == handover.successor.node)
    }

    fn interrupt(&mut self, parties: &Parties) -> Result<(), String> {
        let (step, interruption) = (self.step, self.interruption);
        let world = self.simulation.world.clone();
        world.scene.event("fault", format_args!("{interruption:?} for {} ms, at {step:?}", self.duration_ms));
        let Simulation { faults, sim, .. } = &mut self.simulation;
        let outcome = parties.interrupt(interruption, &world, faults, sim, self.duration_ms);
        if self.is_first {
            let cases = if outcome.is_ok() { &HIT } else { &ENDED_BEFORE };
            cases.lock().expect("nothing panics with it").insert((step, interruption));
        }
        if let Ok(repair) = outcome {
            self.pass(self.duration_ms)?;
            if let Some(repair) = repair {
                let Simulation { faults, sim, .. } = &mut self.simulation;
                faults.repair(sim, repair);
            }
        }
        self.repaired_at = world.etcd.with_store(FakeStore::revision);
        Ok(())
    }

    /// No drain is left hanging: the command has time enough for any fault, unless it is itself frozen.
    fn check_end(&self, leader: usize) -> Result<(), String> {
        let ended = self.simulation.world.drains.take_ended(leader);
        let hangs = matches!(ended, Some(Err(AdminError::NotInTime { .. })));
        if hangs && self.interruption != Freeze(Party::Command) {
            return Err(self.failed("the node has neither left nor refused"));
        }
        Ok(())
    }

    /// Clients have noticed at most what the interruption explains.
    fn check_pause(&self) -> Result<(), String> {
        let limit_ms = match self.interruption.spares_nodes() {
            true => HANDOVER_MS_MAX + self.simulation.world.load_ms_max,
            false => self.duration_ms + self.simulation.serve_ms_max(),
        };
        if self.unserved_ms <= limit_ms {
            return Ok(());
        }
        Err(self.failed(&format!("no node has served for {} ms, and {limit_ms} are usual", self.unserved_ms)))
    }

    /// Drains the present leader without a fault.
    fn drain_again(&mut self) -> Result<(), String> {
        let world = self.simulation.world.clone();
        let leader = world.leader().ok_or("nobody leads")?.node;
        let epoch = world.etcd.epoch();
        let read_before = world.drains.counts().read_in_advance;
        self.simulation.faults.drain(leader, None);
        let ended = self.until(CALM_DRAIN_MS_MAX + world.load_ms_max, |case| {
            case.simulation.world.drains.take_ended(leader).ok_or("the second drain has not ended")
        })?;
        match ended {
            Ok(Drained { has_led: true, leader: Some((_, next)) }) if next == epoch + 1 => {}
            ended => return Err(self.failed(&format!("the second drain has ended so: {ended:?}"))),
        }
        self.until(CALM_DRAIN_MS_MAX + world.load_ms_max, |case| {
            case.simulation.serves().then_some(()).ok_or("no node serves after the second drain")
        })?;
        if world.drains.counts().read_in_advance == read_before {
            return Err(self.failed("the records were not read in advance, and nothing has happened"));
        }
        Ok(())
    }

    fn failed(&self, what: &str) -> String {
        let what = format!("{:?} at {:?}: {what}", self.interruption, self.step);
        self.simulation.world.scene.with_events(what)
    }

    /// Steps until there is a result.
    fn until<T>(&mut self, ms_max: u64, ready: impl Fn(&Self) -> Result<T, &str>) -> Result<T, String> {
        let deadline_ms = self.simulation.now_ms() + ms_max;
        loop {
            match ready(self) {
                Ok(result) => return Ok(result),
                Err(what) if self.simulation.now_ms() > deadline_ms => {
                    return Err(self.failed(&format!("after {ms_max} ms, {what}")));
                }
                Err(_) => self.step()?,
            }
        }
    }

    fn pass(&mut self, ms: u64) -> Result<(), String> {
        let until_ms = self.simulation.now_ms() + ms;
        while self.simulation.now_ms() < until_ms {
            self.step()?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        self.simulation.faults.restart(&mut self.simulation.sim);
        self.simulation.step()?;
        let now_ms = self.simulation.now_ms();
        if self.simulation.serves() {
            self.served_ms = now_ms;
        }
        self.unserved_ms = self.unserved_ms.max(now_ms - self.served_ms);
        Ok(())
    }
}

fn run(seed: u64) -> Result<u64, String> {
    Case::new(seed).run()
}

#[test]
fn a_drain_that_is_interrupted_at_any_step_ends_and_loses_nothing() {
    seeds::run_all(CASES, "cluster::interrupted_drains::a_drain", run);
    let of = |cases: &Mutex<BTreeSet<_>>| cases.lock().expect("nothing panics with it").clone();
    let (hit, ended_before) = (of(&HIT), of(&ENDED_BEFORE));
    let counts = DRAINS.get();
    println!("{} of {CASES} pairs of a step and a fault: {counts}", hit.len());
    if hit.len() + ended_before.len() < CASES as usize {
        // Not all seeds were run.
        return;
    }
    for (step, interruption) in ended_before.difference(&hit) {
        let is_late = step.is_from(Step::Sent(Write::Takeover)) && interruption.hits_who_leaves();
        assert!(is_late, "{interruption:?} at {step:?} has hit nobody");
    }
    assert!(counts.all().iter().all(|count| *count > CASES / 10), "all of these happen often: {counts:?}");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    // Of different steps.
    seeds::assert_same_traces(|seed| run(seed * 53));
}
