//! The daemon as a process: its files and its signals.

mod access;
mod backup;
mod configuration;
mod crash;
mod data;
mod descriptors;
mod history;
mod keys;
mod languages;
mod lifecycle;
mod memory;
mod proxies;
mod queue_order;
mod rules;
mod shares;
mod signals;
#[path = "../support/mod.rs"]
mod support;
mod systemd;
mod sysv;
