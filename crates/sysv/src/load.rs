//! When the library is loaded, before the program runs.

use std::ffi::c_int;
use std::panic::catch_unwind;

use crate::settings::{Mode, is_check, mode};
use crate::{handover, message, next, process};

/// The dynamic linker calls what this section lists.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

/// Prepares the library, and takes over the process of a program that was replaced by this one.
pub extern "C" fn loaded() {
    let prepared = catch_unwind(|| {
        next::find_all();
        watch_forks();
        let settings = match mode() {
            Mode::On(settings) => Some(settings),
            Mode::Wrong(error) if is_check() => message::end_with(error),
            Mode::Off | Mode::Wrong(_) => None,
        };
        handover::take_over(settings);
    });
    // What was thrown may panic when it is dropped.
    std::mem::forget(prepared);
}

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
}

/// Has the children of forks forget the process: the child of a fork is another process. It has no adjustments, and must not use the
/// connections of its parent. A child that was made without `fork` (by the system call `clone`) has another process id, and
/// therefore no process in the list; it keeps the inherited descriptors until it ends or runs another program.
fn watch_forks() {
    // SAFETY: the function stays where it is, as the library is never unloaded: it is loaded before the program.
    unsafe { pthread_atfork(None, None, Some(in_child)) };
}

/// An inherited socket would keep the parent's process alive on the server after the parent has ended.
extern "C" fn in_child() {
    process::abandon_all();
}
