//! `signalbox verify`: whether a grant is held.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::exit::{Exit, Failure};
use super::output::{Form, NOTHING, json};
use super::server::{Server, block_on};
use crate::client::{Error, GrantId, GrantState, Status, TtlLeft, VerifiedGrant};

const LONG: &str = "\
Tell whether a grant is held, by whom, and for how long yet

A grant is held; or retiring, which is held yet, but its revocation is under way, or its semaphore was shrunk below its \
slot, is being removed, or was removed and declared anew; or gone. The exit status is 0, 2 or 1.

On a terminal this is a table with a header. In a pipe it is one line without a header: which of the three, session and \
seconds that its lease lasts without renewal, separated by tabs. A - stands where there is nothing: the session of a \
connection lasts as long as that. With --json it is one object with the keys grant, standing, session and left, of which \
those that there are not are null.

Asking renews nothing. Whoever is sent the number of a grant with a request finds out this way whether to trust it.";

const EXAMPLES: &str = "\
Examples:
  signalbox verify 4711
  signalbox verify \"$SIGNALBOX_GRANT\" > /dev/null || exit";

/// Tell whether a grant is held, by whom, and for how long yet
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Number of the grant
    grant: u64,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: Server,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    block_on(verify(arguments))
}

async fn verify(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { grant, json, server } = arguments;
    let direct = server.direct().await?;
    let verified = match server.answer(direct.verify(GrantId(*grant))).await? {
        Err(Error::Status(Status::NotAcquired)) => None,
        result => Some(result?),
    };
    let (standing, exit) = match verified.map(|verified| verified.state) {
        Some(GrantState::Held) => ("held", Exit::Success),
        Some(GrantState::Retiring) => ("retiring", Exit::Retiring),
        None => ("gone", Exit::Failure),
    };
    print(Form::of_output(*json), *grant, standing, verified)?;
    Ok(exit.into())
}

fn print(form: Form, grant: u64, standing: &str, verified: Option<VerifiedGrant>) -> io::Result<()> {
    let session = verified.map(|verified| verified.session);
    let left = match verified.map(|verified| verified.ttl_left) {
        Some(TtlLeft::For(left)) => Some(Duration::from(left).as_secs_f64()),
        Some(TtlLeft::Connection) | None => None,
    };
    let session_text = session.map_or(NOTHING.to_owned(), |session| session.to_string());
    let left_text = left.map_or(NOTHING.to_owned(), |left| left.to_string());
    let mut out = io::stdout().lock();
    match form {
        Form::Table => {
            writeln!(out, "{:<8}  {:>20}  {:>10}", "STANDING", "SESSION", "LEFT")?;
            writeln!(out, "{standing:<8}  {session_text:>20}  {left_text:>10}")?;
        }
        Form::Tabs => writeln!(out, "{standing}\t{session_text}\t{left_text}")?,
        Form::Json => {
            writeln!(out, "{}", json(&Line { grant: grant.to_string(), standing, session, left }))?;
        }
    }
    out.flush()
}

/// The answer in JSON.
#[derive(Serialize)]
struct Line<'a> {
    /// As text, since it is larger than what readers that take every number for a double keep whole.
    grant: String,
    standing: &'a str,
    session: Option<u64>,
    /// In seconds.
    left: Option<f64>,
}
