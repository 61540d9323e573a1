//! The figures of a port: connections, commands, bytes, refusals.
//!
//! Counters are relaxed atomics. Each one is exact, but several of them together are not a consistent snapshot.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;

use signalbox_protocol::Opcode;

/// The figures of one port.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    pub(super) curr_connections: Count,
    pub(super) total_connections: Count,
    /// Connections closed at once because there were too many.
    pub(super) refused_connections: Count,
    /// Connections closed because they began without TLS.
    pub(super) refused_plain: Count,
    /// Connections whose TLS handshake succeeded.
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

/// Upper bounds of durations in a histogram, in seconds.
const DURATION_BOUNDS_S: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 300.0, 3600.0];

/// A histogram of durations, in seconds.
#[derive(Debug)]
pub(super) struct Durations(pub(super) Histogram);

impl Default for Durations {
    fn default() -> Self {
        Self(Histogram::new(DURATION_BOUNDS_S))
    }
}

impl Durations {
    pub(super) fn note(&self, duration: Duration) {
        self.0.observe(duration.as_secs_f64());
    }
}

/// The figures of the store.
#[derive(Debug, Default)]
pub(super) struct Stored {
    /// How long the commits of batches took.
    pub(super) times: Durations,
    /// The sum of these times, in microseconds.
    pub(super) time_us: Count,
    pub(super) commits: Count,
    /// Changes in the batches that were committed.
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

/// The number of plain operations.
const OPCODES: usize = 6;

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

/// The reason why a plain Acquire took nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcquireRefusal {
    /// The resources are in use.
    NotAvailable,
    /// A limit on names or memory is reached.
    Limit,
}

impl AcquireRefusal {
    pub(super) const ALL: [Self; 2] = [Self::NotAvailable, Self::Limit];
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
    commands: [Count; OPCODES],
    refused_acquires: [Count; AcquireRefusal::ALL.len()],
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

    /// Returns the number of plain Acquires that took nothing for this reason.
    pub(super) fn refused_acquires(&self, refusal: AcquireRefusal) -> u64 {
        self.sum(|part| &part.refused_acquires[refusal as usize])
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
pub(super) struct Tally {
    commands: [u64; OPCODES],
    refused_acquires: [u64; AcquireRefusal::ALL.len()],
}

impl Tally {
    #[inline]
    pub(super) fn count(&mut self, opcode: Opcode) {
        self.commands[index_of(opcode)] += 1;
    }

    /// Counts a plain Acquire that took nothing; it is counted as a command too.
    pub(super) fn refuse(&mut self, refusal: AcquireRefusal) {
        self.refused_acquires[refusal as usize] += 1;
    }

    /// Adds the commands to the statistics, and starts again from zero.
    pub(super) fn record(&mut self, traffic: &Traffic) {
        let part = traffic.own_part();
        for (amount, count) in self.commands.iter_mut().zip(&part.commands) {
            if *amount > 0 {
                count.add(std::mem::take(amount));
            }
        }
        if self.refused_acquires != [0; AcquireRefusal::ALL.len()] {
            for (amount, count) in self.refused_acquires.iter_mut().zip(&part.refused_acquires) {
                count.add(std::mem::take(amount));
            }
        }
    }
}
