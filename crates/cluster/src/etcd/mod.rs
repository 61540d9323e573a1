//! The client of etcd: it implements [`Coordinator`](super::coordinator::Coordinator) by calls to etcd's members.
//!
//! | file | contents |
//! |---|---|
//! | `settings` | URLs, TLS, users |
//! | `client` | the calls, the connections, and which member a call uses |
//! | `failure` | which errors of etcd mean that it performed nothing |
//! | `translation` | reads and transactions as etcd's messages |
//! | `status` | the status of members, and warnings about them |
//! | `messages` | etcd's messages |

mod client;
mod failure;
mod messages;
mod settings;
mod status;
mod translation;

pub use client::EtcdClient;
pub use settings::{Settings, SettingsError, Tls, User};
pub use status::{Expected, Member, MemberStatus};
