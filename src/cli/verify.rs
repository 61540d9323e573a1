//! `signalbox verify`: checks whether a grant is held.

use std::io;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::arguments::Common;
use super::exit::{Exit, Failure};
use super::number::within;
use super::output::{Form, NOTHING, json, seconds};
use super::table::{Column, Rows};
use signalbox_client::{GrantId, GrantState, Status, TtlLeft, VerifiedGrant};

const COLUMNS: [Column; 3] =
    [Column::word("STATE", 8), Column::number("SESSION", 20), Column::number("LEFT", 10)];

/// Check whether a grant is held, by which session, and for how long
///
/// Prints one of three states, each with its exit status: held (0); retiring (2), which is still held, but is being
/// revoked, or its semaphore is being removed, was removed and declared again, or no longer has its slot; gone (1).
///
/// The columns are: state, session, seconds until the lease ends without renewal. A missing value is -: the session of a
/// connection has no lease. With --json, the output is one object with the keys grant, standing, session and left; a missing
/// value is null.
///
/// The command does not renew the lease. A service that receives the id of a grant with a request can check with this
/// command whether the sender still holds it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox verify 4711
  signalbox verify \"$SIGNALBOX_GRANT\" > /dev/null || exit")]
pub(super) struct Arguments {
    /// Id of the grant
    #[arg(value_parser = within(0..=u64::MAX))]
    grant: u64,
}

pub(super) async fn run(arguments: &Arguments, common: &Common) -> Result<ExitCode, Failure> {
    let (grant, server) = (arguments.grant, &common.server);
    let direct = server.direct().await?;
    let verified = match server.answer(direct.verify(GrantId(grant))).await? {
        Err(error) if error.status() == Some(Status::NotAcquired) => None,
        result => Some(result?),
    };
    let (state, exit) = match verified.map(|verified| verified.state) {
        Some(GrantState::Held) => ("held", Exit::Success),
        Some(GrantState::Retiring) => ("retiring", Exit::Retiring),
        None => ("gone", Exit::Failure),
    };
    print(common.form(), grant, state, verified)?;
    Ok(exit.into())
}

fn print(form: Form, grant: u64, state: &str, verified: Option<VerifiedGrant>) -> io::Result<()> {
    let session = verified.map(|verified| verified.session.to_string());
    let left = match verified.map(|verified| verified.ttl_left) {
        Some(TtlLeft::For(left)) => Some(seconds(left.into())),
        Some(TtlLeft::Connection) | None => None,
    };
    let or_nothing = |text: Option<String>| text.unwrap_or_else(|| NOTHING.to_owned());
    let cells =
        vec![state.to_owned(), or_nothing(session.clone()), or_nothing(left.map(|left| left.to_string()))];
    let mut rows = Rows::new(form, &COLUMNS, io::stdout().lock());
    rows.push(|| cells, || json(&Line { grant: grant.to_string(), state, session, left }))?;
    rows.finish()
}

/// The answer in JSON.
#[derive(Serialize)]
struct Line<'a> {
    /// A string, as that of the session: many JSON readers convert numbers to doubles, which would round it.
    grant: String,
    #[serde(rename = "standing")]
    state: &'a str,
    session: Option<String>,
    /// In seconds.
    left: Option<f64>,
}
