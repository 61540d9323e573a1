//! The limits and figures of the ledger. The operations are beside their rules.

use super::state::{LedgerLimits, LedgerStats};
use crate::state::Core;

impl Core {
    /// Sets the limits of sessions, grants, queues and watches. What exceeds a lowered limit stays.
    pub fn set_ledger_limits(&self, limits: LedgerLimits) {
        self.ledger().limits = limits;
    }

    /// Sets what the ids of grants and generations are above, so that they grow from one run of a server to the next.
    pub fn start_ids_after(&self, last_id: u64) {
        self.ledger().ids.start_after(last_id);
    }

    /// Sets how long the reconnect window after a start is open at most; 0: there is none. For the next
    /// [`Self::keep_journal`].
    pub fn set_reconnect_window(&self, window_ms: u32) {
        self.ledger().places.set_window_ms(window_ms);
    }

    /// Live figures of sessions, grants, queues and watches.
    pub fn ledger_stats(&self) -> LedgerStats {
        let ledger = &*self.ledger();
        LedgerStats {
            sessions: ledger.sessions.leased(),
            grants: ledger.grants.held(),
            waiters: ledger.grants.waiting(),
            watches: ledger.watches.len() as u64,
            declared: ledger.declarations.len() as u64,
            ..ledger.counts
        }
    }
}
