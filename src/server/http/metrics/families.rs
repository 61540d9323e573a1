//! The metrics of the process, of the listener and of single names, and those that `statistics` lists.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Error;
use std::fs;

use nix::unistd::{SysconfVar, sysconf};
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeMetric, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit as MetricUnit;

use super::super::super::expirations::{Expiration, Subject};
use super::super::super::memory::MemoryBudget;
use super::super::super::metrics::Durations;
use super::super::super::node_view::NodeView;
use super::super::super::port::port_name;
use super::super::super::process::files_max;
use super::super::super::state::Server;
use super::super::super::statistics::{Metric, Scope, Source, Unit, figures};
use super::super::super::steps;
use super::super::connections::{CONNECTIONS_MAX, Connections};
use super::super::shared::{Shared, Stage};
use super::series::{Figures, Series, longest_waiting_since_s};
use signalbox_core::KeyedCounts;
use signalbox_model::Namespace;

/// The most tokens that have series. Administrators choose their number, but a scrape must stay short.
const TOKENS_MAX: usize = 1000;

/// Writes metrics.
pub(super) struct Families<'a>(DescriptorEncoder<'a>);

/// The labels and the value of one series.
type Sample<V> = (Vec<(&'static str, String)>, V);

/// Returns one series without labels.
fn only<V>(value: V) -> Vec<Sample<V>> {
    vec![(Vec::new(), value)]
}

/// Returns series that differ in one label.
fn labeled<L: ToString, V>(label: &'static str, of: impl IntoIterator<Item = (L, V)>) -> Vec<Sample<V>> {
    of.into_iter().map(|(word, value)| (vec![(label, word.to_string())], value)).collect()
}

impl<'a> Families<'a> {
    pub(super) fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }

    fn counter(&mut self, name: &str, help: &str, samples: Vec<Sample<u64>>) -> Result<(), Error> {
        self.family(MetricType::Counter, None, name, help, &samples)
    }

    fn gauge(&mut self, name: &str, help: &str, samples: Vec<Sample<u64>>) -> Result<(), Error> {
        self.family(MetricType::Gauge, None, name, help, &samples)
    }

    /// Writes a family of times, in seconds of Unix time.
    fn timestamps(&mut self, name: &str, help: &str, samples: Vec<Sample<u64>>) -> Result<(), Error> {
        self.family(MetricType::Gauge, Some(MetricUnit::Seconds), name, help, &samples)
    }

    fn gauge_in(&mut self, unit: MetricUnit, name: &str, help: &str, value: f64) -> Result<(), Error> {
        self.family(MetricType::Gauge, Some(unit), name, help, &only(value))
    }

    /// Writes a family of counters or gauges.
    fn family<V: EncodeCounterValue + EncodeGaugeValue>(
        &mut self,
        kind: MetricType,
        unit: Option<MetricUnit>,
        name: &str,
        help: &str,
        samples: &[Sample<V>],
    ) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), kind)?;
        samples.iter().try_for_each(|(labels, value)| match (kind, &labels[..]) {
            (MetricType::Counter, []) => family.encode_counter::<NoLabelSet, V, u64>(value, None),
            (MetricType::Counter, _) => {
                family.encode_family(labels)?.encode_counter::<NoLabelSet, V, u64>(value, None)
            }
            (_, []) => family.encode_gauge(value),
            (_, _) => family.encode_family(labels)?.encode_gauge(value),
        })
    }

    fn histogram(&mut self, name: &str, help: &str, Durations(durations): &Durations) -> Result<(), Error> {
        let unit = Some(&MetricUnit::Seconds);
        durations.encode(self.0.encode_descriptor(name, help, unit, MetricType::Histogram)?)
    }

    /// Writes the metrics of the program and its process.
    pub(super) fn process(&mut self, shared: &Shared) -> Result<(), Error> {
        self.0
            .encode_descriptor("signalbox_build", "The version of the program", None, MetricType::Info)?
            .encode_info(&[("version", env!("CARGO_PKG_VERSION"))])?;
        let started = shared.started.0 as f64;
        let help = "When the process was started, since the Unix epoch";
        self.gauge_in(MetricUnit::Seconds, "process_start_time", help, started)?;
        let Process { cpu_s, resident_bytes, open_files } = Process::read();
        if let Some(cpu_s) = cpu_s {
            let help = "Processor time that the process has used";
            let (kind, unit) = (MetricType::Counter, Some(MetricUnit::Seconds));
            self.family(kind, unit, "process_cpu", help, &only(cpu_s))?;
        }
        if let Some(bytes) = resident_bytes {
            let help = "Memory of the process that is in the machine's memory";
            self.gauge_in(MetricUnit::Bytes, "process_resident_memory", help, bytes as f64)?;
        }
        if let Some(files) = open_files {
            self.gauge("process_open_fds", "Open files of the process", only(files))?;
        }
        self.gauge("process_max_fds", "How many files the process may have open", only(files_max()))?;
        self.expirations(shared)?;
        self.token_uses(shared)?;
        let in_use = MemoryBudget::in_use() as f64;
        self.gauge_in(MetricUnit::Bytes, "signalbox_memory", "Memory that the server has allocated", in_use)
    }

    /// Writes when the certificates and tokens in use expire: the first certificate of each key of the configuration,
    /// and the tokens that expire first.
    fn expirations(&mut self, shared: &Shared) -> Result<(), Error> {
        let (mut certificates, mut tokens) = (BTreeMap::new(), Vec::new());
        let mut expirations = shared.rules.expirations();
        expirations.sort_by_key(|of| of.end_s);
        for Expiration { subject, end_s, .. } in expirations {
            match subject {
                Subject::Certificate { key, .. } => {
                    certificates.entry(key).or_insert(end_s);
                }
                Subject::Token(name) if tokens.len() < TOKENS_MAX => tokens.push((name, end_s)),
                Subject::Token(_) => {}
            }
        }
        let help = "When the first certificate of a key of the configuration expires, since the Unix epoch";
        self.timestamps("signalbox_certificate_expiry_timestamp", help, labeled("key", certificates))?;
        let help = "When a token expires, since the Unix epoch";
        self.timestamps("signalbox_token_expiry_timestamp", help, labeled("token", tokens))
    }

    /// Writes when the secrets of tokens were last used, for the first [`TOKENS_MAX`] in the file that were used.
    fn token_uses(&mut self, shared: &Shared) -> Result<(), Error> {
        let access = &shared.rules.access;
        let tokens = access.tokens();
        let used = tokens.iter().filter_map(|entry| {
            let last = access.uses.last(entry.id)?;
            Some((vec![("token", entry.name.clone()), ("id", entry.id.to_string())], last.0))
        });
        let help = "When a client last used a token, by its id, since the Unix epoch";
        self.timestamps("signalbox_token_last_use_timestamp", help, used.take(TOKENS_MAX).collect())
    }

    /// Writes the metrics of the HTTP listener and of the node.
    pub(super) fn listener(&mut self, connections: &Connections) -> Result<(), Error> {
        let shared = &connections.shared;
        let stage = shared.stage();
        let serving = u64::from(matches!(stage, Stage::Serving(_)));
        self.gauge("signalbox_serving", "Whether the process serves clients", only(serving))?;
        if shared.cluster.is_enabled() {
            let leads = u64::from(stage.server().is_some());
            self.gauge("signalbox_cluster_leader", "Whether this node leads its cluster", only(leads))?;
        }
        if let Some(node) = shared.node() {
            self.cluster(node)?;
        }
        self.gauge("signalbox_http_connections", "HTTP connections", only(connections.count()))?;
        let max = CONNECTIONS_MAX as u64;
        self.gauge("signalbox_http_connections_max", "The most HTTP connections at a time", only(max))?;
        let (accepted, refused) = (shared.accepted.value(), shared.refused.value());
        self.counter(
            "signalbox_http_connections_accepted",
            "HTTP connections that were accepted",
            only(accepted),
        )?;
        self.counter(
            "signalbox_http_connections_refused",
            "HTTP connections that were closed for others",
            only(refused),
        )?;
        self.counter("signalbox_http_requests", "HTTP requests", only(shared.requests.value()))?;
        self.leases(connections)
    }

    /// Writes the metrics of leases over HTTP.
    fn leases(&mut self, connections: &Connections) -> Result<(), Error> {
        let (shared, count) = (&connections.shared, connections.count_of_leases());
        let help = "HTTP connections whose last request was for a lease";
        self.gauge("signalbox_http_lease_connections", help, only(count))?;
        let max = u64::from(shared.config().http.lease_connections_max);
        let help = "The most HTTP connections for leases at a time";
        self.gauge("signalbox_http_lease_connections_max", help, only(max))?;
        let parked = shared.leases.parked.value();
        self.gauge(
            "signalbox_http_parked_requests",
            "HTTP requests that wait for a change of leases",
            only(parked),
        )?;
        let refused = labeled("reason", shared.leases.refused());
        let help = "HTTP requests for leases that were refused";
        self.counter("signalbox_http_lease_requests_refused", help, refused)?;
        let Some(server) = shared.stage().server() else { return Ok(()) };
        let (mut counts, mut after) = (KeyedCounts::default(), None);
        loop {
            after = server.core.count_keyed(after, steps::LISTED_CONNECTIONS, &mut counts);
            if after.is_none() {
                break;
            }
        }
        let KeyedCounts { queued, held, revoking } = counts;
        let states = [("queued", queued), ("held", held), ("revoking", revoking)];
        let help = "Leases that HTTP requests have used";
        self.gauge("signalbox_http_leases", help, labeled("state", states))
    }

    /// Writes the figures of the server.
    pub(super) fn server(&mut self, server: &Server) -> Result<(), Error> {
        let sources = Namespace::ALL.map(|namespace| (namespace, Source::new(server, namespace)));
        let metrics = || figures().filter_map(|figure| Some((figure, figure.metric?)));
        let mut written = BTreeSet::new();
        for Metric { name, help, unit, is_counter, .. } in metrics().map(|(_, metric)| metric) {
            if !written.insert(name) {
                continue;
            }
            let mut samples = Vec::new();
            for (figure, metric) in metrics().filter(|(_, metric)| metric.name == name) {
                let of_ports = if figure.scope == Scope::Port { &sources[..] } else { &sources[..1] };
                for (namespace, source) in of_ports {
                    let mut labels = Vec::new();
                    if figure.scope == Scope::Port {
                        labels.push(("namespace", port_name(*namespace).to_owned()));
                    }
                    labels.extend(metric.label.map(|(label, word)| (label, word.to_owned())));
                    samples.push((labels, figure.value(source)));
                }
            }
            let kind = if is_counter { MetricType::Counter } else { MetricType::Gauge };
            let (unit, divisor) = match unit {
                Unit::Count => {
                    self.family(kind, None, name, help, &samples)?;
                    continue;
                }
                Unit::Bytes => (MetricUnit::Bytes, 1.0),
                Unit::Microseconds => (MetricUnit::Seconds, 1e6),
                Unit::Percent => (MetricUnit::Ratios, 100.0),
            };
            let samples: Vec<_> =
                samples.into_iter().map(|(labels, value)| (labels, value as f64 / divisor)).collect();
            self.family(kind, Some(unit), name, help, &samples)?;
        }
        let since = longest_waiting_since_s(server).map(|since| (Vec::new(), since));
        let help = "When the request that waits longest began to wait, since the Unix epoch";
        self.timestamps("signalbox_oldest_wait_timestamp", help, since.into_iter().collect())?;
        let help = "How long requests for grants that were not answered at once waited on the ports";
        self.histogram("signalbox_wait", help, &server.waits)?;
        self.histogram("signalbox_store_commit", "How long a commit took", &server.stored.times)
    }

    /// Writes what this node knows about its cluster.
    fn cluster(&mut self, node: &NodeView) -> Result<(), Error> {
        if let Some((_, epoch)) = node.leader() {
            let help = "The epoch of the cluster's leader, as this node knows it";
            self.gauge("signalbox_cluster_epoch", help, only(u64::from(epoch)))?;
        }
        if let Some(age) = node.heartbeat_age() {
            let help = "The time since the sending of this node's last confirmed heartbeat";
            let age = age.as_secs_f64();
            self.gauge_in(MetricUnit::Seconds, "signalbox_cluster_heartbeat_age", help, age)?;
        }
        let reaches = u64::from(node.leads() || node.reaches_leader());
        self.gauge(
            "signalbox_cluster_reaches_leader",
            "Whether clients of this node are served",
            only(reaches),
        )?;
        let relays = &node.relays;
        let open = u64::from(relays.report().connections);
        self.gauge("signalbox_relayed_connections", "Connections relayed to the leader", only(open))?;
        let help = "Connections that were relayed to the leader";
        self.counter("signalbox_relayed_connections_accepted", help, only(relays.relayed_total()))
    }

    /// Writes the metrics of single names.
    pub(super) fn names(&mut self, series: &Series) -> Result<(), Error> {
        type Figure = fn(&Figures) -> Option<u64>;
        let semaphores: [(&str, &str, Figure); 4] = [
            ("signalbox_semaphore_capacity", "The capacity of a semaphore", |of| Some(of.capacity)),
            ("signalbox_semaphore_in_use", "Resources of a semaphore that are in use", |of| Some(of.in_use)),
            ("signalbox_semaphore_waiters", "Requests that wait for a semaphore", |of| Some(of.waiting)),
            ("signalbox_semaphore_paused", "Whether a semaphore is paused", |of| Some(of.paused)),
        ];
        let counters: [(&str, &str, Figure); 2] = [
            ("signalbox_counter_in_use", "Resources of a counter that are in use", |of| Some(of.in_use)),
            ("signalbox_counter_waiters", "Requests that wait for a counter", |of| Some(of.waiting)),
        ];
        let since: Figure = |of| of.waiting_since_s;
        for (namespace, families) in
            [(Namespace::Counters, &counters[..]), (Namespace::Semaphores, &semaphores[..])]
        {
            let samples = |figure: Figure| {
                let names = &series.names[namespace as usize];
                let named = names.iter().map(|(name, of)| (("name", name.as_str()), of));
                // A name is never empty, so no name has a series without the label `name`.
                let others = series.others[namespace as usize].iter().map(|of| (("other", "true"), of));
                let samples = named
                    .chain(others)
                    .filter_map(|((label, value), of)| Some((vec![(label, value.to_owned())], figure(of)?)));
                samples.collect::<Vec<_>>()
            };
            for (name, help, figure) in families {
                self.gauge(name, help, samples(*figure))?;
            }
            let name = format!("signalbox_{}_oldest_wait_timestamp", port_name(namespace));
            let help = "When the first request of the queue began to wait, since the Unix epoch";
            self.timestamps(&name, help, samples(since))?;
        }
        Ok(())
    }
}

/// The figures of the process that the system reports. A figure is `None` if the system does not report it.
struct Process {
    cpu_s: Option<f64>,
    resident_bytes: Option<u64>,
    open_files: Option<u64>,
}

impl Process {
    fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The name of the program may have spaces; it is in parentheses. The fields after it begin with the third.
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let system = |name| sysconf(name).ok().flatten().and_then(|value| u64::try_from(value).ok());
        let ticks = field(14).zip(field(15)).map(|(user, kernel)| user + kernel);
        Self {
            cpu_s: ticks.zip(system(SysconfVar::CLK_TCK)).map(|(ticks, per_s)| ticks as f64 / per_s as f64),
            resident_bytes: field(24).zip(system(SysconfVar::PAGE_SIZE)).map(|(pages, bytes)| pages * bytes),
            open_files: fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as u64),
        }
    }
}
