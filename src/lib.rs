//! signalbox decides how much of a shared resource each of many processes on many machines may use: distributed
//! semaphores and counters, over the binary protocol of yrmcds' extensions.
//!
//! This package is the daemon and the command line; `docs/design.md` shows it with the packages below `crates/`.
//! [`server`] owns sockets, clocks and tasks, [`config`] turns a file into one validated configuration, `cluster` makes
//! the parts of a cluster from it, `declarations` compares documents of declarations with what is declared, and [`cli`]
//! is the program.

#![warn(clippy::unwrap_used)]

pub mod cli;
mod cluster;
pub mod config;
mod declarations;
pub mod server;
