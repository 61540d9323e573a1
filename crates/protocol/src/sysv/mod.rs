//! The operations of System V semaphore sets, `0x60` to `0x67` (`docs/protocol.md`, "System V semaphores").

mod answer;
mod errno;
mod list;
mod opcode;
mod request;

pub use answer::{OpenedProcess, SetStat, SysvAnswer};
pub use errno::Errno;
pub use list::{ListedSet, ListedUser, UserRole};
pub use opcode::SysvOpcode;
pub use request::{
    Caller, Groups, Operation, Operations, Ownership, SetCommand, SysvRequest, Values, WAIT_FOREVER_MS,
};

/// The most groups of a process (`docs/protocol.md`, "OpenProcess").
pub const GROUPS_MAX: usize = 1024;

/// The flag of an operation that fails instead of waiting (`docs/protocol.md`, "SemOp").
pub const IPC_NOWAIT: u16 = 0o4000;

/// The flag of an operation that is undone when its process ends (`docs/protocol.md`, "SemOp").
pub const SEM_UNDO: u16 = 0x1000;

/// The flag of SemGet that creates a set if there is none (`docs/protocol.md`, "SemGet").
pub const IPC_CREAT: u32 = 0o1000;

/// The flag of SemGet that fails if there is a set (`docs/protocol.md`, "SemGet").
pub const IPC_EXCL: u32 = 0o2000;
