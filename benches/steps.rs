//! How long one step of background work keeps a thread to itself: what the server does between two moments at which
//! the thread's other connections may run. Prints the thread's CPU of each step, with a million names, and with as many
//! sessions, grants and waiters as the limits allow.

#[path = "steps/ledger.rs"]
mod ledger;
#[path = "support/thread.rs"]
mod thread;

use std::hint::black_box;
use std::num::NonZeroU32;

use clap::Parser;
use signalbox::server::steps::{DUMP_CHUNK_BYTES, ENDING_NAMES, SWEEP_NAMES};
use signalbox_bench::Histogram;
use signalbox_core::{Claim, Core, Dump, NameHasher, Session};
use signalbox_model::Namespace;
use signalbox_model::UnixSeconds;
use thread::thread_cpu;

/// Bytes of a Dump's entry without its name: a header of 12 and a body of 10.
const ENTRY_BYTES: usize = 22;

/// The most that a step may take, in 999 of 1,000 cases.
const BOUND_US: f64 = 200.0;

const NOW: UnixSeconds = UnixSeconds(1_000_000_050);
const SPACE: Namespace = Namespace::Semaphores;

/// Measures the steps of background work
#[derive(Debug, Parser)]
struct Arguments {
    /// Names that are dumped, released and swept
    #[arg(long, default_value = "1000000")]
    names: u32,

    /// How often all is done
    #[arg(long, default_value = "5")]
    runs: usize,

    /// Steps to measure
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,

    /// The argument that cargo passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let arguments = Arguments::parse();
    println!("Thread CPU of a step in us, {} names; the bound is {BOUND_US} at p99.9\n", arguments.names);
    println!("{:<20}{:>10}{:>10}{:>10}{:>10}{:>10}", "step", "steps", "p50", "p99", "p99.9", "max");
    for (what, run) in KINDS {
        if arguments.only.is_empty() || arguments.only.iter().any(|asked| asked == what) {
            let mut steps = Steps::default();
            (0..arguments.runs).for_each(|_| run(&mut steps, arguments.names));
            steps.print(what);
        }
    }
}

/// Does some work once, with this many names where it is about names, and times its steps.
type Run = fn(&mut Steps, u32);

const KINDS: [(&str, Run); 20] = [
    ("dump", dump),
    ("end", end),
    ("sweep", sweep),
    ("time-out", |steps, _| ledger::time_out(steps)),
    ("expire", |steps, _| ledger::expire(steps)),
    ("hand-over", |steps, _| ledger::hand_over(steps)),
    ("release", |steps, _| ledger::release(steps)),
    ("watched-elsewhere", |steps, _| ledger::watched_elsewhere(steps)),
    ("watched-by-all", |steps, _| ledger::watched_by_all(steps)),
    ("leave", |steps, _| ledger::leave(steps)),
    ("shut-down", |steps, _| ledger::shut_down(steps)),
    ("list-waiters", |steps, _| ledger::list_waiters(steps)),
    ("list-holders", |steps, _| ledger::list_holders(steps)),
    ("list-plain-holders", |steps, _| ledger::list_plain_holders(steps)),
    ("show", ledger::show),
    ("attach", |steps, _| ledger::attach(steps)),
    ("detach", |steps, _| ledger::detach(steps)),
    ("idle", |steps, _| ledger::idle(steps)),
    ("leave-idle", |steps, _| ledger::leave_idle(steps)),
    ("cancel", |steps, _| ledger::cancel(steps)),
];

/// A Dump of names that are held.
fn dump(steps: &mut Steps, names: u32) {
    let (core, _held) = filled(names);
    let mut dump = core.dump(SPACE);
    while steps.time(|| dump_piece(&core, &mut dump)) {}
}

/// The end of a session that holds all names.
fn end(steps: &mut Steps, names: u32) {
    let (core, session) = filled(names);
    let mut ending = core.end_session(session);
    while steps.time(|| ending.step(ENDING_NAMES, NOW)) {}
}

/// A sweep that removes all names.
fn sweep(steps: &mut Steps, names: u32) {
    let (core, session) = filled(names);
    let mut ending = core.end_session(session);
    while ending.step(ENDING_NAMES, NOW) {}
    let mut sweep = core.sweep(SPACE);
    while steps.time(|| sweep.step(SWEEP_NAMES, NOW)) {}
    assert_eq!(sweep.collected(), u64::from(names), "all names are free by then");
}

fn empty() -> Core {
    let stat_interval_s = NonZeroU32::new(100).expect("100 is not 0");
    Core::new(stat_interval_s, NameHasher::with_seeds(1, 2, 3, 4))
}

/// A core in which one session holds this many names.
fn filled(names: u32) -> (Core, Session) {
    let core = empty();
    let mut session = core.open_session();
    let claim = Claim::new(1, 1).expect("1 of 1 is a claim");
    for index in 0..names {
        let name = format!("held-{index:011}");
        core.acquire(SPACE, name.as_bytes(), claim, &mut session, NOW).expect("each name is new");
    }
    (core, session)
}

/// Encodes as much of a Dump as the server does before it yields. Returns whether there is more.
fn dump_piece(core: &Core, dump: &mut Dump) -> bool {
    let mut out = Vec::with_capacity(2 * DUMP_CHUNK_BYTES);
    while out.len() < DUMP_CHUNK_BYTES {
        let shown = dump.next(core, NOW, |name, item| {
            out.extend_from_slice(&[0; ENTRY_BYTES]);
            out.extend_from_slice(name);
            black_box(item);
        });
        if shown.is_none() {
            return false;
        }
    }
    black_box(out);
    true
}

/// The CPU of steps, in nanoseconds.
struct Steps(Histogram<u64>);

impl Default for Steps {
    fn default() -> Self {
        Self(Histogram::new(3).expect("three digits are a valid precision"))
    }
}

impl Steps {
    fn time(&mut self, step: impl FnOnce() -> bool) -> bool {
        let before = thread_cpu();
        let is_more = step();
        let cpu_ns = (thread_cpu() - before).as_nanos();
        self.0
            .record(u64::try_from(cpu_ns).unwrap_or(u64::MAX))
            .expect("a histogram that grows takes any value");
        is_more
    }

    fn print(&self, what: &str) {
        let us = |ns: u64| ns as f64 / 1000.0;
        let [p50, p99, p999] =
            [50.0, 99.0, 99.9].map(|percentile| us(self.0.value_at_percentile(percentile)));
        let verdict = if p999 > BOUND_US { "missed" } else { "reached" };
        let (steps, max) = (self.0.len(), us(self.0.max()));
        println!("{what:<20}{steps:>10}{p50:>10.1}{p99:>10.1}{p999:>10.1}{max:>10.1}  {verdict}");
    }
}
