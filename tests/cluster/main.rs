//! The cluster without a real etcd: which node leads, commits, handovers, and the store in memory that stands in for etcd.

mod commits;
mod drain_command;
mod generated;
mod handover;
mod leadership;
mod participation;
#[path = "../support/mod.rs"]
mod support;
