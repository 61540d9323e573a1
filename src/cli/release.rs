//! `signalbox release`: releases what `acquire` acquired for a script.

use std::process::ExitCode;

use clap::Args;

use super::exit::{Exit, Failure};
use super::server::{Server, block_on};
use super::session::SessionArguments;

const LONG: &str = "\
Release resources that were acquired with \"signalbox acquire\"

Closes the session, which releases everything that it holds. If the session does not exist any more, the exit status is \
1: others may have held its resources in the meantime. The session and its key are read from SIGNALBOX_SESSION and \
SIGNALBOX_KEY, which \"signalbox acquire\" prints.";

const EXAMPLES: &str = "\
Examples:
  signalbox release
  trap 'signalbox release' EXIT";

/// Release resources that were acquired with "signalbox acquire"
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
    block_on(credentials.close(&arguments.server))?;
    Ok(Exit::Success.into())
}
