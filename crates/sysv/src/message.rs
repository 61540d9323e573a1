//! Messages to the program's standard error.
//!
//! There are five occasions: variables that are ignored; settings or ids of sets that cannot be used, and settings that
//! keep the token from being sent; a server that cannot be reached; a server that refuses the token or a call; and a
//! token that cannot be read again. Each is reported once. An outage is reported again if the server was reached
//! meanwhile, and the last one if the token was read meanwhile. A message is one `write`, so that it is not mixed with
//! the program's own output, and bypasses the program's buffers.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether an occasion was reported.
pub struct Once(AtomicBool);

/// Variables are ignored, because Kubernetes has made them.
pub static IGNORED: Once = Once::new();

/// The settings or the id of a set cannot be used, or the settings keep the token from being sent.
pub static SETTINGS: Once = Once::new();

/// The server cannot be reached, or its answer is malformed.
pub static OUTAGE: Once = Once::new();

/// The server does not accept the token, or the program lacks a right.
pub static ACCESS: Once = Once::new();

/// The file of the token cannot be read again.
pub static TOKEN: Once = Once::new();

impl Once {
    const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Writes the message, unless the occasion was reported already.
    pub fn report(&self, message: impl Display) {
        if !self.0.swap(true, Ordering::Relaxed) {
            write(&format!("signalbox_sysv[{}]: {message}\n", std::process::id()));
        }
    }

    /// Notes that the occasion has passed, so that it can be reported again.
    pub fn clear(&self) {
        if self.0.load(Ordering::Relaxed) {
            self.0.store(false, Ordering::Relaxed);
        }
    }
}

/// Writes the message, and ends the program with status 1.
pub fn end_with(message: impl Display) -> ! {
    write(&format!("{message}\n"));
    // SAFETY: the program has not started, so nothing needs to run when it exits.
    unsafe { libc::_exit(1) }
}

fn write(line: &str) {
    // SAFETY: the line has this many bytes. If the descriptor is closed, the message is lost.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}
