//! What the server says at one moment.

use bytes::Bytes;

use crate::cli::listing::State;
use signalbox_client::{DeclaredEntry, Namespace, SessionEntry};

/// One update.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    /// Seconds since the program began; rates are computed from it.
    pub(super) at_s: f64,
    /// The items of Stats, of the first port that was asked, escaped.
    pub(super) statistics: Vec<(String, String)>,
    /// Acquires and Releases of all ports that were asked.
    pub(super) acquires: u64,
    pub(super) releases: u64,
    pub(super) names: Vec<NameRow>,
    pub(super) declared: Vec<DeclaredEntry<Bytes>>,
    pub(super) sessions: Vec<SessionEntry<Bytes>>,
    /// The name whose details are shown.
    pub(super) details: Option<Details>,
}

impl Snapshot {
    /// The value of an item of Stats that is a number; 0 if there is none.
    pub(super) fn statistic(&self, name: &str) -> u64 {
        let item = self.statistics.iter().find(|(item, _)| item == name);
        item.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
    }

    /// The value of an item of Stats as text.
    pub(super) fn text(&self, name: &str) -> &str {
        self.statistics.iter().find(|(item, _)| item == name).map_or("-", |(_, value)| value)
    }
}

/// A name, in one of the namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NameKey {
    pub(super) namespace: Namespace,
    pub(super) name: Bytes,
}

/// A name in use.
#[derive(Clone, Debug)]
pub(super) struct NameRow {
    pub(super) key: NameKey,
    pub(super) in_use: u32,
    pub(super) peak: u32,
    /// `None`: a counter, or it was not asked for.
    pub(super) capacity: Option<u32>,
    /// `None`: it was not asked for.
    pub(super) waiting: Option<u32>,
}

/// One name with its holders and its queue.
#[derive(Debug)]
pub(super) struct Details {
    pub(super) key: NameKey,
    /// `None`: the name no longer exists.
    pub(super) state: Option<State>,
}
