//! Compares the core with models: random histories, and the complete state is compared after each step.
//!
//! These tests need only the core. `cargo test --no-default-features --features core --test model` builds
//! nothing else.

mod durable_sets;
mod edges;
mod journal;
mod ledger;
mod places;
mod plain;
mod sysv;
mod units;

use proptest::test_runner::Config;
use signalbox_core::{DeclarationRecord, Origin, Service};

/// `PROPTEST_CASES` sets the number of histories; `default` applies without it.
fn cases(default: u32) -> Config {
    let configured = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    Config { cases: configured.unwrap_or(default), failure_persistence: None, ..Config::default() }
}

/// The record of a semaphore with numbered slots that a request declared.
fn declaration(name: &[u8], capacity: u32, service: Service) -> DeclarationRecord {
    DeclarationRecord {
        name: name.into(),
        capacity,
        label: Box::default(),
        numbered: true,
        generation: 1,
        created: 1,
        origin: Origin::Request,
        removing: false,
        evicted_grace_ms: None,
        service,
    }
}
