//! `signalbox renew`: renews the lease of a session that `acquire` handed over to a script.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;

use super::exit::{Exit, Failure};
use super::server::{Server, block_on};
use super::session::SessionArguments;

const LONG: &str = "\
Renew the lease of resources that were acquired with \"signalbox acquire\"

Prints the length of the lease in seconds, counted from now. If the session does not exist any more, the exit status is \
1, and others may hold its resources. The session and its key are read from SIGNALBOX_SESSION and SIGNALBOX_KEY, which \
\"signalbox acquire\" prints.";

const EXAMPLES: &str = "\
Examples:
  signalbox renew
  signalbox renew > /dev/null || exit";

/// Renew the lease of resources that were acquired with "signalbox acquire"
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
