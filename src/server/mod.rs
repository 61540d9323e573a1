//! The shell around the core: all sockets, clocks and tasks.
//!
//! [`Server`] (`state`) is what the tasks share. `listener` accepts connections within the limit of `admission`,
//! `workers` gives each a thread, `connection` reads and writes, and `dispatch` turns a frame into a call of the core
//! and its answer into a frame. `background` has the other tasks, `store` commits durable state, and `daemon` puts all
//! of it together with the configuration, privileges and signals.
//!
//! The shell is generic over stream and listener, and gets its clock and its hash seed from outside, so that the same
//! code runs with a simulated network and clock.

mod access;
mod admission;
mod background;
mod bell;
mod buffers;
mod check;
mod client_address;
mod clock;
mod connection;
mod current;
mod daemon;
mod dispatch;
mod expirations;
mod export;
mod history;
mod http;
mod listener;
mod log;
mod memory;
mod metrics;
mod node_view;
mod operations;
mod peers;
mod port;
mod process;
mod proxy_header;
mod relay;
mod rules;
mod shares;
mod state;
mod statistics;
pub mod steps;
mod store;
mod throttle;
mod tls;
mod unfinished;
mod workers;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use admission::Admission;
pub use background::{announce_rules, expire, sweep_counters, sweep_for_memory, sweep_semaphores};
pub use check::{Checked, check};
pub use client_address::ClientAddress;
pub use clock::Clock;
pub use daemon::{DaemonError, Options, run};
pub use listener::{Listener, serve_port};
pub use log::Format as LogFormat;
pub use relay::{
    Incoming, IsNode, Outgoing, RelayAuthority, RelayNetwork, ServeRequests, Served, Trust, relay_port,
    serve_relays,
};
pub use signalbox_access::TokenFileError;
pub use state::Server;
pub use store::RestoreError;
pub use tls::TlsError;
pub use workers::{SameThread, Spawn, Workers};

/// Locks a value, also after a panic: no panic leaves such a value half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
