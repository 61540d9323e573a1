//! A cluster: several nodes, one of which leads and serves clients, and an etcd that stores what they share
//! (`docs/cluster.md`, `docs/decisions/0020`).
//!
//! | module | contents |
//! |---|---|
//! | `leadership` | which node leads: a state machine without I/O, which `src/server/daemon/node.rs` drives |
//! | `timing` | the clock, the times, and the fence, after whose deadline a former leader writes nothing |
//! | `relays` | the connections that a node relays to the leader |
//! | `members` | the other nodes, as a thread reads them |
//! | `store` | the records of the node that leads, and how it commits them |
//! | `coordinator`, `etcd` | the operations of etcd that the others use, and the client that performs them |
//! | `keys` | the keys in etcd and their values |
//! | `admin`, `drain`, `data` | the commands of operators, and the handover by a leader that is drained |
//! | `error` | why a node has ended, and why a command was not performed |

#![warn(clippy::unwrap_used)]

pub mod admin;
pub mod coordinator;
pub mod data;
pub mod drain;
pub mod error;
pub mod etcd;
pub mod keys;
pub mod leadership;
pub mod members;
pub mod relays;
pub mod store;
pub mod timing;
