//! How soon another worker helps when one is saturated, and what the workers answer together under several generators.
//!
//! `cargo bench --bench placement`; `docs/performance.md` describes the results.

mod support;

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use signalbox::cli::bench::load::{Distribution, Generator, Limit, Pace, Progress};
use support::arguments::FromCargo;
use support::dialects::AnyDialect;
use support::servers::{Server, start_signalbox_with};
use support::statistics::median;
use support::{Shape, pairs};

const NAMES: u32 = 10_000;

/// The CPU time of a worker that shows that it serves connections.
const HELP: Duration = Duration::from_millis(5);

/// The longest time that a worker is waited for.
const PATIENCE: Duration = Duration::from_secs(3);

/// The loads: generators, each with so many connections and requests in flight.
const LOADS: [(usize, Shape); 4] = [
    (1, Shape { connections: 50, in_flight: 64 }),
    (2, Shape { connections: 25, in_flight: 1 }),
    (2, Shape { connections: 25, in_flight: 64 }),
    (4, Shape { connections: 12, in_flight: 64 }),
];

/// Measures how load is spread over the worker threads
#[derive(Debug, Parser)]
struct Arguments {
    /// Runs of each kind, each with servers of its own
    #[arg(long, default_value = "5")]
    rounds: usize,

    /// Length of a run, in seconds
    #[arg(long, default_value = "4")]
    seconds: f64,

    /// One short round: to see that it works
    #[arg(long)]
    quick: bool,

    #[command(flatten)]
    from_cargo: FromCargo,
}

fn main() {
    support::floor::become_if_asked();
    let arguments = Arguments::parse();
    let rounds = if arguments.quick { 1 } else { arguments.rounds.max(1) };
    let time = Duration::from_secs_f64(if arguments.quick { 0.5 } else { arguments.seconds });
    reaction(rounds);
    throughput(rounds, time);
}

/// From the start of a load that saturates one worker until another worker helps.
fn reaction(rounds: usize) {
    let shape = Shape { connections: 50, in_flight: 64 };
    let mut times_ms = Vec::new();
    for _ in 0..rounds {
        let server = start_signalbox_with("workers = 2\n");
        let before = worker_cpu(&server, 1);
        let begun = Instant::now();
        thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| load(&server, shape, PATIENCE));
            }
            while worker_cpu(&server, 1) < before + HELP && begun.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(2));
            }
            times_ms.push(begun.elapsed().as_secs_f64() * 1000.0);
        });
    }
    println!(
        "A second worker helps {:.0} ms after two generators begin ({shape} each); median of {rounds}, all: {times_ms:.0?}\n",
        median(&times_ms)
    );
}

/// The answers of the default number of workers in relation to those of one worker.
fn throughput(rounds: usize, time: Duration) {
    println!("{:<12}{:<10}{:>14}{:>14}{:>8}", "generators", "each", "default/s", "1 worker/s", "ratio");
    for (generators, shape) in LOADS {
        let (mut default, mut single, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let answers = |further| {
                let server = start_signalbox_with(further);
                // A trial of more workers is over after this.
                load_all(&server, generators, shape, Duration::from_secs(2).min(time));
                load_all(&server, generators, shape, time)
            };
            default.push(answers(""));
            single.push(answers("workers = 1\n"));
            ratios.push(default[default.len() - 1] / single[single.len() - 1]);
        }
        println!(
            "{generators:<12}{:<10}{:>14.0}{:>14.0}{:>8.2}",
            shape.to_string(),
            median(&default),
            median(&single),
            median(&ratios)
        );
    }
}

/// Answers in a second of all generators together.
fn load_all(server: &Server, generators: usize, shape: Shape, time: Duration) -> f64 {
    thread::scope(|threads| {
        let running: Vec<_> = (0..generators).map(|_| threads.spawn(|| load(server, shape, time))).collect();
        running.into_iter().map(|generator| generator.join().expect("a generator does not panic")).sum()
    })
}

/// Answers in a second of one generator.
fn load(server: &Server, shape: Shape, time: Duration) -> f64 {
    let plan = pairs(shape, NAMES, Distribution::Uniform);
    let dialect: AnyDialect = server.dialect.clone();
    Generator::connect(server.address, dialect, plan)
        .and_then(|mut generator| generator.run(Limit::After(time), Pace::Closed, &Progress::default()))
        .unwrap_or_else(|error| panic!("signalbox at {shape}: {error}"))
        .answers_per_s()
}

/// The CPU time that a worker thread of a server has used.
fn worker_cpu(server: &Server, index: usize) -> Duration {
    let tasks = PathBuf::from(format!("/proc/{}/task", server.pid()));
    let name = format!("worker-{index}\n");
    let tasks = fs::read_dir(&tasks).unwrap_or_else(|error| panic!("{}: {error}", tasks.display()));
    let thread = tasks
        .filter_map(Result::ok)
        .find(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm == name))
        .unwrap_or_else(|| panic!("the server has no thread {name:?}"));
    let text = fs::read_to_string(thread.path().join("schedstat")).expect("a running thread has this file");
    let running_ns = text.split_whitespace().next().and_then(|number| number.parse().ok());
    Duration::from_nanos(running_ns.expect("it begins with the time on a core"))
}
