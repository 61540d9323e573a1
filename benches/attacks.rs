//! The latency of honest clients while another client has used up its share of a resource and asks for more, compared with
//! their latency while it sends as many permitted Gets on as many connections, or opens as many connections; and the memory
//! of the server during that time.
//!
//! ```sh
//! cargo bench --bench attacks
//! ```

mod support;

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use signalbox_bench::{Distribution, Pace, Record};
use signalbox_model::{Claim, Milliseconds, Namespace, RequestId, RequestIds, Scope};
use signalbox_protocol::{Claims, Credentials, Extended, Features, Opaque, Queueing, Request, Wait};
use socket2::{Domain, SockRef, Socket, Type};
use support::answers::{Answers, statistic};
use support::arguments::FromCargo;
use support::asker::Asker;
use support::certificates::Files;
use support::servers::{Kind, start_signalbox_with_shares};
use support::statistics::{median, noise};
use support::{Loaded, Shape, floor, pairs};

/// The honest clients.
const SHAPE: Shape = Shape { connections: 50, in_flight: 1 };
const NAMES: u32 = 10_000;

/// The address of the attacker; that of the honest clients is 127.0.0.1.
const ATTACKER: [u8; 4] = [127, 0, 0, 2];

/// The limits of the server: so low that the attacker soon uses up its share.
const MEMORY_MAX: u64 = 256 << 20;
const SESSIONS_MAX: u64 = 20_000;
const LIMITS: &str = "memory_max = '256M'\nclient_share = 12\n\
    session = { max_sessions = 20000, max_waiters = 2000, max_watches = 200 }\n";

/// The time for which the attacker attacks before the run, and the most that it may need to use up its share.
const WARM_UP: Duration = Duration::from_millis(500);
const WARM_UP_MAX: Duration = Duration::from_secs(60);

/// The memory that the process may need beyond its budget, in bytes: for its program, stacks, fragments, and requests in progress.
const BEYOND: u64 = 64 << 20;

/// The highest ratio of the honest clients' p99 to the one during Gets that is permitted.
const BOUND: f64 = 1.5;

/// Connections a second of the attacker that sends a ClientHello on each.
const HELLOS_PER_S: f64 = 7300.0;

/// The name that every waiting request waits for.
const HELD: &[u8] = b"held by an honest client";

/// The Noop at the end of a round.
const LAST: Opaque = Opaque(*b"last");

/// Hello, and the notices that follow.
const HELLO: Opaque = Opaque(*b"hail");

/// Measures the latency of honest clients during attacks of a client that has used up its share
#[derive(Debug, Parser)]
struct Arguments {
    /// Attacks to measure
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<Attack>,

    /// The server's key, with which it signs each handshake
    #[arg(long, value_enum, default_value = "rsa")]
    key: Key,

    /// Numbers of the attacker's connections
    #[arg(long, value_delimiter = ',', default_value = "1,50,200")]
    connections: Vec<usize>,

    /// Rounds of each, in each of which the attacker attacks once and sends Gets twice
    #[arg(long, default_value = "9")]
    rounds: usize,

    /// Length of a run, in seconds
    #[arg(long, default_value = "1")]
    seconds: f64,

    #[command(flatten)]
    from_cargo: FromCargo,
}

/// A kind of keys.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Key {
    /// Of 2,048 bits: its signatures cost the server ten times those of ECDSA
    Rsa,
    /// On the curve P-256
    Ecdsa,
}

/// An action that the attacker repeats on each of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Attack {
    /// It opens a session that lives for an hour.
    Sessions,
    /// It waits for 64 names of 2,000 bytes, of which the first is held.
    Waiters,
    /// It acquires another name of 60,000 bytes.
    Names,
    /// It watches all names.
    Watches,
    /// It asks for the statistics, and reads no answer.
    Stats,
    /// It asks for a list of all sessions.
    Lists,
    /// It closes the connection and opens another one.
    Connections,
    /// It resets the connection, so that its kernel keeps no port of it, and opens another one.
    Resets,
    /// It sends most of a long request.
    Incomplete,
    /// It opens 7,300 connections a second, sends the same ClientHello on each, and resets it.
    Hellos,
    /// It opens as many connections, and sends nothing. `Hellos` is compared with this, the other attacks with Gets.
    #[value(skip)]
    Connects,
    /// It sends nothing, and keeps a core busy. What this costs the honest clients is not the server's doing.
    BusyCore,
}

impl Attack {
    const ALL: [Self; 11] = [
        Self::Sessions,
        Self::Waiters,
        Self::Names,
        Self::Watches,
        Self::Stats,
        Self::Lists,
        Self::Connections,
        Self::Resets,
        Self::Incomplete,
        Self::Hellos,
        Self::BusyCore,
    ];

    /// The attack that this one is compared with; `None`: permitted Gets.
    fn compared_with(self) -> Option<Self> {
        (self == Self::Hellos).then_some(Self::Connects)
    }

    /// Whether the attacker has used up its share. Further requests are refused, or end its own sessions.
    fn has_its_share(self, address: SocketAddr) -> bool {
        match self {
            Self::Sessions => statistic(address, "sessions") >= SESSIONS_MAX / 2,
            Self::Waiters | Self::Names | Self::Watches => statistic(address, "refused_shares") > 0,
            Self::Stats
            | Self::Lists
            | Self::Connections
            | Self::Resets
            | Self::Incomplete
            | Self::Hellos
            | Self::Connects
            | Self::BusyCore => true,
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Sessions => "sessions",
            Self::Waiters => "waiting requests",
            Self::Names => "long names",
            Self::Watches => "watches",
            Self::Stats => "unread Stats",
            Self::Lists => "lists",
            Self::Connections => "connections",
            Self::Resets => "reset connections",
            Self::Incomplete => "incomplete requests",
            Self::Hellos => "ClientHellos",
            Self::Connects => "as many connections",
            Self::BusyCore => "only a busy core",
        }
    }
}

/// A connection of the attacker.
struct Attacker {
    stream: TcpStream,
    answers: Answers,
    out: Vec<u8>,
    requests: u32,
}

impl Attacker {
    fn connect(address: SocketAddr) -> Self {
        let connect = || {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.bind(&SocketAddr::from((ATTACKER, 0)).into())?;
            socket.connect(&address.into())?;
            let stream = TcpStream::from(socket);
            Ok::<_, std::io::Error>((Answers::of(stream.try_clone()?), stream))
        };
        loop {
            match connect() {
                Ok((answers, stream)) => return Self { stream, answers, out: Vec::new(), requests: 0 },
                // The kernel keeps the ports of closed connections for a while.
                Err(error) if error.kind() == ErrorKind::AddrInUse => thread::sleep(Duration::from_millis(1)),
                Err(error) => panic!("cannot connect to {address}: {error}"),
            }
        }
    }

    /// Without it, Watch is not permitted.
    fn say_hello(&mut self) {
        let (credentials, features) = (Credentials(b""), Features::default());
        let hello = Extended::Hello { version: 1, label: b"attacker", credentials, features };
        hello.compose(HELLO, &mut self.out);
    }

    fn add(&mut self, attack: Option<Attack>, number: u32) {
        self.requests += 1;
        // The request claims that all others were answered. Otherwise the limit of unanswered requests, not the share, refuses it.
        let own = RequestId(self.requests.into());
        let ids = RequestIds { own, lowest_unanswered: own };
        let opaque = Opaque(self.requests.to_be_bytes());
        let out = &mut self.out;
        match attack {
            None => Request::Get { name: HELD }.compose(opaque, out),
            Some(Attack::Sessions) => {
                let ttl = Some(Milliseconds(3_600_000));
                Extended::OpenSession { ttl, label: b"attacker", key: None }.compose(opaque, out);
            }
            Some(Attack::Waiters) => {
                let names: Vec<_> = (1..64).map(|index| long_name(index, 2000)).collect();
                let claim = |name| Claim {
                    namespace: Some(Namespace::Counters),
                    name,
                    resources: 1,
                    maximum: 1,
                    slot: None,
                };
                let claims: Vec<_> =
                    [claim(HELD)].into_iter().chain(names.iter().map(|name| claim(name))).collect();
                let claims = Claims::new(&claims).expect("64 names are allowed");
                let wait = Wait::UpTo(Milliseconds(3_600_000));
                let queueing = Queueing { wait, queue_max: None };
                Extended::AcquireAll { ids, queueing, claims, place: None }.compose(opaque, out);
            }
            Some(Attack::Names) => {
                let name = long_name(number, 60_000);
                Request::Acquire { name: &name, resources: 1, maximum: 1 }.compose(opaque, out);
            }
            Some(Attack::Watches) => {
                let scope = Scope::Prefix(&b""[..]);
                Extended::Watch { namespace: Namespace::Semaphores, scope }.compose(opaque, out);
            }
            Some(Attack::Stats) => Request::Stats.compose(opaque, out),
            Some(Attack::Lists) => Extended::Sessions.compose(opaque, out),
            Some(
                Attack::Connections | Attack::Resets | Attack::Hellos | Attack::Connects | Attack::BusyCore,
            ) => {}
            Some(Attack::Incomplete) => {
                let before = out.len();
                let name = long_name(number, 60_000);
                Request::Acquire { name: &name, resources: 1, maximum: 1 }.compose(opaque, out);
                out.truncate(before + 50_000);
            }
        }
    }

    /// The reset makes its kernel free the port at once.
    fn reset_when_dropped(&self) {
        // This fails if the server has closed the connection.
        let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }

    fn send(&mut self) -> std::io::Result<()> {
        let sent = self.stream.write_all(&self.out);
        self.out.clear();
        sent
    }

    /// Sends what the peer takes at once.
    fn send_some(&mut self) {
        let written = self.stream.write(&self.out);
        match written {
            Ok(bytes) => drop(self.out.drain(..bytes)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("the server does not read: {error}"),
        }
    }
}

/// Makes a certificate with a key of this kind.
fn certificate(folder: &Path, key: Key) -> Files {
    let files = Files { certificate: folder.join("cert.pem"), key: folder.join("key.pem") };
    let made = Command::new("openssl")
        .args("req -x509 -days 2 -subj /CN=localhost -nodes -newkey".split(' '))
        .args(match key {
            Key::Rsa => &["rsa:2048"][..],
            Key::Ecdsa => &["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"][..],
        })
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-out"])
        .arg(&files.certificate)
        .arg("-keyout")
        .arg(&files.key)
        .output()
        .expect("openssl is installed");
    assert!(made.status.success(), "{made:?}");
    files
}

/// The first message of a client over TLS.
fn client_hello() -> Vec<u8> {
    let config = ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .expect("the provider has the cipher suites")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = "localhost".try_into().expect("a name of a host");
    let mut client = ClientConnection::new(config.into(), name).expect("the configuration is complete");
    let mut hello = Vec::new();
    client.write_tls(&mut hello).expect("a vector takes everything");
    hello
}

fn long_name(number: u32, bytes: usize) -> Vec<u8> {
    let mut name = vec![b'n'; bytes];
    name[..4].copy_from_slice(&number.to_be_bytes());
    name
}

/// Attacks in rounds until it is over: one request on each connection. `None`: it sends permitted Gets.
fn attack(attack: Option<Attack>, address: SocketAddr, connections: usize, is_over: &AtomicBool) {
    let connect = || Attacker::connect(address);
    let mut attackers: Vec<_> = (0..connections).map(|_| connect()).collect();
    if attack == Some(Attack::Watches) {
        attackers.iter_mut().for_each(Attacker::say_hello);
    }
    let hello = client_hello();
    let begun = Instant::now();
    let mut number = 0;
    while !is_over.load(Ordering::Relaxed) {
        for attacker in &mut attackers {
            number += 1;
            match attack {
                Some(Attack::Connections) => *attacker = connect(),
                Some(Attack::Resets) => {
                    attacker.reset_when_dropped();
                    *attacker = connect();
                }
                Some(Attack::Hellos | Attack::Connects) => {
                    let due = begun + Duration::from_secs_f64(f64::from(number) / HELLOS_PER_S);
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    attacker.reset_when_dropped();
                    *attacker = connect();
                    if attack == Some(Attack::Hellos) {
                        // The server may have closed it already.
                        let _ = attacker.stream.write_all(&hello);
                    }
                }
                Some(Attack::BusyCore) => std::hint::spin_loop(),
                Some(Attack::Incomplete) => {
                    attacker.add(attack, number);
                    // A connection whose socket is full is closed.
                    let _ = attacker.send();
                    *attacker = connect();
                }
                Some(Attack::Stats) => {
                    if attacker.out.is_empty() {
                        (0..20).for_each(|_| attacker.add(attack, number));
                        attacker.stream.set_nonblocking(true).expect("a socket can be nonblocking");
                    }
                    attacker.send_some();
                }
                _ => {
                    attacker.add(attack, number);
                    Request::Noop.compose(LAST, &mut attacker.out);
                    attacker.send().expect("the server reads");
                }
            }
        }
        match attack {
            Some(
                Attack::Connections
                | Attack::Resets
                | Attack::Hellos
                | Attack::Connects
                | Attack::Incomplete
                | Attack::BusyCore,
            ) => {}
            Some(Attack::Stats) => thread::sleep(Duration::from_millis(1)),
            _ => attackers.iter_mut().for_each(|attacker| attacker.answers.skip_to(LAST)),
        }
    }
}

/// The results of a run.
struct Run {
    p99_us: f64,
    used_bytes: u64,
    resident_bytes: u64,
    refused: u64,
}

/// Ends the attack when it is dropped, also by a panic.
struct Idle<'a>(&'a AtomicBool);

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A run on a fresh server: the attacker attacks for a while alone, and then while the honest clients run.
fn run(tls: &str, what: Option<Attack>, connections: usize, rate: f64, seconds: f64) -> Run {
    let server = start_signalbox_with_shares(&format!("{LIMITS}{tls}"));
    let plan = pairs(SHAPE, NAMES, Distribution::Uniform);
    let mut loaded = Loaded::connect(server, plan).unwrap_or_else(|error| panic!("{error}"));
    let address = loaded.server.address;
    let mut holder = Asker::connect(address);
    holder.hold_counter(HELD);
    let is_over = AtomicBool::new(false);
    let record = thread::scope(|scope| {
        scope.spawn(|| attack(what, address, connections, &is_over));
        let _until = Idle(&is_over);
        let begun = Instant::now();
        while begun.elapsed() < WARM_UP || what.is_some_and(|what| !what.has_its_share(address)) {
            assert!(begun.elapsed() < WARM_UP_MAX, "the attacker never uses up its share");
            honest(&mut loaded, rate, 0.1);
        }
        honest(&mut loaded, rate, seconds)
    });
    let resident_bytes = resident_bytes(loaded.server.pid());
    Run {
        p99_us: record.latency_ns().value_at_percentile(99.0) as f64 / 1000.0,
        used_bytes: statistic(address, "used_memory"),
        resident_bytes,
        refused: statistic(address, "refused_shares"),
    }
}

/// A run of the honest clients.
fn honest(loaded: &mut Loaded, rate: f64, seconds: f64) -> Record {
    let pace = Pace::Open { requests_per_s: rate };
    let outcome = loaded.run(Duration::from_secs_f64(seconds), pace);
    outcome.unwrap_or_else(|error| panic!("honest clients are served: {error}")).record
}

/// The peak of the process's resident memory.
fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the server runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux has the peak");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number of KiB");
    kib * 1024
}

fn main() {
    floor::become_if_asked();
    let arguments = Arguments::parse();
    let folder = tempfile::tempdir().expect("there is a directory for scratch files");
    let tls = certificate(folder.path(), arguments.key).lines();
    let rate = tenth_of_the_maximum();
    println!(
        "Honest clients at {SHAPE} and {rate:.0} requests/s; medians of {} rounds of {} s\n",
        arguments.rounds, arguments.seconds
    );
    println!(
        "{:<22}{:>12}{:>10}{:>12}{:>10}{:>8}{:>12}{:>14}{:>10}  bound",
        "attack", "connections", "p99 us", "beside", "ratio", "noise", "used MiB", "resident MiB", "refused"
    );
    for what in Attack::ALL {
        if arguments.only.is_empty() || arguments.only.contains(&what) {
            for connections in &arguments.connections {
                compare(&tls, what, *connections, rate, &arguments);
            }
        }
    }
}

/// A tenth of what the server can do for the honest clients alone, so that there is room for the attacker.
fn tenth_of_the_maximum() -> f64 {
    let plan = pairs(SHAPE, NAMES, Distribution::Uniform);
    let mut loaded = Loaded::connect(Kind::Signalbox.start(), plan).unwrap_or_else(|error| panic!("{error}"));
    let rates: Vec<_> = (0..3)
        .map(|_| {
            loaded.run(Duration::from_millis(500), Pace::Closed).unwrap_or_else(|error| panic!("{error}"))
        })
        .map(|outcome| outcome.record.answers_per_s())
        .collect();
    median(&rates) / 10.0
}

fn compare(tls: &str, what: Attack, connections: usize, rate: f64, arguments: &Arguments) {
    let (mut attacked, mut gets, mut ratios, mut to_itself) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut used, mut resident, mut refused) = (0, 0, 0);
    for _ in 0..arguments.rounds {
        let beside = |what| run(tls, what, connections, rate, arguments.seconds);
        let other = what.compared_with();
        let (run, first, second) = (beside(Some(what)), beside(other), beside(other));
        ratios.push(run.p99_us / first.p99_us);
        to_itself.push(second.p99_us / first.p99_us);
        attacked.push(run.p99_us);
        gets.push(first.p99_us);
        (used, resident) = (run.used_bytes.max(used), run.resident_bytes.max(resident));
        refused = run.refused.max(refused);
    }
    let (ratio, noise) = (median(&ratios), noise(&to_itself));
    let latency = if ratio <= BOUND {
        "reached"
    } else if ratio > BOUND + noise {
        "missed"
    } else {
        "undecided"
    };
    let memory = if used <= MEMORY_MAX && resident <= MEMORY_MAX + BEYOND { "" } else { ", memory missed" };
    println!(
        "{:<22}{connections:>12}{:>10.0}{:>12.0}{ratio:>10.2}{noise:>8.2}{:>12}{:>14}{refused:>10}  {latency}{memory}",
        what.label(),
        median(&attacked),
        median(&gets),
        used >> 20,
        resident >> 20,
    );
}
