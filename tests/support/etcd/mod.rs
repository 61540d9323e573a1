//! etcd for tests: the real one, and one in memory whose network the test controls.

#![allow(dead_code, unused_imports, reason = "each test file uses its own part of this")]

pub mod fake;
pub mod network;
pub mod real;

//pub use fake::FakeStore;
//pub use network::{Fault, FakeEtcd, Handle};
pub use real::RealEtcd;
