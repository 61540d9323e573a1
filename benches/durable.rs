//! The cost of answering only when a change is on disk: grants and releases of leased sessions with a data directory,
//! compared with what the disk and the embedded engine can do by themselves, and with RabbitMQ's queues used as a semaphore.
//!
//! `cargo bench --bench durable`; `docs/performance.md` describes what is compared.

mod support;

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Child;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use redb::{Builder, Database, TableDefinition};
use signalbox_core::{Change, Record};
use signalbox_storage::{FileStorage, Storage};
use support::amqp::Amqp;
use support::answers::statistic;
use support::arguments::FromCargo;
use support::declaration::declaration;
use support::lessees;
use support::ports::free_ports;
use support::servers::{find, program, quiet, start_durable_signalbox};
use tempfile::TempDir;

/// The ratios to the engine's own rate, and to RabbitMQ's, that must be reached.
const OF_THE_ENGINE: f64 = 0.6;
const OF_RABBITMQ: f64 = 20.0;

/// The longest time that a start with a million declared semaphores may take, in seconds, and the most resident memory
/// for each of them.
const LOAD_S: f64 = 5.0;
const DECLARED_BYTES: f64 = 250.0;

/// Bytes of a record: about those of a grant of a short name.
const RECORD_BYTES: usize = 72;

const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("records");

/// Measures durable grants
#[derive(Debug, Parser)]
struct Arguments {
    /// Leased sessions, each over a connection of its own, that take and give back one after the other
    #[arg(long, default_value = "50")]
    sessions: usize,

    /// Length of each run, in seconds
    #[arg(long, default_value = "5")]
    seconds: f64,

    /// How often everything is measured, in turn
    #[arg(long, default_value = "3")]
    rounds: usize,

    /// Declared semaphores that a server finds at its start; 0 measures no start
    #[arg(long, default_value = "1000000")]
    declared: u32,

    /// Half a second, once, and few declared semaphores: to see that it works
    #[arg(long)]
    quick: bool,

    #[command(flatten)]
    from_cargo: FromCargo,
}

fn main() {
    let mut arguments = Arguments::parse();
    if arguments.quick {
        (arguments.seconds, arguments.rounds, arguments.declared) = (0.5, 1, 10_000);
    }
    if arguments.declared > 0 {
        start_with(arguments.declared);
    }
    let time = Duration::from_secs_f64(arguments.seconds);
    let sessions = arguments.sessions;
    println!("{sessions} sessions that take and give back a grant, one after the other; runs of {time:?}\n");
    println!(
        "{:>12}{:>14}{:>14}{:>12}{:>12}{:>14}{:>12}",
        "fdatasync/s", "signalbox", "changes each", "commits/s", "engine", "to the engine", "RabbitMQ"
    );
    let rabbit = find("rabbitmq-server").map(|_| Rabbit::start());
    if rabbit.is_none() {
        println!("RabbitMQ is left out: rabbitmq-server is not installed (apt-get install rabbitmq-server)");
    }
    for _ in 0..arguments.rounds {
        let flushes = flushes_per_s(time / 5);
        let own = pairs_per_s(sessions, time);
        let engine = engine_commits_per_s(own.changes_each.round().max(1.0) as usize, time);
        let of_engine = own.commits_per_s / engine;
        let rabbit = rabbit.as_ref().map(|rabbit| rabbit.pairs_per_s(sessions, time));
        println!(
            "{flushes:>12.0}{:>14.0}{:>14.1}{:>12.0}{engine:>12.0}{of_engine:>14.2}{:>12.0}",
            own.pairs_per_s,
            own.changes_each,
            own.commits_per_s,
            rabbit.unwrap_or(f64::NAN),
        );
        println!("  {}", verdict("of the engine's commits with as many changes", of_engine, OF_THE_ENGINE));
        if let Some(rabbit) = rabbit {
            println!("  {}", verdict("times RabbitMQ's pairs", own.pairs_per_s / rabbit, OF_RABBITMQ));
        }
    }
}

fn verdict(what: &str, ratio: f64, bound: f64) -> String {
    let verdict = if ratio >= bound { "reached" } else { "missed" };
    format!("{ratio:.2} {what}; at least {bound} asked: {verdict}")
}

/// Starts a server that finds this many declared semaphores, and one that finds none, which the first is compared with.
fn start_with(declared: u32) {
    let (empty_s, empty_bytes, _) = start(scratch());
    let folder = scratch();
    declare(&folder.path().join("data"), declared).expect("a scratch directory can be filled");
    let (took_s, bytes, found) = start(folder);
    assert_eq!(found, u64::from(declared), "the server finds what was declared");
    let each = (bytes - empty_bytes) as f64 / f64::from(declared);
    let verdict = |is_reached: bool| if is_reached { "reached" } else { "missed" };
    println!(
        "{declared} declared semaphores: ready after {took_s:.2} s ({empty_s:.2} s without; at most {LOAD_S} asked: {}), \
         {each:.0} bytes each (at most {DECLARED_BYTES} asked: {})\n",
        verdict(took_s <= LOAD_S),
        verdict(each <= DECLARED_BYTES)
    );
}

/// The number of commits, and of changes in them.
fn stored(address: SocketAddr) -> (u64, u64) {
    (statistic(address, "store_commits"), statistic(address, "store_changes"))
}

/// Returns the time until a server answers, its resident memory, and the number of semaphores that it finds declared.
fn start(folder: TempDir) -> (f64, u64, u64) {
    let started = Instant::now();
    let server = start_durable_signalbox(folder);
    // Connections are accepted earlier, and answered when everything is restored.
    let declared = statistic(server.address, "declared");
    let took_s = started.elapsed().as_secs_f64();
    (took_s, resident_bytes(server.pid()), declared)
}

fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the server runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the kernel reports it");
    line.trim_end_matches("kB").trim().parse::<u64>().expect("a number") * 1024
}

/// Stores declared semaphores in a data directory, as a server does.
fn declare(directory: &Path, count: u32) -> Result<(), Box<dyn std::error::Error>> {
    const TOGETHER: u32 = 50_000;
    let mut storage = FileStorage::open(directory)?;
    for from in (0..count).step_by(TOGETHER as usize) {
        let records = (from..count.min(from + TOGETHER)).map(declaration);
        let changes: Vec<_> = records.map(Change::Put).collect();
        storage.commit(&changes)?;
    }
    storage.commit(&[Change::Put(Record::Mark(u64::from(count) + 1))])?;
    Ok(())
}

/// The rate at which a page of a file can be overwritten and flushed.
fn flushes_per_s(time: Duration) -> f64 {
    let folder = scratch();
    let file = File::create(folder.path().join("page")).expect("a scratch file can be made");
    let write = || file.write_all_at(&[1; 4096], 0).and_then(|()| file.sync_data());
    write().expect("a scratch file can be written");
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < time {
        write().expect("a scratch file can be written");
        count += 1;
    }
    f64::from(count) / start.elapsed().as_secs_f64()
}

/// The rate of the engine's commits by themselves, each with as many changes: half are new records, and half delete the
/// records of the previous commit, as grants and releases do.
fn engine_commits_per_s(changes: usize, time: Duration) -> f64 {
    let folder = scratch();
    let database = Builder::new().create(folder.path().join("engine.redb")).expect("a database can be made");
    let (start, mut commits) = (Instant::now(), 0_u64);
    while start.elapsed() < time {
        commit(&database, changes.div_ceil(2) as u64, commits).expect("a database can be written");
        commits += 1;
    }
    commits as f64 / start.elapsed().as_secs_f64()
}

fn commit(database: &Database, records: u64, commits: u64) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(TABLE)?;
        for number in commits * records..(commits + 1) * records {
            table.insert(number.to_be_bytes().as_slice(), [2; RECORD_BYTES].as_slice())?;
        }
        for number in commits.saturating_sub(1) * records..commits * records {
            table.remove(number.to_be_bytes().as_slice())?;
        }
    }
    transaction.commit()?;
    Ok(())
}

struct Own {
    pairs_per_s: f64,
    commits_per_s: f64,
    changes_each: f64,
}

fn pairs_per_s(sessions: usize, time: Duration) -> Own {
    let server = start_durable_signalbox(scratch());
    let address = server.address;
    let before = stored(address);
    let pairs = lessees::pairs_per_s(address, 0, sessions, time);
    let after = stored(address);
    let (commits, changes) = ((after.0 - before.0) as f64, (after.1 - before.1) as f64);
    Own { pairs_per_s: pairs, commits_per_s: commits / time.as_secs_f64(), changes_each: changes / commits }
}

/// Runs many clients in a loop, each in a thread. Returns the number of operations per second.
fn repeat<C: Send>(
    clients: usize,
    time: Duration,
    enter: impl Fn(usize) -> C + Sync,
    work: impl Fn(&mut C) + Sync,
) -> f64 {
    let (count, is_over, ready) = (AtomicU64::new(0), AtomicBool::new(false), Barrier::new(clients + 1));
    std::thread::scope(|scope| {
        for number in 0..clients {
            let (enter, work, count, is_over, ready) = (&enter, &work, &count, &is_over, &ready);
            scope.spawn(move || {
                let mut client = enter(number);
                ready.wait();
                while !is_over.load(Ordering::Relaxed) {
                    work(&mut client);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        ready.wait();
        std::thread::sleep(time);
        is_over.store(true, Ordering::Relaxed);
        count.load(Ordering::Relaxed) as f64 / time.as_secs_f64()
    })
}

/// A separate broker, with Erlang's port mapper daemon.
struct Rabbit {
    broker: Child,
    mapper: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Rabbit {
    fn start() -> Self {
        let folder = scratch();
        let [port, distribution, mapping] = free_ports();
        let mapping = mapping.to_string();
        let mapper = quiet(program("epmd").args(["-address", "127.0.0.1", "-port", &mapping]));
        let plugins = folder.path().join("plugins");
        std::fs::write(&plugins, "[].").expect("a scratch file can be written");
        let broker = quiet(
            // Debian's own starter would write where only its user may.
            std::process::Command::new("/usr/lib/rabbitmq/bin/rabbitmq-server")
                .process_group(0)
                .env("HOME", folder.path())
                .env("ERL_EPMD_PORT", &mapping)
                .env("RABBITMQ_NODENAME", format!("bench{port}@localhost"))
                .env("RABBITMQ_MNESIA_BASE", folder.path().join("data"))
                .env("RABBITMQ_LOG_BASE", folder.path().join("log"))
                .env("RABBITMQ_ENABLED_PLUGINS_FILE", &plugins)
                .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
                .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
                .env("RABBITMQ_NODE_PORT", port.to_string())
                .env("RABBITMQ_DIST_PORT", distribution.to_string()),
        );
        let rabbit =
            Self { broker, mapper, address: SocketAddr::from(([127, 0, 0, 1], port)), _folder: folder };
        let deadline = Instant::now() + Duration::from_secs(60);
        while Amqp::connect(rabbit.address).is_err() {
            assert!(Instant::now() < deadline, "RabbitMQ accepts nothing within a minute");
            std::thread::sleep(Duration::from_millis(200));
        }
        rabbit
    }

    /// Slots taken and given back as the document says. Each client first tries a slot of its own, which no other
    /// client has, so none has to search.
    fn pairs_per_s(&self, clients: usize, time: Duration) -> f64 {
        let enter = |number| {
            let mut client = Amqp::connect(self.address).expect("RabbitMQ accepts");
            let slots = [format!("bench-{number}-A"), format!("bench-{number}-B")];
            client.make(&slots[0]).expect("a queue can be made");
            (client, slots)
        };
        let work = |(client, [slot, holder]): &mut (Amqp, [String; 2])| {
            let taken =
                client.find(slot).and_then(|()| client.make_own(holder)).and_then(|()| client.find(slot));
            taken.and_then(|()| client.delete(holder)).expect("no other client wants the slot");
        };
        repeat(clients, time, enter, work)
    }
}

impl Drop for Rabbit {
    fn drop(&mut self) {
        if let Ok(group) = i32::try_from(self.broker.id()) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        let _ = self.broker.wait();
        let _ = self.mapper.kill();
        let _ = self.mapper.wait();
    }
}

fn scratch() -> TempDir {
    tempfile::tempdir().expect("there is a directory for scratch files")
}
