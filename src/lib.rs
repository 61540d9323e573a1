//! signalbox decides who may use how much of what, right now, across many machines: distributed semaphores and
//! counters, spoken to in the binary protocol of yrmcds' extensions.
//!
//! `docs/design.md` draws the layers; a test holds them. From the wire inwards: [`protocol`] turns bytes into
//! requests and back. On the other end of the wire, [`client`] asks a server;
//! [`cli`] is the program.

pub mod cli;
pub mod client;
pub mod protocol;
