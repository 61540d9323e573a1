//! Several nodes, of which one leads and serves clients, on an etcd that stores what they share
//! (`docs/cluster.md`, `docs/decisions/0020`).
//!
//! `coordinator` is what the rest needs of etcd and `etcd` the client that has it, `keys` has the layout of the keys,
//! `timing` the times and `clock` the clock that measures them. `leadership` decides which node leads, `participation` is
//! what a node does for its part in that, both without I/O, and the thread that does it. `fence` keeps a former leader quiet. `relays` are the connections that a node relays to the leader, `reach` is whether they reach it, and
//! `members` what `observatory` sees of the other nodes.
//! `store` commits the records of the node that leads, as links of a `chain`. In a `handover`, a leader that is drained chooses
//! the next one. `admin`, `drain` and `data` are for operators.

#![warn(clippy::unwrap_used)]

pub mod admin;
pub mod chain;
pub mod clock;
pub mod coordinator;
pub mod data;
pub mod drain;
pub mod error;
pub mod etcd;
pub mod fence;
pub mod handover;
pub mod keys;
pub mod leadership;
pub mod members;
pub mod observatory;
pub mod participation;
pub mod reach;
pub mod relays;
pub mod store;
pub mod timing;
