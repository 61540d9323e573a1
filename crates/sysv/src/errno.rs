//! The error numbers of calls, and `errno` itself.

use std::ffi::c_int;

use signalbox_model::Status;
use signalbox_model::sysv::Errno;

/// The error number that a call fails with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed(pub c_int);

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self(errno.code().cast_signed())
    }
}

impl Failed {
    /// The error of a call whose request the server refused with this status.
    pub fn by_status(status: u8) -> Self {
        Self(match Status::from_code(status) {
            Some(Status::UnknownCommand) => libc::ENOSYS,
            Some(Status::NotPermitted) => libc::EACCES,
            Some(Status::LimitReached | Status::OutOfMemory | Status::NotStored) => libc::ENOMEM,
            _ => libc::EINVAL,
        })
    }
}

/// The calling thread's `errno`.
pub fn current() -> c_int {
    // SAFETY: the C library returns the address of the thread's own variable.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's `errno`.
pub fn set(number: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = number };
}
