//! The opcodes of the System V operations.

/// The operations on semaphore sets, with their codes (`docs/protocol.md`, "System V semaphores").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SysvOpcode {
    /// Makes a process, the owner of adjustments.
    OpenProcess = 0x60,
    /// Continues a process on this connection.
    AttachProcess = 0x61,
    /// Keeps a process for a while although its connections end.
    KeepProcess = 0x62,
    /// Finds or creates a set.
    SemGet = 0x63,
    /// Performs a list of operations, all or none.
    SemOp = 0x64,
    /// Reads or changes a set.
    SemCtl = 0x65,
    /// Lists all sets.
    ListSets = 0x66,
    /// Lists the processes that wait for a set or have adjustments of it.
    ListUsers = 0x67,
}

impl SysvOpcode {
    /// The operation with this code; `None` if it is unknown.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x60 => Self::OpenProcess,
            0x61 => Self::AttachProcess,
            0x62 => Self::KeepProcess,
            0x63 => Self::SemGet,
            0x64 => Self::SemOp,
            0x65 => Self::SemCtl,
            0x66 => Self::ListSets,
            0x67 => Self::ListUsers,
            _ => return None,
        })
    }

    /// The code of the operation on the wire.
    pub fn code(self) -> u8 {
        self as u8
    }
}
