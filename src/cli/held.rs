//! `signalbox status --session` and `--client`: what sessions hold and wait for, of all names.

use std::collections::HashSet;
use std::io::{self, BufWriter};
use std::process::ExitCode;

use serde::Serialize;

use super::arguments::Common;
use super::exit::{Exit, Failure};
use super::list;
use super::listing::{self, Held, Leases, ListingKind};
use super::status::Arguments;
use super::table::{Column, Rows};
use signalbox_client::{Scope, Status};
use signalbox_model::views::Named;

const COLUMNS: [Column; 11] = [
    Column::word("KIND", 9),
    Column::text("NAME"),
    Column::word("STATE", 5),
    Column::number("GRANT", 20),
    Column::number("SESSION", 10).omitted(2),
    Column::number("RESOURCES", 9),
    Column::word("SLOTS", 5),
    Column::utc("SINCE").omitted(1),
    Column::seconds("TTL LEFT", 8).omitted(4),
    Column::text("ADDRESS").omitted(3),
    Column::text("LABEL").omitted(5),
];

/// A holder or a waiter in JSON, with its name.
#[derive(Serialize)]
struct Line {
    kind: &'static str,
    #[serde(flatten)]
    name: Named,
    state: &'static str,
    #[serde(flatten)]
    held: Held,
}

/// Prints them. The server lists no grants of a session, so it is asked for the holders and the queues of all names.
pub(super) async fn print(arguments: &Arguments, common: &Common) -> Result<ExitCode, Failure> {
    let server = &common.server;
    let direct = server.direct().await?;
    let mut sessions: HashSet<_> = arguments.session.into_iter().collect();
    if let Some(client) = &arguments.client {
        let all = server.all(direct.sessions()).await??;
        let of_client = all.iter().filter(|session| client.revocation().is_about(session));
        sessions.extend(of_client.map(|session| session.session));
    }
    let mut leases = Leases::new(Some(server.direct().await?));
    let mut rows = Rows::new(common.form(), &COLUMNS, BufWriter::new(io::stdout().lock()));
    for row in list::names(server, &direct, Scope::Prefix(b""), false).await? {
        for (kind, state) in [(ListingKind::Holders, "holds"), (ListingKind::Waiters, "waits")] {
            let mut entries =
                match server.answer(listing::all(&direct, row.namespace, &row.name, kind)).await? {
                    // It is gone since.
                    Err(error) if error.status() == Some(Status::NotFound) => continue,
                    entries => entries?,
                };
            entries.retain(|entry| sessions.contains(&entry.session));
            for entry in &entries {
                let left = leases.left(server, entry).await?;
                let (kind, name) = (row.namespace.noun(), Named::of(&row.name));
                rows.push(&Line { kind, name, state, held: Held::of(entry, left) })?;
            }
        }
    }
    rows.finish()?;
    Ok(Exit::Success.into())
}
