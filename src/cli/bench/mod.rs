//! `signalbox bench`: puts load on a server and reports throughput, latencies and statuses.
//!
//! [`signalbox_bench`] generates the load; this file reads the options, runs one generator per thread and prints the
//! report.

mod options;
mod report;

use std::io::{IsTerminal, Write, stderr};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

pub(super) use options::Arguments;

use super::arguments::Common;
use super::exit::{Exit, Failure};
use super::server::{Server, block_on};
use options::Load;
use report::{Report, ServerCost};
use signalbox_bench::{
    Generator, Limit, LoadError, Pace, ProcessError, Progress, Record, Usage, Yrmcds, resolve,
};
use signalbox_client::Address;

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<(), Failure> {
    let server = &common.server;
    let mut load = arguments.load(server.timeout)?;
    // A wrong process id is reported before the load starts.
    arguments.pid.map(Usage::of).transpose()?;
    let leader = block_on(leader(server))?;
    let address = resolve(&leader, server.timeout)?;
    load.set_tls(server.tls.load()?, &leader);
    let dialect = Yrmcds { token: server.token.load()? };
    let mut generators = connect(&load, address, &dialect)?;
    if let Some(time) = arguments.warmup() {
        run_all(&mut generators, &load, Limit::After(time), "warming up")?;
    }
    let before = arguments.pid.map(Usage::of).transpose()?;
    let record = run_all(&mut generators, &load, load.limit, "running")?;
    // Read while the connections are open, because their memory counts.
    let after = arguments.pid.map(Usage::of).transpose()?;
    let cost = before.zip(after).map(|(before, after)| ServerCost::between(before, after, &record));
    let report = Report::new(arguments, server.namespace(), &load, address, &record, cost);
    Ok(report.print(common)?)
}

/// Returns the address of the server, or of the leader of a cluster. Fails if its port does not serve the
/// requested namespace: the generators send plain requests, which do not name a namespace.
async fn leader(server: &Server) -> Result<Address, Failure> {
    let leader = server.leader().await?;
    server.with_addresses(vec![leader.clone()]).connect().await?;
    Ok(leader)
}

/// Makes one generator per thread, each with its part of the connections.
fn connect(load: &Load, address: SocketAddr, dialect: &Yrmcds) -> Result<Vec<Generator<Yrmcds>>, LoadError> {
    let connect = |thread| Generator::connect(address, dialect.clone(), load.plan_of(thread));
    (0..load.threads).map(connect).collect()
}

/// Runs all generators at the same time, shows a progress line with this heading, and adds up their records.
fn run_all(
    generators: &mut [Generator<Yrmcds>],
    load: &Load,
    limit: Limit,
    heading: &str,
) -> Result<Record, LoadError> {
    let progress = Progress::default();
    let pace = |thread| match load.requests_per_s {
        Some(requests_per_s) => Pace::Open { requests_per_s: requests_per_s * load.fraction_of(thread) },
        None => Pace::Closed,
    };
    thread::scope(|scope| {
        let watcher = thread::current();
        let runs: Vec<_> = generators
            .iter_mut()
            .enumerate()
            .map(|(thread, generator)| {
                let (limit, pace) = (load.limit_of(thread, limit), pace(thread));
                let (watcher, progress) = (watcher.clone(), &progress);
                scope.spawn(move || {
                    let record = generator.run(limit, pace, progress);
                    watcher.unpark();
                    record
                })
            })
            .collect();
        watch(heading, limit, &progress, || runs.iter().all(|run| run.is_finished()));
        let mut sum = Record::default();
        for run in runs {
            sum.add(&run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(sum)
    })
}

/// Time between two updates of the progress line.
const INTERVAL: Duration = Duration::from_millis(500);

/// Waits until the run is over: each generator unparks this thread when it ends. Until then, shows a progress line,
/// if standard error is a terminal.
fn watch(heading: &str, limit: Limit, progress: &Progress, is_over: impl Fn() -> bool) {
    let is_shown = stderr().is_terminal();
    let started = Instant::now();
    let mut before = (started, 0);
    while !is_over() {
        thread::park_timeout(INTERVAL);
        let now = Instant::now();
        if !is_shown || now - before.0 < INTERVAL {
            continue;
        }
        let answers = progress.answers.load(Ordering::Relaxed);
        let per_s = (answers - before.1) as f64 / (now - before.0).as_secs_f64();
        let failures = progress.failures.load(Ordering::Relaxed);
        let goal = match limit {
            Limit::After(time) => format!("of {} s", time.as_secs_f64()),
            Limit::Requests(requests) => format!("s, {answers} of {requests} answers"),
        };
        let elapsed_s = (now - started).as_secs_f64();
        show(&format!("{heading}: {elapsed_s:.1} {goal}, {per_s:.0} answers/s, {failures} failures"));
        before = (now, answers);
    }
    if is_shown {
        show("");
    }
}

/// Replaces the progress line with a text; ignores a closed stderr.
fn show(text: &str) {
    let _ = write!(stderr(), "\r\x1b[K{text}");
    let _ = stderr().flush();
}

impl From<ProcessError> for Failure {
    fn from(error: ProcessError) -> Self {
        let exit = if error.is_missing() { Exit::Usage } else { Exit::System };
        Self::new(exit, error.to_string())
    }
}
