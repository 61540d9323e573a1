//! Compares the core with models: random histories, and the complete state is compared after each step.
//!
//! `cargo test -p signalbox-core --test model` runs them.

mod durable_sets;
mod edges;
mod journal;
mod keyed;
mod ledger;
mod limits;
mod places;
mod plain;
mod sysv;
mod units;

use proptest::test_runner::Config;
use signalbox_core::{Call, Core, DeclarationRecord, Moment, Origin, Outcome, Service};
use signalbox_model::{Declaration, IfExists, Milliseconds, Operation, Removal, Revocation};

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

/// Changes of administrators, for tests that look only at the outcome.
trait Changes {
    fn change(&self, call: Call, operation: Operation<'_>, now: Moment) -> Outcome;
}

impl Changes for Core {
    fn change(&self, call: Call, operation: Operation<'_>, now: Moment) -> Outcome {
        self.execute(call, &operation, now).outcome
    }
}

fn declaring<'a>(if_exists: IfExists, declarations: &[Declaration<'a>]) -> Operation<'a> {
    Operation::Declare { if_exists, declarations: declarations.to_vec() }
}

fn removing(name: &[u8], how: Removal) -> Operation<'_> {
    Operation::Remove { name, how, expected: None }
}

fn revoking(what: Revocation<'_>, grace_ms: u32) -> Operation<'_> {
    Operation::Revoke { what, grace: Milliseconds(grace_ms) }
}
