//! One server with a data directory that is killed, frozen and started again, and the clients of `load`.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sys::signal::Signal;
use signalbox_client::Client as Connecting;
use signalbox_client::blocking::Client;

use crate::load::verdict::Outage;
use crate::load::{self, Load, Location};
use crate::support::daemon::{Daemon, free_ports, serve_file};
use crate::support::eventually;

/// After each of them, every worker is served.
const FAULTS: usize = 6;

/// Within this time, on a machine with other work.
const RECOVERY: Duration = Duration::from_secs(60);

#[test]
fn believers_never_exceed_the_slots_of_a_server_that_is_killed_and_frozen() {
    let folder = tempfile::tempdir().unwrap();
    let [counters, semaphores, http] = free_ports();
    let file = folder.path().join("server.toml");
    let data = folder.path().join("data");
    fs::write(
        &file,
        format!(
            "data_dir = {data:?}\n[counter]\nport = {counters}\n[semaphore]\nport = {semaphores}\n\
             [http]\nenable = true\nport = {http}\n"
        ),
    )
    .unwrap();
    fs::create_dir(data).unwrap();
    let start = || {
        let mut daemon = Daemon::spawn(serve_file(&file));
        daemon.ready();
        daemon
    };
    let mut daemon = start();
    let [address, http] = [counters, http].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let client = || Client::connect_with(Connecting::builder(address.to_string().parse().unwrap())).unwrap();
    let load = Load::of(client(), vec![address], vec![http], 0);
    let seed = fastrand::u64(..1_000_000);
    println!("the seed is {seed}");
    let mut random = Rng::with_seed(seed);
    let mut outages = Vec::new();
    let (findings, ()) = load.run_while(Location::Here, seed, |progress| {
        for _ in 0..FAULTS {
            sleep(Duration::from_millis(random.u64(..2_000)));
            let began = Instant::now();
            if random.bool() {
                daemon.signal(Signal::SIGKILL);
                daemon.exit_status();
                sleep(Duration::from_millis(random.u64(..500)));
                daemon = start();
            } else {
                daemon.signal(Signal::SIGSTOP);
                // Sometimes for longer than leases last.
                sleep(Duration::from_millis(random.u64(100..7_000)));
                daemon.signal(Signal::SIGCONT);
            }
            let ended = Instant::now();
            outages.push(Outage { node: 0, machine: None, began, ended: Some(ended) });
            while !progress.waiting_since(ended).is_empty() {
                assert!(ended.elapsed() < RECOVERY, "workers {:?} wait", progress.waiting_since(ended));
                sleep(Duration::from_millis(20));
            }
        }
    });
    findings.check_held(&outages);
    let client = client();
    findings.check_stored(&client);
    eventually("nothing is in use when no client holds it", || load::is_everything_released(&client));
}
