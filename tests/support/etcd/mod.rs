//! etcd for tests: a real one, and a store in memory with its semantics behind a network that the test controls.
//!
//! `fake` and `network` need the library alone, so a test binary without the rest of `support` may include them.

#![allow(dead_code, unused_imports, reason = "each test file uses its own part of this")]

pub mod fake;
pub mod network;
pub mod real;

pub use fake::FakeStore;
pub use network::{Delivery, FakeEtcd, Handle};
pub use real::RealEtcd;
