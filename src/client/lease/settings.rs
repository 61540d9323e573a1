//! What a client is told once, and all its sessions go by.

use std::sync::Arc;
use std::time::Duration;

use super::clock::Clock;
use super::dial::Dial;
use crate::client::Address;
use crate::protocol::Milliseconds;

/// How long one try to connect and to be let in may take.
pub(super) const TRY_MAX: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(super) struct Settings {
    /// At least one; tried in turn.
    pub(super) addresses: Vec<Address>,
    pub(super) label: Vec<u8>,
    /// `None` leaves it to the server.
    pub(super) ttl: Option<Duration>,
    pub(super) unreachable_after: Duration,
    pub(super) dial: Dial,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) seed: u64,
}

/// By how much a client stops believing in a lease before the server does. Leases are counted from when the request
/// was sent, so what remains is how differently the two clocks run: up to 4 %.
fn margin(ttl: Duration) -> Duration {
    ttl / 25
}

/// For how long what the server promises for a time can be believed in.
pub(super) fn believed(time: Milliseconds) -> Duration {
    let time = Duration::from(time);
    time.saturating_sub(margin(time))
}
