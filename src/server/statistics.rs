//! What the server counts and measures: one table, from which the items of Stats (which SIGUSR1 also logs), the metrics of
//! `/metrics` and objects of the JSON API are made.
//!
//! The fifteen items of yrmcds come first, with its names and in its order, as its clients expect.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::Instant;

use super::memory::MemoryBudget;
use super::metrics::AcquireRefusal::{Limit, NotAvailable};
use super::{Port, Server};
use crate::core::{LedgerStats, Namespace, SysvStats};
use crate::protocol::Opcode;

/// How long a count of conflicts is used.
const CONFLICTS_AGE_MAX: Duration = Duration::from_secs(1);

/// The item `conflicts` of a port. To count it looks at every shard, so one count serves all requests of a second.
#[derive(Debug, Default)]
pub(super) struct Conflicts(Mutex<Option<(Instant, u64)>>);

impl Conflicts {
    fn value(&self, count: impl FnOnce() -> u64) -> u64 {
        // A panic while it is locked leaves no partial change.
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some((counted, conflicts)) = *last
            && now.duration_since(counted) < CONFLICTS_AGE_MAX
        {
            return conflicts;
        }
        let conflicts = count();
        *last = Some((now, conflicts));
        conflicts
    }
}

/// A number, and where it is shown.
pub(super) struct Figure {
    /// Whether each port has its own, or the server has one.
    pub(super) is_of_port: bool,
    read: fn(&Source<'_>) -> u64,
    /// The item of Stats; `None`: there is none.
    item: Option<&'static str>,
    /// The metric; `None`: there is none.
    pub(super) metric: Option<Metric>,
    /// The objects of the JSON API that have it, with the key in each.
    objects: &'static [(Object, &'static str)],
}

/// How a figure is a metric. Figures of one family follow each other, and have labels.
#[derive(Clone, Copy)]
pub(super) struct Metric {
    pub(super) family: Family,
    pub(super) is_counter: bool,
    pub(super) label: Option<(&'static str, &'static str)>,
}

/// The name, the help and the unit of a metric.
#[derive(Clone, Copy)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) unit: Unit,
}

/// What the number of a figure means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Count,
    Bytes,
    Microseconds,
    Percent,
}

/// An object of the JSON API.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Object {
    Status,
    Refusals,
    Store,
}

use Object::{Refusals, Status, Store};

/// What figures are read from.
pub(super) struct Source<'a> {
    server: &'a Server,
    ledger: LedgerStats,
    sysv: SysvStats,
    port: &'a Port,
}

impl<'a> Source<'a> {
    pub(super) fn new(server: &'a Server, namespace: Namespace) -> Self {
        let (ledger, sysv) = (server.core.ledger_stats(), server.core.sysv_stats());
        Self { server, ledger, sysv, port: server.port(namespace) }
    }
}

const fn family(name: &'static str, help: &'static str) -> Family {
    Family { name, help, unit: Unit::Count }
}

impl Family {
    const fn of(self, unit: Unit) -> Self {
        Self { unit, ..self }
    }
}

/// A figure that each port has.
const fn port(read: fn(&Source<'_>) -> u64) -> Figure {
    Figure { is_of_port: true, read, item: None, metric: None, objects: &[] }
}

/// A figure of the server.
const fn server(read: fn(&Source<'_>) -> u64) -> Figure {
    Figure { is_of_port: false, ..port(read) }
}

impl Figure {
    pub(super) fn value(&self, source: &Source<'_>) -> u64 {
        (self.read)(source)
    }

    const fn item(self, name: &'static str) -> Self {
        Self { item: Some(name), ..self }
    }

    const fn counter(self, family: Family) -> Self {
        Self { metric: Some(Metric { family, is_counter: true, label: None }), ..self }
    }

    /// A counter of a family with several figures.
    const fn labeled(self, family: Family, label: &'static str, word: &'static str) -> Self {
        Self { metric: Some(Metric { family, is_counter: true, label: Some((label, word)) }), ..self }
    }

    const fn gauge(self, family: Family) -> Self {
        Self { metric: Some(Metric { family, is_counter: false, label: None }), ..self }
    }

    const fn json(self, objects: &'static [(Object, &'static str)]) -> Self {
        Self { objects, ..self }
    }
}

const COMMANDS: Family = family("signalbox_commands", "Plain requests");
const REFUSED: Family = family("signalbox_refused", "Connections and names that were refused, by reason");
const REFUSED_REQUESTS: Family =
    family("signalbox_refused_requests", "Requests that were refused, by reason");
const ACQUIRES: Family = family("signalbox_acquire", "Plain Acquires by result");

/// The items of yrmcds without the version, which is a text.
const OF_YRMCDS: &[Figure] = &[
    port(|of| of.server.core.stats(of.port.namespace).objects)
        .item("objects")
        .gauge(family("signalbox_names", "Names that exist"))
        .json(&[(Status, "names")]),
    port(|of| of.server.core.stats(of.port.namespace).total_objects)
        .item("total_objects")
        .counter(family("signalbox_names_created", "Names that were created")),
    server(|_| MemoryBudget::in_use()).item("used_memory"),
    port(|of| of.port.conflicts.value(|| of.server.core.conflicts(of.port.namespace)))
        .item("conflicts")
        .gauge(family(
            "signalbox_table_conflicts",
            "Parts of the table with several names, which share a lock",
        )),
    port(|of| of.port.metrics.gc_count.value())
        .item("gc_count")
        .counter(family("signalbox_gc_runs", "Sweeps, which remove names that are not in use")),
    port(|of| of.port.metrics.last_gc_elapsed_us.value())
        .item("last_gc_elapsed")
        .gauge(family("signalbox_gc_last", "How long the last sweep took").of(Unit::Microseconds)),
    port(|of| of.port.metrics.total_gc_elapsed_us.value())
        .item("total_gc_elapsed")
        .counter(family("signalbox_gc", "How long all sweeps took").of(Unit::Microseconds)),
    port(|of| of.port.metrics.curr_connections.value())
        .item("curr_connections")
        .gauge(family("signalbox_connections", "Connections"))
        .json(&[(Status, "connections")]),
    port(|of| of.port.metrics.total_connections.value())
        .item("total_connections")
        .counter(family("signalbox_connections_accepted", "Connections that were accepted")),
    port(|of| of.port.metrics.traffic.commands(Opcode::Noop))
        .item("command:noop")
        .labeled(COMMANDS, "command", "noop"),
    port(|of| of.port.metrics.traffic.commands(Opcode::Get))
        .item("command:get")
        .labeled(COMMANDS, "command", "get"),
    port(|of| of.port.metrics.traffic.commands(Opcode::Acquire))
        .item("command:acquire")
        .labeled(COMMANDS, "command", "acquire")
        .json(&[(Status, "acquires")]),
    port(|of| of.port.metrics.traffic.commands(Opcode::Release))
        .item("command:release")
        .labeled(COMMANDS, "command", "release")
        .json(&[(Status, "releases")]),
    port(|of| of.port.metrics.traffic.commands(Opcode::Stats))
        .item("command:stats")
        .labeled(COMMANDS, "command", "stats"),
    port(|of| of.port.metrics.traffic.commands(Opcode::Dump))
        .item("command:dump")
        .labeled(COMMANDS, "command", "dump"),
];

/// The others, in the order of Stats.
const FURTHER: &[Figure] = &[
    server(|of| of.server.started.elapsed().as_secs()).item("uptime"),
    port(|of| of.port.connections_max.load(Ordering::Relaxed).into())
        .item("max_connections")
        .gauge(family("signalbox_connections_max", "The most connections at a time; 0: no limit")),
    port(|of| of.port.metrics.refused_connections.value())
        .item("refused_connections")
        .labeled(REFUSED, "reason", "connections")
        .json(&[(Refusals, "connections")]),
    port(|of| of.port.metrics.failed_accepts.value()).item("failed_accepts").counter(family(
        "signalbox_failed_accepts",
        "Connections that could not be accepted for lack of files",
    )),
    port(|of| of.port.names_max.load(Ordering::Relaxed))
        .item("max_names")
        .gauge(family("signalbox_names_max", "The most names at a time; 0: no limit")),
    port(|of| of.port.metrics.refused_names.value())
        .item("refused_names")
        .labeled(REFUSED, "reason", "names")
        .json(&[(Refusals, "names")]),
    server(|of| of.server.memory.max())
        .item("memory_max")
        .gauge(family("signalbox_memory_max", "The memory budget; 0: none").of(Unit::Bytes)),
    server(|of| of.server.memory.refused.value())
        .item("refused_memory")
        .labeled(REFUSED_REQUESTS, "reason", "memory")
        .json(&[(Refusals, "memory")]),
    server(|of| of.server.shares.percent().into())
        .item("client_share")
        .gauge(family("signalbox_client_share", "How much of a limit one client may have").of(Unit::Percent)),
    server(|of| of.server.shares.refused.value())
        .item("refused_shares")
        .labeled(REFUSED_REQUESTS, "reason", "client_share")
        .json(&[(Refusals, "client_share")]),
    server(|of| of.server.access.refused.value())
        .item("refused_rights")
        .labeled(REFUSED_REQUESTS, "reason", "rights")
        .json(&[(Refusals, "rights")]),
    server(|of| of.server.access.failed_authentications.value())
        .item("failed_authentications")
        .counter(family("signalbox_failed_authentications", "Tokens that were refused"))
        .json(&[(Refusals, "failed_authentications")]),
    port(|of| of.port.metrics.bad_input.value())
        .item("bad_input")
        .labeled(REFUSED, "reason", "bad_input")
        .json(&[(Refusals, "bad_input")]),
    port(|of| of.port.metrics.frame_timeouts.value())
        .item("frame_timeouts")
        .labeled(REFUSED, "reason", "frame_timeout")
        .json(&[(Refusals, "frame_timeouts")]),
    port(|of| of.port.metrics.tls_connections.value())
        .item("tls_connections")
        .counter(family("signalbox_tls_connections", "Connections over TLS")),
    port(|of| of.port.metrics.failed_handshakes.value())
        .item("failed_handshakes")
        .labeled(REFUSED, "reason", "handshake")
        .json(&[(Refusals, "failed_handshakes")]),
    port(|of| of.port.metrics.refused_plain.value())
        .item("refused_plain")
        .labeled(REFUSED, "reason", "plain")
        .json(&[(Refusals, "plain")]),
    port(|of| of.port.metrics.panics.value())
        .item("panics")
        .counter(family("signalbox_panics", "Connections that ended by a fault of the program")),
    port(|of| of.port.metrics.traffic.bytes_received())
        .item("bytes_received")
        .counter(family("signalbox_received", "Bytes received from clients").of(Unit::Bytes)),
    port(|of| of.port.metrics.traffic.bytes_sent())
        .item("bytes_sent")
        .counter(family("signalbox_sent", "Bytes sent to clients").of(Unit::Bytes)),
    port(|of| of.port.metrics.extended_commands.value())
        .item("extended_commands")
        .counter(family("signalbox_extended_commands", "Requests for extended operations")),
    server(|of| of.ledger.sessions)
        .item("sessions")
        .gauge(family("signalbox_sessions", "Leased sessions"))
        .json(&[(Status, "sessions")]),
    server(|of| of.ledger.grants)
        .item("grants")
        .gauge(family("signalbox_grants", "Grants that are held"))
        .json(&[(Status, "grants")]),
    server(|of| of.ledger.waiters)
        .item("waiters")
        .gauge(family("signalbox_waiters", "Requests that wait"))
        .json(&[(Status, "waiting")]),
    server(|of| of.ledger.watches)
        .item("watches")
        .gauge(family("signalbox_watches", "Watches"))
        .json(&[(Status, "watches")]),
    server(|of| of.ledger.expired_sessions)
        .item("expired_sessions")
        .counter(family("signalbox_expired_sessions", "Leased sessions that expired")),
    server(|of| of.ledger.timed_out)
        .item("timed_out")
        .labeled(REFUSED_REQUESTS, "reason", "timed_out")
        .json(&[(Refusals, "timed_out")]),
    server(|of| of.ledger.queue_full)
        .item("queue_full")
        .labeled(REFUSED_REQUESTS, "reason", "queue_full")
        .json(&[(Refusals, "queue_full")]),
    server(|of| of.ledger.limited)
        .item("limit_reached")
        .labeled(REFUSED_REQUESTS, "reason", "limit_reached")
        .json(&[(Refusals, "limit_reached")]),
    server(|of| of.ledger.revoked)
        .item("revoked")
        .counter(family("signalbox_revoked", "Grants and sessions that were revoked")),
    server(|of| of.ledger.declared)
        .item("declared")
        .gauge(family("signalbox_declared_semaphores", "Declared semaphores"))
        .json(&[(Status, "declared")]),
    server(|of| of.ledger.not_stored)
        .item("not_stored")
        .labeled(REFUSED_REQUESTS, "reason", "not_stored")
        .json(&[(Refusals, "not_stored"), (Store, "not_stored")]),
    server(|of| of.server.stored.commits.value())
        .item("store_commits")
        .counter(family("signalbox_store_commits", "Batches that were committed"))
        .json(&[(Store, "commits")]),
    server(|of| of.server.stored.changes.value())
        .item("store_changes")
        .counter(family("signalbox_store_changes", "Changes that were committed"))
        .json(&[(Store, "changes")]),
    server(|of| of.server.stored.failures.value())
        .item("store_failures")
        .counter(family("signalbox_store_failures", "Batches that could not be committed"))
        .json(&[(Store, "failures")]),
    server(|of| of.sysv.processes)
        .item("sysv_processes")
        .gauge(family("signalbox_sysv_processes", "Processes of System V calls"))
        .json(&[(Status, "sysv_processes")]),
    server(|of| of.sysv.sets)
        .item("sysv_sets")
        .gauge(family("signalbox_sysv_sets", "System V semaphore sets"))
        .json(&[(Status, "sysv_sets")]),
    server(|of| of.sysv.waiting)
        .item("sysv_waiting")
        .gauge(family("signalbox_sysv_waiters", "System V calls that wait"))
        .json(&[(Status, "sysv_waiting")]),
    port(|of| {
        let traffic = &of.port.metrics.traffic;
        let refused = traffic.refused_acquires(NotAvailable) + traffic.refused_acquires(Limit);
        traffic.commands(Opcode::Acquire).saturating_sub(refused)
    })
    .labeled(ACQUIRES, "result", "granted"),
    port(|of| of.port.metrics.traffic.refused_acquires(NotAvailable)).labeled(
        ACQUIRES,
        "result",
        "not_available",
    ),
    port(|of| of.port.metrics.traffic.refused_acquires(Limit)).labeled(ACQUIRES, "result", "limit"),
    server(|of| of.server.saturated_workers.load(Ordering::Relaxed) as u64)
        .gauge(family("signalbox_saturated_workers", "Worker threads that use nearly all of a core")),
    server(|of| of.server.is_durable().into()).gauge(family("signalbox_durable", "Whether state is stored")),
];

/// All figures.
pub(super) fn figures() -> impl Iterator<Item = &'static Figure> {
    OF_YRMCDS.iter().chain(FURTHER)
}

/// Name and value of every item of Stats, in order. Times are in seconds, but in microseconds where yrmcds has them so.
pub(super) fn items(server: &Server, port: &Port) -> Vec<(&'static str, String)> {
    let source = Source::new(server, port.namespace);
    let item = |figure: &Figure| Some((figure.item?, figure.value(&source).to_string()));
    let version = ("version", env!("CARGO_PKG_VERSION").to_owned());
    OF_YRMCDS.iter().filter_map(item).chain([version]).chain(FURTHER.iter().filter_map(item)).collect()
}

/// The figures of an object of the JSON API. Those of the ports are in objects of their own.
pub(super) fn object(server: &Server, object: Object) -> Map<String, Value> {
    let mut of_server = Map::new();
    let mut of_ports = [Map::new(), Map::new()];
    for namespace in Namespace::ALL {
        let source = Source::new(server, namespace);
        for figure in figures() {
            let keys = figure.objects.iter().filter(|(of, _)| *of == object);
            let map = if figure.is_of_port { &mut of_ports[namespace as usize] } else { &mut of_server };
            map.extend(keys.map(|(_, key)| ((*key).to_owned(), figure.value(&source).into())));
        }
    }
    for (key, map) in ["counters", "semaphores"].into_iter().zip(of_ports) {
        if !map.is_empty() {
            of_server.insert(key.to_owned(), map.into());
        }
    }
    of_server
}
