//! The child of a fork is another process: it has no adjustments, and must not use the connections of its parent.
//!
//! The C library calls [`in_child`] in the child of every `fork`. A child that was made without it (by the system call
//! `clone`) has another process id, and therefore no process in the list; it keeps the inherited descriptors until it
//! ends or runs another program.

use std::ffi::c_int;

use crate::process;

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
}

/// Has the children of forks forget the process.
pub fn watch() {
    // SAFETY: the function stays where it is, as the library is never unloaded: it is loaded before the program.
    unsafe { pthread_atfork(None, None, Some(in_child)) };
}

/// An inherited socket would keep the parent's process alive on the server after the parent has ended.
extern "C" fn in_child() {
    process::abandon_all();
}
