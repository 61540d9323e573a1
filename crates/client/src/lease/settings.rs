//! The settings of a client. Each session has a copy, with its own terms and seed.

use std::sync::Arc;
use std::time::Duration;

use super::clock::Clock;
use super::transport::Dial;
use crate::{Address, Token};
use signalbox_protocol::LABEL_BYTES_MAX;

#[derive(Clone)]
pub(super) struct Settings {
    /// At least one.
    pub(super) addresses: Vec<Address>,
    /// The address that is tried first; it may be limited to one IP address of its host. `None`: a random one, which
    /// spreads clients over the servers.
    pub(super) first: Option<Address>,
    pub(super) terms: Terms,
    pub(super) token: Option<Token>,
    /// How long servers may be unreachable before acquires fail.
    pub(super) unreachable_after: Duration,
    /// The longest time for one address to answer, and then to open a session. It applies to sessions that are not open
    /// yet.
    pub(super) open_max: Duration,
    pub(super) dial: Arc<dyn Dial>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) seed: u64,
}

/// The label and the time to live of a session. They apply to everything that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) label: Vec<u8>,
    /// The time to live; `None`: the server's default.
    pub(super) ttl: Option<Duration>,
}

/// Truncates a label to the length that the protocol allows.
pub(super) fn truncated_label(label: &[u8]) -> Vec<u8> {
    label[..label.len().min(LABEL_BYTES_MAX)].to_vec()
}
