//! The statistics of the server: one table, from which the items of Stats (which SIGUSR1 also logs), the metrics of
//! `/metrics` and objects of the JSON API are made.
//!
//! The fifteen items of yrmcds come first, with its names and in its order, as its clients expect.

use std::sync::atomic::Ordering;

use serde_json::{Map, Value};

use super::memory::MemoryBudget;
use super::metrics::AcquireRefusal::{Limit, NotAvailable};
use super::port::{Port, port_config};
use super::state::Server;
use signalbox_core::{LedgerStats, SysvStats};
use signalbox_model::Namespace;
use signalbox_protocol::Opcode;

/// A number, and where it is shown.
pub(super) struct Figure {
    pub(super) scope: Scope,
    /// The name of its item of Stats; `None`: Stats does not have it.
    item: Option<&'static str>,
    /// Its metric; `None`: `/metrics` does not have it.
    pub(super) metric: Option<Metric>,
    /// The objects of the JSON API that have it, with the key in each.
    objects: &'static [(Object, &'static str)],
    read: fn(&Source<'_>) -> u64,
}

/// The subject of a figure: each port, or the whole server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    Port,
    Server,
}

/// The metric of a figure. Metrics with the same name differ in their labels.
#[derive(Clone, Copy)]
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) unit: Unit,
    pub(super) is_counter: bool,
    pub(super) label: Option<(&'static str, &'static str)>,
}

/// The unit of a figure.
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

use Unit::{Bytes, Count, Microseconds, Percent};

/// The source of the figures.
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

const fn gauge(name: &'static str, help: &'static str, unit: Unit) -> Metric {
    Metric { name, help, unit, is_counter: false, label: None }
}

const fn counter(name: &'static str, help: &'static str, unit: Unit) -> Metric {
    Metric { is_counter: true, ..gauge(name, help, unit) }
}

impl Metric {
    const fn with(self, label: &'static str, word: &'static str) -> Self {
        Self { label: Some((label, word)), ..self }
    }
}

impl Figure {
    pub(super) fn value(&self, source: &Source<'_>) -> u64 {
        (self.read)(source)
    }
}

/// Rows of the table. A row has the scope of a figure, its item, metric and keys in objects, if it has them, and how it
/// is read.
macro_rules! figures {
    ($($scope:ident $($item:literal)? $([$metric:expr])? $({$($object:ident $key:literal),*})? = $read:expr;)*) => {
        &[$(Figure {
            scope: Scope::$scope,
            item: figures!(@option $($item)?),
            metric: figures!(@option $($metric)?),
            objects: &[$($((Object::$object, $key)),*)?],
            read: $read,
        }),*]
    };
    (@option) => { None };
    (@option $value:expr) => { Some($value) };
}

const COMMANDS: Metric = counter("signalbox_commands", "Plain requests", Count);
const REFUSED: Metric =
    counter("signalbox_refused", "Connections and names that were refused, by reason", Count);
const REFUSED_REQUESTS: Metric =
    counter("signalbox_refused_requests", "Requests that were refused, by reason", Count);
const ACQUIRES: Metric = counter("signalbox_acquire", "Plain Acquires by result", Count);

/// The items of yrmcds without the version, which is a text.
const OF_YRMCDS: &[Figure] = figures! {
    Port "objects" [gauge("signalbox_names", "Names that exist", Count)] {Status "names"}
        = |of| of.server.core.stats(of.port.namespace).objects;
    Port "total_objects" [counter("signalbox_names_created", "Names that were created", Count)]
        = |of| of.server.core.stats(of.port.namespace).total_objects;
    Server "used_memory" = |_| MemoryBudget::in_use();
    Port "conflicts" [gauge("signalbox_table_conflicts", "Parts of the table with several names, which share a lock", Count)]
        = |of| of.port.conflicts.value(|| of.server.core.conflicts(of.port.namespace));
    Port "gc_count" [counter("signalbox_gc_runs", "Sweeps, which remove names that are not in use", Count)]
        = |of| of.port.metrics.gc_count.value();
    Port "last_gc_elapsed" [gauge("signalbox_gc_last", "How long the last sweep took", Microseconds)]
        = |of| of.port.metrics.last_gc_elapsed_us.value();
    Port "total_gc_elapsed" [counter("signalbox_gc", "How long all sweeps took", Microseconds)]
        = |of| of.port.metrics.total_gc_elapsed_us.value();
    Port "curr_connections" [gauge("signalbox_connections", "Connections", Count)] {Status "connections"}
        = |of| of.port.metrics.curr_connections.value();
    Port "total_connections" [counter("signalbox_connections_accepted", "Connections that were accepted", Count)]
        = |of| of.port.metrics.total_connections.value();
    Port "command:noop" [COMMANDS.with("command", "noop")]
        = |of| of.port.metrics.traffic.commands(Opcode::Noop);
    Port "command:get" [COMMANDS.with("command", "get")] = |of| of.port.metrics.traffic.commands(Opcode::Get);
    Port "command:acquire" [COMMANDS.with("command", "acquire")] {Status "acquires"}
        = |of| of.port.metrics.traffic.commands(Opcode::Acquire);
    Port "command:release" [COMMANDS.with("command", "release")] {Status "releases"}
        = |of| of.port.metrics.traffic.commands(Opcode::Release);
    Port "command:stats" [COMMANDS.with("command", "stats")]
        = |of| of.port.metrics.traffic.commands(Opcode::Stats);
    Port "command:dump" [COMMANDS.with("command", "dump")]
        = |of| of.port.metrics.traffic.commands(Opcode::Dump);
};

/// The figures that yrmcds does not have, in the order of Stats.
const FURTHER: &[Figure] = figures! {
    Server "uptime" = |of| of.server.started.elapsed().as_secs();
    Port "max_connections" [gauge("signalbox_connections_max", "The most connections at a time; 0: no limit", Count)]
        = |of| of.server.connections_max(of.port.namespace).into();
    Port "refused_connections" [REFUSED.with("reason", "connections")] {Refusals "connections"}
        = |of| of.port.metrics.refused_connections.value();
    Port "failed_accepts" [counter("signalbox_failed_accepts", "Connections that could not be accepted for lack of files", Count)]
        = |of| of.port.metrics.failed_accepts.value();
    Port "max_names" [gauge("signalbox_names_max", "The most names at a time; 0: no limit", Count)]
        = |of| port_config(&of.server.config(), of.port.namespace).max_names;
    Port "refused_names" [REFUSED.with("reason", "names")] {Refusals "names"}
        = |of| of.port.metrics.refused_names.value();
    Server "memory_max" [gauge("signalbox_memory_max", "The memory budget; 0: none", Bytes)]
        = |of| of.server.memory.max();
    Server "refused_memory" [REFUSED_REQUESTS.with("reason", "memory")] {Refusals "memory"}
        = |of| of.server.memory.refused.value();
    Server "client_share" [gauge("signalbox_client_share", "How much of a limit one client may have", Percent)]
        = |of| of.server.rules.shares.percent().into();
    Server "refused_shares" [REFUSED_REQUESTS.with("reason", "client_share")] {Refusals "client_share"}
        = |of| of.server.rules.shares.refused.value();
    Server "refused_rights" [REFUSED_REQUESTS.with("reason", "rights")] {Refusals "rights"}
        = |of| of.server.rules.access.refused.value();
    Server "failed_authentications" [counter("signalbox_failed_authentications", "Tokens that were refused", Count)]
        {Refusals "failed_authentications"} = |of| of.server.rules.access.failed_authentications.value();
    Port "bad_input" [REFUSED.with("reason", "bad_input")] {Refusals "bad_input"}
        = |of| of.port.metrics.bad_input.value();
    Port "frame_timeouts" [REFUSED.with("reason", "frame_timeout")] {Refusals "frame_timeouts"}
        = |of| of.port.metrics.frame_timeouts.value();
    Port "tls_connections" [counter("signalbox_tls_connections", "Connections over TLS", Count)]
        = |of| of.port.metrics.tls_connections.value();
    Port "failed_handshakes" [REFUSED.with("reason", "handshake")] {Refusals "failed_handshakes"}
        = |of| of.port.metrics.failed_handshakes.value();
    Port "refused_plain" [REFUSED.with("reason", "plain")] {Refusals "plain"}
        = |of| of.port.metrics.refused_plain.value();
    Port "panics" [counter("signalbox_panics", "Connections that ended by a fault of the program", Count)]
        = |of| of.port.metrics.panics.value();
    Port "bytes_received" [counter("signalbox_received", "Bytes received from clients", Bytes)]
        = |of| of.port.metrics.traffic.bytes_received();
    Port "bytes_sent" [counter("signalbox_sent", "Bytes sent to clients", Bytes)]
        = |of| of.port.metrics.traffic.bytes_sent();
    Port "extended_commands" [counter("signalbox_extended_commands", "Requests for extended operations", Count)]
        = |of| of.port.metrics.extended_commands.value();
    Server "sessions" [gauge("signalbox_sessions", "Leased sessions", Count)] {Status "sessions"}
        = |of| of.ledger.sessions;
    Server "grants" [gauge("signalbox_grants", "Grants that are held", Count)] {Status "grants"}
        = |of| of.ledger.grants;
    Server "waiters" [gauge("signalbox_waiters", "Requests that wait", Count)] {Status "waiting"}
        = |of| of.ledger.waiters;
    Server "watches" [gauge("signalbox_watches", "Watches", Count)] {Status "watches"}
        = |of| of.ledger.watches;
    Server [counter("signalbox_granted", "Grants that were made", Count)] {Status "granted"}
        = |of| of.ledger.granted;
    Server [counter("signalbox_history_lost_lines", "Lines of the history of grants that were lost", Count)]
        = |of| of.ledger.history_dropped + of.server.history.unwritten();
    Server "expired_sessions" [counter("signalbox_expired_sessions", "Leased sessions that expired", Count)]
        = |of| of.ledger.expired_sessions;
    Server "timed_out" [REFUSED_REQUESTS.with("reason", "timed_out")] {Refusals "timed_out"}
        = |of| of.ledger.timed_out;
    Server "queue_full" [REFUSED_REQUESTS.with("reason", "queue_full")] {Refusals "queue_full"}
        = |of| of.ledger.queue_full;
    Server "limit_reached" [REFUSED_REQUESTS.with("reason", "limit_reached")] {Refusals "limit_reached"}
        = |of| of.ledger.limited;
    Server "revoked" [counter("signalbox_revoked", "Grants and sessions that were revoked", Count)]
        = |of| of.ledger.revoked;
    Server "single_flights" [counter("signalbox_single_flights", "Grants of single flights that were released with done", Count)]
        {Status "single_flights"} = |of| of.ledger.flights;
    Server "told_done" [counter("signalbox_told_done", "Requests that were told done while they waited", Count)]
        {Status "told_done"} = |of| of.ledger.told_done;
    Server "declared" [gauge("signalbox_declared_semaphores", "Declared semaphores", Count)]
        {Status "declared"} = |of| of.ledger.declared;
    Server "not_stored" [REFUSED_REQUESTS.with("reason", "not_stored")]
        {Refusals "not_stored", Store "not_stored"} = |of| of.ledger.not_stored;
    Server "store_commits" [counter("signalbox_store_commits", "Batches that were committed", Count)]
        {Store "commits"} = |of| of.server.stored.commits.value();
    Server "store_changes" [counter("signalbox_store_changes", "Changes that were committed", Count)]
        {Store "changes"} = |of| of.server.stored.changes.value();
    Server "store_failures" [counter("signalbox_store_failures", "Batches that could not be committed", Count)]
        {Store "failures"} = |of| of.server.stored.failures.value();
    Server "sysv_processes" [gauge("signalbox_sysv_processes", "Processes of System V calls", Count)]
        {Status "sysv_processes"} = |of| of.sysv.processes;
    Server "sysv_sets" [gauge("signalbox_sysv_sets", "System V semaphore sets", Count)] {Status "sysv_sets"}
        = |of| of.sysv.sets;
    Server "sysv_waiting" [gauge("signalbox_sysv_waiters", "System V calls that wait", Count)]
        {Status "sysv_waiting"} = |of| of.sysv.waiting;
    Port [ACQUIRES.with("result", "granted")] = |of| {
        let traffic = &of.port.metrics.traffic;
        let refused = traffic.refused_acquires(NotAvailable) + traffic.refused_acquires(Limit);
        traffic.commands(Opcode::Acquire).saturating_sub(refused)
    };
    Port [ACQUIRES.with("result", "not_available")]
        = |of| of.port.metrics.traffic.refused_acquires(NotAvailable);
    Port [ACQUIRES.with("result", "limit")] = |of| of.port.metrics.traffic.refused_acquires(Limit);
    Server [gauge("signalbox_saturated_workers", "Worker threads that use nearly all of a core", Count)]
        = |of| of.server.saturated_workers.load(Ordering::Relaxed) as u64;
    Server [gauge("signalbox_durable", "Whether state is stored", Count)]
        = |of| of.server.is_durable().into();
};

pub(super) fn figures() -> impl Iterator<Item = &'static Figure> {
    OF_YRMCDS.iter().chain(FURTHER)
}

/// Returns the name and value of every item of Stats, in order. Times are in seconds, except those that yrmcds reports
/// in microseconds.
pub(super) fn items(server: &Server, port: &Port) -> Vec<(&'static str, String)> {
    let source = Source::new(server, port.namespace);
    let item = |figure: &Figure| Some((figure.item?, figure.value(&source).to_string()));
    let version = ("version", env!("CARGO_PKG_VERSION").to_owned());
    OF_YRMCDS.iter().filter_map(item).chain([version]).chain(FURTHER.iter().filter_map(item)).collect()
}

/// Returns the same as [`items`], with numbers instead of their texts.
pub(super) fn json_items(
    server: &Server,
    port: &Port,
) -> impl Iterator<Item = (&'static str, Value)> + use<> {
    let number = |text: String| text.parse::<u64>().map_or_else(|_| text.into(), Value::from);
    items(server, port).into_iter().map(move |(name, text)| (name, number(text)))
}

/// Returns the figures of an object of the JSON API. The figures of each port are in a nested object.
pub(super) fn object(server: &Server, object: Object) -> Map<String, Value> {
    let mut of_server = Map::new();
    let mut of_ports = [Map::new(), Map::new()];
    for namespace in Namespace::ALL {
        let source = Source::new(server, namespace);
        for figure in figures() {
            let keys = figure.objects.iter().filter(|(of, _)| *of == object);
            let map =
                if figure.scope == Scope::Port { &mut of_ports[namespace as usize] } else { &mut of_server };
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
