//! The cost of a relay: a node that relays in relation to a bare relay of the same bytes to the same leader, and the memory
//! of idle relayed connections.
//!
//! ```sh
//! cargo bench --bench relay
//! ```

mod support;

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Parser;
use signalbox_bench::{Distribution, Generator, Limit, Pace, Progress, Usage};
use support::arguments::FromCargo;
use support::ports::free_ports;
use support::servers::{Server, find, program, quiet, start_splice};
use support::statistics::median;
use support::{Loaded, Outcome, Shape, pairs, splice};
use tempfile::TempDir;

const NAMES: u32 = 10_000;

const SHAPES: [Shape; 2] =
    [Shape { connections: 50, in_flight: 1 }, Shape { connections: 50, in_flight: 16 }];

/// The most that a relay may cost in relation to the bare one.
const BOUND: f64 = 1.3;

/// The most that an idle relayed connection may need.
const IDLE_BYTES_MAX: u64 = 8 * 1024;

/// How long anything may take before the benchmark gives up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Compares a node that relays with a bare relay
#[derive(Debug, Parser)]
struct Arguments {
    /// Rounds in which each relay runs once
    #[arg(long, default_value = "15")]
    rounds: usize,

    /// Length of a run, in seconds
    #[arg(long, default_value = "0.4")]
    seconds: f64,

    /// Idle connections whose memory is measured; each needs two files of the relay (ulimit -n)
    #[arg(long, default_value = "20000")]
    idle: usize,

    #[command(flatten)]
    from_cargo: FromCargo,
}

/// An etcd, a node that leads, and one that only relays. They are killed when this is dropped.
struct Cluster {
    processes: Vec<Child>,
    leader: SocketAddr,
    relay: Option<Server>,
    _folder: TempDir,
}

impl Cluster {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("there is a directory for scratch files");
        let [client, peer, leader, relay, relays] = free_ports();
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let mut etcd = program("etcd");
        etcd.arg("--data-dir").arg(folder.path().join("etcd")).args(["--log-level", "error"]);
        etcd.args(["--listen-client-urls", &url(client), "--advertise-client-urls", &url(client)]);
        etcd.args(["--listen-peer-urls", &url(peer), "--initial-advertise-peer-urls", &url(peer)]);
        etcd.args(["--initial-cluster", &format!("default={}", url(peer))]);
        let mut processes = vec![quiet(&mut etcd)];
        let node = |name: &str, port: u16, further: &str| {
            let file = folder.path().join(format!("{name}.toml"));
            // One thread, like the bare relay.
            let text = format!(
                "bind_ip = \"127.0.0.1\"\nworkers = 1\nclient_share = 100\nsemaphore.enable = false\n[counter]\nport = {port}\n\
                 max_connections = 0\n[cluster]\nnode = \"{name}\"\netcd = \"{}\"\n{further}",
                url(client)
            );
            fs::write(&file, text).expect("a scratch file can be written");
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_signalbox"));
            quiet(command.arg("serve").arg("--config").arg(&file))
        };
        processes.push(node("leader", leader, &format!("bind = \"127.0.0.1:{relays}\"\n")));
        let [leader, relays, relay_address] =
            [leader, relays, relay].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let began = Instant::now();
        while TcpStream::connect(relays).is_err() {
            assert!(began.elapsed() < PATIENCE, "no node leads");
            sleep(Duration::from_millis(10));
        }
        let relay = Server::accepting(node("relay", relay, "eligible = false\n"), relay_address, None);
        Self { processes, leader, relay: Some(relay), _folder: folder }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // It may have ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn main() {
    splice::become_if_asked();
    let arguments = Arguments::parse();
    if find("etcd").is_none() {
        println!("nothing is measured: etcd is not installed (apt-get install etcd-server)");
        return;
    }
    println!(
        "CPU of a relay for an acquire or a release; medians of {} rounds of {} s",
        arguments.rounds, arguments.seconds
    );
    SHAPES.into_iter().for_each(|shape| compare(shape, &arguments));
    print_memory(arguments.idle);
}

fn compare(shape: Shape, arguments: &Arguments) {
    let mut cluster = Cluster::start();
    let relay = cluster.relay.take().expect("it was started");
    let loaded = |server: Server| {
        Loaded::connect(server, pairs(shape, NAMES, Distribution::Uniform))
            .unwrap_or_else(|error| panic!("{shape}: {error}"))
    };
    let mut servers = [loaded(start_splice(cluster.leader)), loaded(relay)];
    let time = Duration::from_secs_f64(arguments.seconds);
    let mut run = |server: usize, pace| {
        servers[server].run(time, pace).unwrap_or_else(|error| panic!("{shape}: {error}"))
    };
    // Once unmeasured: the names are made, the caches warm.
    let rate = run(0, Pace::Closed).record.answers_per_s().min(run(1, Pace::Closed).record.answers_per_s());
    // The same work for both, with room to spare.
    let pace = || Pace::Open { requests_per_s: rate / 2.0 };
    let rounds: Vec<(Outcome, Outcome)> =
        (0..arguments.rounds.max(1)).map(|_| (run(0, pace()), run(1, pace()))).collect();
    let of =
        |figure: &dyn Fn(&(Outcome, Outcome)) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
    let p99 = |outcome: &Outcome| outcome.record.latency_ns().value_at_percentile(99.0) as f64 / 1000.0;
    let ratio = of(&|(bare, relay)| relay.cpu_ns_per_answer / bare.cpu_ns_per_answer);
    let verdict = if ratio <= BOUND { "reached" } else { "missed" };
    println!("{shape}, {:.0} requests/s", rate / 2.0);
    println!(
        "  bare {:>6.0} ns, relay {:>6.0} ns, ratio {ratio:.2}, bound {BOUND:.2}: {verdict}",
        of(&|(bare, _)| bare.cpu_ns_per_answer),
        of(&|(_, relay)| relay.cpu_ns_per_answer)
    );
    println!(
        "  p99 through the bare one {:>6.0} us, through the relay {:>6.0} us, ratio {:.2}",
        of(&|(bare, _)| p99(bare)),
        of(&|(_, relay)| p99(relay)),
        of(&|(bare, relay)| p99(relay) / p99(bare))
    );
}

/// The resident memory of idle relayed connections after each has had some requests.
fn print_memory(connections: usize) {
    let mut cluster = Cluster::start();
    let relay = cluster.relay.take().expect("it was started");
    let resident = || Usage::of(relay.pid()).unwrap_or_else(|error| panic!("{error}")).resident_bytes;
    let open = |connections: usize| {
        let shape = Shape { connections, in_flight: 1 };
        let plan = relay.plan(pairs(shape, 1, Distribution::One));
        let mut generator = Generator::connect(relay.address, relay.dialect.clone(), plan)
            .unwrap_or_else(|error| panic!("{shape}: {error}"));
        let limit = Limit::Requests(20 * connections as u64);
        let record = generator.run(limit, Pace::Closed, &Progress::default());
        record.unwrap_or_else(|error| panic!("{shape}: {error}"));
        generator
    };
    let _first = open(4);
    let before = resident();
    let _idle = open(connections);
    let bytes = resident().saturating_sub(before) / connections as u64;
    let verdict = if bytes <= IDLE_BYTES_MAX { "reached" } else { "missed" };
    println!("{connections} idle connections: {bytes} bytes each, bound {IDLE_BYTES_MAX}: {verdict}");
}
