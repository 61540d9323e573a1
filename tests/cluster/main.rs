//! The cluster: its client of etcd, and the store in memory that stands in for etcd.

mod calls;
mod differential;
mod fake;
mod generated;
mod members;
mod security;
#[path = "../support/mod.rs"]
mod support;
mod warnings;
