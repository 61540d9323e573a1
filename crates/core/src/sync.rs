//! The locks and atomics of the core, in one place so that its races can be explored.
//!
//! They are those of std. Under `--cfg shuttle` they are shuttle's, so that a test chooses which thread runs between
//! any two steps, and the map is a substitute with the methods that the registry uses: shuttle does not know the locks
//! of the real map, so a run would hang as soon as shuttle suspends a thread that holds one.
//!
//! Not covered: the correctness of DashMap's tables and locks, and memory orderings weaker than sequential consistency,
//! because shuttle runs every atomic operation in one order for all threads.

#[cfg(shuttle)]
pub(super) use explored::{DashMap, Entry};
#[cfg(shuttle)]
pub(super) use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
#[cfg(shuttle)]
pub(super) use shuttle::sync::{Mutex, MutexGuard};
#[cfg(not(shuttle))]
pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
#[cfg(not(shuttle))]
pub(super) use std::sync::{Mutex, MutexGuard};

#[cfg(shuttle)]
#[path = "../tests/races/explored.rs"]
mod explored;
