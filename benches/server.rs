//! The cost of an operation on a server, compared with the least that it can cost and with other servers.
//!
//! `cargo bench --bench server` starts the servers that are installed, puts the same load on each in turn and prints
//! what each spends on an answer in relation to the floor. The method is described in `docs/performance.md`.

mod support;

use std::time::Duration;

use clap::Parser;
use signalbox_bench::{Distribution, LoadError, Pace};
use support::arguments::{Csv, FromCargo, ToFile};
use support::servers::Kind;
use support::statistics::{median, noise};
use support::{Loaded, Outcome, Shape, floor, pairs};

const NAMES: u32 = 10_000;

/// Above this noise a bound is neither reached nor missed: something else runs on the machine.
const NOISE_MAX: f64 = 0.1;

/// The load's shapes, and the most CPU that signalbox may use in relation to the floor.
const BOUNDS: [(Shape, f64); 4] = [
    (Shape { connections: 50, in_flight: 1 }, 1.05),
    (Shape { connections: 500, in_flight: 1 }, 1.00),
    (Shape { connections: 50, in_flight: 16 }, 1.40),
    (Shape { connections: 50, in_flight: 64 }, 1.75),
];

/// The most that signalbox's p99 may be in relation to the floor's.
const P99_BOUND: f64 = 1.3;

/// Compares what an operation costs servers
#[derive(Debug, Parser)]
struct Arguments {
    /// Runs of each server that are compared with a run of the floor before them
    #[arg(long, default_value = "15")]
    pairs: usize,

    /// Three pairs: to see that it works
    #[arg(long)]
    quick: bool,

    /// Length of a run, in seconds
    #[arg(long, default_value = "0.4")]
    seconds: f64,

    /// Shapes of the load, such as 50x16
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,

    /// Servers; the floor is always among them
    #[arg(long, value_delimiter = ',', value_enum)]
    servers: Vec<Kind>,

    #[command(flatten)]
    to_file: ToFile,

    #[command(flatten)]
    from_cargo: FromCargo,
}

fn main() {
    floor::become_if_asked();
    let arguments = Arguments::parse();
    let kinds = kinds(&arguments);
    let mut csv = arguments.to_file.create("shape,server,pair,cpu_ns,floor_cpu_ns,answers_per_s,p99_us");
    println!(
        "Server CPU of an acquire or a release, {NAMES} names, a floor of one thread; medians of {} pairs of runs \
         of {} s\n",
        arguments.pairs(),
        arguments.seconds
    );
    for (shape, bound) in BOUNDS {
        if !arguments.only.is_empty() && !arguments.only.contains(&shape.to_string()) {
            continue;
        }
        let measured = measure(shape, &kinds, &arguments);
        print_table(shape, bound, &measured);
        write_csv(&mut csv, shape, &measured);
    }
}

impl Arguments {
    fn pairs(&self) -> usize {
        if self.quick { 3 } else { self.pairs.max(1) }
    }
}

/// The servers to compare, the floor first. Prints which of them are not installed.
fn kinds(arguments: &Arguments) -> Vec<Kind> {
    let is_asked = |kind: &Kind| {
        *kind == Kind::Floor || arguments.servers.is_empty() || arguments.servers.contains(kind)
    };
    let mut kinds: Vec<_> = Kind::ALL.into_iter().filter(is_asked).collect();
    kinds.retain(|kind| match kind.missing() {
        Some(sentence) => {
            println!("{sentence}");
            false
        }
        None => true,
    });
    kinds
}

/// One run of a server, and that of the floor before it.
struct Pair {
    floor: Outcome,
    server: Outcome,
}

struct Measured {
    kind: Kind,
    pairs: Vec<Pair>,
}

impl Measured {
    /// A figure in relation to that of the floor.
    fn ratios(&self, figure: impl Fn(&Outcome) -> f64) -> Vec<f64> {
        self.pairs.iter().map(|pair| figure(&pair.server) / figure(&pair.floor)).collect()
    }

    fn median_of(&self, figure: impl Fn(&Outcome) -> f64) -> f64 {
        median(&self.pairs.iter().map(|pair| figure(&pair.server)).collect::<Vec<_>>())
    }
}

/// Runs floor and server in turn, round by round, so that what disturbs the machine for long disturbs all alike. The
/// floor is compared with a second process of itself.
fn measure(shape: Shape, kinds: &[Kind], arguments: &Arguments) -> Vec<Measured> {
    let time = Duration::from_secs_f64(arguments.seconds);
    let connect = |kind: Kind| {
        let mut loaded = Loaded::connect(kind.start(), pairs(shape, NAMES, Distribution::Uniform))?;
        // Once unmeasured: the names are made, the caches warm.
        loaded.run(time, Pace::Closed)?;
        Ok::<_, LoadError>(loaded)
    };
    let mut floor = connect(Kind::Floor).unwrap_or_else(|error| panic!("the floor at {shape}: {error}"));
    let mut servers = Vec::new();
    for kind in kinds.iter().filter(|kind| kind.takes_in_flight(shape.in_flight)) {
        match connect(*kind) {
            Ok(loaded) => servers.push((loaded, Measured { kind: *kind, pairs: Vec::new() })),
            Err(error) => leave_out(*kind, shape, &error),
        }
    }
    for _ in 0..arguments.pairs() {
        servers.retain_mut(|(server, measured)| {
            let pair = floor
                .run(time, Pace::Closed)
                .and_then(|floor| server.run(time, Pace::Closed).map(|server| Pair { floor, server }));
            pair.map(|pair| measured.pairs.push(pair))
                .inspect_err(|error| leave_out(measured.kind, shape, error))
                .is_ok()
        });
    }
    servers.into_iter().map(|(_, measured)| measured).collect()
}

/// Says why a server is not in the table. One that fails under the load has no figure, and stops no other's.
fn leave_out(kind: Kind, shape: Shape, error: &LoadError) {
    assert!(!matches!(kind, Kind::Floor | Kind::Signalbox), "{} at {shape}: {error}", kind.label());
    println!("{} is left out at {shape}: {error}", kind.label());
}

fn cpu_ns(outcome: &Outcome) -> f64 {
    outcome.cpu_ns_per_answer
}

fn p99_us(outcome: &Outcome) -> f64 {
    outcome.record.latency_ns().value_at_percentile(99.0) as f64 / 1000.0
}

/// Whether a ratio is within its bound.
fn verdict(ratio: f64, bound: f64, noise: f64) -> &'static str {
    match () {
        () if noise > NOISE_MAX => "too noisy to tell",
        () if ratio > bound + noise => "missed",
        () => "reached",
    }
}

fn print_table(shape: Shape, bound: f64, measured: &[Measured]) {
    let floor = &measured[0];
    let (noise_cpu, noise_p99) = (noise(&floor.ratios(cpu_ns)), noise(&floor.ratios(p99_us)));
    println!(
        "{shape}; bounds of signalbox: CPU {bound:.2}, p99 {P99_BOUND:.2}; noise {noise_cpu:.3} and {noise_p99:.3}"
    );
    println!(
        "  {:<14}{:>9}{:>14}{:>13}{:>10}{:>14}",
        "server", "CPU ns", "to the floor", "answers/s", "p99 us", "to the floor"
    );
    for server in measured {
        let (cpu_ratio, p99_ratio) = (median(&server.ratios(cpu_ns)), median(&server.ratios(p99_us)));
        println!(
            "  {:<14}{:>9.0}{cpu_ratio:>14.2}{:>13.0}{:>10.1}{p99_ratio:>14.2}",
            server.kind.label(),
            server.median_of(cpu_ns),
            server.median_of(|outcome| outcome.record.answers_per_s()),
            server.median_of(p99_us),
        );
        if server.kind == Kind::Signalbox {
            let (cpu, p99) = (verdict(cpu_ratio, bound, noise_cpu), verdict(p99_ratio, P99_BOUND, noise_p99));
            println!("    CPU: {cpu}; p99: {p99}");
        }
        // A server that refuses does less.
        let failures: u64 = server.pairs.iter().map(|pair| pair.server.record.failures()).sum();
        if failures > 0 {
            println!("    {failures} requests of {} failed", server.kind.label());
        }
    }
    println!();
}

fn write_csv(csv: &mut Csv, shape: Shape, measured: &[Measured]) {
    for server in measured {
        for (number, pair) in server.pairs.iter().enumerate() {
            csv.line(format_args!(
                "{shape},{},{number},{:.1},{:.1},{:.0},{:.1}",
                server.kind.label(),
                pair.server.cpu_ns_per_answer,
                pair.floor.cpu_ns_per_answer,
                pair.server.record.answers_per_s(),
                p99_us(&pair.server),
            ));
        }
    }
}
