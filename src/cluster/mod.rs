//! Several nodes, of which one leads and serves clients, on an etcd that stores what they share.

pub mod coordinator;
pub mod etcd;
