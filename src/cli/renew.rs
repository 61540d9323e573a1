//! `signalbox renew`: renews the lease of a session that `acquire` handed over to a script.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;

use super::exit::{Exit, Failure};
use super::output::{json, seconds};
use super::server::Server;
use super::session::SessionArguments;

const LONG: &str = "\
Renew the lease of resources that were acquired with \"signalbox acquire\"

Prints the length of the lease in seconds, counted from now. If the session no longer exists, or does not hold its \
grant any more because that was revoked or its semaphore was removed, the exit status is 1, and others may hold the \
resources. While the grant is being revoked, a warning on standard error says how long is left.

The session, its key and its grant are read from SIGNALBOX_SESSION, SIGNALBOX_KEY and SIGNALBOX_GRANT, which \"signalbox \
acquire\" prints. With --session, SIGNALBOX_GRANT is not read, as it belongs to another session: give --grant too. Without \
a grant, only the session is checked.";

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

    /// Print one JSON object with the key lease (in seconds)
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: Server,
}

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let credentials = arguments.session.credentials()?;
    let lease = seconds(credentials.renew(&arguments.server).await?);
    let text = if arguments.json { json(&serde_json::json!({ "lease": lease })) } else { lease.to_string() };
    writeln!(std::io::stdout(), "{text}")?;
    Ok(Exit::Success.into())
}
