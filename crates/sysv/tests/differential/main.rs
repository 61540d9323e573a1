//! Compares random histories of System V semaphore calls: as the kernel executes them, as the core of the server does,
//! and as programs see them that the library connects to a server.
//!
//! A history advances one step at a time. After each step, the test knows whether each process's call is done, with which
//! result, or waits; and an observer has read every value, process number and count of waiting calls. All three
//! must agree. `SIGNALBOX_HISTORIES` sets the number of histories (2000):
//!
//! ```text
//! SIGNALBOX_HISTORIES=50000 cargo test --release --package signalbox-sysv --test differential
//! ```

mod core;
mod history;
mod programs;
mod stepper;
#[path = "../support/mod.rs"]
mod support;

use std::env;

use history::{Command, Failure, History, Step, World};
use proptest::test_runner::{Config, TestCaseError, TestRunner};

/// The number of histories.
fn histories() -> u32 {
    env::var("SIGNALBOX_HISTORIES").ok().and_then(|number| number.parse().ok()).unwrap_or(2000)
}

/// Compares a world with the core for all histories.
fn compare(world: &mut dyn World, cases: u32) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let world = std::cell::RefCell::new(world);
    let result = TestRunner::new(config).run(&history::histories(), |History(steps)| {
        let mut model = core::CoreWorld::new();
        let mut world = world.borrow_mut();
        world.reset();
        for (number, step) in steps.iter().enumerate() {
            let expected = model.take(step);
            match world.take(step) {
                Ok(found) if Ok(&found) == expected.as_ref() => {}
                found => {
                    return Err(TestCaseError::fail(format!(
                        "step {number}, {step:?}:\n    core {expected:?}\n   found {found:?}"
                    )));
                }
            }
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn the_core_does_what_the_kernel_does() {
    let Some(mut kernel) = programs::Programs::on_the_kernel() else {
        assert!(env::var_os("SIGNALBOX_REQUIRE_PEERS").is_none(), "semget is permitted");
        eprintln!("skipped: this machine does not permit semget");
        return;
    };
    compare(&mut kernel, histories());
}

#[test]
fn programs_with_the_library_see_what_the_core_does() {
    let mut programs = programs::Programs::with_the_library();
    compare(&mut programs, histories());
}

/// A history that all worlds agree on tells nothing unless calls wait, fail and are undone in it.
#[test]
fn histories_reach_what_they_are_to_compare() {
    use proptest::strategy::{Strategy, ValueTree};
    let mut runner = TestRunner::deterministic();
    let (mut waited, mut woken, mut undone, mut failed_later, mut removed) = (0, 0, 0, 0, 0);
    for _ in 0..300 {
        let History(steps) = history::histories().new_tree(&mut runner).expect("a history").current();
        let mut model = core::CoreWorld::new();
        let mut before = None;
        for step in &steps {
            let Ok(after) = model.take(step) else { continue };
            waited += after.waiting();
            for (_, woke) in after.completed_since(before.as_ref(), step) {
                match woke {
                    history::Result::Failed(name) if name == "EIDRM" => removed += 1,
                    history::Result::Failed(_) => failed_later += 1,
                    history::Result::Value(_) => woken += 1,
                }
            }
            let has_undone = matches!(step, Step { command: Command::Kill, .. })
                && before.as_ref().is_some_and(|before: &history::Observed| before.sets != after.sets);
            undone += usize::from(has_undone);
            before = Some(after);
        }
    }
    for (what, count) in [
        ("wait", waited),
        ("are woken", woken),
        ("are undone", undone),
        ("fail later", failed_later),
        ("lose their set", removed),
    ] {
        assert!(count >= 10, "{count} calls {what}");
    }
}

/// Used by several modules.
fn describe(failure: impl Into<String>) -> Failure {
    Failure(failure.into())
}
