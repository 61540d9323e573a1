//! The client of etcd and the nodes of a cluster, with a real etcd, as processes and in network namespaces.

mod calls;
#[path = "../tls/certificates.rs"]
#[allow(dead_code, reason = "the tests of TLS use more of it")]
mod certificates;
mod data;
mod differential;
mod direct;
mod drain;
mod faults;
mod haproxy;
mod history;
mod http;
mod keepalived;
mod leaving;
mod load;
mod members;
mod nodes;
mod one_node;
mod relays;
mod security;
#[path = "../support/mod.rs"]
mod support;
mod sysv;
mod upgrade;
mod visible;
mod warnings;
