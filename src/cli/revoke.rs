//! `signalbox revoke`: takes a grant, or sessions with all their grants, from their holders.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::exit::{Exit, Failure};
use super::number::within;
use super::server::{Server, permission_denied};
use super::time::time_or_none;
use crate::config::Clients;
use signalbox_client::{GrantId, Revocation, Status};
use signalbox_model::{Changed, Milliseconds, Operation, SessionId};

const LONG: &str = "\
Revoke a grant, or a session or all leased sessions of a client with everything that they hold

The server notifies the holder, and releases the resources when the grace period ends, whether the holder has stopped or \
not. \"signalbox status\" prints the ids, and \"signalbox sessions\" the addresses of clients. A second revocation can shorten the grace period, but not extend it.

With --client, the command prints how many sessions were revoked: the leased sessions whose client connects from the \
address or network, or with the token or certificate, or did last. \"signalbox sessions\" shows these as token:NAME and \
certificate:NAME. The server goes on if --timeout is over before; 100,000 sessions with a data directory \
take some seconds. Connections are not closed: what a connection holds without a lease is released when its client \
disconnects, or by --session with its id. A client that keeps running may open new sessions. System V processes are not \
revoked. A session that was restored at the start of the server and whose client has not come back has no address and no identity.

The server accepts this request from its own machine and from the addresses in admin_from of its configuration.";

const EXAMPLES: &str = "\
Examples:
  signalbox revoke --grant 4711
  signalbox revoke --session 17 --grace 5m
  signalbox revoke --client 192.0.2.7 --grace 0
  signalbox revoke --client 2001:db8::/64
  signalbox revoke --client token:deploy";

const USAGE: &str = "signalbox revoke [OPTIONS] <--grant <ID>|--session <ID>|--client <CLIENT>>";

/// Revoke a grant, or a session or all leased sessions of a client with everything that they hold
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES, override_usage = USAGE)]
pub(super) struct Arguments {
    #[command(flatten)]
    target: Target,

    /// Grace period: how long the holder keeps its resources, so that it can stop; 0 for no time [default: 10]
    #[arg(long, value_name = "TIME", value_parser = time_or_none)]
    grace: Option<Duration>,

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

    /// Client whose leased sessions are revoked: its address, a network such as 10.0.0.0/8, token:NAME or certificate:NAME
    #[arg(long, value_name = "CLIENT")]
    client: Option<Clients>,
}

impl Target {
    fn revocation(&self) -> Result<Revocation<'_>, Failure> {
        Ok(match (self.grant, self.session, &self.client) {
            (Some(grant), None, None) => Revocation::Grant(GrantId(grant)),
            (None, Some(session), None) => Revocation::Session(session_id(session)?),
            (None, None, Some(clients)) => clients.revocation(),
            _ => unreachable!("clap requires exactly one of them"),
        })
    }
}

/// The session with this number. No session has the number 0.
pub(super) fn session_id(number: u64) -> Result<SessionId, Failure> {
    SessionId::from_number(number).ok_or_else(|| Failure::new(Exit::Failure, no_such_session(number)))
}

pub(super) fn no_such_session(number: u64) -> String {
    format!("session {number} does not exist; \"signalbox sessions\" lists sessions")
}

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { target, grace, server } = arguments;
    let what = target.revocation()?;
    let direct = server.direct().await?;
    let grace = grace.map_or(Milliseconds::GRACE_DEFAULT, Milliseconds::saturating_from);
    let operation = Operation::Revoke { what, grace };
    let error = match server.answer(direct.change(&operation)).await? {
        Ok(changed) => {
            if let Changed::Count(sessions) = changed {
                writeln!(io::stdout(), "{sessions}")?;
            }
            return Ok(Exit::Success.into());
        }
        Err(error) => error,
    };
    let message = match (error.status(), what) {
        (Some(Status::NotAcquired | Status::NoSuchSession), Revocation::Grant(grant)) => {
            format!(
                "grant {} is not held; nothing was revoked; \"signalbox status\" lists the grants of a name",
                grant.0
            )
        }
        (Some(Status::NotAcquired | Status::NoSuchSession), Revocation::Session(session)) => {
            no_such_session(session.number())
        }
        (Some(Status::NotPermitted), _) => permission_denied("nothing was revoked"),
        _ => return Err(error.into()),
    };
    Err(Failure::new(Exit::Failure, message))
}
