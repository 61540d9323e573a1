//! Runs a simulation with many seeds, on several threads.
//!
//! `SIGNALBOX_SEEDS` sets the number of seeds, and `SIGNALBOX_SEED` the first one.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A simulation: it runs a seed, and returns a hash of the trace, or a description of the failure.
pub type Run = fn(u64) -> Result<u64, String>;

/// Runs all seeds; panics with the seed that failed, and the command that replays it. `test` is the path of the test.
pub fn run_all(seeds_by_default: u64, test: &str, run: Run) {
    let seeds = number_in("SIGNALBOX_SEEDS", seeds_by_default);
    let first = number_in("SIGNALBOX_SEED", 1);
    let next = AtomicU64::new(first);
    let failed = Mutex::new(None);
    // The core ends the process if its accounting is inconsistent; then this file lists the seeds.
    let file = format!("{}/{}.seeds", env!("CARGO_TARGET_TMPDIR"), test.replace("::", "-"));
    let at_work = Mutex::new(BTreeSet::new());
    let note = |seed: u64, is_at_work: bool| {
        let mut at_work = at_work.lock().unwrap();
        if is_at_work {
            at_work.insert(seed)
        } else {
            at_work.remove(&seed)
        };
        std::fs::write(&file, format!("{at_work:?}\n")).unwrap();
    };
    let work = || {
        while failed.lock().unwrap().is_none() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + seeds {
                break;
            }
            note(seed, true);
            if let Err(what) = run_alone(seed, run) {
                failed.lock().unwrap().get_or_insert((seed, what));
            }
            note(seed, false);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, |threads| threads.get().min(4)) {
            scope.spawn(work);
        }
    });
    if let Some((seed, what)) = failed.into_inner().unwrap() {
        panic!(
            "seed {seed}, {what}\nreplay: SIGNALBOX_SEED={seed} SIGNALBOX_SEEDS=1 cargo test --test simulation {test}"
        );
    }
}

/// Panics unless four seeds give four different traces, and the same ones when they are run again.
pub fn assert_same_traces(run: Run) {
    let traces = || (1..5).map(|seed| run_alone(seed, run)).collect::<Result<Vec<_>, _>>();
    let first = traces().unwrap_or_else(|what| panic!("{what}"));
    assert_eq!(Ok(&first), traces().as_ref());
    let different: BTreeSet<_> = first.iter().collect();
    assert_eq!(different.len(), first.len(), "another seed has another trace");
}

/// Runs a seed in a thread of its own, because thread-local state of the server must not differ between runs.
pub fn run_alone<T: Send + 'static>(
    seed: u64,
    run: impl FnOnce(u64) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let thread = std::thread::Builder::new().name(format!("seed {seed}"));
    let thread = thread.spawn(move || run(seed)).expect("a thread can be started");
    thread.join().unwrap_or_else(|_| Err("the simulation panicked; see above".to_owned()))
}

pub fn number_in(variable: &str, otherwise: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value.map_or(otherwise, |value| {
        value.parse().unwrap_or_else(|_| panic!("{variable}={value} is not a number"))
    })
}
