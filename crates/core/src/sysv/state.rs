//! The state of all sets and processes, its limits, rules and statistics. Each method of [`Core`] takes the lock of the
//! sets once.

use std::collections::BTreeSet;

use super::durable::SysvKey;
use super::processes::{Held, Processes};
use super::sets::{KeyRule, Rules, Sets};
use super::waiters::WaiterId;
use crate::alarm::Alarm;
use crate::journal::{Journal, Journaled, Step};
use crate::limit::{ClientShare, MemoryLimit};
use crate::state::Core;
use crate::time::MonotonicMs;
use signalbox_model::sysv::SetId;

/// Limits of sets and processes.
#[derive(Clone, Copy, Debug)]
pub struct SysvLimits {
    /// The most processes.
    pub processes_max: usize,
    /// The most sets (SEMMNI).
    pub sets_max: usize,
    /// The most semaphores of all sets together (SEMMNS).
    pub semaphores_max: u64,
    /// The most calls that wait for one set.
    pub waiters_max: usize,
    /// Once it is used up, no process, set, waiting call or adjustment is added.
    pub memory: MemoryLimit,
    /// How much of the processes, of the calls that wait for a set and of the memory one client may have.
    pub client_share: ClientShare,
}

impl SysvLimits {
    /// No limits, as in a new core.
    pub const NONE: Self = Self {
        processes_max: usize::MAX,
        sets_max: usize::MAX,
        semaphores_max: u64::MAX,
        waiters_max: usize::MAX,
        memory: MemoryLimit::NONE,
        client_share: ClientShare::NONE,
    };
}

/// Live figures of sets and processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SysvStats {
    /// Processes.
    pub processes: u64,
    /// Sets.
    pub sets: u64,
    /// Calls that wait.
    pub waiting: u64,
}

#[derive(Debug)]
pub(crate) struct Sysv {
    pub(super) limits: SysvLimits,
    pub(super) rules: Rules,
    pub(super) sets: Sets,
    pub(super) processes: Processes,
    /// The calls that time out, by their deadlines.
    pub(super) timeouts: BTreeSet<(MonotonicMs, SetId, WaiterId)>,
    pub(super) alarm: Alarm,
    /// Without a store, no set is durable.
    pub(crate) journal: Journal<Held>,
    /// Restored records of sets that were removed: the journal begins with their deletion.
    pub(super) left_over: Vec<SysvKey>,
    /// Whether the server is shutting down.
    pub(super) is_shutting_down: bool,
}

impl Sysv {
    pub(crate) fn new() -> Self {
        Self {
            limits: SysvLimits::NONE,
            rules: Rules::default(),
            sets: Sets::default(),
            processes: Processes::default(),
            timeouts: BTreeSet::new(),
            alarm: Alarm::default(),
            journal: Journal::default(),
            left_over: Vec::new(),
            is_shutting_down: false,
        }
    }
}

impl Journaled for Sysv {
    type Then = Held;

    fn journal(&mut self) -> &mut Journal<Held> {
        &mut self.journal
    }
}

impl Core {
    /// Sets the limits of sets and processes. Lowering a limit ends nothing.
    pub fn set_sysv_limits(&self, limits: SysvLimits) {
        self.sysv().limits = limits;
    }

    /// Sets the rules for keys. Sets that exist stay as they are.
    pub fn set_sysv_rules(&self, rules: Vec<KeyRule>) {
        self.sysv().rules = Rules::new(rules);
    }

    /// Starts the ids of sets at an id that depends on `sets`, any number that differs from run to run of a server, and
    /// those of processes above `last_process`.
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

    pub(crate) fn sysv(&self) -> Step<'_, Sysv> {
        Step::begin(&self.sysv)
    }
}
