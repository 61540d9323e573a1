//! System V semaphore sets: the rules of `semget`, `semop` and `semctl` for processes of many machines.
//!
//! A **set** has semaphores with values; a **process** stands for a process of some machine and has adjustments
//! (SEM_UNDO), which are applied when it ends. What a call does is exactly what Linux does (`man 2 semop`); where a rule
//! follows from the order in which the kernel looks at waiting calls, the comment says so.
//!
//! Sets have a lock of their own. They share no state with the ledger: a call concerns one set and one process.
//!
//! | file | has |
//! |---|---|
//! | `errno` | the errors of calls |
//! | `durable` | the facts that outlive the process, as records |
//! | `values` | values and adjustments, and how a list of operations changes them, all or none |
//! | `waiters` | the calls that wait for a set |
//! | `set` | one set: its owner, and which waiting calls a change completes |
//! | `sets` | all sets, by id and key |
//! | `rules` | what the configuration says of keys |
//! | `processes` | all processes: their connections, and when they end |
//! | `attach` | what a process says of itself |
//! | `calls` | the calls of programs |
//! | `answers` | what all calls share: each is made once, and answered at once or later |
//! | `end` | the ends of connections, processes and waits |
//! | `storing` | how durable sets reach the store: calls on them are answered when they are stored |
//! | `restore` | the records of a store, at the start |
//! | `listing` | what administrators see |
//! | `check` | the invariants, for tests |
//!
//! Invariants: a value is 0 to 32767, an adjustment -32768 to 32767; no single operation waits that could be performed;
//! a process that has a connection does not end; what waits belongs to a process that lives; a result that depends on a
//! durable set is sent only when everything that was changed before is stored.

mod answers;
mod api;
mod attach;
mod calls;
mod check;
mod durable;
mod end;
mod errno;
mod listing;
mod processes;
mod restore;
mod rules;
mod set;
mod sets;
mod storing;
mod values;
mod waiters;

pub use calls::{Caller, SetAnswer, SetCommand, SysvCall, SysvOutcome};
pub use check::SetCheck;
pub use durable::{
    AdjustmentsRecord, ProcessRecord, ResultRecord, SemaphoreRecord, SetRecord, StoredAnswer, SysvKey,
    SysvRecord,
};
pub use end::ConnectionEnd;
pub use errno::Errno;
pub use listing::{ListedSet, ListedUser, SetListing, UserListing, UserRole};
pub use processes::{OpenedProcess, ProcessId};
pub use rules::KeyRule;
pub use set::{Order, Ownership, SetStat};
pub use sets::SetId;
pub use values::Operation;

use std::collections::BTreeSet;

use super::alarm::Alarm;
use super::journal::Journal;
use super::limit::MemoryLimit;
use super::share::ClientShare;
use super::time::MonotonicMs;
use processes::Processes;
use rules::Rules;
use sets::Sets;
use storing::Held;
use waiters::Place;

/// The most semaphores of a set (SEMMSL).
pub const SEMAPHORES_MAX: u32 = 32000;

/// The most operations of a call (SEMOPM).
pub const OPERATIONS_MAX: usize = 500;

/// The most operations of all calls with several operations that wait for one set. Each change of the set looks at them,
/// and each of them that it completes may make others possible: the limit bounds what one call costs the server.
pub const WAITING_OPERATIONS_MAX: usize = 16_384;

/// The highest value of a semaphore (SEMVMX).
pub const VALUE_MAX: u16 = 32767;

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
pub(super) struct Sysv {
    limits: SysvLimits,
    rules: Rules,
    sets: Sets,
    processes: Processes,
    /// The calls that time out, by when they do.
    timeouts: BTreeSet<(MonotonicMs, SetId, Place)>,
    alarm: Alarm,
    /// `None`: there is no store, and no set is durable.
    journal: Option<Journal<Held>>,
    /// Restored records of sets that were removed: the journal begins with their deletion.
    left_over: Vec<SysvKey>,
    /// The server shuts down: no call waits any more.
    is_shutting_down: bool,
}

impl Sysv {
    pub(super) fn new() -> Self {
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
