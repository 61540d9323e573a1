//! `signalbox release`: gives back what `acquire` left to a script.

use std::process::ExitCode;

use clap::Args;

use super::exit::{Exit, Failure};
use super::server::{Server, block_on};
use super::session::SessionArguments;

const LONG: &str = "\
Give back what \"signalbox acquire\" acquired

Ends the session, and with it all that it holds. Where it was lost before, the exit status is 1: others may have held \
the same meanwhile. The session and its key are taken from SIGNALBOX_SESSION and SIGNALBOX_KEY, which \"signalbox \
acquire\" prints.";

const EXAMPLES: &str = "\
Examples:
  signalbox release
  trap 'signalbox release' EXIT";

/// Give back what "signalbox acquire" acquired
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
