//! The cluster: its client of etcd, the store in memory that stands in for etcd, and which node leads.

mod calls;
mod commits;
mod data;
mod differential;
mod direct;
mod drain;
mod drain_command;
mod fake;
mod faults;
mod generated;
mod handover;
mod haproxy;
mod keepalived;
mod leadership;
mod leaving;
mod load;
mod members;
mod nodes;
mod participation;
mod relays;
mod security;
#[path = "../support/mod.rs"]
mod support;
mod sysv;
mod upgrade;
mod visible;
mod warnings;
