//! The client of etcd: what [`Coordinator`](super::coordinator::Coordinator) promises, by calls to etcd's members.
//!
//! | file | what it has |
//! |---|---|
//! | `settings` | which etcd, and how: URLs, TLS, users |
//! | `client` | the calls; which member they use, and what follows from a failure |
//! | `link` | the connection to a member |
//! | `failure` | which errors of etcd mean that it performed nothing |
//! | `translation` | reads and transactions as etcd's messages |
//! | `member`, `warning` | what members say about themselves, and what is wrong with them |
//! | `etcd.proto`, `generated` | etcd's messages, and the code that a test generates from them |

mod client;
mod failure;
#[expect(clippy::enum_variant_names, reason = "the names are etcd's")]
#[rustfmt::skip]
mod generated;
mod link;
mod member;
mod settings;
mod translation;
mod warning;

pub use client::EtcdClient;
pub use member::{Member, MemberStatus};
pub use settings::{Settings, SettingsError, Tls, User};
pub use warning::Expected;
