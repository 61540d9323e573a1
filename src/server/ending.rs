//! The end of a process that must no longer serve clients, because another one does or may.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tracing::error;

/// How long writing the last line of the log may take before the process is killed.
const LAST_WORDS_MAX: Duration = Duration::from_millis(100);

/// Kills the process, so that the kernel closes all connections at once. An abort could first write a core file: it would
/// keep the connections open for that long, and contain the keys of sessions. A last line is logged if that succeeds in time.
pub(super) fn end_at_once(message: &'static str, reason: String) -> ! {
    let (sender, written) = mpsc::channel();
    let speaker = thread::Builder::new().spawn(move || {
        error!(reason, "{message}");
        let _ = sender.send(());
    });
    if speaker.is_ok() {
        let _ = written.recv_timeout(LAST_WORDS_MAX);
    }
    let _ = kill(Pid::this(), Signal::SIGKILL);
    // Not reached, unless the system forbids this process to kill itself.
    std::process::abort()
}
