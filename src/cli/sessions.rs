//! `signalbox sessions`: lists all sessions of a server.
//!
//! Entries are written as they arrive, so memory does not grow with their number. Writing blocks the only thread on
//! purpose: if the output is read slowly, the server must send slowly.

use bytes::Bytes;
use clap::Args;

use super::arguments::Common;
use super::exit::Failure;
use super::table::Column;
use signalbox_client::{Direct, SessionEntry};
use signalbox_model::views::Session;

const COLUMNS: [Column; 10] = [
    Column::word("KIND", 10),
    Column::number("SESSION", 20),
    Column::text("ADDRESS"),
    Column::word("CONNECTED", 9).omitted(4),
    Column::number("AGE", 8).omitted(2),
    Column::number("GRANTS", 6),
    Column::number("WAITING", 7).omitted(3),
    Column::seconds("TTL LEFT", 8).omitted(1),
    Column::text("LABEL"),
    Column::text("IDENTITY").omitted(5),
];

/// List all sessions of a server
///
/// First come leased sessions, then the sessions of connections, then processes of System V semaphores. This command's
/// own connection is among them. The columns are: kind (leased, connection, process), session id, address of the client
/// that is or was last connected, whether it is connected (yes, no), age in seconds, grants, waiting requests, seconds
/// until it ends unless it is renewed, label, identity of the client (token:NAME or certificate:NAME, with which
/// "signalbox revoke --client" revokes all of its sessions). Some values may be missing: a session that was restored at
/// the start of the server has no age, and no address and no identity until its client connects again; a session that
/// ends with its connection has no ttl left; a client that has shown no token and no certificate with a rule of its own
/// has no identity. Grants do not include what plain Acquires hold; for a process, they are the sets with adjustments
/// (SEM_UNDO).
///
/// With --json, the output is one object per line with the keys kind, session, address, connected, age, grants, waiting,
/// ttl_left (in seconds), identity and label.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox sessions
  signalbox sessions | awk '$1 == \"leased\" && $4 == \"no\"'
  signalbox sessions --json | jq 'select(.grants > 0) | .address'")]
pub(super) struct Arguments {}

pub(super) async fn run(_: &Arguments, common: &Common) -> Result<(), Failure> {
    print(common, &common.server.direct().await?, |_| true).await
}

/// Prints the selected sessions.
pub(super) async fn print(
    common: &Common,
    direct: &Direct,
    is_selected: impl Fn(&SessionEntry<Bytes>) -> bool,
) -> Result<(), Failure> {
    let server = &common.server;
    let mut rows = common.rows(&COLUMNS);
    let mut sessions = server.answer(direct.sessions()).await?;
    while let Some(entry) = server.next(&mut sessions).await? {
        if is_selected(&entry) {
            rows.push(&Session::of(&entry))?;
        }
    }
    Ok(rows.finish()?)
}
