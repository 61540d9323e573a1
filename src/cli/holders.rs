//! `signalbox holders`: who holds a name.

use std::process::ExitCode;

use clap::Args;

use super::exit::Failure;
use super::listing::{Kind, ListArguments, list};
use super::server::block_on;

const LONG: &str = "\
List who holds a counter or semaphore

On a terminal this is a table with a header. In a pipe it is one line a holder without a header: grant, session, \
resources, slots (as 0-3,7), since when (UTC), address and label, separated by tabs. A - stands where there is nothing: \
plain Acquires have no grant, a session that is not connected has no address, and only semaphores that are declared so \
have slots. Characters are escaped as \"signalbox dump\" does.

With --json it is one object a line with the keys grant, session, resources, slots (an array), since (in seconds since \
1970), address and label, of which those that there are not are null. A label that is no UTF-8 is label_hex, in \
hexadecimal digits.";

const EXAMPLES: &str = "\
Examples:
  signalbox holders backup
  signalbox holders --semaphore deploys --json | jq .label";

/// List who holds a counter or semaphore
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    listing: ListArguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    block_on(list(&arguments.listing, Kind::Holders))
}
