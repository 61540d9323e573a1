//! How many conflicts of resources there are in a port, for its statistics.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long a count of conflicts is used.
const CONFLICTS_AGE_MAX: Duration = Duration::from_secs(1);

/// The item `conflicts` of a port. To count it looks at every shard, so one count serves all requests of a second.
#[derive(Debug, Default)]
pub(super) struct Conflicts(Mutex<Option<(Instant, u64)>>);

impl Conflicts {
    pub(super) fn value(&self, count: impl FnOnce() -> u64) -> u64 {
        // A panic while it is locked leaves no partial change.
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some((counted, conflicts)) = *last
            && now.duration_since(counted) < CONFLICTS_AGE_MAX
        {
            return conflicts;
        }
        let conflicts = count();
        *last = Some((now, conflicts));
        conflicts
    }
}
