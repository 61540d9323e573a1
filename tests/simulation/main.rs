//! Simulations: the real server shell on a network and a clock that a seed controls, while faults happen.
//!
//! `server` has clients that are written for the simulation; `client` has the product's own client; `cluster` has three
//! nodes of a cluster; `processes` has processes that share a semaphore set. This folder has what they share: the scene and
//! its trace, the simulated network and disk, the checks after each step, and the runs of many seeds.

mod checks;
mod client;
mod cluster;
mod disk;
mod flights;
mod frames;
mod grant_expectations;
mod network;
mod order;
mod processes;
mod random;
mod scene;
mod seeds;
mod server;
#[path = "../support/mod.rs"]
mod support;
mod tasks;
