//! The error numbers of System V calls.

use std::fmt;

use signalbox_model::codes;

codes! {
    /// Why a System V call failed: the names of `errno.h`, with Linux's numbers on the wire (`docs/protocol.md`, "System V
    /// semaphores").
    pub enum Errno: u32 {
        /// The caller is neither the owner nor the creator of the set.
        Perm = 1,
        /// No set has the key.
        NoEnt = 2,
        /// The call was canceled before it had an effect.
        Intr = 4,
        /// The set is durable, and the server cannot store the change.
        Io = 5,
        /// The list has too many operations.
        TooBig = 7,
        /// The call would have to wait, or has waited as long as it may.
        Again = 11,
        /// The server does not accept the call because of a limit.
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
