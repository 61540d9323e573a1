//! The settings of a client, which all its sessions share.

use std::sync::Arc;
use std::time::Duration;

use super::clock::Clock;
use super::transport::Dial;
use crate::client::Address;

/// The longest time for one attempt to connect and to attach a session.
pub(super) const ATTEMPT_MAX: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(super) struct Settings {
    /// At least one; tried in turn.
    pub(super) addresses: Vec<Address>,
    pub(super) label: Vec<u8>,
    /// The time to live of sessions; `None`: the server's default.
    pub(super) ttl: Option<Duration>,
    /// For how long no server may be reachable before acquires fail.
    pub(super) unreachable_after: Duration,
    pub(super) dial: Dial,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) seed: u64,
}
