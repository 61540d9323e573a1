//! `signalbox revoke`: takes a grant or a session away from its holder.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::exit::{Exit, Failure};
use super::server::{Server, block_on};
use super::time::time_or_none;
use crate::client::{Error, GrantId, Revocation, Status};

const LONG: &str = "\
Take a grant or a session away from its holder

The holder is told, and when the grace is over the server frees what was held, whether the holder has stopped or not. \
\"signalbox holders\" tells the numbers. A second revocation may hasten the first and never delays it.

The server takes it from its own machine and from the addresses of admin_from in its configuration.";

const EXAMPLES: &str = "\
Examples:
  signalbox revoke --grant 4711
  signalbox revoke --session 17 --grace 5m";

const USAGE: &str = "signalbox revoke [OPTIONS] <--grant <ID>|--session <ID>>";

/// Take a grant or a session away from its holder
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES, override_usage = USAGE)]
pub(super) struct Arguments {
    #[command(flatten)]
    what: What,

    /// How long the holder keeps it yet, to come to an end; 0 is not at all
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = time_or_none)]
    grace: Duration,

    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct What {
    /// Number of the grant
    #[arg(long, value_name = "ID")]
    grant: Option<u64>,

    /// Number of the session, with all that it holds and waits for
    #[arg(long, value_name = "ID")]
    session: Option<u64>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    block_on(revoke(arguments))
}

async fn revoke(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { what, grace, server } = arguments;
    let direct = server.direct().await?;
    let (what, absent) = match (what.grant, what.session) {
        (Some(grant), _) => {
            let absent = format!("nobody holds the grant {grant}, or not any more; nothing has changed");
            (Revocation::Grant(GrantId(grant)), absent)
        }
        (None, session) => {
            let session = session.expect("clap requires one of the two");
            let absent = format!("there is no session {session}, or not any more; nothing has changed");
            (Revocation::Session(session), absent)
        }
    };
    match server.answer(direct.revoke(what, *grace)).await? {
        Err(Error::Status(Status::NotAcquired | Status::NoSuchSession)) => {
            Err(Failure::new(Exit::Failure, absent))
        }
        result => Ok(result.map(|()| Exit::Success.into())?),
    }
}
