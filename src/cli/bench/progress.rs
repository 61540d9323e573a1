//! The progress line of a run, on a terminal.

use std::io::{IsTerminal, Write, stderr};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use signalbox_bench::{Limit, Progress};

/// Time between two updates.
const INTERVAL: Duration = Duration::from_millis(500);

/// Waits until the run is over. The run must unpark this thread at its end. On a terminal, shows a progress line, and
/// removes it at the end.
pub(super) fn watch(heading: &str, limit: Limit, progress: &Progress, is_over: impl Fn() -> bool) {
    let is_shown = stderr().is_terminal();
    let started = Instant::now();
    let mut before = (started, 0);
    while !is_over() {
        thread::park_timeout(INTERVAL);
        let now = Instant::now();
        if !is_shown || now - before.0 < INTERVAL {
            continue;
        }
        let answers = progress.answers.load(Ordering::Relaxed);
        let per_s = (answers - before.1) as f64 / (now - before.0).as_secs_f64();
        let failures = progress.failures.load(Ordering::Relaxed);
        let goal = match limit {
            Limit::After(time) => format!("of {} s", time.as_secs_f64()),
            Limit::Requests(requests) => format!("s, {answers} of {requests} answers"),
        };
        let elapsed_s = (now - started).as_secs_f64();
        show(&format!("{heading}: {elapsed_s:.1} {goal}, {per_s:.0} answers/s, {failures} failures"));
        before = (now, answers);
    }
    if is_shown {
        show("");
    }
}

/// Replaces the line with a text; ignores a closed stderr.
fn show(text: &str) {
    let _ = write!(stderr(), "\r\x1b[K{text}");
    let _ = stderr().flush();
}
