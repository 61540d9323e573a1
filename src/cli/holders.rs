//! `signalbox holders`: lists the holders of a name.

use std::process::ExitCode;

use clap::Args;

use super::exit::Failure;
use super::listing::{ListArguments, ListingKind, list};

const LONG: &str = "\
List the holders of a counter or semaphore

On a terminal, the output is a table with a header. Otherwise it is one line per holder, without a header, with these \
columns, separated by tabs: grant, session, resources, slots (such as 0-3,7), since (UTC), address, label, flags of the \
semaphore as in \"signalbox list\" (paused, out=0-3+7, ...). A missing value is -: plain Acquires have no grant, a \
disconnected session has no address, and only semaphores that were declared with --slots have slots. Characters are escaped as by \"signalbox dump\".

With --json, the output is one object per line with the keys grant, session, resources, slots (an array), since (in \
seconds since 1970), address, label, paused and slots_out (an array: the slots of the semaphore that are out of \
service); a missing value is null. A label that is not UTF-8 has the key label_hex, in \
hexadecimal digits.

With --sysv, NAME is a System V semaphore set, by its key (0x2a, 42) or as id:N. The holders are the processes with \
adjustments (SEM_UNDO), with these columns: process (its id on the server), process id on its host, user, adjustments \
(0:+1 adds 1 to semaphore 0 when the process ends), label. The JSON keys are process, pid, uid, adjustments (an array of \
objects with semaphore and adjustment) and label.";

const EXAMPLES: &str = "\
Examples:
  signalbox holders backup
  signalbox holders --semaphore deploys --json | jq .label
  signalbox holders --sysv 0x2a";

/// List the holders of a counter or semaphore
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    listing: ListArguments,
}

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    list(&arguments.listing, ListingKind::Holders).await
}
