//! Simulations: the real server shell on a network and a clock that a seed controls, while faults happen.
//!
//! `server` has clients that are written for the simulation; `client` has the product's own client; `processes` has
//! processes that share a semaphore set. This folder has
//! what both share: the scene and its trace, the simulated network and disk, and the checks after each step.

mod checks;
mod client;
mod disk;
mod grant_expectations;
mod network;
mod order;
mod processes;
mod random;
mod scene;
mod server;
#[path = "../support/mod.rs"]
mod support;
