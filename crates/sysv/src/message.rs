//! Messages to the program's standard error.
//!
//! There are five occasions: variables that are ignored; settings that cannot be used, or that keep the token from being sent; a
//! server that cannot be reached; a server that refuses the token or a call; and a token that cannot be read again. Each is
//! reported once, an outage again after the server was reached in between, and the last one after the token was read in
//! between. A message is one `write`, so that it is not mixed with the program's own output, and goes past the
//! program's buffers.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether an occasion was reported.
pub struct Once(AtomicBool);

/// Variables are ignored, because Kubernetes has made them.
pub static IGNORED: Once = Once::new();

/// The settings cannot be used.
pub static SETTINGS: Once = Once::new();

/// The server cannot be reached, or refuses what every call needs.
pub static OUTAGE: Once = Once::new();

/// The server does not accept the token, or the program lacks a right.
pub static ACCESS: Once = Once::new();

/// The file of the token cannot be read again.
pub static TOKEN: Once = Once::new();

impl Once {
    const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Writes the message if none was written before.
    pub fn report(&self, message: impl Display) {
        if !self.0.swap(true, Ordering::Relaxed) {
            write(&format!("signalbox_sysv[{}]: {message}\n", std::process::id()));
        }
    }

    /// The occasion has passed.
    pub fn clear(&self) {
        if self.0.load(Ordering::Relaxed) {
            self.0.store(false, Ordering::Relaxed);
        }
    }
}

/// Ends the program with status 1 and the message alone.
pub fn end_with(message: impl Display) -> ! {
    write(&format!("{message}\n"));
    // SAFETY: the program has not begun, so it has nothing to do at its end.
    unsafe { libc::_exit(1) }
}

fn write(line: &str) {
    // SAFETY: the line has this many bytes. If the descriptor is closed, the message is lost.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}
