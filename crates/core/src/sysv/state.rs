//! The state of all sets and processes, and its limits.

use std::collections::BTreeSet;

use super::durable::SysvKey;
use super::processes::Processes;
use super::reply::{Held, WaiterId};
use super::rules::Rules;
use super::sets::Sets;
use crate::alarm::Alarm;
use crate::journal::{Journal, Journaled};
use crate::limit::{ClientShare, MemoryLimit};
use crate::time::MonotonicMs;
use signalbox_model::sysv::SetId;

/// Limits of sets and processes.
#[derive(Clone, Copy, Debug)]
pub struct SysvLimits {
    /// Most processes.
    pub processes_max: usize,
    /// Most sets (SEMMNI).
    pub sets_max: usize,
    /// Most semaphores of all sets together (SEMMNS).
    pub semaphores_max: u64,
    /// Most calls that wait for one set.
    pub waiters_max: usize,
    /// Past it, no process, set, waiting call or adjustment is added.
    pub memory: MemoryLimit,
    /// How much of the processes, and of the calls that wait for a set, one client may have.
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
    /// The calls that time out, by when they do.
    pub(super) timeouts: BTreeSet<(MonotonicMs, SetId, WaiterId)>,
    pub(super) alarm: Alarm,
    /// `None`: there is no store, and no set is durable.
    pub(super) journal: Option<Journal<Held>>,
    /// Restored records of sets that were removed: the journal begins with their deletion.
    pub(super) left_over: Vec<SysvKey>,
    /// The server shuts down: no call waits.
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
            journal: None,
            left_over: Vec::new(),
            is_shutting_down: false,
        }
    }
}

impl Journaled for Sysv {
    type Then = Held;

    fn journal(&self) -> Option<&Journal<Held>> {
        self.journal.as_ref()
    }

    fn journal_mut(&mut self) -> Option<&mut Journal<Held>> {
        self.journal.as_mut()
    }
}
