//! Several nodes, of which one leads and serves clients, on an etcd that stores what they share.
//!
//! `coordinator` is what the rest needs of etcd and `etcd` the client that has it, `keys` has the layout of the keys,
//! `timing` the times and `clock` the clock that measures them. `leadership` decides which node leads.

pub mod clock;
pub mod coordinator;
pub mod etcd;
pub mod keys;
pub mod leadership;
pub mod timing;
