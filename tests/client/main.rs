//! Tests of the Rust client: its guarantees, the examples, and the recipes of the guide.

mod available;
mod close;
mod end;
mod errors;
mod examples;
mod guide;
mod leased;
mod moving;
mod opening;
mod plain;
#[path = "../support/mod.rs"]
mod support;
mod sysv;
mod terms;
