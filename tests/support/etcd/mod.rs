//! etcd for tests: a real one, and the simulated one of the cluster's own tests.

#![allow(unused_imports, reason = "each test file uses its own part of this")]

pub mod real;
#[path = "../../../crates/cluster/tests/etcd/mod.rs"]
mod simulated;

pub use real::RealEtcd;
pub use simulated::{Delivery, FakeEtcd, FakeStore, Handle};
