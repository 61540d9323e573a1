//! System V semaphore sets: calls and their results, and the entries of listings (`docs/protocol.md`, "System V
//! semaphores"). Numbers that Linux defines are those of Linux.

mod keys;

pub use keys::{Keys, key};

use std::fmt;

use super::codes;
use super::ids::SessionKey;
use super::time::{Milliseconds, UnixSeconds};

/// The most operations of a call (SEMOPM).
pub const OPERATIONS_MAX: usize = 500;

/// The flag of an operation that fails instead of waiting (`docs/protocol.md`, "SemOp").
pub const IPC_NOWAIT: u16 = 0o4000;

/// The flag of an operation that is undone when its process ends (`docs/protocol.md`, "SemOp").
pub const SEM_UNDO: u16 = 0x1000;

/// The flag of `semget` that creates a set if no set has the key (`docs/protocol.md`, "SemGet").
pub const IPC_CREAT: u32 = 0o1000;

/// The flag of `semget` that fails if a set has the key (`docs/protocol.md`, "SemGet").
pub const IPC_EXCL: u32 = 0o2000;

/// The key with which `semget` creates a new set that has no key.
pub const IPC_PRIVATE: i32 = 0;

codes! {
    /// The reason why a call failed: the names of `errno.h`, with Linux's numbers. A call that failed has changed
    /// nothing.
    pub enum Errno: u32 {
        /// The caller is neither the owner nor the creator of the set.
        Perm = 1,
        /// No set has the key.
        NoEnt = 2,
        /// The call was canceled while it waited.
        Intr = 4,
        /// The set is durable, and the store cannot be written.
        Io = 5,
        /// The list has more than [`OPERATIONS_MAX`] operations.
        TooBig = 7,
        /// The call would have to wait, or has waited as long as it may.
        Again = 11,
        /// A limit is reached, such as that of calls that wait.
        NoMem = 12,
        /// The set's mode does not permit the call.
        Access = 13,
        /// A set has the key already.
        Exist = 17,
        /// The set does not exist, or an argument is outside its range.
        Inval = 22,
        /// An operation names a semaphore that the set does not have.
        FBig = 27,
        /// There are too many sets or semaphores.
        NoSpc = 28,
        /// A value or an adjustment would leave its range.
        Range = 34,
        /// The set was removed while the call waited.
        IdRm = 43,
    }
}

impl Errno {
    /// The name in `errno.h`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Perm => "EPERM",
            Self::NoEnt => "ENOENT",
            Self::Intr => "EINTR",
            Self::Io => "EIO",
            Self::TooBig => "E2BIG",
            Self::Again => "EAGAIN",
            Self::NoMem => "ENOMEM",
            Self::Access => "EACCES",
            Self::Exist => "EEXIST",
            Self::Inval => "EINVAL",
            Self::FBig => "EFBIG",
            Self::NoSpc => "ENOSPC",
            Self::Range => "ERANGE",
            Self::IdRm => "EIDRM",
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The id of a set. A client may name any number; the ids of sets are [`Self::FIRST`] and above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "views", derive(serde::Serialize, serde::Deserialize), serde(try_from = "i32"))]
pub struct SetId(pub i32);

impl SetId {
    /// The lowest id of a set. A kernel uses lower ids only.
    pub const FIRST: Self = Self(0x4000_0000);
}

impl fmt::Display for SetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A process. No other process of the server gets the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId(pub u64);

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A process that was opened (`docs/protocol.md`, "OpenProcess").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedProcess {
    /// Its number.
    pub process: ProcessId,
    /// Its secret.
    pub key: SessionKey,
    /// How long the server keeps it after its last connection was lost.
    pub ttl: Milliseconds,
}

/// The user and the group that a call is checked against, as the client states them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The effective user id.
    pub uid: u32,
    /// The effective group id.
    pub gid: u32,
}

/// One operation of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The number of the semaphore in its set.
    pub number: u16,
    /// The number that is added to the value; 0 waits until the value is 0.
    pub change: i16,
    /// [`IPC_NOWAIT`] and [`SEM_UNDO`].
    pub flags: u16,
}

impl Operation {
    /// Returns whether the call fails with [`Errno::Again`] if it would have to wait for this operation.
    #[inline]
    pub fn is_nowait(self) -> bool {
        self.flags & IPC_NOWAIT != 0
    }

    /// Returns whether the end of the process undoes the operation.
    #[inline]
    pub fn is_undone(self) -> bool {
        self.flags & SEM_UNDO != 0
    }
}

/// A command of `semctl` (`docs/protocol.md`, "SemCtl").
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetCommand {
    /// IPC_RMID: removes the set.
    Remove,
    /// IPC_SET: changes the owner and the mode.
    SetOwnership(Ownership),
    /// IPC_STAT: reads the key, the owner, the mode and the times.
    Stat,
    /// GETVAL: reads a semaphore's value.
    GetValue(u32),
    /// SETVAL: sets a semaphore's value.
    SetValue(u32, i32),
    /// GETALL: reads the values of all semaphores.
    GetAll,
    /// SETALL: sets the values of all semaphores.
    SetAll(Box<[u16]>),
    /// GETPID: reads the number of the process that operated on a semaphore last.
    GetPid(u32),
    /// GETNCNT: reads the number of calls that wait for a semaphore's value to grow.
    GetNCount(u32),
    /// GETZCNT: reads the number of calls that wait for a semaphore's value to become 0.
    GetZCount(u32),
}

impl SetCommand {
    /// Returns whether the command changes the set. The others only read it.
    pub fn is_change(&self) -> bool {
        matches!(self, Self::Remove | Self::SetOwnership(_) | Self::SetValue(..) | Self::SetAll(_))
    }
}

/// The result of a call that succeeded. The result of a failed call is an [`Errno`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetAnswer {
    /// The call is done.
    Done,
    /// `semget`: the set, and the number of its semaphores.
    Set(SetId, u32),
    /// The number that was asked for.
    Number(u32),
    /// The values of all semaphores (GETALL).
    Values(Box<[u16]>),
    /// The key, the owner, the mode and the times of the set (IPC_STAT).
    Stat(SetStat),
}

/// The owner and the mode of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "views", derive(serde::Serialize, serde::Deserialize))]
pub struct Ownership {
    /// The owner's user id.
    pub uid: u32,
    /// The owner's group id.
    pub gid: u32,
    /// The mode; its nine lowest bits count.
    pub mode: u32,
}

/// The key, the owner, the mode and the times of a set (IPC_STAT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetStat {
    /// The key; [`IPC_PRIVATE`] if the set was made without one.
    pub key: i32,
    /// The owner and the mode.
    pub ownership: Ownership,
    /// The creator's user id.
    pub creator_uid: u32,
    /// The creator's group id.
    pub creator_gid: u32,
    /// The time at which operations were last performed; `None`: never.
    pub operated_at: Option<UnixSeconds>,
    /// The time at which the set was created, or its values or its owner were last set.
    pub changed_at: UnixSeconds,
    /// The number of its semaphores.
    pub count: u32,
}

/// The order in which waiting calls are performed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "views", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Order {
    /// Each call is performed when it is possible, as in the kernel: a call that needs much may wait forever.
    #[default]
    Kernel,
    /// A call that takes from a semaphore waits for earlier calls that take from it.
    Fifo,
}

/// A set in a listing (`docs/protocol.md`, "ListSets").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedSet {
    /// Its id.
    pub set: SetId,
    /// Its key, owner, mode and times.
    pub stat: SetStat,
    /// The number of calls that wait.
    pub waiting: u32,
    /// The number of processes with adjustments.
    pub adjusting: u32,
    /// The order in which waiting calls are performed.
    pub order: Order,
    /// Whether it survives a restart of the server.
    pub is_durable: bool,
}

/// A process that uses a set (`docs/protocol.md`, "ListUsers").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedUser {
    /// Its role in the use of the set.
    pub role: UserRole,
    /// The process.
    pub process: ProcessId,
    /// Its number on its machine.
    pub pid: u32,
    /// Its user id.
    pub uid: u32,
    /// Its label.
    pub label: Box<[u8]>,
    /// The operations of a call that waits; or the adjustments, each as an operation without flags.
    pub operations: Box<[Operation]>,
}

codes! {
    /// The role of a process that uses a set.
    pub enum UserRole: u8 {
        /// It has adjustments, which are applied when it ends.
        Adjusts = 0,
        /// One of its calls waits.
        Waits = 1,
    }
}
