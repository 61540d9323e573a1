//! etcd for tests.

#![allow(dead_code, unused_imports, reason = "each test file uses its own part of this")]

pub mod real;

pub use real::RealEtcd;
