//! The report of a run, as text for people and as JSON for scripts.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::SocketAddr;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::json;
use signalbox_bench::Histogram;

use super::options::{Arguments, Load};
use crate::cli::arguments::Common;
use crate::cli::output::{self, merged};
use crate::cli::table::Column;
use signalbox_bench::{Operation, Record, Usage};
use signalbox_client::{Namespace, Status};

/// The percentiles of the report, with their keys.
const PERCENTILES: [(&str, f64); 4] = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9)];

/// The latencies, in microseconds.
const LATENCIES: [Column; 8] = [
    Column::word("LATENCY", 10),
    Column::number("ANSWERS", 11),
    Column::number("MEAN", 10),
    Column::number("P50", 10),
    Column::number("P90", 10),
    Column::number("P99", 10),
    Column::number("P99.9", 10),
    Column::number("MAX", 10),
];

const STATUSES: [Column; 3] =
    [Column::word("OPERATION", 10), Column::number("ANSWERS", 11), Column::text("STATUS")];

/// The CPU time and memory of the server's process.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct ServerCost {
    cpu_ns_per_answer: f64,
    resident_bytes: u64,
}

impl ServerCost {
    /// Returns the cost between two readings. The answers to the releases at the end count too, because the server
    /// worked for them.
    pub(super) fn between(before: Usage, after: Usage, record: &Record) -> Self {
        let cpu_ns = after.cpu.saturating_sub(before.cpu).as_nanos() as f64;
        let answers = record.answers_with_release_at_end().max(1) as f64;
        Self { cpu_ns_per_answer: cpu_ns / answers, resident_bytes: after.resident_bytes }
    }
}

/// The report; the fields are the keys of the JSON.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    server: String,
    kind: &'static str,
    connections: usize,
    in_flight: usize,
    threads: usize,
    names: u32,
    name_bytes: usize,
    distribution: String,
    mix: BTreeMap<&'static str, u32>,
    requests_per_s: Option<f64>,
    seed: u64,
    elapsed_s: f64,
    answers: u64,
    answers_per_s: f64,
    failures: u64,
    unsent: u64,
    released_at_end: u64,
    latency_us: BTreeMap<&'static str, Latency>,
    own_delay_us: Option<Times>,
    statuses: BTreeMap<&'static str, BTreeMap<String, u64>>,
    server_process: Option<ServerCost>,
}

#[derive(Debug, Serialize)]
struct Latency {
    answers: u64,
    #[serde(flatten)]
    times: Times,
}

impl Latency {
    fn of(latency_ns: &Histogram<u64>) -> Self {
        Self { answers: latency_ns.len(), times: Times::of(latency_ns) }
    }
}

#[derive(Debug, Serialize)]
struct Times {
    mean: f64,
    #[serde(flatten)]
    percentiles: BTreeMap<&'static str, f64>,
    max: f64,
}

impl Times {
    fn of(times_ns: &Histogram<u64>) -> Self {
        let us = |ns: u64| ns as f64 / 1000.0;
        Self {
            mean: times_ns.mean().round() / 1000.0,
            percentiles: PERCENTILES
                .map(|(key, percentile)| (key, us(times_ns.value_at_percentile(percentile))))
                .into(),
            max: us(times_ns.max()),
        }
    }
}

impl Report {
    pub(super) fn new(
        arguments: &Arguments,
        namespace: Namespace,
        load: &Load,
        address: SocketAddr,
        record: &Record,
        server_process: Option<ServerCost>,
    ) -> Self {
        let performed = || Operation::ALL.into_iter().filter(|o| !record.operation(*o).latency_ns.is_empty());
        let mut latency_us: BTreeMap<_, _> =
            performed().map(|o| (o.label(), Latency::of(&record.operation(o).latency_ns))).collect();
        latency_us.insert("all", Latency::of(&record.latency_ns()));
        let statuses = |o: Operation| {
            let statuses = &record.operation(o).statuses;
            statuses.iter().map(|(code, times)| (status_label(*code), *times)).collect()
        };
        let (mix, distribution) = (load.plan.mix, arguments.distribution.to_possible_value());
        let mix = [("pair", mix.pair), ("get", mix.get), ("noop", mix.noop)];
        Self {
            server: address.to_string(),
            kind: namespace.noun(),
            connections: load.plan.connections,
            in_flight: load.plan.in_flight,
            threads: load.threads,
            names: load.plan.names.count(),
            name_bytes: arguments.name_bytes,
            distribution: distribution.map_or_else(String::new, |value| value.get_name().to_owned()),
            mix: mix.into_iter().filter(|(_, weight)| *weight > 0).collect(),
            requests_per_s: load.requests_per_s,
            seed: arguments.seed,
            elapsed_s: record.elapsed.as_secs_f64(),
            answers: record.answers(),
            answers_per_s: record.answers_per_s(),
            failures: record.failures(),
            unsent: record.unsent,
            released_at_end: record.released_at_end,
            latency_us,
            own_delay_us: load.requests_per_s.map(|_| Times::of(&record.own_delay_ns)),
            statuses: performed().map(|o| (o.label(), statuses(o))).collect(),
            server_process,
        }
    }

    /// Prints one JSON object, or a heading and tables.
    pub(super) fn print(&self, common: &Common) -> io::Result<()> {
        let mut out = io::stdout();
        if common.json {
            return writeln!(out, "{}", output::json(self));
        }
        writeln!(out, "{}", self.heading())?;
        let mut rows = common.rows(&LATENCIES);
        for label in Operation::ALL.map(Operation::label).into_iter().chain(["all"]) {
            if let Some(latency) = self.latency_us.get(label) {
                rows.push(&merged([json!({ "latency": label }), json!(latency)]))?;
            }
        }
        if let Some(own_delay) = &self.own_delay_us {
            rows.push(&merged([json!({ "latency": "own delay" }), json!(own_delay)]))?;
        }
        rows.finish()?;
        if self.failures > 0 {
            writeln!(out)?;
            let mut rows = common.rows(&STATUSES);
            for (operation, statuses) in &self.statuses {
                for (status, answers) in statuses {
                    rows.push(&json!({ "operation": operation, "answers": answers, "status": status }))?;
                }
            }
            rows.finish()?;
        }
        if self.unsent > 0 {
            let line =
                "requests were due but not sent: the server, or this program, could not keep up with --rate";
            writeln!(out, "\n{} {line}", self.unsent)?;
        }
        if let Some(cost) = self.server_process {
            let memory_mib = cost.resident_bytes as f64 / f64::from(1 << 20);
            let cpu_ns = cost.cpu_ns_per_answer;
            writeln!(out, "\nserver: {cpu_ns:.0} ns of CPU time per answer, {memory_mib:.1} MiB resident")?;
        }
        Ok(())
    }

    fn heading(&self) -> String {
        let mix: Vec<_> = self.mix.iter().map(|(what, weight)| format!("{what}={weight}")).collect();
        let rate = match self.requests_per_s {
            Some(rate) => format!("{rate} requests/s"),
            None => "as fast as answers arrive".to_owned(),
        };
        format!(
            "{} ({}s): {} connections x {} in flight on {} threads, {rate}\n\
             {} names of {} bytes ({}), {}\n\n\
             {} answers in {:.2} s: {:.0} per second; {} failures; latencies in microseconds\n",
            self.server,
            self.kind,
            self.connections,
            self.in_flight,
            self.threads,
            self.names,
            self.name_bytes,
            self.distribution,
            mix.join(" "),
            self.answers,
            self.elapsed_s,
            self.answers_per_s,
            self.failures,
        )
    }
}

fn status_label(code: u8) -> String {
    match Status::from_code(code) {
        Some(Status::NoError) => "No error".to_owned(),
        Some(status) => status.message().to_owned(),
        None => format!("status {code:#04x}"),
    }
}
