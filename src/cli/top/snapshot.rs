//! What the server says at one moment, as `top` shows it. All text is escaped already.

use std::collections::BTreeMap;

use signalbox_client::Namespace;

/// One update.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    /// Seconds since the program began; rates are computed from it.
    pub(super) at_s: f64,
    /// The items of Stats, of the first port that was asked.
    pub(super) statistics: Vec<(String, String)>,
    /// Acquires and Releases of all ports that were asked.
    pub(super) acquires: u64,
    pub(super) releases: u64,
    pub(super) names: Vec<NameRow>,
    pub(super) declared: Vec<DeclaredRow>,
    pub(super) sessions: Vec<SessionRow>,
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
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NameKey {
    pub(super) namespace: Namespace,
    pub(super) name: Vec<u8>,
}

/// A name in use.
#[derive(Clone, Debug)]
pub(super) struct NameRow {
    pub(super) key: NameKey,
    /// The escaped name.
    pub(super) name: String,
    pub(super) in_use: u32,
    pub(super) peak: u32,
    /// `None`: a counter, or it was not asked for.
    pub(super) capacity: Option<u32>,
    /// `None`: it was not asked for.
    pub(super) waiting: Option<u32>,
}

/// A declared semaphore.
#[derive(Clone, Debug)]
pub(super) struct DeclaredRow {
    pub(super) key: NameKey,
    pub(super) name: String,
    pub(super) label: String,
    pub(super) flags: String,
    pub(super) capacity: u32,
    pub(super) in_use: u32,
    pub(super) waiting: u32,
}

/// A session.
#[derive(Clone, Debug)]
pub(super) struct SessionRow {
    pub(super) kind: &'static str,
    pub(super) session: u64,
    pub(super) address: String,
    /// Empty if the client has proven none.
    pub(super) identity: String,
    pub(super) label: String,
    pub(super) is_connected: bool,
    pub(super) age_s: Option<u64>,
    pub(super) grants: u32,
    pub(super) waiting: u32,
    pub(super) ttl_left_s: Option<u64>,
}

/// One name with its holders and its queue.
#[derive(Clone, Debug)]
pub(super) struct Details {
    pub(super) key: NameKey,
    pub(super) name: String,
    /// `None`: the name no longer exists.
    pub(super) usage: Option<Usage>,
}

/// The usage of one name.
#[derive(Clone, Debug)]
pub(super) struct Usage {
    pub(super) in_use: u32,
    pub(super) peak: u32,
    pub(super) waiting: u32,
    /// `None`: a counter.
    pub(super) capacity: Option<u32>,
    pub(super) holders: Vec<EntryRow>,
    pub(super) queue: Vec<EntryRow>,
}

/// A holder, or a request that waits.
#[derive(Clone, Debug)]
pub(super) struct EntryRow {
    pub(super) grant: String,
    pub(super) session: u64,
    pub(super) resources: u32,
    pub(super) slots: String,
    /// For how long, in seconds.
    pub(super) age_s: Option<u64>,
    /// How long the lease of its session lasts without a renewal, in seconds; `None`: as long as the connection.
    pub(super) lease_s: Option<u64>,
    pub(super) address: String,
    pub(super) label: String,
}

/// How long the leases of sessions last, by session.
pub(super) fn leases(sessions: &[SessionRow]) -> BTreeMap<u64, u64> {
    let leased = sessions.iter().filter(|row| row.kind == "leased");
    leased.filter_map(|row| Some((row.session, row.ttl_left_s?))).collect()
}
