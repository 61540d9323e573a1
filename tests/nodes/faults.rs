//! Three nodes and three members of etcd as real processes on machines of their own (network namespaces), under faults:
//! processes that are killed or frozen, and networks that are cut, also in one direction only.
//!
//! Clients acquire slots, acquire without leases, declare, and keep permits: see `load`. Soon after each fault is over, every
//! client is served again.
//!
//! The faults are drawn from a seed, which a failure prints; the moments at which processes act are not reproducible.
//! `SIGNALBOX_SEED` sets the seed and `SIGNALBOX_FAULT_SECONDS` the duration.

mod director;

use std::time::{Duration, Instant};

use self::director::Director;
use crate::load::{self, Load, Location};
use crate::support::cluster::TestCluster;
use crate::support::etcd::RealEtcd;
use crate::support::etcd::real::PACKAGES;
use crate::support::namespaces::Machines;

/// How long faults happen, unless the environment says otherwise.
const DURATION: Duration = Duration::from_secs(60);

/// As documented for a renew deadline of 2 s.
const ETCD_OPTIONS: [&str; 2] = ["--auto-compaction-mode=periodic", "--auto-compaction-retention=5m"];

/// The machines: nodes first, then members of etcd, then clients.
const NODES: usize = 3;
const MEMBERS: usize = 3;
const CLIENT_MACHINES: usize = 2;
const MACHINES: usize = NODES + MEMBERS + CLIENT_MACHINES;

const fn machine_of_member(member: usize) -> usize {
    NODES + member
}

const fn machine_of_client(client: usize) -> usize {
    NODES + MEMBERS + client % CLIENT_MACHINES
}

fn from_environment<T: std::str::FromStr>(variable: &str) -> Option<T> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}={value} is not a number")))
}

#[test]
fn believers_never_exceed_the_slots_and_nothing_acknowledged_is_lost() {
    let Some(machines) = Machines::start("faults", MACHINES.try_into().unwrap(), &PACKAGES) else { return };
    let seed = from_environment("SIGNALBOX_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000));
    let duration = from_environment("SIGNALBOX_FAULT_SECONDS").map_or(DURATION, Duration::from_secs);
    println!("SIGNALBOX_SEED={seed}");
    machines.run_at_switch(|| under_faults(&machines, seed, duration));
}

fn under_faults(machines: &Machines, seed: u64, duration: Duration) {
    let machines_at = |from: usize, count: usize| -> Vec<_> {
        (from..from + count).map(|number| machines.get(number).clone()).collect()
    };
    let etcd = RealEtcd::start_on(&machines_at(machine_of_member(0), MEMBERS), &ETCD_OPTIONS);
    let administrators = format!("{} {}", Machines::SWITCH_IP, machines.get(machine_of_client(0)).ip);
    let cluster = TestCluster::start_on(&machines_at(0, NODES), &administrators, etcd);
    cluster.leader();
    let client_machines = machines_at(machine_of_client(0), CLIENT_MACHINES);
    let load = Load::prepare(&cluster, 0);
    let mut director = Director::new(machines, cluster, seed);
    let (findings, ()) =
        load.run_while(Location::On(&client_machines), seed, |progress| director.act(duration, progress));

    director.keep_logs();
    findings.check_held(director.outages());
    director.settle();
    let client = director.cluster().client(|builder| builder);
    findings.check_stored(&client);
    director
        .wait_until("nothing is in use when no client holds it", || load::is_everything_released(&client));
}

/// The time that has passed since `began`, for the output of a run.
fn after(began: Instant) -> String {
    format!("{:7.3} s", began.elapsed().as_secs_f64())
}
