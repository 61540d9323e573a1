//! The cost of a cluster: the time from the end of a leader to the first grant of the next one, what clients see of it, and
//! durable grants compared with a bare loop of the same transactions on the same etcd.
//!
//! `cargo bench --bench cluster -- failover`, `-- clients` and `-- pairs`; `docs/performance.md` describes
//! what is compared.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signalbox_client::blocking::Client;
use signalbox_cluster::admin::{Release, release};
use signalbox_cluster::coordinator::{Coordinator, Operation, Range, Transaction};
use signalbox_cluster::data::import;
use signalbox_cluster::etcd::{EtcdClient, Settings};
use signalbox_cluster::keys::{Keys, Marker, encode};
use signalbox_cluster::leadership::Term;
use signalbox_cluster::store::ClusterStorage;
use signalbox_cluster::timing::{BootTime, Fence, Timing};
use signalbox_core::Record;
use support::answers::statistic;
use support::arguments::FromCargo;
use support::declaration::declaration;
use support::lessees::{self, Lessee};
use support::ports::free_ports;
use support::servers::{find, program, quiet};
use support::statistics::median;
use tempfile::TempDir;

/// The share of the bare loop's rate that must be reached.
const OF_THE_BARE_LOOP: f64 = 0.6;

/// Bytes of a record: about those of a grant of a short name.
const RECORD_BYTES: usize = 72;

/// The id that systemd would give to each run of the service.
const INVOCATION: &str = "bench";

/// How long anything may take before the benchmark gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures a cluster
#[derive(Debug, Parser)]
struct Arguments {
    /// What is measured
    #[arg(value_enum, default_value = "failover")]
    what: What,

    /// How the leader ends
    #[arg(long, value_enum, default_value = "kill")]
    end: End,

    /// Plain clients connect to a third node, which only relays, and their first grant is waited for
    #[arg(long)]
    relayed: bool,

    /// Records that the next leader loads
    #[arg(long, default_value = "100000")]
    records: u32,

    /// How often everything is measured
    #[arg(long, default_value = "10")]
    runs: usize,

    /// Members of etcd
    #[arg(long, default_value = "3")]
    members: usize,

    /// The election timeout of etcd in milliseconds; its heartbeats come ten times as often
    #[arg(long, default_value = "1000")]
    election: u32,

    /// The renew deadline, in seconds
    #[arg(long, default_value = "3")]
    renew_deadline: u32,

    /// Leased sessions of "pairs"
    #[arg(long, default_value = "50")]
    sessions: usize,

    /// Length of each run of "pairs", in seconds
    #[arg(long, default_value = "5")]
    seconds: f64,

    /// Once and with few records: to see that it works
    #[arg(long)]
    quick: bool,

    #[command(flatten)]
    from_cargo: FromCargo,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// The time from the end of a leader to the first grant of the next one
    Failover,
    /// The longest time without an answer of holding and waiting clients over a failover, with the Rust client and over HTTP
    Clients,
    /// Durable grants and releases, compared with a bare loop of transactions
    Pairs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum End {
    /// kill -9
    Kill,
    /// kill -9, and the release that "signalbox cluster release" makes in the unit's ExecStopPost=
    Release,
    /// SIGTERM
    Stop,
    /// "signalbox cluster drain"; the longest time that an operation of a client with a lease takes meanwhile
    Drain,
}

fn main() {
    let mut arguments = Arguments::parse();
    if arguments.quick {
        (arguments.records, arguments.runs, arguments.members, arguments.seconds) = (100, 1, 1, 0.5);
    }
    if find("etcd").is_none() {
        println!("nothing is measured: etcd is not installed (apt-get install etcd-server)");
        return;
    }
    match arguments.what {
        What::Failover => failover(&arguments),
        What::Clients => clients(&arguments),
        What::Pairs => pairs(&arguments),
    }
}

/// Nodes on an etcd of their own; all of them are killed when this is dropped.
struct Cluster {
    folder: TempDir,
    endpoints: Vec<String>,
    members: Vec<Child>,
    nodes: Vec<Node>,
}

struct Node {
    name: String,
    address: SocketAddr,
    http: SocketAddr,
    file: PathBuf,
    process: Child,
}

impl Cluster {
    /// An etcd without nodes.
    fn start(arguments: &Arguments) -> Self {
        let folder = tempfile::tempdir().expect("there is a directory for scratch files");
        let ports: Vec<[u16; 2]> = (0..arguments.members).map(|_| free_ports()).collect();
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let peers = ports.iter().enumerate().map(|(number, [_, peer])| format!("m{number}={}", url(*peer)));
        let peers = peers.collect::<Vec<_>>().join(",");
        let member = |(number, [client, peer]): (usize, &[u16; 2])| {
            let mut command = program("etcd");
            command.args(["--name", &format!("m{number}"), "--log-level", "error"]);
            command.arg("--data-dir").arg(folder.path().join(format!("m{number}")));
            command.args(["--listen-client-urls", &url(*client), "--advertise-client-urls", &url(*client)]);
            command.args(["--listen-peer-urls", &url(*peer), "--initial-advertise-peer-urls", &url(*peer)]);
            command.args(["--initial-cluster", &peers, "--auto-compaction-mode", "periodic"]);
            command.args(["--auto-compaction-retention", "5m", "--quota-backend-bytes", "8589934592"]);
            command.args(["--election-timeout", &arguments.election.to_string()]);
            command.args(["--heartbeat-interval", &(arguments.election / 10).to_string()]);
            quiet(&mut command)
        };
        let members = ports.iter().enumerate().map(member).collect();
        let endpoints = ports.iter().map(|[client, _]| url(*client)).collect();
        let cluster = Self { folder, endpoints, members, nodes: Vec::new() };
        let mut client = cluster.client();
        let any = Range { from: b"x".to_vec(), to: None, at: None, count_only: true };
        wait_for("etcd answers", || client.range(&any).is_ok());
        cluster
    }

    fn client(&self) -> EtcdClient {
        let endpoints = self.endpoints.clone();
        let settings = Settings { endpoints, tls: None, user: None, request_timeout: Duration::from_secs(5) };
        EtcdClient::new(&settings).expect("the settings fit together")
    }

    /// Starts a node, with further lines of its section.
    fn add_node(&mut self, arguments: &Arguments, further: &str) {
        let number = self.nodes.len();
        let [counter, http, relays] = free_ports();
        let (name, file) = (format!("n{number}"), self.folder.path().join(format!("{number}.toml")));
        let text = format!(
            "bind_ip = \"127.0.0.1\"\nsemaphore.enable = false\n[counter]\nport = {counter}\n[http]\nenable = true\nport = {http}\n[cluster]\nnode = \"{name}\"\n\
             bind = \"127.0.0.1:{relays}\"\nadvertise = \"127.0.0.1\"\nrenew_deadline = {}\netcd = \"{}\"\n{further}",
            arguments.renew_deadline,
            self.endpoints.join(" ")
        );
        fs::write(&file, text).expect("a scratch file can be written");
        let process = serve(&file);
        let [address, http] = [counter, http].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        self.nodes.push(Node { name, address, http, file, process });
    }

    /// The node that leads; waits until there is one.
    fn leader(&mut self) -> usize {
        let mut leader = None;
        self.wait_for("a node leads", None, |cluster| {
            let status = cluster.nodes[0].status();
            leader = cluster.nodes.iter().position(|node| status["leader"] == *node.name);
            leader.is_some()
        });
        leader.expect("it was waited for")
    }

    /// Waits until all nodes are there, with the one that leads.
    fn wait_for_all(&mut self, leader: usize) {
        self.wait_for("all nodes are there", None, |cluster| {
            cluster.nodes[leader].nodes_alive() == cluster.nodes.len()
        });
    }

    /// Waits, and meanwhile starts nodes again that have ended themselves, as the service manager does: under load, one may
    /// not reach etcd in time. `ended` is the node whose end is measured.
    fn wait_for(&mut self, what: &str, ended: Option<usize>, mut holds: impl FnMut(&Self) -> bool) {
        wait_for(what, || {
            for (number, node) in self.nodes.iter_mut().enumerate() {
                if Some(number) != ended && matches!(node.process.try_wait(), Ok(Some(_))) {
                    println!("  {} has ended itself, and is started again", node.name);
                    node.process = serve(&node.file);
                }
            }
            holds(self)
        });
    }
}

impl Node {
    fn cluster_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_signalbox"));
        command.arg("cluster").args(arguments).arg("--config").arg(&self.file);
        command
    }

    fn status(&self) -> serde_json::Value {
        let output = self.cluster_command(&["status", "--json"]).output().expect("the program runs");
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// How many nodes of the cluster send heartbeats.
    fn nodes_alive(&self) -> usize {
        let status = self.status();
        let nodes = status["nodes"].as_array().map_or(&[][..], Vec::as_slice);
        nodes.iter().filter(|node| node["state"] != "silent").count()
    }

    /// Ends the process, with a client of etcd for its release.
    fn end(&mut self, end: End, etcd: &mut EtcdClient) {
        if let End::Drain = end {
            let drained = self.cluster_command(&["drain", &self.name]).output();
            return assert!(drained.expect("the program runs").status.success(), "the leader is drained");
        }
        let signal = if let End::Stop = end { Signal::SIGTERM } else { Signal::SIGKILL };
        let pid = Pid::from_raw(i32::try_from(self.process.id()).expect("ids of processes are small"));
        kill(pid, signal).expect("the node runs");
        if let End::Release = end {
            self.process.wait().expect("it is a child");
            // "signalbox cluster release" does this in ExecStopPost=, after it has asked systemd's control groups.
            let released = release(etcd, &Keys::new("main"), &self.name, Some(INVOCATION));
            assert_eq!(released.expect("etcd answers"), Release::Released);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in self.nodes.iter_mut().map(|node| &mut node.process).chain(&mut self.members) {
            // It may have ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn serve(file: &std::path::Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_signalbox"));
    quiet(command.arg("serve").arg("--config").arg(file).env("INVOCATION_ID", INVOCATION))
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "not in time: {what}");
        sleep(Duration::from_millis(5));
    }
}

fn failover(arguments: &Arguments) {
    let Arguments { end, records, runs, members, election, renew_deadline, .. } = *arguments;
    let timing = Timing::new(Duration::from_secs(renew_deadline.into())).expect("2 to 60 seconds");
    println!(
        "{runs} failovers with {records} records, {members} members of etcd with an election timeout of {election} ms, and a \
         renew deadline of {renew_deadline} s; the leader ends by {end:?}; the lease duration is {:?}",
        timing.lease_duration()
    );
    let mut cluster = loaded(arguments, timing);
    let mut etcd = cluster.client();
    if arguments.relayed {
        cluster.add_node(arguments, "eligible = false\n");
    }
    let mut seconds = Vec::new();
    for run in 1..=runs {
        let leader = cluster.leader();
        assert_eq!(statistic(cluster.nodes[leader].address, "declared"), u64::from(records));
        cluster.wait_for_all(leader);
        let relay = cluster.nodes.get(2).map(|node| node.address);
        // It holds something until the leader ends.
        let _holder = relay.map(|relay| plain_grant(relay, "held").expect("the relay reaches the leader"));
        let took = match end {
            End::Drain => longest_operation(&cluster, leader),
            End::Kill | End::Release | End::Stop => {
                let next = relay.unwrap_or(cluster.nodes[1 - leader].address);
                let began = Instant::now();
                cluster.nodes[leader].end(end, &mut etcd);
                cluster.wait_for("the next node grants", Some(leader), |_| match relay {
                    Some(relay) => plain_grant(relay, &format!("after-{run}")).is_some(),
                    // A node that stands by closes connections, as when it begins to lead: then a client connects again.
                    None => Lessee::enter(next, run).and_then(|mut lessee| lessee.takes()).unwrap_or(false),
                });
                began.elapsed()
            }
        };
        seconds.push(took.as_secs_f64());
        println!("  {:.2} s", took.as_secs_f64());
        let node = &mut cluster.nodes[leader];
        node.process.wait().expect("it is a child");
        node.process = serve(&node.file);
    }
    let slowest = seconds.iter().copied().fold(0.0, f64::max);
    println!("median {:.2} s, slowest {slowest:.2} s", median(&seconds));
}

/// Two nodes with records.
fn loaded(arguments: &Arguments, timing: Timing) -> Cluster {
    let records = arguments.records;
    let mut cluster = Cluster::start(arguments);
    let declared: Vec<_> =
        (0..records).map(declaration).chain([Record::Mark(u64::from(records) + 1)]).collect();
    import(&mut cluster.client(), &Keys::new("main"), timing, &declared)
        .expect("the records can be imported");
    cluster.add_node(arguments, "");
    cluster.add_node(arguments, "");
    cluster
}

/// The time to live of the leases of `clients`.
const TTL: Duration = Duration::from_secs(30);

/// The effects of a leader's end on clients of one kind.
struct Seen {
    /// The longest operation of a client that holds something.
    holding: Duration,
    /// The time from the end until a client was granted what it waited for, which was free at the end.
    waiting: Duration,
}

/// All clients know one node, which only relays.
fn clients(arguments: &Arguments) {
    let timing = Timing::new(Duration::from_secs(arguments.renew_deadline.into())).expect("2 to 60 seconds");
    println!(
        "{} failovers with {} records; the leader ends by {:?}; the lease duration is {:?}\n{:>12}{:>16}{:>12}{:>16}",
        arguments.runs,
        arguments.records,
        arguments.end,
        timing.lease_duration(),
        "Rust: holds",
        "waits",
        "HTTP: holds",
        "waits"
    );
    let mut cluster = loaded(arguments, timing);
    cluster.add_node(arguments, "eligible = false\n");
    let mut etcd = cluster.client();
    let mut columns: [Vec<f64>; 4] = Default::default();
    for run in 0..arguments.runs {
        let leader = cluster.leader();
        cluster.wait_for_all(leader);
        let (relay, http) = (cluster.nodes[2].address, cluster.nodes[2].http);
        let [for_rust, for_http] = ["rust", "http"].map(|kind| format!("{kind}-{run}"));
        // The clients wait for these. They become free when the leader ends.
        let _held = [&for_rust, &for_http]
            .map(|name| plain_grant(relay, name).expect("the relay reaches the leader"));
        let (ended, is_over) = (OnceLock::new(), AtomicBool::new(false));
        let [rust, over_http] = std::thread::scope(|scope| {
            let rust = scope.spawn(|| see_with_the_rust_client(relay, &for_rust, &ended, &is_over));
            let over_http = scope.spawn(|| see_over_http(http, run, &for_http, &ended, &is_over));
            sleep(Duration::from_secs(1));
            ended.set(Instant::now()).expect("it ends once");
            cluster.nodes[leader].end(arguments.end, &mut etcd);
            cluster.wait_for("the next node grants", Some(leader), |_| {
                plain_grant(relay, &format!("after-{run}")).is_some()
            });
            is_over.store(true, Ordering::Relaxed);
            [rust, over_http].map(|seen| seen.join().expect("the clients are served"))
        });
        let seen =
            [rust.holding, rust.waiting, over_http.holding, over_http.waiting].map(|time| time.as_secs_f64());
        let [a, b, c, d] = seen;
        println!("{a:>10.2} s{b:>14.2} s{c:>10.2} s{d:>14.2} s");
        columns.iter_mut().zip(seen).for_each(|(column, time)| column.push(time));
        let node = &mut cluster.nodes[leader];
        node.process.wait().expect("it is a child");
        node.process = serve(&node.file);
    }
    let [a, b, c, d] = columns.map(|column| median(&column));
    println!("{a:>10.2} s{b:>14.2} s{c:>10.2} s{d:>14.2} s   median");
}

/// The longest of these operations, which continue until `is_over`.
fn longest_of(is_over: &AtomicBool, mut operation: impl FnMut()) -> Duration {
    let mut longest = Duration::ZERO;
    loop {
        let is_last = is_over.load(Ordering::Relaxed);
        let began = Instant::now();
        operation();
        longest = longest.max(began.elapsed());
        if is_last {
            return longest;
        }
    }
}

fn see_with_the_rust_client(
    relay: SocketAddr,
    wanted: &str,
    ended: &OnceLock<Instant>,
    is_over: &AtomicBool,
) -> Seen {
    let connect = || {
        let builder = signalbox_client::Client::builder(relay.to_string().parse().expect("an address"));
        Client::connect_with(builder.ttl(TTL)).expect("the cluster serves")
    };
    let (holder, waiter) = (connect(), connect());
    let seen = std::thread::scope(|scope| {
        let waited = scope.spawn(|| {
            let all = waiter.counter(wanted).maximum(PLAIN_MAXIMUM).resources(PLAIN_MAXIMUM);
            let _held = waiter.wait(all.acquire()).expect("it is free when the leader has ended");
            ended.get().expect("not before the end").elapsed()
        });
        let holding = longest_of(is_over, || {
            // The next acquire is executed after the release, for whose answer nothing waits for longer than 5 s.
            drop(holder.wait(holder.counter("own").maximum(1).acquire()).expect("the session lives"));
        });
        Seen { holding, waiting: waited.join().expect("it is granted") }
    });
    // The next leader would wait for their sessions.
    [holder, waiter].into_iter().for_each(Client::close);
    seen
}

/// Runs clients that use HTTP as docs/http.md describes.
fn see_over_http(
    http: SocketAddr,
    run: usize,
    wanted: &str,
    ended: &OnceLock<Instant>,
    is_over: &AtomicBool,
) -> Seen {
    let [own, waiting] = [1, 2].map(|kind| format!("{kind}{run:031}"));
    let acquire = |key: &str, name: &str, resources: u32, place: &serde_json::Value| {
        let claim = serde_json::json!({"name": name, "resources": resources, "maximum": PLAIN_MAXIMUM});
        let mut body = serde_json::json!({
            "key": key, "claims": [claim], "ttl_ms": TTL.as_millis() as u64, "wait_ms": 60_000,
            "poll_ms": POLL.as_millis() as u64
        });
        if !place.is_null() {
            body["place"] = place.clone();
        }
        repeated(http, "acquire", &body)
    };
    let none = serde_json::Value::Null;
    assert_eq!(acquire(&own, &format!("own-{wanted}"), 1, &none)["state"], "held");
    let seen = std::thread::scope(|scope| {
        let waited = scope.spawn(|| {
            let mut place = none.clone();
            loop {
                let answer = acquire(&waiting, wanted, PLAIN_MAXIMUM, &place);
                if answer["state"] == "held" {
                    return ended.get().expect("not before the end").elapsed();
                }
                place = answer["place"].clone();
            }
        });
        let renewal = serde_json::json!({ "keys": [own] });
        let holding = longest_of(is_over, || {
            let renewed = repeated(http, "renew", &renewal);
            assert_eq!(renewed["leases"][0]["state"], "held", "{renewed}");
        });
        Seen { holding, waiting: waited.join().expect("it is granted") }
    });
    for key in [own, waiting] {
        repeated(http, "release", &serde_json::json!({ "key": key }));
    }
    seen
}

/// The answer to a request, which is repeated until there is one.
fn repeated(http: SocketAddr, path: &str, body: &serde_json::Value) -> serde_json::Value {
    let request = format!(
        "POST /api/v1/lease/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.to_string().len()
    );
    let ask = || {
        let mut answer = String::new();
        let mut stream = TcpStream::connect(http).ok()?;
        stream.set_read_timeout(Some(ANSWER_MAX)).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let is_answered = head.starts_with("HTTP/1.1 200") || head.starts_with("HTTP/1.1 202");
        let is_repeated = ["HTTP/1.1 408", "HTTP/1.1 503"].iter().any(|status| head.starts_with(status));
        assert!(is_answered || is_repeated, "{answer}");
        if is_answered { serde_json::from_str(body).ok() } else { None }
    };
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        sleep(Duration::from_millis(200));
    }
}

/// How long a request over HTTP may wait for a change, and for how long its answer is waited for.
const POLL: Duration = Duration::from_secs(8);
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The maximum of what plain clients acquire.
const PLAIN_MAXIMUM: u32 = 1000;

/// Acquires something over a connection of a plain client, which holds it; `None`: the connection has ended, or has no answer.
fn plain_grant(address: SocketAddr, name: &str) -> Option<TcpStream> {
    const ACQUIRE: u8 = 0x02;
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_nodelay(true).ok()?;
    stream.set_read_timeout(Some(ANSWER_MAX)).ok()?;
    let body = [
        &1_u32.to_be_bytes()[..],
        &PLAIN_MAXIMUM.to_be_bytes(),
        &(name.len() as u16).to_be_bytes(),
        name.as_bytes(),
    ];
    let body = body.concat();
    let mut request = vec![0x90, ACQUIRE, 0, 0];
    request.extend((body.len() as u32).to_be_bytes());
    request.extend([0; 4]);
    request.extend(body);
    stream.write_all(&request).ok()?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).ok()?;
    // The third byte is the status.
    (answer[2] == 0).then_some(stream)
}

/// Drains the leader. Returns the longest time that a pair of operations of a client with a lease took meanwhile.
fn longest_operation(cluster: &Cluster, leader: usize) -> Duration {
    let Node { name, address, .. } = &cluster.nodes[leader];
    let known = cluster.nodes.last().map_or(*address, |node| node.address);
    let builder = signalbox_client::Client::builder(known.to_string().parse().expect("an address"));
    let client = Client::connect_with(builder.ttl(Duration::from_secs(60))).expect("the cluster serves");
    let mut drain = quiet(&mut cluster.nodes[leader].cluster_command(&["drain", name]));
    let (mut longest, mut is_over) = (Duration::ZERO, false);
    loop {
        let began = Instant::now();
        let permit = client.wait(client.counter("drained").maximum(1).acquire()).expect("the session lives");
        client.wait(permit.release()).expect("the session lives");
        longest = longest.max(began.elapsed());
        if is_over {
            break;
        }
        // Once more after the end, with the next leader.
        is_over = drain.try_wait().expect("it is a child").is_some();
    }
    assert!(drain.wait().expect("it is a child").success(), "the leader is drained");
    longest
}

fn pairs(arguments: &Arguments) {
    let (sessions, time) = (arguments.sessions, Duration::from_secs_f64(arguments.seconds));
    println!("{sessions} sessions that take and give back a grant, one after the other; runs of {time:?}\n");
    println!(
        "{:>12}{:>14}{:>12}{:>12}{:>20}",
        "pairs/s", "changes each", "commits/s", "bare loop", "to the bare loop"
    );
    let mut cluster = Cluster::start(arguments);
    cluster.add_node(arguments, "");
    let leader = cluster.leader();
    let address = cluster.nodes[leader].address;
    let stored = || ["store_commits", "store_changes"].map(|name| statistic(address, name) as f64);
    let mut ratios = Vec::new();
    for run in 0..arguments.runs {
        let before = stored();
        let pairs = lessees::pairs_per_s(address, run * sessions, sessions, time);
        let after = stored();
        let [commits, changes] = [0, 1].map(|item| after[item] - before[item]);
        let (commits_per_s, each) = (commits / time.as_secs_f64(), changes / commits);
        let bare = bare_commits_per_s(&mut cluster.client(), each.round().max(1.0) as usize, time);
        ratios.push(commits_per_s / bare);
        println!("{pairs:>12.0}{each:>14.1}{commits_per_s:>12.0}{bare:>12.0}{:>20.2}", commits_per_s / bare);
    }
    let ratio = median(&ratios);
    let verdict = if ratio >= OF_THE_BARE_LOOP { "reached" } else { "missed" };
    println!("median {ratio:.2} of the bare loop's commits; at least {OF_THE_BARE_LOOP} asked: {verdict}");
}

/// Commits the same transactions without a server, below other keys: half of the changes are new records, and half delete
/// the records of the previous commit, as grants and releases do.
fn bare_commits_per_s(client: &mut EtcdClient, changes: usize, time: Duration) -> f64 {
    let keys = Keys::new("bare");
    let marker = Marker { epoch: 1, commit: 0 };
    let then = [(keys.leadership(), b"led".to_vec()), (keys.marker(), encode(&marker))];
    let then = then.map(|(key, value)| Operation::Put { key, value }).to_vec();
    let taken = client.transact(&Transaction { then, ..Transaction::default() }).expect("etcd answers");
    let term =
        Term { epoch: 1, leadership_modified: taken.revision, record_format: signalbox_storage::FORMAT };
    let fence = Fence::new(BootTime::default);
    fence.set(BootTime(Duration::MAX));
    let mut storage = ClusterStorage::new((), keys.clone(), term, fence);
    let half = changes.div_ceil(2) as u64;
    let key = |number: u64| [keys.records().as_slice(), &number.to_be_bytes()].concat();
    let (began, mut commits) = (Instant::now(), 0_u64);
    while began.elapsed() < time {
        let new = commits * half..(commits + 1) * half;
        let old = commits.saturating_sub(1) * half..commits * half;
        let put = |number| Operation::Put { key: key(number), value: vec![2; RECORD_BYTES] };
        let delete = |number| Operation::Delete { key: key(number) };
        let commit = storage.begin_writes(new.map(put).chain(old.map(delete)).collect());
        let answer = client.transact(commit.transaction());
        assert!(matches!(storage.answered(&commit, answer), Some(Ok(()))), "nothing disturbs it");
        commits += 1;
    }
    commits as f64 / began.elapsed().as_secs_f64()
}
