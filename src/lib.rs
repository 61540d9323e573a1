//! signalbox decides who may use how much of what, right now, across many machines: distributed semaphores and
//! counters, spoken to in the binary protocol of yrmcds' extensions.
//!
//! `docs/design.md` draws the layers; a test holds them. From the wire inwards: [`protocol`] turns bytes into
//! requests and back, [`server`] owns sockets, clocks and tasks, [`core`] keeps the rules and knows of neither;
//! [`storage`] keeps on disk what is to outlive the process.
//! [`client`] asks a server, [`config`] turns a file into one validated configuration, [`access`] has the rights and tokens
//! of clients, `views` has the JSON objects that the command line and the HTTP API share, [`cli`] is the program.

#![warn(clippy::unwrap_used)]

pub mod cli;
mod cluster;
pub mod config;
pub mod server;
mod views;
