//! The history of grants: a line of JSON in a file when a grant is made, and one when it ends.
//!
//! A thread (`writer`) takes the entries from the core, and alone writes and reopens the file, so that a slow disk delays nothing
//! else.

mod writer;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::error;

use super::bell::Bell;
use super::metrics::Count;

/// How long the thread may take to write the last lines when the server stops.
const END_MAX: Duration = Duration::from_secs(1);

/// The history of a server; without a file, there is none.
#[derive(Debug, Default)]
pub(super) struct History {
    thread: OnceLock<Thread>,
    /// Lines that could not be written.
    unwritten: Count,
}

#[derive(Debug)]
struct Thread {
    bell: Arc<Bell>,
    /// Whether the file must be opened again.
    is_moved: Arc<AtomicBool>,
    handle: JoinHandle<()>,
}

impl History {
    /// Asks the writer to open the file again soon, and to create it if it was moved away.
    pub(super) fn reopen(&self) {
        if let Some(thread) = self.thread.get() {
            thread.is_moved.store(true, Ordering::Release);
            thread.bell.ring();
        }
    }

    /// Asks the writer to write the last lines, and waits for that, for [`END_MAX`] at most.
    pub(super) fn end(&self) {
        let Some(thread) = self.thread.get() else { return };
        if !thread.bell.end(&thread.handle, END_MAX) {
            error!("the last lines of the history of grants were not written within {} s", END_MAX.as_secs());
        }
    }

    /// Returns the number of lines that are lost because they could not be written.
    pub(super) fn unwritten(&self) -> u64 {
        self.unwritten.value()
    }
}
