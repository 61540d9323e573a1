//! Clients that keep a cluster busy while something happens to it, and the checks of what they have found.
//!
//! Workers with the Rust client and over HTTP are connected to any node, which relays them if it does not lead. They acquire
//! slots and record for how long they believe that they hold them. At no moment do more believe so than there are slots, and
//! no two believe in the same slot; ids grow; and nothing acknowledged is lost.
//!
//! Workers without leases believe that they hold something as long as their connections are open. No more of them do than the
//! maximum permits, whatever happens to the leader, as long as their own node runs and reaches them.

pub mod clients;
mod http;
pub mod verdict;

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use signalbox_client::blocking::Client;
use signalbox_client::{Declaration, Error, IfExists, Namespace};

use self::clients::{Administrator, Declared, Keeper, Kept, PlainWorker, Progress, Run, Runner, Worker};
use self::http::HttpWorker;
use self::verdict::{Belief, Outage, PlainBelief};
use crate::support::cluster::TestCluster;
use crate::support::namespaces::Machine;
use signalbox_model::Operation;

const WORKERS: usize = 8;

/// A declared semaphore with numbered slots, which the workers acquire.
const SLOTS_NAME: &str = "gpu";
const SLOTS: u16 = 3;

/// Workers that acquire without leases, and the counter that they acquire.
const PLAIN_WORKERS: usize = 6;
const PLAIN_NAME: &[u8] = b"plain";
const PLAIN_MAXIMUM: u32 = 2;

/// Workers that acquire the same slots over HTTP.
const HTTP_WORKERS: usize = 4;

/// The counter that runners acquire, of whom this number may hold it.
const RUNNERS_NAME: &str = "run";
const RUNNERS_MAXIMUM: u32 = 3;

/// A counter, whose permits are held until the end.
const KEPT_NAME: &str = "kept";

/// Where clients run.
#[derive(Clone, Copy)]
pub enum Location<'a> {
    /// On the machine of the test.
    Here,
    /// On these machines in turn.
    On(&'a [Machine]),
}

impl Location<'_> {
    fn number(self, client: usize) -> usize {
        match self {
            Self::Here => 0,
            Self::On(machines) => client % machines.len(),
        }
    }

    fn run<T: Send>(self, client: usize, work: impl FnOnce() -> T + Send) -> T {
        match self {
            Self::Here => work(),
            Self::On(machines) => machines[self.number(client)].run(work),
        }
    }
}

/// The findings of the clients.
pub struct Findings {
    /// Of workers with the Rust client, and over HTTP.
    beliefs: [Vec<Belief>; 2],
    plain_beliefs: Vec<PlainBelief>,
    /// How often each runner was granted what it asked for.
    grants_of_runners: Vec<u64>,
    declared: Declared,
    kept: Kept,
    unexpected: Vec<String>,
}

/// Sets the flag when it is dropped, so that threads end even if another one panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Clients of a cluster.
pub struct Load {
    addresses: Vec<SocketAddr>,
    http: Vec<SocketAddr>,
    /// Clients that acquire and release without a pause.
    runners: usize,
}

impl Load {
    /// Declares what the workers acquire. `runners`: how many clients acquire and release without a pause.
    pub fn prepare(cluster: &TestCluster, runners: usize) -> Self {
        let addresses = cluster.servers().split(',').map(|address| address.parse().unwrap()).collect();
        Self::of(cluster.client(|builder| builder), addresses, cluster.http_addresses(), runners)
    }

    /// Like [`Self::prepare`], for servers at these addresses; `http` has their addresses for HTTP.
    pub fn of(client: Client, addresses: Vec<SocketAddr>, http: Vec<SocketAddr>, runners: usize) -> Self {
        let declaration =
            Declaration { name: SLOTS_NAME.as_bytes(), capacity: SLOTS.into(), numbered: true, label: b"" };
        let declare = Operation::Declare { if_exists: IfExists::Fail, declarations: vec![declaration] };
        client.wait(async { client.direct().await?.change(&declare).await }).unwrap();
        client.close();
        Self { addresses, http, runners }
    }

    /// Runs clients until `act` has ended. Returns what they have found, and the result of `act`.
    pub fn run_while<T>(
        &self,
        location: Location<'_>,
        seed: u64,
        act: impl FnOnce(&Progress) -> T,
    ) -> (Findings, T) {
        let progress = Progress::new(WORKERS + PLAIN_WORKERS + HTTP_WORKERS);
        let (stop, unexpected) = (AtomicBool::new(false), Mutex::default());
        let held_by_runners = AtomicU32::new(0);
        let (mut findings, result) = std::thread::scope(|scope| {
            let stop_all = Stop(&stop);
            let run =
                Run { addresses: &self.addresses, http: &self.http, stop: &stop, unexpected: &unexpected };
            let progress = &progress;
            let seed_of = |number: usize| seed.wrapping_add(1 + number as u64);
            let workers: Vec<_> = (0..WORKERS)
                .map(|number| {
                    let worker = Worker::new(run, number, seed_of(number));
                    scope.spawn(move || location.run(number, || worker.work(progress)))
                })
                .collect();
            let plain_workers: Vec<_> = (WORKERS..WORKERS + PLAIN_WORKERS)
                .map(|number| {
                    let worker = PlainWorker::new(run, number, location.number(number), seed_of(number));
                    scope.spawn(move || location.run(number, || worker.work(progress)))
                })
                .collect();
            let http_workers: Vec<_> = (WORKERS + PLAIN_WORKERS..WORKERS + PLAIN_WORKERS + HTTP_WORKERS)
                .map(|number| {
                    let worker = HttpWorker::new(run, number, seed_of(number));
                    scope.spawn(move || location.run(number, || worker.work(progress)))
                })
                .collect();
            let runners: Vec<_> = (0..self.runners)
                .map(|number| {
                    let runner = Runner::new(run, number, &held_by_runners);
                    scope.spawn(move || location.run(number, || runner.work()))
                })
                .collect();
            let administrator = scope.spawn(move || location.run(0, || Administrator::new(run, seed).work()));
            let keeper = scope.spawn(move || location.run(1, || Keeper::new(run).work()));
            let result = act(progress);
            drop(stop_all);
            let findings = Findings {
                beliefs: [workers, http_workers]
                    .map(|workers| workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()),
                plain_beliefs: plain_workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect(),
                grants_of_runners: runners.into_iter().map(|runner| runner.join().unwrap()).collect(),
                declared: administrator.join().unwrap(),
                kept: keeper.join().unwrap(),
                unexpected: Vec::new(),
            };
            (findings, result)
        });
        findings.unexpected = unexpected.into_inner().unwrap();
        (findings, result)
    }
}

impl Findings {
    /// Panics if more was held than there is. `outages`: when clients could not learn from their nodes that they no longer hold
    /// anything.
    pub fn check_held(&self, outages: &[Outage]) {
        let Self { beliefs, plain_beliefs, grants_of_runners, declared, kept, unexpected } = self;
        assert!(unexpected.is_empty(), "{unexpected:#?}");
        verdict::check(&beliefs.concat(), SLOTS).unwrap_or_else(|why| panic!("{why}"));
        verdict::check_plain(plain_beliefs, outages, PLAIN_MAXIMUM).unwrap_or_else(|why| panic!("{why}"));
        println!(
            "{} grants, {} over HTTP, {} grants without leases, {} grants of runners, {} declarations, {} kept",
            beliefs[0].len(),
            beliefs[1].len(),
            plain_beliefs.len(),
            grants_of_runners.iter().sum::<u64>(),
            declared.len(),
            kept.len()
        );
        assert!(!declared.is_empty() && kept.len() > 0);
        assert!(grants_of_runners.iter().all(|grants| *grants > 0), "{grants_of_runners:?}");
        assert!(
            beliefs[0].len() > WORKERS
                && beliefs[1].len() > HTTP_WORKERS
                && plain_beliefs.len() > PLAIN_WORKERS
        );
    }

    /// Panics if a permit with a lease was lost.
    pub fn check_nothing_was_lost(&self) {
        let lost: Vec<_> = self.beliefs.iter().flatten().filter(|belief| belief.is_lost).collect();
        assert!(lost.is_empty(), "{lost:#?}");
    }

    /// Panics if something acknowledged is not there.
    pub fn check_stored(&self, client: &Client) {
        self.declared.check(client);
        self.kept.check(client);
    }
}

/// Whether everything that the workers acquired has been released.
pub fn is_everything_released(client: &Client) -> bool {
    let in_use = |namespace, name: &[u8]| {
        client.wait(async { Ok::<_, Error>(client.direct().await?.inspect(namespace, name).await?.in_use) })
    };
    in_use(Namespace::Semaphores, SLOTS_NAME.as_bytes()).is_ok_and(|in_use| in_use == 0)
        && in_use(Namespace::Counters, PLAIN_NAME).is_ok_and(|in_use| in_use == 0)
}
