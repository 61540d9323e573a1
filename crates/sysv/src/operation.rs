//! The calls, and their requests.

use std::time::Instant;

use nix::unistd::{getegid, geteuid};
use signalbox_model::RequestIds;
use signalbox_model::sysv::{
    Caller, IPC_CREAT, IPC_EXCL, IPC_NOWAIT, IPC_PRIVATE, Operation, SEM_UNDO, SetCommand, SetId,
};
use signalbox_protocol::{Opaque, Operations, SysvRequest, WAIT_FOREVER_MS};

/// A call for the server.
#[derive(Clone, Debug)]
pub enum Call<'a> {
    /// `semget`, with the key that all hosts share.
    Get { key: i32, count: u32, flags: u32 },
    /// `semop` and `semtimedop`; without a deadline it waits forever.
    Operate { set: SetId, operations: &'a [Operation], deadline: Option<Instant> },
    /// `semctl`.
    Control { set: SetId, command: SetCommand },
}

impl Call<'_> {
    /// Returns whether the call can be made twice with the effect of one call.
    pub fn is_repeatable(&self) -> bool {
        match self {
            Self::Get { key, flags, .. } => *key != IPC_PRIVATE && flags & IPC_EXCL == 0,
            Self::Operate { .. } => false,
            Self::Control { command, .. } => !command.is_change(),
        }
    }

    /// Returns whether an operation is undone when the process ends.
    pub fn adjusts(&self) -> bool {
        let Self::Operate { operations, .. } = self else { return false };
        operations.iter().any(|operation| operation.is_undone())
    }

    /// Appends the request to `out`. `rows` is a buffer for operations.
    pub fn compose(&self, ids: RequestIds, rows: &mut Vec<u8>, opaque: Opaque, out: &mut Vec<u8>) {
        let caller = caller();
        match *self {
            Self::Get { key, count, flags } => {
                let flags = flags & (IPC_CREAT | IPC_EXCL | 0o777);
                SysvRequest::SemGet { ids, caller, key, count, flags }.compose(opaque, out);
            }
            Self::Operate { set, operations, deadline } => {
                let wait_ms = deadline.map_or(WAIT_FOREVER_MS, wait_ms_until);
                let operations =
                    Operations::encode(operations, rows).expect("the caller checked their count");
                SysvRequest::SemOp { ids, caller, set, wait_ms, operations }.compose(opaque, out);
            }
            Self::Control { set, ref command } => {
                let command = command.clone();
                SysvRequest::SemCtl { ids, caller, set, command }.compose(opaque, out);
            }
        }
    }
}

/// Converts an operation of `semop` to one of the protocol.
pub fn operation_of(operation: &libc::sembuf) -> Operation {
    let flags = operation.sem_flg.cast_unsigned() & (IPC_NOWAIT | SEM_UNDO);
    Operation { number: operation.sem_num, change: operation.sem_op, flags }
}

/// Returns the time until the deadline, rounded up, so that a call never fails before it. A time that the protocol
/// cannot express, above 49 days, is forever.
fn wait_ms_until(deadline: Instant) -> u32 {
    let left = deadline.saturating_duration_since(Instant::now());
    u32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(WAIT_FOREVER_MS)
}

/// The effective user and group of the program.
pub fn caller() -> Caller {
    Caller { uid: geteuid().as_raw(), gid: getegid().as_raw() }
}
