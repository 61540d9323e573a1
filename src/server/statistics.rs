//! The items of Stats, which SIGUSR1 also logs.
//!
//! The fifteen items of yrmcds come first, with its names and in its order, as its clients expect.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::memory::MemoryBudget;
use super::metrics::OPCODES;
use super::{Port, Server};
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

impl Port {
    /// The item `conflicts`.
    pub(super) fn conflicts_of(&self, server: &Server) -> u64 {
        self.conflicts.value(|| server.core.conflicts(self.namespace))
    }
}

/// Name and value of every item, in order. Times are in seconds, but in microseconds where yrmcds has them so.
pub(super) fn items(server: &Server, port: &Port) -> Vec<(&'static str, String)> {
    let names = server.core.stats(port.namespace);
    let metrics = &port.metrics;
    let yrmcds = [
        ("objects", names.objects),
        ("total_objects", names.total_objects),
        ("used_memory", MemoryBudget::in_use()),
        ("conflicts", port.conflicts_of(server)),
        ("gc_count", metrics.gc_count.value()),
        ("last_gc_elapsed", metrics.last_gc_elapsed_us.value()),
        ("total_gc_elapsed", metrics.total_gc_elapsed_us.value()),
        ("curr_connections", metrics.curr_connections.value()),
        ("total_connections", metrics.total_connections.value()),
    ];
    let commands = OPCODES.map(|opcode| (command_item(opcode), metrics.traffic.commands(opcode)));
    let (ledger, sysv) = (server.core.ledger_stats(), server.core.sysv_stats());
    let further = [
        ("uptime", server.started.elapsed().as_secs()),
        ("max_connections", port.connections_max.load(Ordering::Relaxed).into()),
        ("refused_connections", metrics.refused_connections.value()),
        ("failed_accepts", metrics.failed_accepts.value()),
        ("max_names", port.names_max.load(Ordering::Relaxed)),
        ("refused_names", metrics.refused_names.value()),
        ("memory_max", server.memory.max()),
        ("refused_memory", server.memory.refused.value()),
        ("client_share", server.shares.percent().into()),
        ("refused_shares", server.shares.refused.value()),
        ("refused_rights", server.access.refused.value()),
        ("failed_authentications", server.access.failed_authentications.value()),
        ("bad_input", metrics.bad_input.value()),
        ("frame_timeouts", metrics.frame_timeouts.value()),
        ("tls_connections", metrics.tls_connections.value()),
        ("failed_handshakes", metrics.failed_handshakes.value()),
        ("refused_plain", metrics.refused_plain.value()),
        ("panics", metrics.panics.value()),
        ("bytes_received", metrics.traffic.bytes_received()),
        ("bytes_sent", metrics.traffic.bytes_sent()),
        ("extended_commands", metrics.extended_commands.value()),
        ("sessions", ledger.sessions),
        ("grants", ledger.grants),
        ("waiters", ledger.waiters),
        ("watches", ledger.watches),
        ("expired_sessions", ledger.expired_sessions),
        ("timed_out", ledger.timed_out),
        ("queue_full", ledger.queue_full),
        ("limit_reached", ledger.limited),
        ("revoked", ledger.revoked),
        ("declared", ledger.declared),
        ("not_stored", ledger.not_stored),
        ("store_commits", server.stored.commits.value()),
        ("store_changes", server.stored.changes.value()),
        ("store_failures", server.stored.failures.value()),
        ("sysv_processes", sysv.processes),
        ("sysv_sets", sysv.sets),
        ("sysv_waiting", sysv.waiting),
    ];
    let number = |(name, value): (&'static str, u64)| (name, value.to_string());
    let mut items: Vec<_> = yrmcds.into_iter().chain(commands).map(number).collect();
    items.push(("version", env!("CARGO_PKG_VERSION").to_owned()));
    items.extend(further.map(number));
    items
}

/// How many plain requests of each command a port has had.
pub(super) fn commands(port: &Port) -> [(&'static str, u64); OPCODES.len()] {
    let name = |opcode| command_item(opcode).trim_start_matches("command:");
    OPCODES.map(|opcode| (name(opcode), port.metrics.traffic.commands(opcode)))
}

fn command_item(opcode: Opcode) -> &'static str {
    match opcode {
        Opcode::Noop => "command:noop",
        Opcode::Get => "command:get",
        Opcode::Acquire => "command:acquire",
        Opcode::Release => "command:release",
        Opcode::Stats => "command:stats",
        Opcode::Dump => "command:dump",
    }
}
