//! Tests a client library of signalbox against a real server, with faults (README.md).

#[allow(dead_code, reason = "the module is shared with the tests of the server")]
#[path = "../../tests/support/ports.rs"]
mod ports;

mod bench;
mod certificate;
mod driver;
mod etcd;
mod oracle;
mod proxy;
mod scenarios;
mod server;
mod stage;
mod storm;

use std::collections::VecDeque;
use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};

use crate::certificate::Certificate;
use crate::driver::{Driver, Endpoint};
use crate::etcd::Etcd;
use crate::scenarios::SCENARIOS;
use crate::server::{Installation, Store};
use crate::stage::Stage;

/// How long the suite waits for what must happen. It is long, so that a busy machine causes no false failures.
const PATIENCE: Duration = Duration::from_secs(15);

/// How long the suite waits for a process to start.
const START_MAX: Duration = Duration::from_secs(60);

/// How many scenarios run at once. They mostly wait, but each starts a server and drivers.
const AT_ONCE: usize = 8;

/// How many scenarios run at once if each starts a cluster.
const CLUSTERS_AT_ONCE: usize = 4;

/// Test a client library of signalbox against a real server, with faults
///
/// The scenarios and a storm of random faults run at the same time. The exit status is 1 if the client has failed, and
/// 2 if the suite could not run.
#[derive(Debug, Parser)]
#[command(name = "conformance", args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct CommandLine {
    #[command(subcommand)]
    task: Option<Task>,
    #[command(flatten)]
    suite: Arguments,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Measure client libraries side by side, with one server
    ///
    /// It prints a table in Markdown: pairs of acquire and release without contention, memory, and the times until a
    /// program knows of a revocation and of the end of its lease.
    Bench(bench::Arguments),
}

#[derive(Args, Debug)]
struct Arguments {
    /// How long the storm of random faults lasts, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    seconds: u64,
    /// The seed of the storm, to repeat one; random by default
    #[arg(long)]
    seed: Option<u64>,
    /// Run only the scenarios whose name contains this text; the storm is called "storm"
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Start a cluster of two nodes instead of each server; all clusters share one etcd (Debian's package etcd-server)
    #[arg(long)]
    cluster: bool,
    #[command(flatten)]
    program: Program,
    /// The driver and its arguments
    #[arg(last = true, required = true, value_name = "DRIVER")]
    driver: Vec<String>,
}

#[derive(Args, Debug)]
struct Program {
    /// The server's program; by default, the one that cargo has built beside this one
    #[arg(long, value_name = "FILE", env = "SIGNALBOX_BIN")]
    server: Option<PathBuf>,
}

impl Program {
    /// Returns the path of the server's program.
    fn find(&self) -> Result<PathBuf, String> {
        let beside = || Some(env::current_exe().ok()?.with_file_name("signalbox"));
        let program = self.server.clone().or_else(beside).ok_or("cannot find the server: use --server")?;
        if program.exists() {
            return Ok(program);
        }
        Err(format!("there is no server at {}: run \"cargo build\", or use --server", program.display()))
    }
}

/// A scenario or the storm, ready to run. Its error says what is wrong with the client.
type Run<'a> = Box<dyn FnOnce() -> Result<(), String> + Send + 'a>;

fn main() -> ExitCode {
    let CommandLine { task, suite } = CommandLine::parse();
    let outcome = match task {
        Some(Task::Bench(arguments)) => bench::run(&arguments).map(|()| true),
        None => run(&suite),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("conformance: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs the scenarios, reports each, and returns whether the client has passed all of them.
fn run(arguments: &Arguments) -> Result<bool, String> {
    let installation = Installation {
        program: arguments.program.find()?,
        certificate: Certificate::make()?,
        store: if arguments.cluster { Store::Etcd(Etcd::start()?) } else { Store::Directory },
    };
    let nowhere = Endpoint {
        urls: "http://127.0.0.1:1".to_owned(),
        server: "127.0.0.1:1".to_owned(),
        token_file: None,
        authority: None,
    };
    let probe = Driver::start(&arguments.driver, &nowhere)?;
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let began = Instant::now();
    println!("seed {seed}");
    let mut waiting: VecDeque<(&str, Run<'_>)> = VecDeque::new();
    let (command, installation) = (&arguments.driver, &installation);
    if "storm".contains(&arguments.only) && arguments.seconds > 0 {
        let time = Duration::from_secs(arguments.seconds);
        let run = move || storm::run(&Stage::new(installation, command, "read,acquire", false)?, seed, time);
        waiting.push_back(("storm", Box::new(run)));
    }
    for scenario in SCENARIOS.iter().filter(|scenario| scenario.name.contains(&arguments.only)) {
        if let Some(missing) = scenario.needs.iter().find(|need| !probe.can(need)) {
            println!("skipped          {}: the driver has no \"{missing}\"", scenario.name);
            continue;
        }
        let run = move || {
            let stage = Stage::new(installation, command, scenario.anonymous, scenario.is_tls)?;
            (scenario.run)(&stage)?;
            stage.oracle.verdict()
        };
        waiting.push_back((scenario.name, Box::new(run)));
    }
    let names = SCENARIOS.iter().map(|scenario| scenario.name).chain(["storm"]);
    if !names.into_iter().any(|name| name.contains(&arguments.only)) {
        return Err(format!("no scenario has {:?} in its name", arguments.only));
    }
    let waiting = Mutex::new(waiting);
    let has_failed = AtomicBool::new(false);
    let take = || waiting.lock().expect("no thread panics with the lock").pop_front();
    thread::scope(|scope| {
        for _ in 0..if arguments.cluster { CLUSTERS_AT_ONCE } else { AT_ONCE } {
            scope.spawn(|| {
                while let Some((name, run)) = take() {
                    let began = Instant::now();
                    let outcome = run();
                    let time = began.elapsed().as_secs_f64();
                    has_failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
                    match outcome {
                        Ok(()) => println!("passed   {time:4.1} s  {name}"),
                        Err(finding) => println!("FAILED   {time:4.1} s  {name}: {finding}"),
                    }
                }
            });
        }
    });
    let passed = !has_failed.into_inner();
    let verdict = if passed { "passed" } else { "FAILED" };
    println!("{verdict} in {:.1} s with seed {seed}", began.elapsed().as_secs_f64());
    Ok(passed)
}
