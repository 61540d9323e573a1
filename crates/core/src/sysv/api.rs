//! The limits, rules and figures of System V semaphore sets. The operations are beside their rules. Each method of [`Core`]
//! holds the lock of the sets once.

use super::end::ConnectionEnd;
use super::listing::SetListing;
use super::rules::{KeyRule, Rules};
use super::state::{Sysv, SysvLimits, SysvStats};
use crate::journal::Step;
use crate::state::Core;
use crate::time::Moment;
use signalbox_model::ConnectionId;

impl Core {
    /// Sets the limits of sets and processes. What exceeds a lowered limit stays.
    pub fn set_sysv_limits(&self, limits: SysvLimits) {
        self.sysv().limits = limits;
    }

    /// Sets the rules for keys. Sets that exist stay as they are.
    pub fn set_sysv_rules(&self, rules: Vec<KeyRule>) {
        self.sysv().rules = Rules::new(rules);
    }

    /// Sets what the ids of sets and processes are drawn from, which differs between runs of a server: `sets` is any
    /// number.
    pub fn start_sysv_after(&self, sets: u32, last_process: u64) {
        let mut sysv = self.sysv();
        sysv.sets.start_after(sets);
        sysv.processes.start_after(last_process);
    }

    /// Live figures of sets and processes.
    pub fn sysv_stats(&self) -> SysvStats {
        let sysv = self.sysv();
        let waiting: usize = sysv.sets.iter().map(|(_, set)| set.waiters.len()).sum();
        SysvStats {
            processes: sysv.processes.len() as u64,
            sets: sysv.sets.len() as u64,
            waiting: waiting as u64,
        }
    }

    /// A connection has ended. If it was the last one of a process, that ends too, at once or later.
    pub fn leave_process(&self, connection: ConnectionId, how: ConnectionEnd, now: Moment) {
        self.sysv().disconnected(connection, how, now);
    }

    /// Begins a listing of all sets.
    pub fn sets(&self) -> SetListing {
        SetListing::default()
    }

    pub(crate) fn sysv(&self) -> Step<'_, Sysv> {
        Step::begin(&self.sysv)
    }
}
