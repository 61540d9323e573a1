//! Several nodes, of which one leads and serves clients, on an etcd that stores what they share.
//!
//! `coordinator` is what the rest needs of etcd, `keys` has the layout of the keys, `timing` the times and `clock` the
//! clock that measures them. `leadership` decides which node leads.

pub mod clock;
pub mod coordinator;
pub mod keys;
pub mod leadership;
pub mod timing;
