//! `signalbox renew`: begins the lease anew of what `acquire` left to a script.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;

use super::exit::{Exit, Failure};
use super::server::{Server, block_on};
use super::session::SessionArguments;

const LONG: &str = "\
Renew the lease of what \"signalbox acquire\" acquired

Prints how many seconds the session lasts from now on if it is not renewed again. Where it is lost, the exit status is \
1, and others may hold what it held. The session and its key are taken from SIGNALBOX_SESSION and SIGNALBOX_KEY, which \
\"signalbox acquire\" prints.";

const EXAMPLES: &str = "\
Examples:
  signalbox renew
  signalbox renew > /dev/null || exit";

/// Renew the lease of what "signalbox acquire" acquired
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    session: SessionArguments,

    #[command(flatten)]
    server: Server,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let credentials = arguments.session.credentials()?;
    let left = block_on(credentials.renew(&arguments.server))?;
    writeln!(std::io::stdout(), "{}", left.as_secs_f64())?;
    Ok(Exit::Success.into())
}
