//! `signalbox release`: releases what `acquire` acquired for a script.

use std::process::ExitCode;

use clap::Args;

use super::exit::{Exit, Failure};
use super::server::Server;
use super::session::SessionArguments;

const LONG: &str = "\
Release resources that were acquired with \"signalbox acquire\"

Closes the session, which releases everything that it holds. If the session did not exist any more, or did not hold its \
grant any more because that was revoked or its semaphore was removed, the exit status is 1: others may have held the \
resources in the meantime.

The session, its key and its grant are read from SIGNALBOX_SESSION, SIGNALBOX_KEY and SIGNALBOX_GRANT, which \"signalbox \
acquire\" prints. With --session, SIGNALBOX_GRANT is not read, as it belongs to another session: give --grant too. Without \
a grant, only the session is checked.";

const EXAMPLES: &str = "\
Examples:
  signalbox release
  render 7 && signalbox release --done || signalbox release
  trap 'signalbox release' EXIT; trap 'exit 129' HUP; trap 'exit 130' INT; trap 'exit 143' TERM";

/// Release resources that were acquired with "signalbox acquire"
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    session: SessionArguments,

    /// The work is done: those that wait with --share end, instead of working one after the other
    #[arg(long)]
    done: bool,

    #[command(flatten)]
    server: Server,
}

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let credentials = arguments.session.credentials()?;
    credentials.close(&arguments.server, arguments.done).await?;
    Ok(Exit::Success.into())
}
