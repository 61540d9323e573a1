//! System V semaphore sets: the rules of `semget`, `semop` and `semctl` for processes of many machines.
//!
//! A **set** has semaphores with values; a **process** stands for a process of some machine and has adjustments
//! (SEM_UNDO), which are applied when it ends. A call does exactly what it does in Linux (`man 2 semop`); where a rule
//! follows from the order in which the kernel retries waiting calls, the comment says so.
//!
//! `signalbox_model::sysv` defines the calls and their results.
//!
//! Sets have a lock of their own. They share no state with the ledger: a call concerns one set and one process.
//!
//! | file | has |
//! |---|---|
//! | `durable` | the facts that outlive the process, as records |
//! | `values` | values and adjustments, and how a list of operations changes them, all or none |
//! | `waiters` | the calls that wait for a set |
//! | `set` | one set: its owner, and which waiting calls a change completes |
//! | `sets` | all sets, by id and key; the rules of the configuration for keys |
//! | `processes` | all processes: their connections, and when they end |
//! | `state` | the state of all sets and processes, its limits and statistics |
//! | `attach` | opening processes, attaching connections to them, replacing their programs |
//! | `calls` | the calls of programs |
//! | `answers` | what all calls share: each is made once, its result is cached, and it is answered at once or later |
//! | `end` | the ends of connections, processes and waits |
//! | `storing` | changes of durable sets are stored, and calls on them are answered then |
//! | `restore` | the records of a store, at the start |
//! | `listing` | listings for administrators |
//! | `check` | the invariants, for tests |
//!
//! Invariants: a value is 0 to 32767, an adjustment -32768 to 32767; a call waits only while its operations cannot be
//! performed; a process that has a connection does not end; a waiting call belongs to a process that has not
//! ended; a result that depends on a durable set is sent only when everything that was changed before is stored.

mod answers;
mod attach;
mod calls;
mod check;
mod durable;
mod end;
mod listing;
mod processes;
mod restore;
mod set;
mod sets;
mod state;
mod storing;
mod values;
mod waiters;

pub use answers::{SysvCall, SysvOutcome};
pub use check::SetCheck;
pub use durable::{
    AdjustmentsRecord, ProcessRecord, ResultRecord, SemaphoreRecord, SetRecord, StoredAnswer, SysvKey,
    SysvRecord,
};
pub use end::ConnectionEnd;
pub use listing::{SetListing, UserListing};
pub use sets::KeyRule;
pub(crate) use state::Sysv;
pub use state::{SysvLimits, SysvStats};
