//! The command line of `signalbox run`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::cli::output::escaped;
use crate::cli::server::Server;
use crate::cli::values::time;
use crate::cli::wanted::{Waiting, Wanted};

/// Written by hand because the generator of the manual page omits the two dashes.
const USAGE: &str = "\
signalbox run [OPTIONS] --max <N> <NAME>... -- <COMMAND>...
       signalbox run [OPTIONS] <NAME[=R][:MAX]>... -- <COMMAND>...";

/// Run a command while holding resources
///
/// Acquires the resources of each NAME, runs the command, and releases the resources when the command ends. A NAME is a
/// limit: it is declared ("signalbox declare"), or its maximum comes with each request, with --max or after the NAME. A
/// maximum below the declared capacity is refused. Several NAMEs are acquired together, all or none, without deadlocks.
/// If the resources are in use, the command is not started and the exit status is 75; with --wait, the request first
/// waits in a fair queue. If the resources are numbered slots, the command gets their numbers in SIGNALBOX_SLOTS:
/// separated by commas, with a colon between those of different NAMEs. From the descriptor in SIGNALBOX_EVENTS_FD, it
/// can read what happens to the resources, as lines: "revoking 8000" (milliseconds), "expiring 2500" and "lost".
///
/// If the resources are lost, or signalbox gets SIGTERM, it sends SIGTERM to the command and all processes that the
/// command started, and SIGKILL after --kill-after, until none is left; then it releases the resources. SIGINT, SIGHUP,
/// SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the command, except those that the terminal has sent to it already,
/// and those that were ignored from the start (nohup). If a command ends by itself, the processes that it left behind
/// keep running and the resources are released; with --wait-children, they stay held until the last of these processes
/// has ended. The command stays in the process group, so that a shell's job control works on both. signalbox ends with
/// the exit status of the command, or by the same signal.
///
/// A leased session holds the resources; this requires signalbox's own server. The lease is renewed in the background
/// and survives disconnections shorter than two fifths of it. The command gets the id of the grant in SIGNALBOX_GRANT:
/// a fencing token, which grows with each grant of a NAME. If the lease cannot be renewed, SIGTERM is sent early enough
/// that SIGKILL after --kill-after still precedes the end of the lease, but not before two thirds of the lease have
/// passed. If an administrator revokes the resources, SIGTERM is sent at once, and SIGKILL before the grace period
/// ends.
///
/// With --share, only one of many commands that make the same result, such as an entry of a cache, is run. If it exits
/// with 0, those that wait meanwhile (--wait) are not started, and signalbox exits with 0 or with --done-status in
/// their place. If it fails or is killed, the next one is run. The work may be repeated after a failover or a restart
/// of the server, so the command should look for the result first.
///
/// With --counter or --semaphore, one NAME that has a maximum, and neither --lease nor --wait, the connection holds the
/// resources; this also works with yrmcdsd. If the connection is lost while the command runs, others may acquire the
/// resources, and --on-lost says what happens to the command. A server that vanishes (power, network) is detected after
/// about 30 seconds.
///
/// If signalbox itself is killed by SIGKILL, the command keeps running, but the server releases the resources when the
/// lease ends, or at once without a lease. To prevent that, start the command with "setpriv --pdeathsig KILL" (util-linux).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox run backup --max 1 -- /usr/local/bin/backup
  signalbox run backup --max 1 --wait 30m --lease 60 -- /usr/local/bin/backup
  signalbox run transcode --max 8 --resources 2 -- ffmpeg -i in.mov out.mp4
  signalbox run seats=2:4 licences:10 --wait max -- train
  signalbox run deploys --wait max -- deploy
  signalbox run page-7 --share --wait 10s -- render 7
  signalbox run backup --max 1 -- setpriv --pdeathsig KILL /usr/local/bin/backup", override_usage = USAGE)]
pub(in crate::cli) struct Arguments {
    #[command(flatten)]
    pub(super) wanted: Wanted,

    #[command(flatten)]
    pub(super) waiting: Waiting,

    /// How long the resources stay held without renewal
    ///
    /// It matters if this process cannot renew the lease. The server limits TIME.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(super) lease: Option<Duration>,

    /// What happens when resources are lost
    #[arg(long, value_enum, value_name = "WHAT", default_value = "kill")]
    pub(super) on_lost: OnLost,

    /// Time from SIGTERM to SIGKILL
    ///
    /// Both are sent to the command and its descendants.
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = time)]
    pub(super) kill_after: Duration,

    /// Hold the resources until the command's children end too
    ///
    /// For a command that goes into the background.
    #[arg(long)]
    pub(super) wait_children: bool,

    /// Command to run, with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

impl Arguments {
    /// Returns whether a plain connection can hold the resources.
    pub(super) fn is_plain(&self, server: &Server) -> bool {
        let Waiting { wait, share, .. } = self.waiting;
        server.kind().is_some() && self.lease.is_none() && wait.is_none() && !share
    }

    /// Returns the label in lists of holders and waiters: the command without its arguments, which others must not
    /// read.
    pub(super) fn task(&self) -> String {
        let program = self.command.first().map(|program| escaped(program.as_encoded_bytes()));
        format!("run[{}] {}", std::process::id(), program.unwrap_or_default())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OnLost {
    /// Send it and its descendants SIGTERM, and SIGKILL to those that do not end; exit with status 69
    Kill,
    /// Keep it running, although others may acquire its resources
    Continue,
}
