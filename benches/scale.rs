//! How memory and CPU grow with what the server has to keep: names, connections, and clients of one name.
//!
//! `cargo bench --bench scale` prints a table of each; `-- --csv FILE` writes the figures too.

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use signalbox::client::load::{Distribution, Pace, Usage};
use signalbox::protocol::{Opaque, Request};
use socket2::{Domain, Socket, Type};
use support::servers::{Kind, Server, start_signalbox};
use support::{Loaded, Shape, floor, pairs};

/// Sweeps would be seen in the figures.
const GC_INTERVAL_S: u32 = 3600;

/// Descriptors that this process and the server need beside those of the connections.
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

    /// A hundredth of the names and a tenth of the connections: to see that it works
    #[arg(long)]
    quick: bool,

    /// File for the figures, as CSV
    #[arg(long)]
    csv: Option<PathBuf>,

    /// What cargo says to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    floor::become_if_asked();
    let mut arguments = Arguments::parse();
    if arguments.quick {
        arguments.names /= 100;
        arguments.connections /= 10;
    }
    let mut table = Table::new(arguments.csv.as_ref());
    held_names(arguments.names, &mut table);
    idle_connections(arguments.connections, &mut table);
    clients_of_one_name(arguments.clients, &mut table);
}

/// Lines on standard output, and the same in the file.
struct Table(Option<File>);

impl Table {
    fn new(path: Option<&PathBuf>) -> Self {
        Self(path.map(|path| {
            let mut file = File::create(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            writeln!(file, "what,count,figure,value").expect("the file takes it");
            file
        }))
    }

    fn heading(what: &str, figures: &[&str]) {
        print!("\n{what:>16}");
        figures.iter().for_each(|figure| print!("{figure:>22}"));
        println!();
    }

    fn line(&mut self, what: &str, count: u64, figures: &[(&str, f64)]) {
        print!("{count:>16}");
        for (figure, value) in figures {
            print!("{value:>22.1}");
            if let Some(file) = &mut self.0 {
                writeln!(file, "{what},{count},{figure},{value:.1}").expect("the file takes it");
            }
        }
        println!();
    }
}

fn usage(server: &Server) -> Usage {
    Usage::of(server.pid()).unwrap_or_else(|error| panic!("{error}"))
}

/// 1, 10, 100, … thousandths of the most, up to it.
fn steps(most: u64) -> impl Iterator<Item = u64> {
    [1000, 100, 10, 1].into_iter().map(move |part| most / part).filter(|count| *count > 0)
}

/// Semaphores that one connection acquires.
fn held_names(most: u32, table: &mut Table) {
    let figures = ["bytes a name", "CPU ns an acquire", "CPU ns a release at end"];
    Table::heading("held names", &figures);
    for count in steps(most.into()) {
        // Memory that was given back may be used again, so each step has a server of its own.
        let server = start_signalbox(GC_INTERVAL_S);
        let before = usage(&server);
        let holder = hold(server.semaphores.expect("signalbox serves semaphores"), count);
        let held = usage(&server);
        drop(holder);
        let released = after_rest(&server);
        let each = |amount: f64| amount / count as f64;
        let bytes = held.resident_bytes.saturating_sub(before.resident_bytes) as f64;
        let acquire_ns = (held.cpu - before.cpu).as_nanos() as f64;
        let release_ns = (released.cpu - held.cpu).as_nanos() as f64;
        let values = [each(bytes), each(acquire_ns), each(release_ns)];
        table.line("held names", count, &figures.into_iter().zip(values).collect::<Vec<_>>());
    }
}

/// What the server has used once it has nothing to do any more.
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

/// A connection that holds so many semaphores with names of 15 bytes.
fn hold(address: SocketAddr, names: u64) -> TcpStream {
    const BATCH: u64 = 1000;
    let mut stream = TcpStream::connect(address).expect("the server accepts");
    let mut out = BytesMut::new();
    // An answer to an acquire that succeeds is 16 bytes, and all of these do.
    let mut answers = vec![0; 16 * BATCH as usize];
    let mut next = 0;
    while next < names {
        let batch = BATCH.min(names - next);
        out.clear();
        for index in next..next + batch {
            let name = format!("held-{index:010}");
            let request = Request::Acquire { name: name.as_bytes(), resources: 1, maximum: 1 };
            request.compose(Opaque([0; 4]), &mut out);
        }
        stream.write_all(&out).expect("the server reads");
        stream.read_exact(&mut answers[..16 * batch as usize]).expect("the server answers");
        next += batch;
    }
    stream
}

/// Connections that asked once and then are idle.
fn idle_connections(most: usize, table: &mut Table) {
    let figures = ["bytes a connection", "CPU ns a connection"];
    let most = most.min(descriptors());
    Table::heading("idle connections", &figures);
    for count in steps(most as u64) {
        let server = start_signalbox(GC_INTERVAL_S);
        let before = usage(&server);
        let connections: Vec<_> = (0..count as usize).map(|number| idle(server.address, number)).collect();
        let connected = after_rest(&server);
        drop(connections);
        let bytes = connected.resident_bytes.saturating_sub(before.resident_bytes) as f64;
        let cpu_ns = (connected.cpu - before.cpu).as_nanos() as f64;
        let values = [bytes, cpu_ns].map(|amount| amount / count as f64);
        table.line("idle connections", count, &figures.into_iter().zip(values).collect::<Vec<_>>());
    }
}

/// A connection from one of several addresses of loopback, which has asked for a sign of life.
fn idle(server: SocketAddr, number: usize) -> TcpStream {
    let host =
        u8::try_from(2 + number / CONNECTIONS_AN_ADDRESS).expect("the limit of descriptors is far below");
    let source = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, host)), 0);
    let open = || -> std::io::Result<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&source.into())?;
        socket.connect(&server.into())?;
        let mut stream = TcpStream::from(socket);
        let mut noop = BytesMut::new();
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
    Table::heading("clients of a name", &figures);
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
        table.line("clients of a name", count as u64, &figures.into_iter().zip(values).collect::<Vec<_>>());
    }
}
