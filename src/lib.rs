//! signalbox decides who may use how much of what, right now, across many machines: distributed semaphores and
//! counters, spoken to in the binary protocol of yrmcds' extensions.
//!
//! This package is the daemon and the command line; `docs/design.md` draws it with the packages below `crates/`. [`server`]
//! owns sockets, clocks and tasks, [`config`] turns a file into one validated configuration, `cluster` makes the parts of
//! a cluster from it, `declarations` compares documents of declarations with what is declared, and [`cli`] is the program.

#![warn(clippy::unwrap_used)]

pub mod cli;
mod cluster;
pub mod config;
mod declarations;
pub mod server;
