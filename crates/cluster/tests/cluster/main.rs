//! The cluster without a real etcd: which node leads, commits, handovers, and the store in memory that stands in for etcd.

mod admin;
mod commits;
mod drain_command;
#[path = "../etcd/mod.rs"]
mod etcd;
mod handover;
mod import;
mod keys;
mod leadership;
mod members;
mod relays;
mod timing;
