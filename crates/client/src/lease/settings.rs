//! The settings that all sessions of a client share.

use std::sync::Arc;
use std::time::Duration;

use super::clock::Clock;
use super::transport::Dial;
use crate::{Address, Token};
use signalbox_protocol::LABEL_BYTES_MAX;

/// The settings of a client.
#[derive(Clone)]
pub(super) struct Settings {
    /// At least one.
    pub(super) addresses: Vec<Address>,
    /// The address with which the first round begins, perhaps one of those of a name. `None`: any, which spreads clients over the
    /// servers.
    pub(super) first: Option<Address>,
    pub(super) terms: Terms,
    pub(super) token: Option<Token>,
    /// For how long no server may be reachable before acquires fail.
    pub(super) unreachable_after: Duration,
    /// The longest time for one address to answer, and to open a session after that. It applies while no lease runs.
    pub(super) open_max: Duration,
    pub(super) dial: Arc<dyn Dial>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) seed: u64,
}

/// What a session is opened with. All that it holds has these terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) label: Vec<u8>,
    /// The time to live; `None`: the server's default.
    pub(super) ttl: Option<Duration>,
}

/// As much of a label as the protocol allows.
pub(super) fn cut_label(label: &[u8]) -> Vec<u8> {
    label[..label.len().min(LABEL_BYTES_MAX)].to_vec()
}
