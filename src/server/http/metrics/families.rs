//! The metrics of the process, of each port, of the ledger and of the store.

use std::fmt::Error;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::super::super::memory::MemoryBudget;
use super::super::super::metrics::{AcquireRefusal, DURATION_BOUNDS_US, Durations};
use super::super::super::node_view::NodeView;
use super::super::super::{Port, Server, files_max, statistics};
use super::super::listener::CONNECTIONS_MAX;
use super::super::shared::{Shared, Stage};
use super::process::Process;
use super::series::{Figures, Series};
use crate::core::Namespace;

/// Writes metrics.
pub(super) struct Families<'a>(DescriptorEncoder<'a>);

/// The labels and the value of one series.
type Sample<V> = (Vec<(&'static str, String)>, V);

/// A series without labels.
fn only<V>(value: V) -> Vec<Sample<V>> {
    vec![(Vec::new(), value)]
}

/// A series for each port.
fn by_port<V>(server: &Server, value: impl Fn(&Port) -> V) -> Vec<Sample<V>> {
    Namespace::ALL.map(|namespace| (port_label(namespace), value(server.port(namespace)))).into()
}

fn port_label(namespace: Namespace) -> Vec<(&'static str, String)> {
    vec![("namespace", super::super::api::kind_name(namespace).to_owned())]
}

/// A series for each reason.
fn by_reason(reasons: &[(&str, u64)]) -> Vec<Sample<u64>> {
    reasons.iter().map(|(reason, value)| (vec![("reason", (*reason).to_owned())], *value)).collect()
}

/// Series for each port and each of the words of a label.
fn by_port_and<const N: usize>(
    server: &Server,
    label: &'static str,
    values: impl Fn(&Port) -> [(&'static str, u64); N],
) -> Vec<Sample<u64>> {
    let of_port = |namespace| {
        values(server.port(namespace)).map(|(word, value)| {
            let mut labels = port_label(namespace);
            labels.push((label, word.to_owned()));
            (labels, value)
        })
    };
    Namespace::ALL.map(of_port).into_iter().flatten().collect()
}

impl<'a> Families<'a> {
    pub(super) fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }

    fn counter(&mut self, name: &str, help: &str, samples: Vec<Sample<u64>>) -> Result<(), Error> {
        self.counters(None, name, help, &samples)
    }

    fn counter_in(
        &mut self,
        unit: &Unit,
        name: &str,
        help: &str,
        samples: Vec<Sample<f64>>,
    ) -> Result<(), Error> {
        self.counters(Some(unit), name, help, &samples)
    }

    fn counters<V: EncodeCounterValue>(
        &mut self,
        unit: Option<&Unit>,
        name: &str,
        help: &str,
        samples: &[Sample<V>],
    ) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, unit, MetricType::Counter)?;
        samples.iter().try_for_each(|(labels, value)| match &labels[..] {
            [] => family.encode_counter::<NoLabelSet, V, u64>(value, None),
            _ => family.encode_family(labels)?.encode_counter::<NoLabelSet, V, u64>(value, None),
        })
    }

    fn gauge(&mut self, name: &str, help: &str, samples: Vec<Sample<u64>>) -> Result<(), Error> {
        self.gauges(None, name, help, &samples)
    }

    fn gauge_in(
        &mut self,
        unit: &Unit,
        name: &str,
        help: &str,
        samples: Vec<Sample<f64>>,
    ) -> Result<(), Error> {
        self.gauges(Some(unit), name, help, &samples)
    }

    fn gauges<V: EncodeGaugeValue>(
        &mut self,
        unit: Option<&Unit>,
        name: &str,
        help: &str,
        samples: &[Sample<V>],
    ) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        samples.iter().try_for_each(|(labels, value)| match &labels[..] {
            [] => family.encode_gauge(value),
            _ => family.encode_family(labels)?.encode_gauge(value),
        })
    }

    fn histogram(&mut self, name: &str, help: &str, durations: &Durations) -> Result<(), Error> {
        let (counts, sum) = durations.values();
        let seconds = |us: u64| Duration::from_micros(us).as_secs_f64();
        let bounds = DURATION_BOUNDS_US.into_iter().map(seconds).chain([f64::INFINITY]);
        let buckets: Vec<_> = bounds.zip(counts).collect();
        let mut family = self.0.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        family.encode_histogram::<NoLabelSet>(sum.as_secs_f64(), counts.iter().sum(), &buckets, None)
    }

    /// The program and its process.
    pub(super) fn process(&mut self, shared: &Shared) -> Result<(), Error> {
        self.0
            .encode_descriptor("signalbox_build", "The version of the program", None, MetricType::Info)?
            .encode_info(&[("version", env!("CARGO_PKG_VERSION"))])?;
        let started = shared.started.0 as f64;
        self.gauge_in(
            &Unit::Seconds,
            "process_start_time",
            "When the process was started, since the Unix epoch",
            only(started),
        )?;
        let Process { cpu_s, resident_bytes, open_files } = Process::read();
        if let Some(cpu_s) = cpu_s {
            self.counter_in(
                &Unit::Seconds,
                "process_cpu",
                "Processor time that the process has used",
                only(cpu_s),
            )?;
        }
        if let Some(bytes) = resident_bytes {
            let help = "Memory of the process that is in the machine's memory";
            self.gauge_in(&Unit::Bytes, "process_resident_memory", help, only(bytes as f64))?;
        }
        if let Some(files) = open_files {
            self.gauge("process_open_fds", "Open files of the process", only(files))?;
        }
        self.gauge("process_max_fds", "How many files the process may have open", only(files_max()))?;
        let in_use = MemoryBudget::in_use() as f64;
        self.gauge_in(&Unit::Bytes, "signalbox_memory", "Memory that the server has allocated", only(in_use))
    }

    /// The HTTP listener, and what the process does.
    pub(super) fn listener(&mut self, shared: &Shared) -> Result<(), Error> {
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
        let connections = &shared.connections;
        self.gauge("signalbox_http_connections", "HTTP connections", only(connections.in_use()))?;
        let max = CONNECTIONS_MAX as u64;
        self.gauge("signalbox_http_connections_max", "The most HTTP connections at a time", only(max))?;
        let (accepted, refused) = (shared.accepted.value(), connections.refused.value());
        self.counter(
            "signalbox_http_connections_accepted",
            "HTTP connections that were accepted",
            only(accepted),
        )?;
        self.counter(
            "signalbox_http_connections_refused",
            "HTTP connections that were refused",
            only(refused),
        )?;
        self.counter("signalbox_http_requests", "HTTP requests", only(shared.requests.value()))
    }

    /// The worker threads, and what each port counts.
    pub(super) fn ports(&mut self, server: &Server) -> Result<(), Error> {
        let saturated = only(server.saturated_workers.load(Ordering::Relaxed) as u64);
        self.gauge("signalbox_saturated_workers", "Worker threads that use nearly all of a core", saturated)?;
        let commands = |port: &Port| statistics::commands(port);
        self.counter("signalbox_commands", "Plain requests", by_port_and(server, "command", commands))?;
        let acquires = |port: &Port| {
            let traffic = &port.metrics.traffic;
            let (all, _) = traffic.acquires_and_releases();
            let [busy, limit] = AcquireRefusal::ALL.map(|refusal| traffic.refused_acquires(refusal));
            let granted = all.saturating_sub(busy + limit);
            [("granted", granted), ("not_available", busy), ("limit", limit)]
        };
        self.counter(
            "signalbox_acquire",
            "Plain Acquires by result",
            by_port_and(server, "result", acquires),
        )?;
        let extended = by_port(server, |port| port.metrics.extended_commands.value());
        self.counter("signalbox_extended_commands", "Requests for extended operations", extended)?;
        let names = by_port(server, |port| server.core.stats(port.namespace).objects);
        self.gauge("signalbox_names", "Names that exist", names)?;
        let created = by_port(server, |port| server.core.stats(port.namespace).total_objects);
        self.counter("signalbox_names_created", "Names that were created", created)?;
        let max = by_port(server, |port| port.names_max.load(Ordering::Relaxed));
        self.gauge("signalbox_names_max", "The most names at a time; 0: no limit", max)?;
        let conflicts = by_port(server, |port| port.conflicts_of(server));
        self.gauge(
            "signalbox_table_conflicts",
            "Parts of the table with several names, which share a lock",
            conflicts,
        )?;
        self.connections(server)?;
        self.sweeps(server)
    }

    fn connections(&mut self, server: &Server) -> Result<(), Error> {
        let connections = by_port(server, |port| port.metrics.curr_connections.value());
        self.gauge("signalbox_connections", "Connections", connections)?;
        let max = by_port(server, |port| port.connections_max.load(Ordering::Relaxed).into());
        self.gauge("signalbox_connections_max", "The most connections at a time; 0: no limit", max)?;
        let accepted = by_port(server, |port| port.metrics.total_connections.value());
        self.counter("signalbox_connections_accepted", "Connections that were accepted", accepted)?;
        let tls = by_port(server, |port| port.metrics.tls_connections.value());
        self.counter("signalbox_tls_connections", "Connections over TLS", tls)?;
        let refused = |port: &Port| {
            let metrics = &port.metrics;
            [
                ("connections", metrics.refused_connections.value()),
                ("names", metrics.refused_names.value()),
                ("plain", metrics.refused_plain.value()),
                ("handshake", metrics.failed_handshakes.value()),
                ("bad_input", metrics.bad_input.value()),
                ("frame_timeout", metrics.frame_timeouts.value()),
            ]
        };
        let help = "Connections and names that were refused, by reason";
        self.counter("signalbox_refused", help, by_port_and(server, "reason", refused))?;
        let failed = by_port(server, |port| port.metrics.failed_accepts.value());
        self.counter(
            "signalbox_failed_accepts",
            "Connections that could not be accepted for want of files",
            failed,
        )?;
        let panics = by_port(server, |port| port.metrics.panics.value());
        self.counter("signalbox_panics", "Connections that ended by a fault of the program", panics)?;
        let received = by_port(server, |port| port.metrics.traffic.bytes_received() as f64);
        self.counter_in(&Unit::Bytes, "signalbox_received", "Bytes received from clients", received)?;
        let sent = by_port(server, |port| port.metrics.traffic.bytes_sent() as f64);
        self.counter_in(&Unit::Bytes, "signalbox_sent", "Bytes sent to clients", sent)
    }

    fn sweeps(&mut self, server: &Server) -> Result<(), Error> {
        let runs = by_port(server, |port| port.metrics.gc_count.value());
        self.counter("signalbox_gc_runs", "Sweeps, which remove names that are not in use", runs)?;
        let seconds = |us: u64| Duration::from_micros(us).as_secs_f64();
        let total = by_port(server, |port| seconds(port.metrics.total_gc_elapsed_us.value()));
        self.counter_in(&Unit::Seconds, "signalbox_gc", "How long all sweeps took", total)?;
        let last = by_port(server, |port| seconds(port.metrics.last_gc_elapsed_us.value()));
        self.gauge_in(&Unit::Seconds, "signalbox_gc_last", "How long the last sweep took", last)
    }

    /// Sessions, grants and queues, and what limits them.
    pub(super) fn ledger(&mut self, server: &Server) -> Result<(), Error> {
        let (ledger, sysv) = (server.core.ledger_stats(), server.core.sysv_stats());
        for (name, help, value) in [
            ("signalbox_sessions", "Leased sessions", ledger.sessions),
            ("signalbox_grants", "Grants that are held", ledger.grants),
            ("signalbox_waiters", "Requests that wait", ledger.waiters),
            ("signalbox_watches", "Watches", ledger.watches),
            ("signalbox_declared_semaphores", "Declared semaphores", ledger.declared),
            ("signalbox_sysv_sets", "System V semaphore sets", sysv.sets),
            ("signalbox_sysv_processes", "Processes of System V calls", sysv.processes),
            ("signalbox_sysv_waiters", "System V calls that wait", sysv.waiting),
        ] {
            self.gauge(name, help, only(value))?;
        }
        let expired = only(ledger.expired_sessions);
        self.counter("signalbox_expired_sessions", "Leased sessions that expired", expired)?;
        self.counter("signalbox_revoked", "Grants and sessions that were revoked", only(ledger.revoked))?;
        let refused = by_reason(&[
            ("memory", server.memory.refused.value()),
            ("client_share", server.shares.refused.value()),
            ("queue_full", ledger.queue_full),
            ("limit_reached", ledger.limited),
            ("timed_out", ledger.timed_out),
            ("not_stored", ledger.not_stored),
            ("rights", server.access().refused.value()),
        ]);
        self.counter("signalbox_refused_requests", "Requests that were refused, by reason", refused)?;
        let failed = only(server.access().failed_authentications.value());
        self.counter("signalbox_failed_authentications", "Tokens that were refused", failed)?;
        let help = "How long requests for grants waited that were not answered at once";
        self.histogram("signalbox_wait", help, &server.waits)?;
        let memory_max = only(server.memory.max() as f64);
        self.gauge_in(&Unit::Bytes, "signalbox_memory_max", "The memory budget; 0: none", memory_max)?;
        let share = only(f64::from(server.shares.percent()) / 100.0);
        self.gauge_in(
            &Unit::Ratios,
            "signalbox_client_share",
            "How much of a limit one client may have",
            share,
        )
    }

    /// Durable state.
    pub(super) fn store(&mut self, server: &Server) -> Result<(), Error> {
        let stored = &server.stored;
        self.gauge("signalbox_durable", "Whether state is stored", only(server.is_durable().into()))?;
        self.counter("signalbox_store_commits", "Batches that were committed", only(stored.commits.value()))?;
        self.counter("signalbox_store_changes", "Changes that were committed", only(stored.changes.value()))?;
        let failures = only(stored.failures.value());
        self.counter("signalbox_store_failures", "Batches that could not be committed", failures)?;
        self.histogram("signalbox_store_commit", "How long a commit took", &stored.times)
    }

    /// What this node knows of its cluster.
    fn cluster(&mut self, node: &NodeView) -> Result<(), Error> {
        if let Some((_, epoch)) = node.leader() {
            let help = "The epoch of the cluster's leader, as this node knows it";
            self.gauge("signalbox_cluster_epoch", help, only(u64::from(epoch)))?;
        }
        if let Some(age) = node.heartbeat_age() {
            let help = "The time since the sending of this node's last confirmed heartbeat";
            self.gauge_in(&Unit::Seconds, "signalbox_cluster_heartbeat_age", help, only(age.as_secs_f64()))?;
        }
        let reaches = u64::from(node.leads() || node.reaches_leader());
        self.gauge(
            "signalbox_cluster_reaches_leader",
            "Whether clients of this node are served",
            only(reaches),
        )?;
        let relays = node.relays();
        let open = u64::from(relays.relayed().connections);
        self.gauge("signalbox_relayed_connections", "Connections relayed to the leader", only(open))?;
        let help = "Connections that were relayed to the leader";
        self.counter("signalbox_relayed_connections_accepted", help, only(relays.relayed_total()))
    }

    /// Single names.
    pub(super) fn names(&mut self, series: &Series) -> Result<(), Error> {
        type Figure = fn(&Figures) -> u64;
        let semaphores: [(&str, &str, Figure); 3] = [
            ("signalbox_semaphore_capacity", "The capacity of a semaphore", |of| of.capacity),
            ("signalbox_semaphore_in_use", "Resources of a semaphore that are in use", |of| of.in_use),
            ("signalbox_semaphore_waiters", "Requests that wait for a semaphore", |of| of.waiting),
        ];
        let counters: [(&str, &str, Figure); 2] = [
            ("signalbox_counter_in_use", "Resources of a counter that are in use", |of| of.in_use),
            ("signalbox_counter_waiters", "Requests that wait for a counter", |of| of.waiting),
        ];
        for (namespace, families) in
            [(Namespace::Counters, &counters[..]), (Namespace::Semaphores, &semaphores[..])]
        {
            for (name, help, figure) in families {
                let names = &series.names[namespace as usize];
                let named = names.iter().map(|(name, of)| (vec![("name", name.clone())], figure(of)));
                // No name is empty, so no name is this series.
                let others = series.others[namespace as usize].iter();
                let others = others.map(|of| (vec![("other", "true".to_owned())], figure(of)));
                self.gauge(name, help, named.chain(others).collect())?;
            }
        }
        Ok(())
    }
}
