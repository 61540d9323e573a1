//! The process that created a client. The child of a fork has a copy of the client, with its sockets and without its
//! threads.
//!
//! The copy must not use the sockets, which belong to the parent; nothing serves its connections, because the threads
//! are missing; and its locks may stay locked forever. So each call first checks whether it runs in the process that
//! created the client.

use super::error::Disconnect;

/// The process that created a client, a session or a permit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Creator(u32);

impl Creator {
    pub(super) fn this_process() -> Self {
        Self(std::process::id())
    }

    pub(super) fn is_this_process(self) -> bool {
        self.0 == std::process::id()
    }

    /// Fails in any other process.
    pub(super) fn check(self) -> Result<(), Disconnect> {
        if self.is_this_process() { Ok(()) } else { Err(Disconnect::Forked) }
    }
}
