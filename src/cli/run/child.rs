//! The command of `run`: starts it, sends it signals, and maps its end to an exit status.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use crate::cli::exit::{Exit, Failure, warn};
use crate::cli::session::{GRANT, SLOTS};
use signalbox_client::GrantId;

/// Starts the command, with its slots and its grant in the environment if it has any. The caller must already listen for signals, so
/// that none is missed.
pub(super) fn start(
    command: &[OsString],
    slots: Option<String>,
    grant: Option<GrantId>,
) -> Result<Child, Failure> {
    let (program, rest) = command.split_first().expect("clap requires a command");
    let mut command = Command::new(program);
    // This program may itself run under `signalbox run`; its slots and its grant are not the command's.
    command.args(rest).env_remove(SLOTS).env_remove(GRANT);
    command.envs(slots.map(|slots| (SLOTS, slots)));
    command.envs(grant.map(|GrantId(grant)| (GRANT, grant.to_string())));
    command.spawn().map_err(|error| Failure::of_command(program, &error))
}

/// Sends a signal to the command. A command that has ended but was not waited for is a zombie, so its process id cannot
/// belong to another process; a command that was waited for no longer has an id here.
pub(super) fn send(child: &Child, signal: Signal) {
    let Some(number) = child.id().and_then(|number| i32::try_from(number).ok()) else {
        return;
    };
    if let Err(error) = kill(Pid::from_raw(number), signal) {
        warn(&format!("cannot send {signal} to the command: {error}; send it to process {number} yourself"));
    }
}

/// Asks the command to end, with SIGTERM.
pub(super) fn terminate(child: &Child) {
    send(child, Signal::SIGTERM);
    // A stopped command handles SIGTERM only once it is continued.
    send(child, Signal::SIGCONT);
}

/// Waits for the end of the command.
pub(super) async fn ended(child: &mut Child) -> Result<ExitStatus, Failure> {
    child.wait().await.map_err(|error| {
        Failure::new(
            Exit::CannotRun,
            format!("cannot wait for the command: {error}; check whether it is still running"),
        )
    })
}

/// The exit status that a shell reports.
pub(super) fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).map_or(Exit::Failure.into(), ExitCode::from)
}
