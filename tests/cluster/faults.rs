//! Three nodes and three members of etcd as real processes on machines of their own (network namespaces), under faults:
//! processes that are killed or frozen, and networks that are cut, also in one direction only.
//!
//! Clients are connected to any node, which relays them if it does not lead. They acquire slots and record for how long they
//! believe that they hold them. At no moment do more believe so than there are slots, no two of them in the same slot; ids
//! grow; and nothing acknowledged is lost. Soon after each fault is over, every client is served again.
//!
//! Clients without leases believe that they hold something as long as their connections are open. No more of them do than
//! there is, whatever happens to the leader, as long as their own node runs and reaches them.
//!
//! The faults are drawn from a seed, which a failure prints; the moments at which processes act are not reproducible.
//! `SIGNALBOX_SEED` sets the seed and `SIGNALBOX_FAULT_SECONDS` the duration.

mod clients;
mod director;
mod verdict;

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signalbox::client::{Declaration, Error, IfExists, Namespace};

use self::clients::{Administrator, Keeper, PlainWorker, Progress, Worker};
use self::director::Director;
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

const WORKERS: usize = 8;

/// A declared semaphore with numbered slots, which the workers acquire.
const SLOTS_NAME: &str = "gpu";
const SLOTS: u16 = 3;

/// Workers that acquire without leases, and the counter that they acquire.
const PLAIN_WORKERS: usize = 6;
const PLAIN_NAME: &[u8] = b"plain";
const PLAIN_MAXIMUM: u32 = 2;

/// A counter, whose permits are held until the end.
const KEPT_NAME: &str = "kept";

/// Set when it is dropped, so that threads end also if another one panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
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
    let client = cluster.client(|builder| builder);
    let declaration =
        Declaration { name: SLOTS_NAME.as_bytes(), capacity: SLOTS.into(), numbered: true, label: b"" };
    client.wait(async { client.direct().await?.declare(&[declaration], IfExists::Fail).await }).unwrap();
    client.close();

    let addresses: Vec<SocketAddr> =
        cluster.servers().split(',').map(|address| address.parse().unwrap()).collect();
    let progress = Progress::new(WORKERS + PLAIN_WORKERS);
    let (stop, unexpected) = (AtomicBool::new(false), Mutex::default());
    let mut director = Director::new(machines, cluster, seed);
    let (beliefs, plain_beliefs, declared, keeper) = std::thread::scope(|scope| {
        let stop_all = Stop(&stop);
        let run = clients::Run { addresses: &addresses, stop: &stop, unexpected: &unexpected };
        let workers: Vec<_> = (0..WORKERS)
            .map(|number| {
                let (machine, progress) = (machines.get(machine_of_client(number)), &progress);
                let seed = seed.wrapping_add(1 + number as u64);
                scope.spawn(move || machine.run(|| Worker::new(run, number, seed).work(progress)))
            })
            .collect();
        let plain_workers: Vec<_> = (WORKERS..WORKERS + PLAIN_WORKERS)
            .map(|number| {
                let (machine, progress) = (machine_of_client(number), &progress);
                let seed = seed.wrapping_add(1 + number as u64);
                let worker = PlainWorker::new(run, number, machine, seed);
                scope.spawn(move || machines.get(machine).run(|| worker.work(progress)))
            })
            .collect();
        let administrator = scope
            .spawn(move || machines.get(machine_of_client(0)).run(|| Administrator::new(run, seed).work()));
        let keeper = scope.spawn(move || machines.get(machine_of_client(1)).run(|| Keeper::new(run).work()));
        director.act(duration, &progress);
        drop(stop_all);
        let beliefs: Vec<_> = workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
        let plain_beliefs: Vec<_> =
            plain_workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
        (beliefs, plain_beliefs, administrator.join().unwrap(), keeper.join().unwrap())
    });

    director.keep_logs();
    let unexpected = unexpected.into_inner().unwrap();
    assert!(unexpected.is_empty(), "{unexpected:#?}");
    verdict::check(&beliefs, SLOTS).unwrap_or_else(|why| panic!("{why}"));
    verdict::check_plain(&plain_beliefs, director.outages(), PLAIN_MAXIMUM)
        .unwrap_or_else(|why| panic!("{why}"));
    println!(
        "{} grants, {} grants without leases, {} declarations, {} kept",
        beliefs.len(),
        plain_beliefs.len(),
        declared.len(),
        keeper.len()
    );
    assert!(!declared.is_empty() && keeper.len() > 0);
    assert!(beliefs.len() > WORKERS && plain_beliefs.len() > PLAIN_WORKERS);

    director.settle();
    let client = director.cluster().client(|builder| builder);
    declared.check(&client);
    keeper.check(&client);
    let in_use = |namespace, name: &[u8]| {
        client.wait(async { Ok::<_, Error>(client.direct().await?.inspect(namespace, name).await?.in_use) })
    };
    director.wait_until("nothing is in use when no client holds it", || {
        in_use(Namespace::Semaphores, SLOTS_NAME.as_bytes()).is_ok_and(|in_use| in_use == 0)
            && in_use(Namespace::Counters, PLAIN_NAME).is_ok_and(|in_use| in_use == 0)
    });
}

/// The time that has passed since `began`, for the protocol of a run.
fn after(began: Instant) -> String {
    format!("{:7.3} s", began.elapsed().as_secs_f64())
}
