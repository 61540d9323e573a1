//! How memory and CPU grow with what the server has to keep: names, connections, clients of one name,
//! and requests that wait for one.
//!
//! `cargo bench --bench scale` prints a table of each, and of Dumps compared with those of yrmcdsd. `-- --csv FILE` writes
//! the figures too, and `-- --svg FILE` draws them.

#[path = "scale/plot.rs"]
mod plot;
mod support;

use std::fmt;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use signalbox_bench::{Distribution, Pace, Usage};
use signalbox_model::Milliseconds;
use signalbox_protocol::{Opaque, Request, Wait};
use socket2::{Domain, Socket, Type};
use support::answers::statistic;
use support::arguments::{Csv, FromCargo, ToFile};
use support::asker::{Asker, ids};
use support::holder::{dump, hold};
use support::servers::{Kind, Server, start_signalbox};
use support::statistics::median;
use support::{Loaded, Shape, floor, pairs};

/// So long that no sweep comes during a measurement.
const GC_INTERVAL_S: u32 = 3600;

/// The subjects of the tables, as the tables and the file name them.
const NAMES: &str = "held names";
const CONNECTIONS: &str = "idle connections";
const CLIENTS: &str = "clients of a name";
const DUMPS: &str = "dumped names";
const WAITERS: &str = "waiters";
const WAITING_SESSIONS: &str = "waiting sessions";

/// The maximum number of names in a Dump, and the number of Dumps.
const DUMP_NAMES_MAX: u32 = 1_000_000;
const DUMP_RUNS: usize = 9;

/// Requests that one connection waits for, and sessions that are opened before their answers are read.
const WAITERS_OF_A_CONNECTION: u32 = 1000;

/// How long they wait, and sessions live: until all is measured.
const WAIT_MS: u32 = 3_600_000;

/// Descriptors that this process and the server need in addition to those of the connections.
const DESCRIPTORS_SPARE: u64 = 200;

/// Connections from one address of loopback: well below the ports that the kernel gives to clients.
const CONNECTIONS_AN_ADDRESS: usize = 5000;

/// Measures what names, connections and contention cost
#[derive(Debug, Parser)]
struct Arguments {
    /// Most names that are held
    #[arg(long, default_value = "10000000")]
    names: u32,

    /// Most idle connections, as far as the hard limit of descriptors allows
    #[arg(long, default_value = "15000")]
    connections: usize,

    /// Most clients of one name
    #[arg(long, default_value = "500")]
    clients: usize,

    /// Most requests that wait for one name
    #[arg(long, default_value = "100000")]
    waiters: u32,

    /// Parts to measure
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<Part>,

    /// A hundredth of the names and a tenth of the connections and waiters: to see that it works
    #[arg(long)]
    quick: bool,

    /// File for a drawing of the figures, as SVG
    #[arg(long)]
    svg: Option<PathBuf>,

    /// Figures of an earlier run, to draw instead of measuring
    #[arg(long, value_name = "CSV", requires = "svg", conflicts_with = "csv")]
    from: Option<PathBuf>,

    #[command(flatten)]
    to_file: ToFile,

    #[command(flatten)]
    from_cargo: FromCargo,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Names,
    Connections,
    Clients,
    Dumps,
    Waiters,
}

fn main() {
    floor::become_if_asked();
    let arguments = Arguments::parse();
    let figures = match &arguments.from {
        Some(path) => read(path),
        None => measure(&arguments),
    };
    if let Some(path) = &arguments.svg {
        plot::draw(path, &figures).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

fn measure(arguments: &Arguments) -> Vec<Figure> {
    let (mut names, mut connections, mut waiters) =
        (arguments.names, arguments.connections, arguments.waiters);
    if arguments.quick {
        names /= 100;
        connections /= 10;
        waiters /= 10;
    }
    let mut table = Table { csv: arguments.to_file.create(COLUMNS), figures: Vec::new() };
    let is_asked = |part| arguments.only.is_empty() || arguments.only.contains(&part);
    if is_asked(Part::Names) {
        held_names(names, &mut table);
    }
    if is_asked(Part::Connections) {
        idle_connections(connections, &mut table);
    }
    if is_asked(Part::Clients) {
        clients_of_one_name(arguments.clients, &mut table);
    }
    if is_asked(Part::Dumps) {
        dumps(names.min(DUMP_NAMES_MAX), &mut table);
    }
    if is_asked(Part::Waiters) {
        waiters_of_one_name(waiters, &mut table);
        waiting_sessions(waiters, &mut table);
    }
    table.figures
}

/// The columns of the file: the fields of a [`Figure`].
const COLUMNS: &str = "what,count,figure,value";

/// One value of a table.
struct Figure {
    what: String,
    count: u64,
    name: String,
    value: f64,
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{},{:.2}", self.what, self.count, self.name, self.value)
    }
}

impl Figure {
    fn parse(line: &str) -> Option<Self> {
        let [what, count, name, value] = line.split(',').collect::<Vec<_>>().try_into().ok()?;
        let (count, value) = (count.parse().ok()?, value.parse().ok()?);
        Some(Self { what: what.to_owned(), count, name: name.to_owned(), value })
    }
}

/// The figures that another run wrote.
fn read(path: &Path) -> Vec<Figure> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = text.lines().skip(1);
    lines.map(|line| Figure::parse(line).unwrap_or_else(|| panic!("{line:?} is not a figure"))).collect()
}

/// Lines on standard output and in the file.
struct Table {
    csv: Csv,
    figures: Vec<Figure>,
}

impl Table {
    fn heading(what: &str, names: &[&str]) {
        print!("\n{what:>17}");
        names.iter().for_each(|name| print!("{name:>25}"));
        println!();
    }

    fn line(&mut self, what: &str, count: u64, names: &[&str], values: &[f64]) {
        print!("{count:>17}");
        for (name, value) in names.iter().zip(values) {
            print!("{value:>25.2}");
            let figure = Figure { what: what.to_owned(), count, name: (*name).to_owned(), value: *value };
            self.csv.line(&figure);
            self.figures.push(figure);
        }
        println!();
    }
}

fn usage(server: &Server) -> Usage {
    Usage::of(server.pid()).unwrap_or_else(|error| panic!("{error}"))
}

/// The name of the figure that compares what the server counts with what the kernel counts.
const COUNTED: &str = "used_memory to resident";

/// The resources that a server has used, as the kernel and the server itself count them.
struct Reading {
    usage: Usage,
    used_memory: u64,
}

impl Reading {
    fn of(server: &Server) -> Self {
        let used_memory = statistic(server.address, "used_memory");
        Self { usage: usage(server), used_memory }
    }

    /// A reading once the server has nothing more to do.
    fn after_rest(server: &Server) -> Self {
        after_rest(server);
        Self::of(server)
    }

    /// The bytes that the resident memory has grown by since, and what `used_memory` has grown by for each of them.
    fn growth(&self, after: &Self) -> [f64; 2] {
        let resident = after.usage.resident_bytes.saturating_sub(self.usage.resident_bytes) as f64;
        [resident, after.used_memory.saturating_sub(self.used_memory) as f64 / resident]
    }
}

/// 1, 10, 100, … thousandths of the most, up to it.
fn steps(most: u64) -> impl Iterator<Item = u64> {
    [1000, 100, 10, 1].into_iter().map(move |part| most / part).filter(|count| *count > 0)
}

/// Semaphores that one connection acquires.
fn held_names(most: u32, table: &mut Table) {
    let figures = ["bytes a name", "CPU ns an acquire", "CPU ns a release at end", COUNTED];
    Table::heading(NAMES, &figures);
    for count in steps(most.into()) {
        // Memory that was given back may be used again, so each step has a server of its own.
        let server = start_signalbox(GC_INTERVAL_S);
        let before = Reading::of(&server);
        let holder = hold(server.semaphores.expect("signalbox serves semaphores"), 0..count as u32);
        let held = Reading::of(&server);
        drop(holder);
        let released = after_rest(&server);
        let each = |amount: f64| amount / count as f64;
        let [bytes, counted] = before.growth(&held);
        let acquire_ns = (held.usage.cpu - before.usage.cpu).as_nanos() as f64;
        let release_ns = (released.cpu - held.usage.cpu).as_nanos() as f64;
        let values = [each(bytes), each(acquire_ns), each(release_ns), counted];
        table.line(NAMES, count, &figures, &values);
    }
}

/// The resources that the server has used once it has nothing more to do.
fn after_rest(server: &Server) -> Usage {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut before = usage(server);
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = usage(server);
        if now.cpu - before.cpu < Duration::from_millis(2) || Instant::now() > deadline {
            return now;
        }
        before = now;
    }
}

/// Connections that were answered once and then are idle.
fn idle_connections(most: usize, table: &mut Table) {
    let figures = ["bytes a connection", "CPU ns a connection", COUNTED];
    let most = most.min(descriptors());
    Table::heading(CONNECTIONS, &figures);
    for count in steps(most as u64) {
        let server = start_signalbox(GC_INTERVAL_S);
        let before = Reading::of(&server);
        let connections: Vec<_> = (0..count as usize).map(|number| idle(server.address, number)).collect();
        table.line(CONNECTIONS, count, &figures, &grown(&server, &before, count as u32));
        drop(connections);
    }
}

/// A connection from one of several addresses of loopback, which was answered once.
fn idle(server: SocketAddr, number: usize) -> TcpStream {
    let host =
        u8::try_from(2 + number / CONNECTIONS_AN_ADDRESS).expect("the limit of descriptors is far below");
    let source = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, host)), 0);
    let open = || -> std::io::Result<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&source.into())?;
        socket.connect(&server.into())?;
        let mut stream = TcpStream::from(socket);
        let mut noop = Vec::new();
        Request::Noop.compose(Opaque([0; 4]), &mut noop);
        stream.write_all(&noop)?;
        stream.read_exact(&mut [0; 12])?;
        Ok(stream)
    };
    open().unwrap_or_else(|error| panic!("connection {number} from {source}: {error}"))
}

/// Connections that the limit of descriptors allows, after raising it as far as it goes. The server inherits it.
fn descriptors() -> usize {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("limits can be asked for");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("a process may raise its limit to the hard one");
    let allowed = hard.saturating_sub(DESCRIPTORS_SPARE);
    usize::try_from(allowed).unwrap_or(usize::MAX)
}

/// Clients that acquire of the same name and release it, each holding one.
fn clients_of_one_name(most: usize, table: &mut Table) {
    let figures = ["CPU ns an answer", "of the floor", "answers/s"];
    Table::heading(CLIENTS, &figures);
    for count in [most / 50, most / 5, most].into_iter().filter(|count| *count > 0) {
        let shape = Shape { connections: count, in_flight: 1 };
        let run = |kind: Kind| {
            let mut loaded = Loaded::connect(kind.start(), pairs(shape, 1, Distribution::One))
                .unwrap_or_else(|error| panic!("{error}"));
            let mut run = |seconds| {
                loaded
                    .run(Duration::from_secs_f64(seconds), Pace::Closed)
                    .unwrap_or_else(|error| panic!("{error}"))
            };
            run(0.5);
            run(2.0)
        };
        let (server, floor) = (run(Kind::Signalbox), run(Kind::Floor));
        let values = [server.cpu_ns_per_answer, floor.cpu_ns_per_answer, server.record.answers_per_s()];
        table.line(CLIENTS, count as u64, &figures, &values);
    }
}

/// Dumps of names that one connection holds, of signalbox and of yrmcdsd in turn.
fn dumps(names: u32, table: &mut Table) {
    let figures = ["ms", "ms of yrmcdsd", "ratio", "CPU ns a name", "CPU ns of yrmcdsd"];
    if let Some(sentence) = Kind::Yrmcdsd.missing() {
        println!("\n{sentence}");
        return;
    }
    Table::heading(DUMPS, &figures);
    let servers = [start_signalbox(GC_INTERVAL_S), Kind::Yrmcdsd.start()];
    let _holders = servers.each_ref().map(|server| hold(server.address, 0..names));
    let mut runs = Vec::new();
    for _ in 0..DUMP_RUNS {
        let [(ms, cpu_ns), (yrmcdsd_ms, yrmcdsd_cpu_ns)] =
            servers.each_ref().map(|server| timed_dump(server, names));
        runs.push([ms, yrmcdsd_ms, ms / yrmcdsd_ms, cpu_ns, yrmcdsd_cpu_ns]);
    }
    let values: Vec<_> = (0..figures.len())
        .map(|figure| median(&runs.iter().map(|run| run[figure]).collect::<Vec<_>>()))
        .collect();
    table.line(DUMPS, names.into(), &figures, &values);
}

/// Milliseconds of a whole Dump, and nanoseconds of the server's CPU for each name.
fn timed_dump(server: &Server, names: u32) -> (f64, f64) {
    let before = usage(server).cpu;
    let started = Instant::now();
    assert_eq!(dump(server.address, || false), names, "a Dump lists every name");
    let ms = started.elapsed().as_secs_f64() * 1000.0;
    let cpu = usage(server).cpu - before;
    (ms, cpu.as_nanos() as f64 / f64::from(names))
}

/// The name that is waited for.
const AWAITED: &[u8] = b"one name for all";

/// Requests that wait for one name, a thousand of each connection.
fn waiters_of_one_name(most: u32, table: &mut Table) {
    let figures = ["bytes a waiter", "CPU ns a waiter", COUNTED];
    Table::heading(WAITERS, &figures);
    for count in [most / 10, most] {
        let (server, _holder) = held_by_another();
        let connections = count.div_ceil(WAITERS_OF_A_CONNECTION);
        let mut askers: Vec<_> = (0..connections).map(|_| ready(&server)).collect();
        let before = Reading::after_rest(&server);
        for asker in &mut askers {
            for number in 1..=WAITERS_OF_A_CONNECTION {
                asker.acquire(ids(number, 1), number, AWAITED, Wait::UpTo(Milliseconds(WAIT_MS)));
            }
            asker.noop();
            asker.answers(1);
        }
        let waiters = connections * WAITERS_OF_A_CONNECTION;
        table.line(WAITERS, waiters.into(), &figures, &grown(&server, &before, waiters));
    }
}

/// Leased sessions without a connection, each with one request that waits for the same name.
fn waiting_sessions(most: u32, table: &mut Table) {
    let figures = ["bytes a session", "CPU ns a session", COUNTED];
    Table::heading(WAITING_SESSIONS, &figures);
    for count in [most / 10, most] {
        let (server, _holder) = held_by_another();
        let mut asker = ready(&server);
        let before = Reading::after_rest(&server);
        for number in 1..=count {
            asker.open_session(WAIT_MS);
            asker.acquire(ids(1, 1), number, AWAITED, Wait::UpTo(Milliseconds(WAIT_MS)));
            if number % WAITERS_OF_A_CONNECTION == 0 || number == count {
                // Each OpenSession has an answer, and so has each request whose session was left for the next one.
                let left = if number <= WAITERS_OF_A_CONNECTION { 1 } else { 0 };
                let opened = (number - 1) % WAITERS_OF_A_CONNECTION + 1;
                asker.answers(2 * opened - left);
            }
        }
        table.line(WAITING_SESSIONS, count.into(), &figures, &grown(&server, &before, count));
    }
}

/// A server, and a connection that holds what all wait for.
fn held_by_another() -> (Server, Asker) {
    let server = start_signalbox(GC_INTERVAL_S);
    let mut holder = ready(&server);
    holder.acquire(ids(1, 1), 1, AWAITED, Wait::NotAtAll);
    holder.answers(1);
    (server, holder)
}

/// A connection that was answered once.
fn ready(server: &Server) -> Asker {
    let mut asker = Asker::connect(server.semaphores.expect("signalbox serves semaphores"));
    asker.noop();
    asker.answers(1);
    asker
}

/// Resident bytes and CPU nanoseconds that each of this many has added, and what `used_memory` says of the bytes.
fn grown(server: &Server, before: &Reading, count: u32) -> [f64; 3] {
    let after = Reading::after_rest(server);
    let [bytes, counted] = before.growth(&after);
    let cpu_ns = (after.usage.cpu - before.usage.cpu).as_nanos() as f64;
    [bytes / f64::from(count), cpu_ns / f64::from(count), counted]
}
