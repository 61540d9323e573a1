//! Exit statuses, those of `sysexits.h` where it has one, and failures that lead to them.

use std::io;
use std::process::ExitCode;

use nix::sys::signal::Signal;

use super::bench::load::LoadError;
use crate::client::{self, Status};

/// What the program's own endings mean to who started it. A command that `run` ran gives its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Exit {
    Success = 0,
    Failure = 1,
    Retiring = 2,
    Usage = 64,
    Data = 65,
    Unavailable = 69,
    System = 71,
    Output = 74,
    NothingAvailable = 75,
    NoPermission = 77,
    Configuration = 78,
    CannotRun = 126,
    CommandNotFound = 127,
}

/// The statuses for `--help` and the man page.
pub(super) const TABLE: &[(&str, &str)] = &[
    ("0", "success; for run: the command succeeded"),
    (
        "1",
        "the server refused the request, or there is no such name, session or grant; verify: nobody holds it",
    ),
    ("2", "verify: the grant is held yet, but not for long"),
    ("64", "the arguments are wrong"),
    (
        "65",
        "serve, data: what the data directory or an export holds is damaged, of a newer version, or not there",
    ),
    (
        "69",
        "no server answers, or it went away; for run: the command was ended because what it held was lost",
    ),
    (
        "71",
        "serve: a port cannot be bound, or the system refuses something else; serve, data: the data directory is in use",
    ),
    ("74", "the output, or the log file, cannot be written"),
    (
        "75",
        "run, acquire: nothing is available now, or was in time; run did not start the command; try again later; \
         await-idle: it did not become idle in time",
    ),
    ("77", "serve: the configured user cannot be taken on"),
    ("78", "the configuration is wrong; nothing was bound"),
    ("126", "run: the command cannot be run"),
    ("127", "run: the command is not found"),
    ("128+N", "run: the command died of signal N; run, acquire: signal N ended the waiting"),
    ("other", "run: the exit status of the command"),
];

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a subcommand ends early: a sentence for people and a status for scripts.
#[derive(Debug)]
pub(super) struct Failure {
    status: u8,
    /// `None` where there is nothing to say: who reads the output has read enough and closed the pipe, or who waited
    /// was told to stop.
    message: Option<String>,
}

impl Failure {
    pub(super) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { status: exit as u8, message: Some(message.into()) }
    }

    /// Ends as a shell says that a program ended by a signal.
    pub(super) fn interrupted(signal: Signal) -> Self {
        Self { status: u8::try_from(128 + signal as i32).expect("signals are small numbers"), message: None }
    }

    /// Says why on stderr and gives the status to exit with.
    pub(super) fn report(self) -> ExitCode {
        if let Some(message) = self.message {
            warn(&message);
        }
        self.status.into()
    }
}

/// Says something on stderr. Where that is closed, nobody wants to know.
pub(super) fn warn(message: &str) {
    use io::Write;
    let _ = writeln!(io::stderr(), "signalbox: {message}");
}

/// A failure to write the output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self { status: Exit::Success as u8, message: None };
        }
        Self::new(Exit::Output, format!("cannot write the output ({error}); check where it goes"))
    }
}

impl From<client::ConnectError> for Failure {
    fn from(error: client::ConnectError) -> Self {
        Self::new(Exit::Unavailable, error.to_string())
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        Self::new(Exit::Unavailable, error.to_string())
    }
}

impl From<client::Error> for Failure {
    fn from(error: client::Error) -> Self {
        use client::Error;
        let exit = match &error {
            Error::Status(
                Status::ResourceNotAvailable | Status::OutOfMemory | Status::TimedOut | Status::QueueFull,
            ) => Exit::NothingAvailable,
            Error::Status(Status::UnknownCommand) => Exit::Unavailable,
            Error::Status(_) => Exit::Failure,
            Error::UnknownStatus { .. }
            | Error::ConnectionLost(_)
            | Error::Body(_)
            | Error::Connect(_)
            | Error::Unreachable { .. }
            | Error::Lost(_) => Exit::Unavailable,
            Error::NameEmpty | Error::NameTooLong { .. } | Error::Claims(_) | Error::Declarations(_) => {
                Exit::Usage
            }
        };
        Self::new(exit, error.to_string())
    }
}
