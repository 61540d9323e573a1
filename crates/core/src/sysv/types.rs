//! What calls say: sets, processes, operations and answers.

use std::fmt;

use crate::time::UnixSeconds;

/// The most semaphores of a set (SEMMSL).
pub const SEMAPHORES_MAX: u32 = 32000;

/// The most operations of a call (SEMOPM).
pub const OPERATIONS_MAX: usize = 500;

/// The most operations of all calls with several operations that wait for one set. Each change of the set looks at them,
/// and each of them that it completes may make others possible: the limit bounds what one call costs the server.
pub const WAITING_OPERATIONS_MAX: usize = 16_384;

/// The highest value of a semaphore (SEMVMX).
pub const VALUE_MAX: u16 = 32767;

/// The user and the group that a call is checked against, as the client states them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The effective user id.
    pub uid: u32,
    /// The effective group id.
    pub gid: u32,
}

/// The result of a call that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetAnswer {
    /// The call is done.
    Done,
    /// `semget`: the set, and how many semaphores it has.
    Set(SetId, u32),
    /// The number that was asked for.
    Number(u32),
    /// The values of all semaphores (GETALL).
    Values(Box<[u16]>),
    /// The key, the owner, the mode and the times of the set (IPC_STAT).
    Stat(SetStat),
}

/// A process. No other process of the server gets the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId(pub(super) u64);

impl ProcessId {
    /// The process that a client calls so.
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// The number that clients call the process.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The lowest id.
pub(super) const FIRST_ID: i32 = 0x4000_0000;

/// The key of sets that have none (IPC_PRIVATE).
pub(super) const PRIVATE: i32 = 0;

/// The id of a set: `0x40000000` and above, which a kernel does not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetId(pub(super) i32);

impl SetId {
    /// The set that a client calls so. `None`: no set is called so.
    pub fn from_number(number: i32) -> Option<Self> {
        (number >= FIRST_ID).then_some(Self(number))
    }

    /// The number that clients call the set.
    pub fn number(self) -> i32 {
        self.0
    }

    pub(super) fn next(self) -> Self {
        Self(self.0.checked_add(1).unwrap_or(FIRST_ID))
    }
}

/// The owner and the mode of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// The owner's user id.
    pub uid: u32,
    /// The owner's group id.
    pub gid: u32,
    /// The nine bits of the mode.
    pub mode: u32,
}

/// Which of the calls that could be performed is performed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Each that can be, as in the kernel: a call that needs much may wait for ever.
    #[default]
    Kernel,
    /// One that takes from a semaphore waits for those before it that do.
    Fifo,
}

/// The key, the owner, the mode and the times of a set (IPC_STAT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetStat {
    /// The key; 0 if the set was made without one.
    pub key: i32,
    /// The owner and the mode.
    pub ownership: Ownership,
    /// The creator's user id.
    pub creator_uid: u32,
    /// The creator's group id.
    pub creator_gid: u32,
    /// When operations were performed last; `None`: never.
    pub operated_at: Option<UnixSeconds>,
    /// When the set was created, or values or the owner were set last.
    pub changed_at: UnixSeconds,
    /// How many semaphores it has.
    pub count: u32,
}

/// One operation of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The number of the semaphore in its set.
    pub number: u16,
    /// What is added to the value; 0 waits until the value is 0.
    pub change: i16,
    /// Whether the call fails with EAGAIN where it would have to wait for this operation (IPC_NOWAIT).
    pub is_nowait: bool,
    /// Whether the end of the process undoes the operation (SEM_UNDO).
    pub is_undone: bool,
}

/// Whether a list has an operation that alters a value. The others only wait until a value is 0.
pub(super) fn alters(operations: &[Operation]) -> bool {
    operations.iter().any(|operation| operation.change != 0)
}

/// Whether a list has an operation that the end of the process undoes.
pub(super) fn undoes(operations: &[Operation]) -> bool {
    operations.iter().any(|operation| operation.is_undone)
}
