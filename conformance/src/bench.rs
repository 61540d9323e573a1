//! Measures the cost of each client, with one server in one run (README.md, "Measure").
//!
//! All times are taken here, except those of pairs: the driver's loop takes them, without the time for its commands.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use crate::certificate::Certificate;
use crate::driver::{Driver, Endpoint};
use crate::oracle::margin;
use crate::server::{Held, Installation, Server, Store, eventually};
use crate::{PATIENCE, Program};

/// How long a driver may take for a round of pairs.
const ROUND_MAX: Duration = Duration::from_secs(300);

/// The time in which a client sends the first renewal of a permit. The renewal then waits at the server for a change.
const SETTLE: Duration = Duration::from_millis(100);

/// The time to live of leases that are revoked.
const REVOKED_TTL_MS: u64 = 10_000;

/// The time to live of the leases of pairs. It is long, so that few renewals are sent meanwhile.
const PAIRS_TTL_MS: u64 = 30_000;

#[derive(Args, Debug)]
pub struct Arguments {
    /// Only check that the measurement works, with small numbers
    #[arg(long)]
    quick: bool,
    /// Print JSON instead of a table, with times in microseconds and memory in bytes
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    program: Program,
    /// The drivers, each with a name for its row; the words of a command are separated by spaces
    #[arg(required = true, value_name = "NAME=COMMAND", value_parser = parse_named)]
    drivers: Vec<Named>,
}

#[derive(Clone, Debug)]
struct Named {
    name: String,
    command: Vec<String>,
}

fn parse_named(text: &str) -> Result<Named, String> {
    let (name, command) = text.split_once('=').ok_or("use NAME=COMMAND")?;
    let command: Vec<_> = command.split_whitespace().map(str::to_owned).collect();
    if command.is_empty() {
        return Err("the command is empty".to_owned());
    }
    Ok(Named { name: name.to_owned(), command })
}

struct Counts {
    /// Drivers take turns; the first round lets them warm up and does not count.
    rounds: usize,
    pairs: usize,
    permits: usize,
    /// The time for the client to send the renewals of all permits.
    settle: Duration,
    revocations: usize,
    deaths: usize,
    /// The time to live of leases in the measurement of deaths, in which the server is killed.
    ttl_ms: u64,
}

const FULL: Counts = Counts {
    rounds: 6,
    pairs: 500,
    permits: 1000,
    settle: Duration::from_secs(2),
    revocations: 21,
    deaths: 3,
    ttl_ms: 3000,
};
const QUICK: Counts =
    Counts { rounds: 2, pairs: 20, permits: 10, settle: SETTLE, revocations: 1, deaths: 1, ttl_ms: 1000 };

struct Figures {
    name: String,
    /// Whether the client reports losses by itself; if not, the suite asks repeatedly.
    is_told: bool,
    /// The time of each pair of acquire and release, in microseconds, ascending.
    pairs_us: Vec<u64>,
    permit_bytes: u64,
    /// The times from the request for a revocation until the program knows that its permit is lost, ascending.
    revocation: Vec<Duration>,
    /// The times from the death of the server until the program knows that its permit is lost, ascending.
    death: Vec<Duration>,
    /// The milliseconds from when the program knew of the loss until the end of the lease that the server reported
    /// last, ascending; negative if the program knew after that end.
    early_ms: Vec<i64>,
}

/// Measures all drivers, and prints the figures.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let counts = if arguments.quick { QUICK } else { FULL };
    let program = arguments.program.find()?;
    let installation = Installation { program, certificate: Certificate::make()?, store: Store::Memory };
    let server = Server::start(&installation, "read,acquire")?;
    let trip = round_trip().map_err(|error| format!("cannot measure a round trip: {error}"))?;
    let mut measured = Vec::new();
    for Named { name, command } in &arguments.drivers {
        let driver = start(&server, command)?;
        if !driver.can("pairs") {
            return Err(format!("the driver {name} has no \"pairs\""));
        }
        let figures = Figures {
            name: name.clone(),
            is_told: driver.can("push"),
            pairs_us: Vec::new(),
            permit_bytes: 0,
            revocation: Vec::new(),
            death: Vec::new(),
            early_ms: Vec::new(),
        };
        measured.push((driver, figures));
    }
    for round in 0..counts.rounds {
        eprintln!("pairs, round {} of {}", round + 1, counts.rounds);
        for (driver, figures) in &mut measured {
            let times = Pairs { name: "pairs", count: counts.pairs, is_kept: false }.measure(driver)?;
            if round > 0 {
                figures.pairs_us.extend(times);
            }
        }
    }
    let mut all = Vec::new();
    for (driver, mut figures) in measured {
        eprintln!("revocations and memory of {}", figures.name);
        figures.pairs_us.sort_unstable();
        figures.revocation = times(counts.revocations, |number| revocation(&server, &driver, number))?;
        figures.permit_bytes = permit_bytes(&driver, &figures.name, &counts)?;
        all.push(figures);
    }
    for (figures, Named { name, command }) in all.iter_mut().zip(&arguments.drivers) {
        eprintln!("deaths of the server with {name}");
        let early = &mut figures.early_ms;
        figures.death = times(counts.deaths, |number| {
            let driver = start(&server, command)?;
            let (took, early_ms) = death(&server, &driver, &format!("death/{name}/{number}"), counts.ttl_ms)?;
            early.push(early_ms);
            Ok(took)
        })?;
        early.sort_unstable();
    }
    if arguments.json {
        println!("{}", as_json(&all, trip));
    } else {
        print_table(&all, trip, &counts);
    }
    Ok(())
}

fn start(server: &Server, command: &[String]) -> Result<Driver, String> {
    let (http, binary) = server.addresses()[0];
    let (urls, server) = (format!("http://{http}"), binary.to_string());
    Driver::start(command, &Endpoint { urls, server, token_file: None, authority: None })
}

/// Repeats a step, and returns its results, ascending.
fn times(count: usize, step: impl FnMut(usize) -> Result<Duration, String>) -> Result<Vec<Duration>, String> {
    let mut times = (0..count).map(step).collect::<Result<Vec<_>, _>>()?;
    times.sort_unstable();
    Ok(times)
}

/// The command `pairs`, for drivers with this capability.
pub struct Pairs<'a> {
    pub name: &'a str,
    pub count: usize,
    /// Whether the permits stay held.
    pub is_kept: bool,
}

impl Pairs<'_> {
    /// Sends the command, and returns the time of each pair in the driver, in microseconds.
    pub fn measure(&self, driver: &Driver) -> Result<Vec<u64>, String> {
        let maximum = if self.is_kept { self.count.max(1) } else { 1 };
        let command = json!({
            "do": "pairs", "claims": [{"name": self.name, "maximum": maximum}],
            "ttl_ms": PAIRS_TTL_MS, "wait_ms": 0, "count": self.count, "keep": self.is_kept,
        });
        let answer = driver.answer(&driver.send(command)?, ROUND_MAX)?;
        let times = answer["times_us"].as_array().ok_or_else(|| format!("no times: {answer}"))?;
        Ok(times.iter().filter_map(Value::as_u64).collect())
    }
}

/// Returns the memory of one permit in bytes: the resident memory of a driver with `counts.permits` permits, less that
/// without permits, divided by their number.
fn permit_bytes(driver: &Driver, name: &str, counts: &Counts) -> Result<u64, String> {
    let name = format!("kept/{name}");
    let memory_with = |count| {
        Pairs { name: &name, count, is_kept: true }.measure(driver)?;
        thread::sleep(counts.settle);
        resident_bytes(driver.process_id())
    };
    let without = memory_with(0)?;
    Ok(memory_with(counts.permits)?.saturating_sub(without) / counts.permits as u64)
}

fn resident_bytes(process: u32) -> Result<u64, String> {
    let path = format!("/proc/{process}/status");
    let status = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let kilobytes =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().split(' ').next()?.parse().ok());
    kilobytes.map(|kilobytes: u64| kilobytes * 1024).ok_or_else(|| format!("{path} has no VmRSS"))
}

/// Tells a driver to acquire one resource of the name `permit`, and returns the fence.
fn acquire(driver: &Driver, permit: &str, ttl_ms: u64) -> Result<String, String> {
    let claims = [json!({"name": permit, "maximum": 1})];
    let command =
        json!({"do": "acquire", "permit": permit, "claims": claims, "ttl_ms": ttl_ms, "wait_ms": 0});
    let (_, answer) = driver.call(command)?;
    answer["fence"].as_str().map(str::to_owned).ok_or_else(|| format!("no permit: {answer}"))
}

/// Waits until the driver reports that a permit is lost, or asks it repeatedly if it cannot "push".
fn await_loss(driver: &Driver, permit: &str) -> Result<(), String> {
    if driver.can("push") {
        return driver.event("lost", permit, PATIENCE).map(drop);
    }
    while driver.call(json!({"do": "check", "permit": permit}))?.1["held"] == true {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Returns the time from the request for a revocation until the program knows that its permit is lost.
fn revocation(server: &Server, driver: &Driver, number: usize) -> Result<Duration, String> {
    let permit = format!("revoked/{number}");
    let fence = acquire(driver, &permit, REVOKED_TTL_MS)?;
    thread::sleep(SETTLE);
    thread::scope(|scope| {
        let began = Instant::now();
        let asked = scope.spawn(|| server.change("revoke", &json!({"grant": fence, "grace_ms": 0})));
        await_loss(driver, &permit)?;
        let took = began.elapsed();
        asked.join().expect("it does not panic").map(|()| took)
    })
}

/// Returns the time from the death of the server until the program knows that its permit is lost, and how many
/// milliseconds before the end of the lease that was.
fn death(server: &Server, driver: &Driver, permit: &str, ttl_ms: u64) -> Result<(Duration, i64), String> {
    let fence = acquire(driver, permit, ttl_ms)?;
    let mut ends = Instant::now();
    eventually("no time between two renewals", || {
        let asked = Instant::now();
        let Some(Held::For(left)) = server.grant(&fence) else { return Ok(false) };
        ends = asked + left;
        // The server is killed between two renewals, neither just after one nor just before one.
        Ok((ttl_ms * 17 / 20..ttl_ms * 19 / 20).contains(&(left.as_millis() as u64)))
    })?;
    server.kill()?;
    let died = Instant::now();
    await_loss(driver, permit)?;
    let known = Instant::now();
    server.restart()?;
    let until =
        |later: Instant, earlier: Instant| later.saturating_duration_since(earlier).as_millis() as i64;
    Ok((known - died, until(ends, known) - until(known, ends)))
}

/// Returns the median time of a bare round trip over loopback.
fn round_trip() -> std::io::Result<Duration> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    thread::spawn(move || {
        let mut bytes = [0; 64];
        while far.read_exact(&mut bytes).and_then(|()| far.write_all(&bytes)).is_ok() {}
    });
    let mut times = Vec::new();
    for _ in 0..1000 {
        let mut bytes = [0; 64];
        let began = Instant::now();
        near.write_all(&bytes)?;
        near.read_exact(&mut bytes)?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(percentile(&times, 50))
}

/// Returns a percentile of values in ascending order.
fn percentile<T: Copy>(sorted: &[T], percent: usize) -> T {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

impl Figures {
    fn pairs_per_second(&self) -> u64 {
        self.pairs_us.len() as u64 * 1_000_000 / self.pairs_us.iter().sum::<u64>().max(1)
    }
}

fn as_json(all: &[Figures], trip: Duration) -> Value {
    let us = |time: Duration| time.as_micros() as u64;
    let client = |figures: &Figures| {
        json!({
            "name": figures.name,
            "is_told": figures.is_told,
            "pairs_per_second": figures.pairs_per_second(),
            "pair_median_us": percentile(&figures.pairs_us, 50),
            "pair_p99_us": percentile(&figures.pairs_us, 99),
            "permit_bytes": figures.permit_bytes,
            "revocation_us": us(percentile(&figures.revocation, 50)),
            "death_us": us(percentile(&figures.death, 50)),
            "early_ms": figures.early_ms[0],
        })
    };
    json!({"round_trip_us": us(trip), "clients": all.iter().map(client).collect::<Vec<_>>()})
}

fn print_table(all: &[Figures], trip: Duration, counts: &Counts) {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "| client | pairs/s | median | p99 | a permit's memory | revocation to `Lost` | death of the server to `Lost` \
         | before the end of the lease, at least |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for figures in all {
        println!(
            "| {}{} | {} | {:.2} ms | {:.2} ms | {:.1} KiB | {:.2} ms | {:.0} ms | {} ms |",
            figures.name,
            if figures.is_told { "" } else { " *" },
            figures.pairs_per_second(),
            percentile(&figures.pairs_us, 50) as f64 / 1e3,
            percentile(&figures.pairs_us, 99) as f64 / 1e3,
            figures.permit_bytes as f64 / 1024.0,
            ms(percentile(&figures.revocation, 50)),
            ms(percentile(&figures.death, 50)),
            figures.early_ms[0],
        );
    }
    println!(
        "\nA bare round trip over loopback: {} µs. {} pairs, {} permits, medians of {} revocations and {} deaths. Leases of {} ms, \
         of which clients must not believe in the last {}.",
        trip.as_micros(),
        (counts.rounds - 1) * counts.pairs,
        counts.permits,
        counts.revocations,
        counts.deaths,
        counts.ttl_ms,
        margin(Duration::from_millis(counts.ttl_ms)).as_millis(),
    );
    if all.iter().any(|figures| !figures.is_told) {
        println!(
            "\n\\* The client does nothing by itself: the memory is that of permits without renewals, and the program knows of a \
             revocation when a refresh asks the server, and of the end of a lease when it checks."
        );
    }
}
