//! The figures of a port: connections, commands, bytes, refusals.
//!
//! Counters are relaxed atomics. Each one is exact, but several of them together are not a consistent snapshot.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::protocol::Opcode;

/// The figures of one port.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    pub(super) curr_connections: Count,
    pub(super) total_connections: Count,
    /// Connections closed at once because there were too many.
    pub(super) refused_connections: Count,
    /// Connections closed because they began without TLS.
    pub(super) refused_plain: Count,
    /// Connections over TLS, since their handshakes succeeded.
    pub(super) tls_connections: Count,
    /// Connections closed because their TLS handshake failed.
    pub(super) failed_handshakes: Count,
    /// Accepts that failed because the process or the system was out of file descriptors or memory.
    pub(super) failed_accepts: Count,
    pub(super) traffic: Traffic,
    /// Requests for extended operations.
    pub(super) extended_commands: Count,
    /// Connections closed because of bytes that are not a frame, or because of a body that is too long.
    pub(super) bad_input: Count,
    /// Connections closed because a started frame was not completed in time.
    pub(super) frame_timeouts: Count,
    /// Acquires refused because of the limit on names.
    pub(super) refused_names: Count,
    /// Connections whose task panicked.
    pub(super) panics: Count,
    pub(super) gc_count: Count,
    pub(super) last_gc_elapsed_us: Count,
    pub(super) total_gc_elapsed_us: Count,
}

impl Metrics {
    /// Counts a finished sweep, as yrmcds does.
    pub(super) fn note_gc(&self, elapsed: Duration) {
        let elapsed_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        self.gc_count.add(1);
        self.last_gc_elapsed_us.set(elapsed_us);
        self.total_gc_elapsed_us.add(elapsed_us);
    }
}

/// The figures of the store.
#[derive(Debug, Default)]
pub(super) struct Stored {
    /// Batches that were committed.
    pub(super) commits: Count,
    /// Changes in those batches.
    pub(super) changes: Count,
    /// Batches that could not be committed.
    pub(super) failures: Count,
}

/// A number that many threads add to.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Adds one, and returns the number before that.
    pub(super) fn increment(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn decrement(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(super) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The operations in the order in which the statistics list them.
pub(super) const OPCODES: [Opcode; 6] =
    [Opcode::Noop, Opcode::Get, Opcode::Acquire, Opcode::Release, Opcode::Stats, Opcode::Dump];

fn index_of(opcode: Opcode) -> usize {
    match opcode {
        Opcode::Noop => 0,
        Opcode::Get => 1,
        Opcode::Acquire => 2,
        Opcode::Release => 3,
        Opcode::Stats => 4,
        Opcode::Dump => 5,
    }
}

/// The counters that every turn of every connection changes. Each thread adds to a part of its own, because a cache line
/// that several threads write to costs more than the counting itself. A reader adds up the parts.
#[derive(Debug, Default)]
pub(super) struct Traffic([TrafficPart; TRAFFIC_PARTS]);

/// Threads beyond this number share parts.
const TRAFFIC_PARTS: usize = 16;

#[derive(Debug, Default)]
#[repr(align(128))]
struct TrafficPart {
    commands: [Count; OPCODES.len()],
    bytes_received: Count,
    bytes_sent: Count,
}

thread_local! {
    static PART: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % TRAFFIC_PARTS
    };
}

impl Traffic {
    pub(super) fn commands(&self, opcode: Opcode) -> u64 {
        self.sum(|part| &part.commands[index_of(opcode)])
    }

    /// How many commands of both kinds there were.
    pub(super) fn acquires_and_releases(&self) -> (u64, u64) {
        (self.commands(Opcode::Acquire), self.commands(Opcode::Release))
    }

    pub(super) fn bytes_received(&self) -> u64 {
        self.sum(|part| &part.bytes_received)
    }

    pub(super) fn bytes_sent(&self) -> u64 {
        self.sum(|part| &part.bytes_sent)
    }

    pub(super) fn note_received(&self, bytes: usize) {
        self.own_part().bytes_received.add(bytes as u64);
    }

    pub(super) fn note_sent(&self, bytes: usize) {
        self.own_part().bytes_sent.add(bytes as u64);
    }

    fn own_part(&self) -> &TrafficPart {
        &self.0[PART.with(|part| *part)]
    }

    fn sum(&self, count: impl Fn(&TrafficPart) -> &Count) -> u64 {
        self.0.iter().map(|part| count(part).value()).sum()
    }
}

/// The commands of one run of frames, collected on the stack before they are added to the shared counters.
#[derive(Debug, Default)]
pub(super) struct Tally([u64; OPCODES.len()]);

impl Tally {
    #[inline]
    pub(super) fn count(&mut self, opcode: Opcode) {
        self.0[index_of(opcode)] += 1;
    }

    /// Adds the commands to the statistics, and starts again from zero.
    pub(super) fn record(&mut self, traffic: &Traffic) {
        for (amount, count) in self.0.iter_mut().zip(&traffic.own_part().commands) {
            if *amount > 0 {
                count.add(std::mem::take(amount));
            }
        }
    }
}
