//! `signalbox run`: a command that runs only while resources are held for it.
//!
//! The resources are this process' connection's: they are given back when the command ends, and by the server when
//! this process dies or the connection is lost. So the command must not run on without us where that can be helped:
//! when the connection is lost it is ended, unless the user chose otherwise. That this process is killed by SIGKILL
//! cannot be helped from here (the parent-death signal would need unsafe code); the documentation says what to do.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use clap::{Args, ValueEnum};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep_until};

use super::exit::{Exit, Failure, warn};
use super::name::Name;
use super::output::escaped;
use super::server::{Server, block_on, seconds};
use super::signals::Signals;
use crate::client::{Error, Loss, Maximum, PlainClient, Resources, Status};

const LONG: &str = "\
Run a command while holding resources

Acquires of the counter (with --semaphore, of the semaphore) NAME, runs the command, and gives back when the command \
ends. Where nothing is available, the command is not started and the exit status is 75.

SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the command, but for those that were ignored \
from the start (nohup) and for SIGINT and SIGQUIT in the foreground of a terminal, whose Ctrl-C and Ctrl-\\ reach the \
command without help. The command stays in the process group, so that a shell's job control works on both.

If the server goes away while the command runs, others may acquire what was held. --on-lost says what happens then. \
A server that vanished without a word is noticed after about 30 seconds. If signalbox itself is killed by SIGKILL, \
the server frees the resources at once while the command runs on; where that matters, run the command by \
\"setpriv --pdeathsig KILL\" (util-linux).

Only the command itself is signalled, not what it started; a shell script passes signals on by exec or trap.";

const EXAMPLES: &str = "\
Examples:
  signalbox run backup --max 1 -- /usr/local/bin/backup
  signalbox run transcode --max 8 --resources 2 -- ffmpeg -i in.mov out.mp4
  signalbox run backup --max 1 -- setpriv --pdeathsig KILL /usr/local/bin/backup";

/// Written out because the generator of the man page leaves away the two dashes.
const USAGE: &str = "signalbox run [OPTIONS] --max <N> <NAME> -- <COMMAND>...";

/// Run a command while holding resources
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES, override_usage = USAGE)]
pub(super) struct Arguments {
    /// Counter or semaphore to acquire of
    #[arg(value_parser = Name::parser())]
    name: Name,

    /// How many resources there are altogether; a semaphore that exists keeps its own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max: u32,

    /// How many resources to acquire
    #[arg(long, value_name = "R", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    resources: u32,

    /// What to do with the command when the connection to the server is lost
    #[arg(long, value_enum, value_name = "WHAT", default_value = "kill")]
    on_lost: OnLost,

    /// How long after SIGTERM a command that does not end is sent SIGKILL, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    kill_after: Duration,

    #[command(flatten)]
    server: Server,

    /// Command to run, with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnLost {
    /// Send it SIGTERM, and SIGKILL if it does not end; the exit status is 69
    Kill,
    /// Let it run on, although others may acquire what it held
    Continue,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.resources > arguments.max {
        let message = format!(
            "--resources {} can never fit --max {}; lower one or raise the other",
            arguments.resources, arguments.max
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    block_on(acquire_and_run(arguments))
}

async fn acquire_and_run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let client = arguments.server.connect().await?;
    acquire(arguments, &client).await?;
    let result = match start(arguments) {
        Ok((child, signals)) => supervise(arguments, &client, child, signals).await,
        Err(failure) => Err(failure),
    };
    release(arguments, &client).await;
    result
}

async fn acquire(arguments: &Arguments, client: &PlainClient) -> Result<(), Failure> {
    let Arguments { name, server, .. } = arguments;
    let call = client.acquire(name.bytes(), Resources(arguments.resources), Maximum(arguments.max));
    match server.answer(call).await? {
        Err(Error::Status(Status::ResourceNotAvailable)) => Err(Failure::new(
            Exit::NothingAvailable,
            format!(
                "{} of the {} {name} cannot be had now; try again later",
                arguments.resources,
                server.kind()
            ),
        )),
        result => result.map(drop).map_err(Failure::from),
    }
}

/// Starts the command. From here on signals are its business.
fn start(arguments: &Arguments) -> Result<(Child, Signals), Failure> {
    // Before the command is there, so that no signal falls in between.
    let signals = Signals::listen().map_err(|error| {
        Failure::new(Exit::CannotRun, format!("cannot listen for signals ({error}); the command was not run"))
    })?;
    let (program, rest) = arguments.command.split_first().expect("clap requires a command");
    let child = Command::new(program).args(rest).spawn().map_err(|error| {
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
    })?;
    Ok((child, signals))
}

/// Waits for the command's end and gives the status to exit with; meanwhile passes on signals and heeds the
/// connection.
async fn supervise(
    arguments: &Arguments,
    client: &PlainClient,
    mut child: Child,
    mut signals: Signals,
) -> Result<ExitCode, Failure> {
    let mut connection = Some(client);
    let mut kill_at = None;
    let status = loop {
        tokio::select! {
            // A command that has ended is never blamed on a connection that was lost at the same time.
            biased;
            status = child.wait() => break status,
            signal = signals.next() => send(&child, signal),
            loss = lost(connection) => {
                connection = None;
                report_loss(arguments, &loss);
                if arguments.on_lost == OnLost::Kill {
                    send(&child, Signal::SIGTERM);
                    // A command that is stopped must go on to hear it.
                    send(&child, Signal::SIGCONT);
                    kill_at = Some(Instant::now() + arguments.kill_after);
                }
            }
            () = reached(kill_at) => {
                send(&child, Signal::SIGKILL);
                kill_at = None;
            }
        }
    };
    let status = status.map_err(|error| {
        Failure::new(
            Exit::CannotRun,
            format!("cannot wait for the command ({error}); check whether it still runs"),
        )
    })?;
    let ended_by_loss = connection.is_none() && arguments.on_lost == OnLost::Kill;
    Ok(if ended_by_loss { Exit::Unavailable.into() } else { exit_code(status) })
}

/// Resolves when the connection is lost, once.
async fn lost(connection: Option<&PlainClient>) -> Loss {
    match connection {
        Some(client) => client.closed().await,
        None => std::future::pending().await,
    }
}

async fn reached(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn report_loss(arguments: &Arguments, loss: &Loss) {
    let Arguments { name, server, .. } = arguments;
    let consequence = match arguments.on_lost {
        OnLost::Kill => "the command is sent SIGTERM",
        OnLost::Continue => "the command runs on",
    };
    warn(&format!(
        "the connection to {} was lost ({loss}), so others may acquire of {name} now; {consequence}",
        server.address()
    ));
}

/// Signals the command. One that has ended but was not waited for is still there as a zombie, so its number is not
/// another process'; one that was waited for has no number here any more.
fn send(child: &Child, signal: Signal) {
    let Some(number) = child.id().and_then(|number| i32::try_from(number).ok()) else {
        return;
    };
    if let Err(error) = kill(Pid::from_raw(number), signal) {
        warn(&format!("cannot send {signal} to the command ({error}); send it to process {number} yourself"));
    }
}

/// The status that a shell would give.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).map_or(Exit::Failure.into(), ExitCode::from)
}

/// Gives back before the connection is closed, so that who acquires next finds it given back. Where that fails, the
/// end of the connection does it.
async fn release(arguments: &Arguments, client: &PlainClient) {
    let call = client.release(arguments.name.bytes(), Resources(arguments.resources));
    match arguments.server.answer(call).await {
        Ok(Ok(()) | Err(Error::ConnectionLost(_))) => {}
        Ok(Err(error)) => warn(&format!("giving back {} failed: {error}", arguments.name)),
        Err(failure) => drop(failure.report()),
    }
}
