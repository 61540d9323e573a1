//! How much background work is done at a time, before the thread's other connections have their turns. Together in one
//! place, so that `benches/steps.rs` measures the steps that the server takes: each a small part of a millisecond.

use std::time::Duration;

/// Bytes of one piece of a Dump.
pub const DUMP_PIECE_BYTES: usize = 16 * 1024;

/// Pieces of a Dump or a listing between two rests: about a millisecond of work, well within a time slice.
pub const DUMP_PIECES: u32 = 16;

/// Names given back in one step when a connection ends.
pub const ENDING_NAMES: usize = 256;

/// Names visited in one step of a sweep.
pub const SWEEP_NAMES: usize = 64;

/// Names that a sweep visits between two rests. With very many names it is more of them, so that they are not made faster
/// than they are removed.
pub const SWEEP_BURST: u64 = 512;

/// How long work rests between steps. A thread that is always at work has used up its share of the cores, and whoever else
/// it serves waits with it.
pub const REST: Duration = Duration::from_millis(4);

/// Most rests of a sweep: some twelve seconds in all, as timers are precise to a millisecond.
pub const SWEEP_RESTS_MAX: u64 = 2500;

/// Requests of one connection that are executed in one turn though the ledger has to do with them, extended ones and
/// plain ones for names that are waited for or watched: each may serve others that wait.
pub const LEDGER_REQUESTS: usize = 32;

/// Names shown in one step to a watch that begins.
pub const WATCH_NAMES: usize = 64;

/// Names checked in one step of the check of the core's books.
pub const CHECK_NAMES: usize = 256;
