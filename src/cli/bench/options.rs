//! The options of `bench`, and the load that they describe.

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::cli::exit::Failure;
use crate::cli::values::{time, time_or_none, within};
use signalbox_bench::{Distribution, Limit, Mix, Names, Plan};
use signalbox_client::{Address, Maximum, NAME_BYTES_MAX, Resources, Tls};

/// Measure the throughput and latency of a server
///
/// Opens connections, keeps requests in flight on each, and prints how many were answered, how long the answers took,
/// and their statuses. It works with every server of yrmcds' counter or semaphore protocol. The names that it acquires
/// start with "bench-"; it releases everything before it ends. In a cluster, it uses the node that leads at the start,
/// and fails if that node ends during the run. With a token (--token-file), each connection presents it before the
/// load, and sends plain requests afterwards.
///
/// Without --rate, a connection sends its next request when one is answered. A server that stalls then gets fewer requests,
/// so its latency looks better than users would see it (coordinated omission). With --rate, requests are due at fixed
/// times, and their latency counts from these times, whether or not they could be sent then.
///
/// Each thread uses at most one core. With --rate, each thread uses a whole core, to send requests at their times.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox bench
  signalbox bench --connections 500 --in-flight 16 --duration 30
  signalbox bench --rate 20000 --distribution zipf --names 1000000
  signalbox bench --distribution one --max 10 --mix pair=9,get=1
  signalbox bench --pid \"$(pidof signalbox)\" --json")]
pub(in crate::cli) struct Arguments {
    /// Connections to open
    #[arg(short, long, value_name = "N", default_value = "50", value_parser = within(1..=u32::MAX))]
    connections: u32,

    /// Maximum number of requests in flight on each connection
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = within(1..=u32::MAX))]
    in_flight: u32,

    /// How long to run [default: 10]
    #[arg(short, long, value_name = "TIME", value_parser = time, conflicts_with = "count")]
    duration: Option<Duration>,

    /// Requests to send, instead of a duration
    #[arg(long, value_name = "N", value_parser = within(1..=u64::MAX))]
    count: Option<u64>,

    /// How long to run before measuring; 0 for no time
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = time_or_none)]
    warmup: Duration,

    /// Number of names
    #[arg(short, long, value_name = "N", default_value = "10000", value_parser = within(1..=u32::MAX))]
    names: u32,

    /// Distribution of the names over the requests
    #[arg(long, value_enum, default_value = "uniform")]
    pub(super) distribution: DistributionArgument,

    /// Length of a name, in bytes
    #[arg(long, value_name = "BYTES", default_value = "16")]
    pub(super) name_bytes: usize,

    /// Operations with their weights: pair (an acquire and its release), get, noop
    #[arg(short, long, value_name = "WHAT[=WEIGHT],…", default_value = "pair", value_parser = mix)]
    mix: Mix,

    /// Resources of each acquire
    #[arg(long, value_name = "R", default_value = "1", value_parser = within(1..=u32::MAX))]
    resources: u32,

    /// Maximum of each counter, or capacity of each semaphore that does not exist yet
    #[arg(long, value_name = "N", default_value = "4294967295", value_parser = within(1..=u32::MAX))]
    max: u32,

    /// Requests per second, over all connections [default: as fast as they are answered]
    #[arg(short, long, value_name = "REQUESTS", value_parser = rate)]
    rate: Option<f64>,

    /// Threads, which share the connections
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = within(1..=u32::MAX))]
    threads: u32,

    /// Seed of the random choices; the same seed makes the same choices
    #[arg(long, value_name = "N", default_value = "1", value_parser = within(0..=u64::MAX))]
    pub(super) seed: u64,

    /// Process id of the server on this machine; adds its CPU time per answer and its resident memory
    #[arg(long, value_parser = within(1..=u32::MAX))]
    pub(super) pid: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DistributionArgument {
    /// Each name equally often
    Uniform,
    /// The n-th name in proportion to 1/n
    Zipf,
    /// Always the same name
    One,
}

/// A valid load.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) threads: usize,
    pub(super) limit: Limit,
    pub(super) requests_per_s: Option<f64>,
    /// The plan of all threads together.
    pub(super) plan: Plan,
}

impl Arguments {
    /// Returns how long to run before measuring; `None` for no time.
    pub(super) fn warmup(&self) -> Option<Duration> {
        (!self.warmup.is_zero()).then_some(self.warmup)
    }

    /// Returns the load. Fails if the options contradict each other.
    pub(super) fn load(&self, timeout: Duration) -> Result<Load, Failure> {
        let usage = |message: String| Err(Failure::usage(message));
        if self.resources > self.max {
            return usage(format!(
                "--resources {} is more than --max {}; lower --resources or raise --max",
                self.resources, self.max
            ));
        }
        let bytes_min = Names::bytes_min(self.names);
        if !(bytes_min..=NAME_BYTES_MAX).contains(&self.name_bytes) {
            return usage(format!(
                "--name-bytes {} is invalid for {} names; use {bytes_min} to {NAME_BYTES_MAX}",
                self.name_bytes, self.names
            ));
        }
        if self.threads > self.connections {
            return usage(format!(
                "--threads {} is more than --connections {}; each thread needs a connection",
                self.threads, self.connections
            ));
        }
        if let Some(count) = self.count.filter(|count| *count < u64::from(self.threads)) {
            return usage(format!(
                "--count {count} is less than --threads {}; each thread needs a request",
                self.threads
            ));
        }
        Ok(self.checked_load(timeout))
    }

    fn checked_load(&self, timeout: Duration) -> Load {
        let distribution = match self.distribution {
            DistributionArgument::Uniform => Distribution::Uniform,
            DistributionArgument::Zipf => Distribution::Zipf,
            DistributionArgument::One => Distribution::One,
        };
        let duration = self.duration.unwrap_or(Duration::from_secs(10));
        let plan = Plan {
            connections: self.connections as usize,
            in_flight: self.in_flight as usize,
            names: Arc::new(Names::new(self.names, self.name_bytes, distribution)),
            mix: self.mix,
            resources: Resources(self.resources),
            maximum: Maximum(self.max),
            seed: self.seed,
            timeout,
            tls: None,
        };
        Load {
            threads: self.threads as usize,
            limit: self.count.map_or(Limit::After(duration), Limit::Requests),
            requests_per_s: self.rate,
            plan,
        }
    }
}

impl Load {
    /// Makes the load use TLS if `tls` is given; the certificate must then be valid for `server`.
    pub(super) fn set_tls(&mut self, tls: Option<Tls>, server: &Address) {
        self.plan.tls = tls.map(|tls| (tls, server.clone()));
    }

    pub(super) fn plan_of(&self, thread: usize) -> Plan {
        let connections = part(self.plan.connections as u64, self.threads, thread) as usize;
        let seed = self.plan.seed.wrapping_add(thread as u64);
        Plan { connections, seed, ..self.plan.clone() }
    }

    /// Returns a thread's fraction of all connections.
    pub(super) fn fraction_of(&self, thread: usize) -> f64 {
        self.plan_of(thread).connections as f64 / self.plan.connections as f64
    }

    pub(super) fn limit_of(&self, thread: usize, limit: Limit) -> Limit {
        match limit {
            Limit::After(time) => Limit::After(time),
            Limit::Requests(requests) => Limit::Requests(part(requests, self.threads, thread)),
        }
    }
}

/// Returns one part of `whole`, divided into `parts` as equally as possible.
fn part(whole: u64, parts: usize, index: usize) -> u64 {
    let (parts, index) = (parts as u64, index as u64);
    whole / parts + u64::from(index < whole % parts)
}

fn mix(text: &str) -> Result<Mix, &'static str> {
    const ADVICE: &str = "expected operations with weights, such as pair, or pair=8,get=1,noop=1";
    let mut mix = Mix { pair: 0, get: 0, noop: 0 };
    for item in text.split(',') {
        let (what, weight) = item.split_once('=').unwrap_or((item, "1"));
        let operation = match what {
            "pair" => &mut mix.pair,
            "get" => &mut mix.get,
            "noop" => &mut mix.noop,
            _ => return Err(ADVICE),
        };
        // The limit keeps the sum of the three weights below 2^32.
        *operation = weight.parse().ok().filter(|weight| *weight <= 1_000_000).ok_or(ADVICE)?;
    }
    if mix.pair + mix.get + mix.noop == 0 {
        return Err("all weights are 0; set one of them above 0");
    }
    Ok(mix)
}

fn rate(text: &str) -> Result<f64, &'static str> {
    match text.parse::<f64>() {
        Ok(rate) if (0.001..=1e9).contains(&rate) => Ok(rate),
        _ => Err("expected a number of requests per second, such as 20000"),
    }
}
