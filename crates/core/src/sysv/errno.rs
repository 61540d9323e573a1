//! The errors of System V calls.

/// Why a call failed, by the names of `errno.h`. A call that failed has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errno {
    /// EPERM: the caller is neither the owner nor the creator of the set.
    Perm,
    /// ENOENT: no set has the key.
    NoEnt,
    /// EINTR: the call was canceled while it waited.
    Intr,
    /// EIO: the set is durable, and the store cannot be written.
    Io,
    /// E2BIG: the list has more than 500 operations.
    TooBig,
    /// EAGAIN: the call would have to wait, or has waited as long as it may.
    Again,
    /// ENOMEM: too many calls wait for the set.
    NoMem,
    /// EACCES: the set's mode does not permit the call.
    Access,
    /// EEXIST: a set has the key already.
    Exist,
    /// EINVAL: the set does not exist, or an argument is outside its range.
    Inval,
    /// EFBIG: an operation names a semaphore that the set does not have.
    FBig,
    /// ENOSPC: there are too many sets or semaphores.
    NoSpc,
    /// ERANGE: a value or an adjustment would leave its range.
    Range,
    /// EIDRM: the set was removed while the call waited.
    IdRm,
}
