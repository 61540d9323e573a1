//! What happens to the resources, as lines that the command reads from a descriptor: a program in any language learns of a
//! revocation by that. Each line has an event, and perhaps how many milliseconds are left (`docs/run.md`, "Events").

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::unistd::pipe2;

/// What happens to the resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// An administrator takes them away after this time.
    Revoking(Duration),
    /// The lease cannot be renewed, and ends after this time.
    Expiring(Duration),
    /// They are lost: others may have them.
    Lost,
}

/// Where the command's events are written.
#[derive(Debug)]
pub(super) struct Events(File);

impl Events {
    /// Opens a pipe. Its other end is for the command: it is left open when the command is started, and has to be dropped
    /// afterwards.
    pub(super) fn open() -> io::Result<(Self, OwnedFd)> {
        // A command that reads nothing must not delay this process.
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::empty()))?;
        fcntl(&reader, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok((Self(writer.into()), reader))
    }

    /// Writes an event. There are a few at most, so each one fits into the pipe; a command that has closed it needs none.
    pub(super) fn send(&mut self, event: Event) {
        let line = match event {
            Event::Revoking(left) => format!("revoking {}\n", left.as_millis()),
            Event::Expiring(left) => format!("expiring {}\n", left.as_millis()),
            Event::Lost => "lost\n".to_owned(),
        };
        let _ = self.0.write_all(line.as_bytes());
    }
}

/// The number of the descriptor, as the environment has it.
pub(super) fn number(reader: &OwnedFd) -> String {
    reader.as_raw_fd().to_string()
}
