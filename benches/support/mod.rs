//! Shared by the benchmarks of whole servers: the servers, including the floor, and their load.

#![allow(dead_code, unreachable_pub, reason = "each benchmark uses its own part of this")]

pub mod amqp;
pub mod answers;
pub mod arguments;
pub mod asker;
#[path = "../../tests/tls/certificates.rs"]
pub mod certificates;
pub mod declaration;
pub mod dialects;
pub mod floor;
pub mod holder;
pub mod lessees;
#[path = "../../tests/support/ports.rs"]
pub mod ports;
pub mod servers;
pub mod splice;
pub mod statistics;
pub mod thread;
pub mod tls_floor;

use std::sync::Arc;
use std::time::Duration;

use signalbox_bench::{
    Distribution, Generator, Limit, LoadError, Mix, Names, Pace, Plan, Progress, Record, Usage,
};
use signalbox_client::{Maximum, Resources};

use dialects::AnyDialect;
use servers::Server;

/// The number of connections, and of requests in flight on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub connections: usize,
    pub in_flight: usize,
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}", self.connections, self.in_flight)
    }
}

/// Acquire/release pairs on names, with more resources than the clients can hold.
pub fn pairs(shape: Shape, names: u32, distribution: Distribution) -> Plan {
    Plan {
        connections: shape.connections,
        in_flight: shape.in_flight,
        names: Arc::new(Names::new(names, 16, distribution)),
        mix: Mix { pair: 1, get: 0, noop: 0 },
        resources: Resources(1),
        // All protocols that are compared accept this maximum.
        maximum: Maximum(1_000_000),
        seed: 1,
        timeout: Duration::from_secs(10),
        tls: None,
    }
}

/// The result of a run on a server.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub cpu_ns_per_answer: f64,
    pub record: Record,
}

/// A server with its connections.
pub struct Loaded {
    pub server: Server,
    generator: Generator<AnyDialect>,
}

impl Loaded {
    pub fn connect(server: Server, plan: Plan) -> Result<Self, LoadError> {
        let generator = Generator::connect(server.address, server.dialect.clone(), server.plan(plan))?;
        Ok(Self { server, generator })
    }

    /// Runs for a time. CPU is read while nothing is in flight, so no time slice is missing.
    pub fn run(&mut self, time: Duration, pace: Pace) -> Result<Outcome, LoadError> {
        let usage = || Usage::of(self.server.pid()).unwrap_or_else(|error| panic!("{error}"));
        let before = usage();
        let record = self.generator.run(Limit::After(time), pace, &Progress::default())?;
        let cpu = usage().cpu.saturating_sub(before.cpu);
        let answers = record.answers_with_release_at_end().max(1) as f64;
        Ok(Outcome { cpu_ns_per_answer: cpu.as_nanos() as f64 / answers, record })
    }
}
