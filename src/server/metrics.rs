//! What a port counts: connections, commands, bytes, refusals.
//!
//! Counts are relaxed: each is right by itself, and no two of them are a picture of one moment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::protocol::Opcode;

/// The counts of one port.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    pub(super) curr_connections: Count,
    pub(super) total_connections: Count,
    /// Connections closed at once because there were too many.
    pub(super) refused_connections: Count,
    /// Accepts that failed because the process or the system was out of file descriptors or memory.
    pub(super) failed_accepts: Count,
    pub(super) commands: Commands,
    pub(super) bytes_received: Count,
    pub(super) bytes_sent: Count,
    /// Connections closed because of bytes that are no frame, or of a body too long.
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
    /// Notes a finished sweep, as yrmcds counts it.
    pub(super) fn note_gc(&self, elapsed: Duration) {
        let elapsed_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        self.gc_count.add(1);
        self.last_gc_elapsed_us.set(elapsed_us);
        self.total_gc_elapsed_us.add(elapsed_us);
    }
}

/// A number that many threads add to.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Adds one, and tells what the number was before.
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

/// Commands by opcode.
#[derive(Debug, Default)]
pub(super) struct Commands([Count; OPCODES.len()]);

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

impl Commands {
    pub(super) fn value(&self, opcode: Opcode) -> u64 {
        self.0[index_of(opcode)].value()
    }
}

/// Commands of one run of frames, added up before they are counted: threads share the counts, and each write to one
/// takes the cache line away from the others.
#[derive(Debug, Default)]
pub(super) struct Tally([u64; OPCODES.len()]);

impl Tally {
    #[inline]
    pub(super) fn count(&mut self, opcode: Opcode) {
        self.0[index_of(opcode)] += 1;
    }

    /// Moves what was added up into the counts.
    pub(super) fn settle(&mut self, commands: &Commands) {
        for (amount, count) in self.0.iter_mut().zip(&commands.0) {
            if *amount > 0 {
                count.add(std::mem::take(amount));
            }
        }
    }
}
