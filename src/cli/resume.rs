//! `signalbox resume`: ends the pause of a declared semaphore.

use std::process::ExitCode;

use clap::Args;

use super::exit::Failure;
use super::pause::Paused;
use signalbox_client::Pausing;

const LONG: &str = "\
End the pause of a declared semaphore

The queue is served at once, in its order. A semaphore that is not paused stays as it is. The command prints the semaphore \
in the format of \"signalbox declare\".

The server accepts this request from its own machine and from the addresses in admin_from of its configuration.";

const EXAMPLES: &str = "\
Examples:
  signalbox resume deploys
  signalbox resume deploys --generation 1882571025678336021";

/// End the pause of a declared semaphore
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    paused: Paused,
}

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    arguments.paused.change(Pausing::Resume).await
}
