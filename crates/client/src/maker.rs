//! The process that has made a client. The child of a fork has a copy of it, with its sockets and without its threads.
//!
//! The copy answers nothing, since nothing drives it; it must not use the sockets, which are those of the parent; and its locks may
//! stay locked for ever. So each call asks first whether it is made by the maker.

use super::error::Disconnect;

/// The process that has made something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maker(u32);

impl Maker {
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
