//! Compares the core with models: random histories, and the complete state is compared after each step.
//!
//! These tests need only the core. `cargo test --no-default-features --features core --test model` builds
//! nothing else.

mod edges;
mod journal;
mod ledger;
mod plain;
mod sysv;
