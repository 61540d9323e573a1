//! `libsignalbox_sysv.so`: sends the System V semaphore calls of unmodified programs to a signalbox server.
//!
//! A program is started with `LD_PRELOAD=libsignalbox_sysv.so`. The dynamic linker then finds `semget`, `semop`,
//! `semtimedop` and `semctl` here before it finds those of the C library. Calls for the keys of the settings become
//! requests (`docs/protocol.md`, "System V semaphores"); all others go to the kernel. `docs/sysv.md` describes what
//! programs and operators see.
//!
//! The library runs in a program that does not know of it:
//!
//! - It starts no thread. A call is a request and its response on a blocking connection.
//! - No panic crosses into the program: `entry` turns one into an error number.
//! - Signals are blocked during a call, except while it waits, so that a handler that calls `semop` finds everything in
//!   a consistent state. No lock is held while a call waits; the shared state is lists of atomics that only grow.
//! - After its first call, a thread that calls `semop` allocates nothing.
//!
//! From the outside in: the program calls `entry`, `exec` and `dlopen`, and the dynamic linker calls `loaded` before;
//! `call` performs one call across lost connections; `process` is the process on the server and its connections;
//! `connection` sends one request and waits for its response; `servers` has the addresses to connect to, and `token`
//! the token to show there; `socket` and `signals` use the operating system.

#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("the library supports only the C ABI of glibc on x86_64 and aarch64");

mod call;
mod connection;
mod control;
pub mod dlopen;
pub mod entry;
mod errno;
pub mod exec;
mod ids;
mod message;
mod next;
mod operation;
mod process;
mod servers;
mod settings;
mod signals;
mod socket;
mod token;

use std::ffi::c_int;
use std::panic::catch_unwind;

use settings::{Mode, is_check, mode};

/// The dynamic linker calls the functions in this section.
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
        exec::take_over(settings);
    });
    // The payload of a panic may panic when it is dropped.
    std::mem::forget(prepared);
}

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
}

/// Makes the children of forks forget the process: the child of a fork is another process. It has no adjustments, and must not
/// use the connections of its parent. A child that was made without `fork` (by the system call `clone`) has another process id,
/// and therefore no process in the list; it keeps the inherited descriptors until it ends or runs another program.
fn watch_forks() {
    // SAFETY: the function stays where it is, as the library is never unloaded: it is loaded before the program.
    unsafe { pthread_atfork(None, None, Some(in_child)) };
}

/// An inherited socket would keep the parent's process alive on the server after the parent has ended.
extern "C" fn in_child() {
    process::abandon_all();
}
