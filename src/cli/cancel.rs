//! `signalbox cancel`: removes waiting requests from their queues.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;

use super::exit::{Exit, Failure};
use super::number::within;
use super::revoke::{no_such_session, session_id};
use super::server::{Server, permission_denied};
use signalbox_client::{Cancellation, Changed, GrantId, Operation, Status};

const LONG: &str = "\
Cancel a waiting request, or all waiting requests of a session

A canceled request leaves its queue, and its client is told that it was canceled. The session keeps what it holds. \
\"signalbox status\" prints the ids of requests in the column GRANT, which are the ids that their grants would get, and \
those of sessions. With --session, the command prints how many requests were canceled. A client that keeps running may \
request again; \"signalbox pause\" makes all requests for a name wait.

The server accepts this request from its own machine and from the addresses in admin_from of its configuration.";

const EXAMPLES: &str = "\
Examples:
  signalbox cancel --request 4711
  signalbox cancel --session 17";

const USAGE: &str = "signalbox cancel [OPTIONS] <--request <ID>|--session <ID>>";

/// Cancel a waiting request, or all waiting requests of a session
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES, override_usage = USAGE)]
pub(super) struct Arguments {
    #[command(flatten)]
    target: Target,

    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Target {
    /// Id of the waiting request
    #[arg(long, value_name = "ID", value_parser = within(0..=u64::MAX))]
    request: Option<u64>,

    /// Id of the session whose waiting requests are canceled; it keeps what it holds
    #[arg(long, value_name = "ID", value_parser = within(0..=u64::MAX))]
    session: Option<u64>,
}

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { target, server } = arguments;
    let what = match (target.request, target.session) {
        (Some(request), None) => Cancellation::Request(GrantId(request)),
        (None, Some(session)) => Cancellation::Session(session_id(session)?),
        _ => unreachable!("clap requires exactly one of them"),
    };
    let direct = server.direct().await?;
    let error = match (server.answer(direct.change(&Operation::Cancel(what))).await?, what) {
        (Ok(Changed::Count(requests)), Cancellation::Session(_)) => {
            writeln!(io::stdout(), "{requests}")?;
            return Ok(Exit::Success.into());
        }
        (Ok(_), _) => return Ok(Exit::Success.into()),
        (Err(error), _) => error,
    };
    let message = match (error.status(), what) {
        (Some(Status::NotFound), Cancellation::Request(id)) => {
            format!(
                "no request {id} waits; nothing was canceled; \"signalbox status\" lists the requests for a name"
            )
        }
        (Some(Status::NoSuchSession), Cancellation::Session(session)) => no_such_session(session.number()),
        (Some(Status::NotPermitted), _) => permission_denied("nothing was canceled"),
        _ => return Err(error.into()),
    };
    Err(Failure::new(Exit::Failure, message))
}
