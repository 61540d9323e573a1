//! Exit statuses, from `sysexits.h` where it has one, and the failures that lead to them.

use std::ffi::OsStr;
use std::io;
use std::process::ExitCode;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;
use nix::sys::stat::{fstat, stat};

use super::messages::{self, warn};
use super::output::{escaped, sanitized};
use crate::config::ConfigError;
use signalbox_access::TokenFileError;
use signalbox_bench::LoadError;
use signalbox_client::{self, ConnectError, ErrorKind, Status};

/// The exit statuses of the program itself. With `run`, the exit status of the command takes precedence.
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

/// The exit statuses, for `--help` and the manual page.
pub(super) const TABLE: &[(&str, &str)] = &[
    ("0", "success; run: the command succeeded; verify: the grant is held"),
    (
        "1",
        "the server refused the request, or can never grant it; the name, session or grant does not exist; apply: some \
         changes were refused; verify: the grant is not held; cluster status: a node is silent",
    ),
    (
        "2",
        "verify: the grant is held, but it is being revoked or its semaphore is being removed; cluster status: no node \
         leads",
    ),
    ("64", "invalid arguments; bench: no process has the id of --pid"),
    ("65", "serve, data: the data directory or the export is damaged, missing, or of a newer version"),
    (
        "69",
        "cannot connect to the server, it does not answer, or the connection was lost; run: the command was stopped \
         because its resources were lost",
    ),
    (
        "71",
        "serve: a port cannot be bound, or another system error; serve, data: the data directory is in use, or \
         cannot be read or written; run: a limit of the system (descriptors, processes) prevents the start of the \
         command, or a process of the command cannot be ended; sysv run: the library cannot be loaded, or not into the \
         command; bench: the CPU time or memory of the process of --pid cannot be read",
    ),
    ("74", "the output or the log file cannot be written"),
    (
        "75",
        "run, acquire: the resources are in use, or were not granted in time (run did not start the command); \
         await-idle: the name is still in use",
    ),
    ("77", "serve: cannot switch to the configured user or group"),
    (
        "78",
        "serve, check-config: the configuration is invalid; no port was bound; apply: the file has a mistake; nothing was \
         changed",
    ),
    ("126", "run, sysv run: the command cannot be executed"),
    ("127", "run, sysv run: the command was not found"),
    (
        "128+N",
        "run: signal N ended the command; run, acquire: signal N ended the wait (signalbox ends by the same signal, which \
         a shell reports as this status)",
    ),
    ("other", "run, sysv run: the exit status of the command"),
];

impl From<Exit> for End {
    fn from(exit: Exit) -> Self {
        Self::Status(exit as u8)
    }
}

/// How this process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Status(u8),
    /// By the signal with this number, so that the parent process sees that it was a signal: a shell ends its loop on
    /// Ctrl-C, and systemd counts a stop as a success.
    Signal(i32),
}

impl End {
    /// Returns the exit status for `main` to return, or ends this process by the signal. Everything that this process
    /// holds must have been released.
    pub(super) fn exit(self) -> ExitCode {
        let signal = match self {
            Self::Status(status) => return ExitCode::from(status),
            Self::Signal(signal) => signal,
        };
        // `main` does this too, but not if the signal ends the process.
        messages::flush();
        // The kernel does not let the first process of a container end itself by a signal.
        if std::process::id() != 1 {
            // Fails only for a signal without a name.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
        ExitCode::from(u8::try_from(128 + signal).expect("signals are small numbers"))
    }
}

/// The failure of a subcommand: a message for people and an exit status for scripts. `run` also uses it to end with the
/// status of its command.
#[derive(Debug)]
pub(super) struct Failure {
    end: End,
    /// `None` if no message is needed: it was printed, the reader closed the pipe, a signal ended the wait, or another
    /// command has done the work.
    message: Option<String>,
}

impl Failure {
    pub(super) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { end: exit.into(), message: Some(message.into()) }
    }

    /// Returns the failure for invalid arguments.
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Returns the failure for a request that the server refused, or whose target does not exist.
    pub(super) fn refused(message: impl Into<String>) -> Self {
        Self::new(Exit::Failure, message)
    }

    /// Returns the failure for a wait that a signal ended.
    pub(super) fn interrupted(signal: Signal) -> Self {
        Self::silent(End::Signal(signal as i32))
    }

    /// Returns a failure without a message, because none is needed or it was printed.
    pub(super) fn silent(end: impl Into<End>) -> Self {
        Self { end: end.into(), message: None }
    }

    /// Returns the failure for a command that cannot be executed.
    pub(super) fn of_command(program: &OsStr, error: &io::Error) -> Self {
        let program = escaped(program.as_encoded_bytes());
        match error.kind() {
            io::ErrorKind::NotFound => Self::new(
                Exit::CommandNotFound,
                format!(
                    "command \"{program}\" not found; check its path, and that of the interpreter in its first line"
                ),
            ),
            _ if is_limit(error) => Self::system(&format!("run command \"{program}\""), error),
            _ => Self::new(
                Exit::CannotRun,
                format!("cannot run command \"{program}\": {error}; check that it is an executable file"),
            ),
        }
    }

    /// Returns the failure for an action that the system refuses to this process before its work begins. `what` names the
    /// action, such as "start a thread".
    pub(super) fn system(what: &str, error: &io::Error) -> Self {
        Self::new(Exit::System, format!("cannot {what}: {error}; raise the limits of this process (ulimit)"))
    }

    /// Returns the failure for output that cannot be written, with the consequences as a part of the message.
    pub(super) fn unwritten(error: &io::Error, consequences: &str) -> Self {
        let advice = "check the file or pipe that standard output goes to";
        Self::new(Exit::Output, format!("cannot write the output: {error}{consequences}; {advice}"))
    }

    /// Returns the message, sanitized for a terminal; empty if there is none.
    pub(super) fn message(&self) -> String {
        self.message.as_deref().map_or(String::new(), |message| sanitized(message).to_string())
    }

    /// Prints the message to stderr.
    pub(super) fn report(&self) {
        if let Some(message) = &self.message {
            warn(message);
        }
    }

    /// Prints the message to stderr and ends this process, or returns its exit status.
    pub(super) fn end(self) -> ExitCode {
        self.report();
        self.end.exit()
    }
}

/// Fails if standard output was closed when this process started, because a secret that is printed only once would be
/// lost. The Rust runtime replaces a closed output with /dev/null, open for reading and writing; a shell that discards
/// the output opens it only for writing.
pub(super) fn check_output() -> Result<(), Failure> {
    let is_readable = |flags| OFlag::from_bits_truncate(flags) & OFlag::O_ACCMODE == OFlag::O_RDWR;
    let null = stat("/dev/null").map(|null| (null.st_mode, null.st_rdev));
    let is_closed = null
        .is_ok_and(|null| fstat(io::stdout()).is_ok_and(|out| (out.st_mode, out.st_rdev) == null))
        && fcntl(io::stdout(), FcntlArg::F_GETFL).is_ok_and(is_readable);
    match is_closed {
        true => Err(Failure::new(
            Exit::Output,
            "standard output is closed, so the secret that is printed would be lost; nothing was changed; send the output to a \
             file or a pipe",
        )),
        false => Ok(()),
    }
}

/// An error while the output is written. The command succeeds if the reader of the output closed the pipe.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::silent(Exit::Success);
        }
        Self::unwritten(&error, "")
    }
}

/// Implements the conversion of error types, each of which has one exit status for all of its errors.
macro_rules! failures {
    ($($error:ty: $exit:ident,)*) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::new(Exit::$exit, error.to_string())
            }
        })*
    };
}

failures! {
    ConfigError: Configuration,
    LoadError: Unavailable,
    TokenFileError: Failure,
}

/// Returns whether the system refuses this process more descriptors, processes or memory.
fn is_limit(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EMFILE | Errno::ENFILE | Errno::EAGAIN | Errno::ENOMEM))
}

/// Returns the failure if a limit of the system prevented the connection.
pub(super) fn of_limit(error: &signalbox_client::Error) -> Option<Failure> {
    let ErrorKind::Connect(error) = error.kind() else { return None };
    match error {
        ConnectError::Thread { source } => Some(Failure::system("start a thread", source)),
        ConnectError::Refused { source, .. } | ConnectError::Resolve { source, .. } if is_limit(source) => {
            Some(Failure::system("connect to the server", source))
        }
        _ => None,
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        signalbox_client::Error::from(error).into()
    }
}

impl From<signalbox_client::Error> for Failure {
    fn from(error: signalbox_client::Error) -> Self {
        if let Some(failure) = of_limit(&error) {
            return failure;
        }
        let exit = match error.kind() {
            ErrorKind::Status(Status::ResourceNotAvailable | Status::TimedOut | Status::QueueFull) => {
                Exit::NothingAvailable
            }
            ErrorKind::Status(Status::UnknownCommand) => Exit::Unavailable,
            ErrorKind::Status(_)
            | ErrorKind::LimitReached { .. }
            | ErrorKind::Token(_)
            | ErrorKind::MaximumTooSmall { .. }
            | ErrorKind::Errno(_) => Exit::Failure,
            ErrorKind::NameLength { .. }
            | ErrorKind::NoCapacity
            | ErrorKind::Claims(_)
            | ErrorKind::Declarations(_) => Exit::Usage,
            // The server did not answer, or not as this client expects.
            _ => Exit::Unavailable,
        };
        let message = match error.kind() {
            ErrorKind::Status(Status::NotPermitted) => {
                format!(
                    "{error} (--token-file gives a token); the server's log names the right that is missing"
                )
            }
            ErrorKind::Connect(ConnectError::TimedOut { address, limit }) => format!(
                "{address} did not respond within {} s; check the server, or raise --timeout",
                limit.as_secs_f64()
            ),
            _ => error.to_string(),
        };
        Self::new(exit, message)
    }
}
