//! signalbox decides who may use how much of what, right now, across many machines: distributed semaphores and
//! counters, spoken to in the binary protocol of yrmcds' extensions.
//!
//! `docs/design.md` draws the layers; a test holds them. From the wire inwards: [`protocol`] turns bytes into
//! requests and back. Beside it, [`config`] turns a file into one validated configuration.

pub mod config;
pub mod protocol;
pub mod server;
