//! How long one step of background work keeps a thread to itself: what the server does between two moments at which
//! the thread's other connections may run. Prints the thread's CPU of each step, with a million names.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

use clap::Parser;
use hdrhistogram::Histogram;
use nix::time::{ClockId, clock_gettime};
use signalbox::core::{Claim, Core, Dump, NameHasher, Namespace, Session, UnixSeconds};
use signalbox::server::steps::{DUMP_PIECE_BYTES, ENDING_NAMES, SWEEP_NAMES};

/// Bytes of a Dump's entry beside its name: a header of 12 and a body of 10.
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

    /// What cargo says to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let arguments = Arguments::parse();
    let [mut dumps, mut ends, mut sweeps] = [(); 3].map(|()| Steps::default());
    for _ in 0..arguments.runs {
        let (core, session) = filled(arguments.names);
        let mut dump = core.dump(SPACE);
        while dumps.time(|| dump_piece(&core, &mut dump)) {}
        let mut ending = core.end_session(session);
        while ends.time(|| ending.step(ENDING_NAMES, NOW)) {}
        let mut sweep = core.sweep(SPACE);
        while sweeps.time(|| sweep.step(SWEEP_NAMES, NOW)) {}
        assert_eq!(sweep.collected(), u64::from(arguments.names), "all names are free by then");
    }
    println!("Thread CPU of a step in us, {} names; the bound is {BOUND_US} at p99.9\n", arguments.names);
    println!("{:<10}{:>10}{:>10}{:>10}{:>10}{:>10}", "step", "steps", "p50", "p99", "p99.9", "max");
    for (what, steps) in [("dump", dumps), ("end", ends), ("sweep", sweeps)] {
        steps.print(what);
    }
}

/// A core in which one session holds so many names.
fn filled(names: u32) -> (Core, Session) {
    let stat_interval_s = NonZeroU32::new(100).expect("100 is not 0");
    let core = Core::new(stat_interval_s, NameHasher::with_seeds(1, 2, 3, 4));
    let mut session = core.open_session();
    let claim = Claim::new(1, 1).expect("1 of 1 is a claim");
    for index in 0..names {
        let name = format!("held-{index:011}");
        core.acquire(SPACE, name.as_bytes(), claim, &mut session, NOW).expect("each name is new");
    }
    (core, session)
}

/// As much of a Dump as the server composes before it yields. Tells whether there is more.
fn dump_piece(core: &Core, dump: &mut Dump) -> bool {
    let mut out = Vec::with_capacity(2 * DUMP_PIECE_BYTES);
    while out.len() < DUMP_PIECE_BYTES {
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
        Self(Histogram::new(3).expect("three digits are a precision that there is"))
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
        println!("{what:<10}{steps:>10}{p50:>10.1}{p99:>10.1}{p999:>10.1}{max:>10.1}  {verdict}");
    }
}

fn thread_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every thread has this clock").into()
}
