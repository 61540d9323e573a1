//! `signalbox waiters`: who waits for a name, in the order in which they will get it.

use std::process::ExitCode;

use clap::Args;

use super::exit::Failure;
use super::listing::{Kind, ListArguments, list};
use super::server::block_on;

const LONG: &str = "\
List who waits for a counter or semaphore, the first in the queue first

On a terminal this is a table with a header. In a pipe it is one line a request without a header: place in the queue \
from 1, grant that it will be, session, resources, since when (UTC), address and label, separated by tabs. A - stands \
where there is nothing. Characters are escaped as \"signalbox dump\" does.

With --json it is one object a line with the keys position, grant, session, resources, since (in seconds since 1970), \
address and label, of which those that there are not are null. A label that is no UTF-8 is label_hex, in hexadecimal \
digits.";

const EXAMPLES: &str = "\
Examples:
  signalbox waiters backup
  signalbox waiters --semaphore deploys | wc -l";

/// List who waits for a counter or semaphore, the first in the queue first
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    listing: ListArguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    block_on(list(&arguments.listing, Kind::Waiters))
}
