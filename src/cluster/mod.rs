//! Several nodes, of which one leads and serves clients, on an etcd that stores what they share.
//!
//! `coordinator` is what the rest needs of etcd, `keys` has the layout of the keys, and `timing` the times.

pub mod coordinator;
pub mod keys;
pub mod timing;
