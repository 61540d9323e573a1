//! `signalbox waiters`: lists the wait queue of a name.

use std::process::ExitCode;

use clap::Args;

use super::exit::Failure;
use super::listing::{ListArguments, ListingKind, list};

const LONG: &str = "\
List the wait queue of a counter or semaphore, in order

On a terminal, the output is a table with a header. Otherwise it is one line per waiting request, without a header, \
with these columns, separated by tabs: position in the queue (from 1), grant (the id that it will have), session, \
resources, since (UTC), address, label, flags of the semaphore as in \"signalbox list\": while it is paused, or slots \
are out (out=0-3+7), requests wait although none of its resources are in use. A missing value is -. Characters are escaped as by \"signalbox dump\".

With --json, the output is one object per line with the keys position, grant, session, resources, since (in seconds \
since 1970), address, label, paused and slots_out (an array: the slots of the semaphore that are out of service); a missing value is null. A label that is not UTF-8 has the key label_hex, in \
hexadecimal digits.

With --sysv, NAME is a System V semaphore set, by its key (0x2a, 42) or as id:N. The waiters are the calls that wait, in \
the order in which they came, with these columns: position, process (its id on the server), process id on its host, user, \
operations (such as 0:-1 UNDO, or 1:0 to wait until semaphore 1 is 0), label. The JSON keys are position, process, pid, \
uid, operations (an array of objects with semaphore, change, nowait and undo) and label.";

const EXAMPLES: &str = "\
Examples:
  signalbox waiters backup
  signalbox waiters --semaphore deploys | wc -l
  signalbox waiters --sysv 0x2a";

/// List the wait queue of a counter or semaphore, in order
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    listing: ListArguments,
}

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    list(&arguments.listing, ListingKind::Waiters).await
}
