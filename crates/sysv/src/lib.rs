//! `libsignalbox_sysv.so`: sends the System V semaphore calls of unmodified programs to a signalbox server.
//!
//! A program is started with `LD_PRELOAD=libsignalbox_sysv.so`. The dynamic linker then finds `semget`, `semop`,
//! `semtimedop` and `semctl` here before it finds those of the C library. Calls for the keys of the settings become
//! requests (`docs/protocol.md`, "System V semaphores"); all others go on to the kernel. `docs/sysv.md` describes what
//! programs and operators see.
//!
//! The library is a guest in a program that does not know of it:
//!
//! - It starts no thread. A call is a request and its response on a blocking connection.
//! - No panic crosses into the program: `entry` turns one into an error number.
//! - Signals are blocked during a call, except while it waits, so that a handler that calls `semop` finds everything in
//!   a consistent state. No lock is held while a call waits; the shared state is lists that only grow, of atomics.
//! - After its first call, a thread that calls `semop` allocates nothing.
//!
//! From the outside inwards: `entry`, `exec`, `dlopen` and `load` are called by the program; `call` performs one call
//! across lost connections; `process` is the process on the server and its connections; `connection` sends one request
//! and waits for its response; `servers` has the addresses to connect to, and `token` what proves to them what the program
//! may do; `socket` and `signals` are the system.

#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("the library knows the C ABI of glibc on x86_64 and aarch64 alone");

mod call;
mod connection;
mod control;
pub mod dlopen;
pub mod entry;
mod errno;
pub mod exec;
mod handover;
mod ids;
pub mod load;
mod message;
mod next;
mod operation;
mod process;
mod servers;
mod settings;
mod signals;
mod socket;
mod token;
