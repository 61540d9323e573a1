//! A store in memory with the semantics of etcd, behind a network that the test controls. Other tests of the workspace
//! include it too.

#![allow(dead_code, unused_imports, reason = "each test file uses its own part of this")]

mod fake;
mod network;

pub use fake::FakeStore;
pub use network::{Delivery, FakeEtcd, Handle};
