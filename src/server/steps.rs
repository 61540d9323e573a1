//! The sizes of steps: how much work a task does before it yields to the other connections of its thread. Each step takes
//! a small part of a millisecond. `benches/steps.rs` measures them.

use std::time::Duration;

/// Bytes of one chunk of a Dump or a listing.
pub const DUMP_CHUNK_BYTES: usize = 16 * 1024;

/// Chunks of a Dump or a listing between two pauses: about a millisecond of work, well within a time slice.
pub const DUMP_CHUNKS: u32 = 16;

/// Connections of one client that run a step of a Stats, a Dump or a listing at a time. Others of that client wait.
pub const LONG_REQUESTS: usize = 2;

/// Names released in one step when a connection ends.
pub const ENDING_NAMES: usize = 256;

/// Names visited in one step of a sweep.
pub const SWEEP_NAMES: usize = 64;

/// Names that a sweep visits between two pauses. A sweep of very many names visits more, so that clients cannot create
/// names faster than the sweep removes them.
pub const SWEEP_BURST: u64 = 512;

/// Length of a pause in background work. A thread that never sleeps uses up its share of the cores, and delays the other
/// connections that it serves.
pub const PAUSE: Duration = Duration::from_millis(4);

/// The most pauses of a sweep: about twelve seconds in all, because each pause takes up to a millisecond longer than
/// [`PAUSE`].
pub const SWEEP_PAUSES_MAX: u64 = 2500;

/// Requests through the ledger that one connection executes in one turn: extended requests, and plain ones for names with
/// waiters or watches. Each of them may serve waiting requests of others.
pub const LEDGER_REQUESTS: usize = 32;

/// Names of a watch's snapshot that are sent in one step.
pub const WATCH_NAMES: usize = 64;

/// Connections that are listed in one step.
pub const LISTED_CONNECTIONS: usize = 128;

/// Names checked in one step of the self-check.
pub const CHECK_NAMES: usize = 256;
