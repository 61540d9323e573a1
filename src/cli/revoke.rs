//! `signalbox revoke`: takes a grant, or a session with all its grants, from its holder.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::exit::{Exit, Failure};
use super::number::within;
use super::server::{Server, block_on, permission_denied};
use super::time::time_or_none;
use crate::client::{GrantId, Revocation, Status};

const LONG: &str = "\
Revoke a grant, or a session with everything that it holds

The server notifies the holder, and releases the resources when the grace period ends, whether the holder has stopped or \
not. \"signalbox holders\" prints the ids. A second revocation can shorten the grace period, but not extend it.

The server accepts this request from its own machine and from the addresses in admin_from of its configuration.";

const EXAMPLES: &str = "\
Examples:
  signalbox revoke --grant 4711
  signalbox revoke --session 17 --grace 5m";

const USAGE: &str = "signalbox revoke [OPTIONS] <--grant <ID>|--session <ID>>";

/// Revoke a grant, or a session with everything that it holds
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES, override_usage = USAGE)]
pub(super) struct Arguments {
    #[command(flatten)]
    target: Target,

    /// Grace period: how long the holder keeps its resources, so that it can stop; 0 for no time
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = time_or_none)]
    grace: Duration,

    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Target {
    /// Id of the grant
    #[arg(long, value_name = "ID", value_parser = within(0..=u64::MAX))]
    grant: Option<u64>,

    /// Id of the session; its grants are revoked, and its waiting requests end
    #[arg(long, value_name = "ID", value_parser = within(0..=u64::MAX))]
    session: Option<u64>,
}

impl Target {
    fn revocation(&self) -> Revocation {
        match (self.grant, self.session) {
            (Some(grant), None) => Revocation::Grant(GrantId(grant)),
            (None, Some(session)) => Revocation::Session(session),
            (Some(_), Some(_)) | (None, None) => unreachable!("clap requires exactly one of the two"),
        }
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    block_on(revoke(arguments))
}

async fn revoke(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { target, grace, server } = arguments;
    let revocation = target.revocation();
    let direct = server.direct().await?;
    let Err(error) = server.answer(direct.revoke(revocation, *grace)).await? else {
        return Ok(Exit::Success.into());
    };
    let message = match (error.status(), revocation) {
        (Some(Status::NotAcquired | Status::NoSuchSession), Revocation::Grant(grant)) => {
            format!(
                "grant {} is not held; nothing was revoked; \"signalbox holders\" lists the grants of a name",
                grant.0
            )
        }
        (Some(Status::NotAcquired | Status::NoSuchSession), Revocation::Session(session)) => {
            format!(
                "session {session} does not exist; nothing was revoked; \"signalbox holders\" lists sessions"
            )
        }
        (Some(Status::NotPermitted), _) => permission_denied("nothing was revoked"),
        _ => return Err(error.into()),
    };
    Err(Failure::new(Exit::Failure, message))
}
