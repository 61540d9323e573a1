//! Starts the command of `run`, sends signals to it and its descendants, and waits for them.
//!
//! This process is a subreaper: a descendant whose parent has ended becomes a child of this process. So the descendants
//! have ended when this process has no children left.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid, getpgid, getpgrp, pipe2};
use rustix::process::{WaitOptions, WaitStatus, wait};
use tokio::signal::unix::{Signal as Arrivals, SignalKind, signal};

use super::descendants::{self, Identity, Process};
use crate::cli::executable;
use crate::cli::exit::{End, Exit, Failure};
use crate::cli::messages::warn;
use crate::cli::outer::{self, Holding, OUTER};
use crate::cli::output::escaped;
use crate::cli::session::{EVENTS_FD, GRANT, KEY, SESSION, SLOTS};
use crate::cli::signals::{STOPS, Signals, unblock};
use signalbox_client::GrantId;

/// Runs a script that does not name an interpreter, as shells do.
const SHELL: &str = "/bin/sh";

const SET_USER_ID: u32 = 0o4000;

/// The command and its descendants.
pub(super) struct Processes {
    command: Pid,
    /// How the command ended.
    ended: Option<WaitStatus>,
    /// The receiver of SIGCHLD.
    child_ends: Arrivals,
    /// The processes that were sent SIGTERM. A second SIGTERM would disturb their shutdown.
    asked: HashSet<Identity>,
    /// The processes to which this one may not send signals; each is reported once.
    protected: HashSet<Identity>,
    events: Events,
}

impl Processes {
    /// Starts the command. Its environment has its slots and what is held for it. The caller already listens for
    /// `signals`, so that none is missed. From now on, they include the signals that stop process groups, because a
    /// terminal would otherwise stop this process even if the command continues to run.
    pub(super) fn start(
        command: &[OsString],
        signals: &mut Signals,
        slots: Option<String>,
        holding: Option<&Holding>,
    ) -> Result<Self, Failure> {
        let (program, rest) = command.split_first().expect("clap requires a command");
        let unprepared = |error| Failure::system("prepare to wait for the command", &error);
        // SIGCHLD may have been ignored when this process started. Without this handler, the kernel would then discard how
        // the command ends.
        let child_ends = signal(SignalKind::child()).map_err(unprepared)?;
        unblock(&[Signal::SIGCHLD]).map_err(unprepared)?;
        signals.add(&STOPS).map_err(unprepared)?;
        nix::sys::prctl::set_child_subreaper(true).map_err(|errno| unprepared(errno.into()))?;

        if !descendants::are_visible() {
            warn(
                "there is no /proc here that shows this process (unshare has --mount-proc), so only the command itself can be \
                 ended, not the processes that it starts",
            );
        }
        let path = executable::find(program);
        if path.as_deref().is_some_and(runs_as_other_user) {
            warn(&format!(
                "command \"{}\" runs as another user, who may forbid signals from this one; if its resources are lost, it \
                 may have to be ended by hand",
                escaped(program.as_bytes())
            ));
        }
        let (events, reader) = Events::open().map_err(unprepared)?;
        let prepared = |mut command: Command| {
            command.env(EVENTS_FD, reader.as_raw_fd().to_string());
            // The command gets the variables of what is held for it, not those of an outer `run` or `acquire`.
            for variable in [SESSION, KEY, GRANT, SLOTS] {
                command.env_remove(variable);
            }
            command.envs(slots.as_ref().map(|slots| (SLOTS, slots)));
            if let Some(Holding::Grant(GrantId(grant))) = holding {
                command.env(GRANT, grant.to_string());
            }
            command.envs(holding.map(|holding| (OUTER, outer::with(holding))));
            command.args(rest).spawn()
        };
        let child = match (prepared(Command::new(program)), path) {
            (Err(error), Some(path)) if error.raw_os_error() == Some(Errno::ENOEXEC as i32) => {
                let mut shell = Command::new(SHELL);
                shell.arg(path);
                prepared(shell)
            }
            (result, _) => result,
        };
        let child = child.map_err(|error| Failure::of_command(program, &error))?;
        Ok(Self {
            command: Pid::from_raw(child.id().cast_signed()),
            ended: None,
            child_ends,
            asked: HashSet::new(),
            protected: HashSet::new(),
            events,
        })
    }

    /// Tells the command what happens to its resources.
    pub(super) fn tell(&mut self, event: Event) {
        self.events.send(event);
    }

    /// Waits until a child may have ended. Cancel safe.
    pub(super) async fn child_end(&mut self) {
        self.child_ends.recv().await;
    }

    /// Reaps the children that have ended, and records how the command ended. Returns whether any children are left.
    pub(super) fn reap(&mut self) -> bool {
        loop {
            // Unlike `waitpid(None)`, this includes children in other process groups.
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid.as_raw_pid() == self.command.as_raw() => {
                    self.ended = Some(status)
                }
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Returns how the command ended; `None` while it runs.
    pub(super) fn ended(&self) -> Option<End> {
        self.ended.map(|status| match (status.exit_status(), status.terminating_signal()) {
            (_, Some(signal)) => End::Signal(signal),
            (status, None) => End::Status(status.and_then(|status| u8::try_from(status).ok()).unwrap_or(1)),
        })
    }

    /// Sends a signal to the command, unless it was reaped. Until then, no other process has its id.
    pub(super) fn pass_on(&self, signal: Signal) {
        if self.ended.is_none()
            && let Err(error) = kill(self.command, signal)
        {
            let pid = self.command;
            warn(&format!("cannot send {signal} to the command: {error}; send it to process {pid} yourself"));
        }
    }

    /// Returns whether the command gets the signals that a terminal sends to the process group of this process. Commands
    /// such as `timeout` and `setsid` change to a different group.
    pub(super) fn is_in_group(&self) -> bool {
        getpgid(Some(self.command)) == Ok(getpgrp())
    }

    /// Returns whether the command and its descendants are stopped.
    pub(super) fn are_stopped(&self) -> bool {
        self.ended.is_none() && descendants::are_stopped(self.command)
    }

    /// Sends SIGTERM to each process that has not been sent one.
    pub(super) fn terminate(&mut self) {
        for process in self.all() {
            if self.asked.insert(process.identity()) {
                self.send(process, Signal::SIGTERM);
                // A stopped process handles SIGTERM only once it is continued.
                self.send(process, Signal::SIGCONT);
            }
        }
    }

    /// Kills all processes that exist now. This must be repeated, because one may be starting another at this moment.
    pub(super) fn kill(&mut self) {
        for process in self.all() {
            self.send(process, Signal::SIGKILL);
        }
    }

    /// Returns the failure for the processes that are left, which cannot be ended.
    pub(super) fn left(&self) -> Failure {
        let pids: Vec<_> = self.all().iter().map(|process| process.pid.to_string()).collect();
        let which = if pids.is_empty() { "that the command started".to_owned() } else { pids.join(", ") };
        Failure::new(
            Exit::System,
            format!(
                "cannot end the processes {which}: they do not end after SIGKILL, belong to another user, or are not found; end \
                 them before others use the resources"
            ),
        )
    }

    fn all(&self) -> Vec<Process> {
        descendants::all(self.command, self.ended.is_none())
    }

    fn send(&mut self, process: Process, signal: Signal) {
        match process.send(signal) {
            // The signal was sent, or the process has ended.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) if self.protected.insert(process.identity()) => {
                let pid = process.pid;
                warn(&format!("cannot send {signal} to process {pid}: {error}; end it yourself"));
            }
            Err(_) => {}
        }
    }
}

/// Returns whether this executable file runs as another user, so that the kernel may refuse signals from this
/// process.
fn runs_as_other_user(file: &Path) -> bool {
    let is_of_other = |file: std::fs::Metadata| {
        file.permissions().mode() & SET_USER_ID != 0 && file.uid() != geteuid().as_raw()
    };
    !geteuid().is_root() && file.metadata().is_ok_and(is_of_other)
}

/// An event of the resources, which the command reads as a line from a descriptor, so that programs in any language
/// learn of it. A line has the event, and perhaps how many milliseconds are left (`docs/run.md`, "Events").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// An administrator has revoked them, and the grace period ends after this time.
    Revoking(Duration),
    /// The lease cannot be renewed, and ends after this time.
    Expiring(Duration),
    /// They are lost: others may have them.
    Lost,
}

/// The pipe to which the command's events are written.
#[derive(Debug)]
struct Events(File);

impl Events {
    /// Opens a pipe. Returns its reading end too, which the command inherits; drop it once the command is started.
    fn open() -> io::Result<(Self, OwnedFd)> {
        // A command that reads nothing must not delay this process.
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::empty()))?;
        fcntl(&reader, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok((Self(writer.into()), reader))
    }

    /// Writes an event. There are only a few, so each fits into the pipe. If the command has closed the pipe, the event
    /// is discarded.
    fn send(&mut self, event: Event) {
        let line = match event {
            Event::Revoking(left) => format!("revoking {}\n", left.as_millis()),
            Event::Expiring(left) => format!("expiring {}\n", left.as_millis()),
            Event::Lost => "lost\n".to_owned(),
        };
        let _ = self.0.write_all(line.as_bytes());
    }
}
