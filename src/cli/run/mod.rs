//! `signalbox run`: a command that runs only while resources are held for it.
//!
//! There are two ways to hold: `plain` by a connection, `leased` by a session. Either tells `supervise` when what is
//! held is about to be lost, and that ends the command.

mod child;
mod leased;
mod plain;
mod supervise;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::exit::Failure;
use super::server::{Server, block_on};
use super::time::time;
use super::wanted::{Amount, Waiting, Wanted};
use crate::client::Maximum;

const LONG: &str = "\
Run a command while holding resources

Acquires of the counter (with --semaphore, of the semaphore) NAME, runs the command, and gives back when the command \
ends. Several NAMEs are had together, all or none, and without deadlocks. Where nothing is available, the command is \
not started and the exit status is 75; with --wait, it is first waited for in a fair queue.

Counters and semaphores that the first request makes are given their maximum by --max or behind the NAME. A semaphore \
that \"signalbox declare\" declared has its own, so it needs none. Where its resources are numbered slots, the command \
finds their numbers in SIGNALBOX_SLOTS: separated by commas, and of several NAMEs a colon between those of one and of \
the next.

SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the command, but for those that were ignored \
from the start (nohup) and for SIGINT and SIGQUIT in the foreground of a terminal, whose Ctrl-C and Ctrl-\\ reach the \
command without help. The command stays in the process group, so that a shell's job control works on both. Before the \
command is started, they end the waiting.

With one NAME that has a maximum and neither --lease nor --wait, what is held ends with the connection, also that to yrmcdsd. If the \
server goes away while the command runs, others may acquire what was held. --on-lost says what happens then. A server \
that vanished without a word is noticed after about 30 seconds.

With --lease, --wait, several NAMEs or one without a maximum, what is held belongs to a session that is leased from signalbox's own server. \
The lease is renewed all the time, and survives cuts of the network that last less than two fifths of it. Where it \
cannot be renewed, the command is sent SIGTERM so long before its end that SIGKILL after --kill-after still comes \
before it, too, but not before two thirds of the lease have passed. Where an administrator takes away what is \
held, the command is sent SIGTERM at once, and SIGKILL before the grace is over.

If signalbox itself is killed by SIGKILL, the server frees the resources at once, or when the lease is over, while the \
command runs on; where that matters, run the command by \"setpriv --pdeathsig KILL\" (util-linux).

Only the command itself is signalled, not what it started; a shell script passes signals on by exec or trap.";

const EXAMPLES: &str = "\
Examples:
  signalbox run backup --max 1 -- /usr/local/bin/backup
  signalbox run backup --max 1 --wait=30m --lease 60 -- /usr/local/bin/backup
  signalbox run transcode --max 8 --resources 2 -- ffmpeg -i in.mov out.mp4
  signalbox run gpu=2/4 licences=10 --wait -- train
  signalbox run --semaphore deploys --wait -- deploy
  signalbox run backup --max 1 -- setpriv --pdeathsig KILL /usr/local/bin/backup";

/// Written out because the generator of the man page leaves away the two dashes.
const USAGE: &str = "\
signalbox run [OPTIONS] --max <N> <NAME>... -- <COMMAND>...
       signalbox run [OPTIONS] <NAME=[R/]MAX>... -- <COMMAND>...
       signalbox run [OPTIONS] --semaphore <NAME[=R/]>... -- <COMMAND>...";

/// Run a command while holding resources
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES, override_usage = USAGE)]
pub(super) struct Arguments {
    #[command(flatten)]
    wanted: Wanted,

    #[command(flatten)]
    waiting: Waiting,

    /// Hold by a session that lives for TIME without renewal, and survives cuts; the server has bounds for it
    #[arg(long, value_name = "TIME", value_parser = time)]
    lease: Option<Duration>,

    /// What to do with the command when what it holds is lost
    #[arg(long, value_enum, value_name = "WHAT", default_value = "kill")]
    on_lost: OnLost,

    /// How long after SIGTERM a command that does not end is sent SIGKILL
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = time)]
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
    let amounts = arguments.wanted.amounts(arguments.server.namespace())?;
    let needs_session = arguments.lease.is_some() || arguments.waiting.wait.is_some();
    match amounts.single() {
        // A plain Acquire has no way to ask for a semaphore as it is declared.
        Some(amount @ Amount { max: Some(max), .. }) if !needs_session => {
            block_on(plain::run(arguments, amount, Maximum(*max), &amounts))
        }
        _ => block_on(leased::run(arguments, &amounts)),
    }
}
