//! The core against models: random histories, everything compared after each step.
//!
//! These tests need no more than the core. `cargo test --no-default-features --features core --test model` builds
//! nothing else.

mod edges;
mod journal;
mod ledger;
mod plain;
