//! The command that `run` runs: starting it, signalling it, and what its end means.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use crate::cli::exit::{Exit, Failure, warn};
use crate::cli::output::escaped;
use crate::cli::session::SLOTS;

/// Starts the command, which finds its slots in its environment where there are some. Signals have to be listened for
/// already, so that none falls in between.
pub(super) fn start(command: &[OsString], slots: Option<String>) -> Result<Child, Failure> {
    let (program, rest) = command.split_first().expect("clap requires a command");
    let mut command = Command::new(program);
    // Not those of whoever started this program.
    command.args(rest).env_remove(SLOTS);
    command.envs(slots.map(|slots| (SLOTS, slots)));
    command.spawn().map_err(|error| {
        let program = escaped(program.as_encoded_bytes());
        match error.kind() {
            io::ErrorKind::NotFound => Failure::new(
                Exit::CommandNotFound,
                format!("the command {program} is not found; check its path"),
            ),
            _ => Failure::new(
                Exit::CannotRun,
                format!("the command {program} cannot be run ({error}); check that it may be executed"),
            ),
        }
    })
}

/// Signals the command. One that has ended but was not waited for is still there as a zombie, so its number is not
/// another process'; one that was waited for has no number here any more.
pub(super) fn send(child: &Child, signal: Signal) {
    let Some(number) = child.id().and_then(|number| i32::try_from(number).ok()) else {
        return;
    };
    if let Err(error) = kill(Pid::from_raw(number), signal) {
        warn(&format!("cannot send {signal} to the command ({error}); send it to process {number} yourself"));
    }
}

/// Asks the command to end.
pub(super) fn terminate(child: &Child) {
    send(child, Signal::SIGTERM);
    // A command that is stopped must go on to hear it.
    send(child, Signal::SIGCONT);
}

/// Waits for the command's end.
pub(super) async fn ended(child: &mut Child) -> Result<ExitStatus, Failure> {
    child.wait().await.map_err(|error| {
        Failure::new(
            Exit::CannotRun,
            format!("cannot wait for the command ({error}); check whether it still runs"),
        )
    })
}

/// The status that a shell would give.
pub(super) fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).map_or(Exit::Failure.into(), ExitCode::from)
}
