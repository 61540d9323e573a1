//! The library, preloaded into a program, against a server within the test. The program is `sysv-stepper`, which makes
//! the calls that the test names.

mod article;
mod calls;
mod descriptors;
mod durable;
mod forks;
mod hostile;
mod hosts;
mod interpreters;
mod loading;
mod outage;
mod perl;
mod php;
mod processes;
mod python;
mod relay;
mod servers;
mod signals;
mod stepper;
#[path = "../support/mod.rs"]
mod support;
mod token;
mod world;

use std::time::{Duration, Instant};

/// How long a test waits for an expected event.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for a condition.
#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
