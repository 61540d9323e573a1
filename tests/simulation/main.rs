//! Simulations: the real server shell on a network and a clock that a seed decides, while things break.
//!
//! `server` has clients that are written for the simulation; `client` has the product's own client. What both share is
//! here: the scene and its trace, the simulated network and disk, and the checks after each step.

mod checks;
mod claims;
mod client;
mod disk;
mod network;
mod order;
mod random;
mod scene;
mod server;
#[path = "../support/mod.rs"]
mod support;
