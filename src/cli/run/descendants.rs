//! The descendants of this process, from `/proc`.

use std::collections::HashMap;
use std::fs;

use nix::Result;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};
use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

/// A descendant of this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    pub(super) pid: Pid,
    /// When it started, in ticks since the start of the system.
    started: u64,
    is_child: bool,
}

/// The id of a process and when it started, because the system reuses ids.
pub(super) type Identity = (Pid, u64);

impl Process {
    /// Returns the identity, which no other process has. It stays the same when the parent has ended and the process has
    /// become a child of this process.
    pub(super) fn identity(self) -> Identity {
        (self.pid, self.started)
    }

    /// Sends a signal to this process, and to no other that has its id now.
    pub(super) fn send(self, signal: Signal) -> Result<()> {
        // The id of a child is not reused before this process has waited for it.
        if self.is_child {
            return kill(self.pid, signal);
        }
        let pid = rustix::process::Pid::from_raw(self.pid.as_raw()).ok_or(Errno::ESRCH)?;
        let named = rustix::process::Signal::from_named_raw(signal as i32).ok_or(Errno::EINVAL)?;
        let of_kernel = |errno: rustix::io::Errno| Errno::from_raw(errno.raw_os_error());
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(of_kernel)?;
        match Stat::read(self.pid.as_raw()) {
            Some(Stat { started, .. }) if started == self.started => {
                pidfd_send_signal(process, named).map_err(of_kernel)
            }
            _ => Err(Errno::ESRCH),
        }
    }
}

/// Values of a process from `/proc`.
struct Stat {
    /// A letter of proc_pid_stat(5).
    state: char,
    parent: i32,
    started: u64,
}

impl Stat {
    fn read(pid: i32) -> Option<Self> {
        Self::parsed(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses the line of proc_pid_stat(5). The name of the program, in parentheses, may have any characters.
    fn parsed(line: &str) -> Option<Self> {
        let mut fields = line.rsplit_once(')')?.1.split_ascii_whitespace();
        // The third field is the state, the twenty-second the start.
        let state = fields.next()?.parse().ok()?;
        let parent = fields.next()?.parse().ok()?;
        let started = fields.nth(22 - 5)?.parse().ok()?;
        Some(Self { state, parent, started })
    }

    /// Returns whether the process does not run: it is stopped, by a signal or a debugger, or has ended.
    fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't' | 'Z' | 'X')
    }
}

/// Returns whether the descendants can be found: `/proc` is mounted, and is that of this PID namespace. In the `/proc` of
/// another namespace (`unshare --pid` without `--mount-proc`), the same ids are those of other processes.
pub(super) fn are_visible() -> bool {
    fs::read_link("/proc/self").is_ok_and(|own| own.as_os_str() == &*getpid().to_string())
}

/// Returns whether all descendants are stopped; `false` if they are not visible.
pub(super) fn are_stopped(command: Pid) -> bool {
    let is_stopped =
        |process: &Process| Stat::read(process.pid.as_raw()).is_none_or(|stat| stat.is_stopped());
    are_visible() && all(command, true).iter().all(is_stopped)
}

/// Returns the descendants that exist now; if the command runs, it is included even without `/proc`. Descendants that
/// seem to have ended are included, because the state of a process is that of its first thread: others may still run.
pub(super) fn all(command: Pid, command_runs: bool) -> Vec<Process> {
    let pids = are_visible().then(|| fs::read_dir("/proc")).into_iter().flatten().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut children: HashMap<i32, Vec<(i32, Stat)>> = HashMap::new();
    for (pid, stat) in pids.filter_map(|pid| Some((pid, Stat::read(pid)?))) {
        children.entry(stat.parent).or_default().push((pid, stat));
    }
    let own = std::process::id().cast_signed();
    let mut parents = vec![own];
    let mut found = Vec::new();
    while let Some(parent) = parents.pop() {
        for (pid, Stat { started, .. }) in children.remove(&parent).unwrap_or_default() {
            parents.push(pid);
            found.push(Process { pid: Pid::from_raw(pid), started, is_child: parent == own });
        }
    }
    if command_runs && !found.iter().any(|process| process.pid == command) {
        found.push(Process { pid: command, started: 0, is_child: true });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_program_may_look_like_other_fields() {
        let line =
            "7 (a) Z (b) S 5 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 123456 8192 1 18446744073709551615";
        let Stat { state, parent, started } = Stat::parsed(line).unwrap();
        assert_eq!((state, parent, started), ('S', 5, 123_456));
    }

    #[test]
    fn this_process_is_found_by_its_start() {
        let stat = Stat::read(std::process::id().cast_signed()).unwrap();
        assert!(stat.started > 0);
        let parent = std::os::unix::process::parent_id().cast_signed();
        assert_eq!(stat.parent, parent);
    }
}
