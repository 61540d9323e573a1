//! `signalbox verify`: checks whether a grant is held.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::arguments::Common;
use super::exit::{Exit, Failure};
use super::number::within;
use super::table::Column;
use signalbox_client::{GrantId, GrantState, Status};
use signalbox_model::views::ttl_left_s;

const COLUMNS: [Column; 3] =
    [Column::word("STATE", 8).under("standing"), Column::number("SESSION", 20), Column::number("LEFT", 10)];

/// Check whether a grant is held, by which session, and for how long
///
/// Prints one of three states, each with its exit status: held (0); retiring (2), which is still held, but is being
/// revoked, or its semaphore is being removed, was removed and declared again, or no longer has its slot; gone (1).
///
/// The columns are: state, session, seconds until the lease ends without renewal; the session of a connection has no lease. With
/// --json, the output is one object with the keys grant, standing, session and left.
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
    let verified = match server.answer(direct.verify(GrantId(grant))).await {
        Err(error) if error.status() == Some(Status::NotAcquired) => None,
        result => Some(result?),
    };
    let (state, exit) = match verified.map(|verified| verified.state) {
        Some(GrantState::Held) => ("held", Exit::Success),
        Some(GrantState::Retiring) => ("retiring", Exit::Retiring),
        None => ("gone", Exit::Failure),
    };
    let left = verified.and_then(|verified| ttl_left_s(verified.ttl_left));
    // Ids are strings: many JSON readers convert numbers to doubles, which would round them.
    let session = verified.map(|verified| verified.session.to_string());
    let object = json!({ "grant": grant.to_string(), "standing": state, "session": session, "left": left });
    let mut rows = common.rows(&COLUMNS);
    rows.push(&object)?;
    rows.finish()?;
    Ok(exit.into())
}
