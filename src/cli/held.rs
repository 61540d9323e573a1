//! `signalbox status --session` and `--client`: what sessions hold and wait for, of all names.

use std::process::ExitCode;

use serde::Serialize;

use super::arguments::Common;
use super::exit::{Exit, Failure};
use super::listing::Held;
use super::status::Arguments;
use super::table::Column;
use signalbox_client::{HELD_SESSIONS_MAX, SessionId, SessionKind, Status};
use signalbox_model::views::{Named, ttl_left_s};

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

/// Prints them.
pub(super) async fn print(arguments: &Arguments, common: &Common) -> Result<ExitCode, Failure> {
    let server = &common.server;
    let direct = server.direct().await?;
    let mut sessions: Vec<_> = arguments.session.into_iter().collect();
    if let Some(client) = &arguments.client {
        let mut all = server.answer(direct.sessions()).await?;
        while let Some(session) = server.next(&mut all).await? {
            // A process of System V calls has no names.
            if session.kind != SessionKind::Process && client.revocation().is_about(&session) {
                sessions.extend(SessionId::from_number(session.session));
            }
        }
    }
    let mut rows = common.rows(&COLUMNS);
    for sessions in sessions.chunks(HELD_SESSIONS_MAX) {
        let mut entries = server.answer(direct.held(sessions)).await?;
        loop {
            let held = match server.next(&mut entries).await {
                Err(error) if error.status() == Some(Status::NoSuchSession) => match arguments.session {
                    Some(session) => {
                        let what = "no leased session and no connection has the id";
                        let advice = "\"signalbox sessions\" lists sessions";
                        return Err(Failure::refused(format!("{what} {session}; {advice}")));
                    }
                    // They have ended since.
                    None => break,
                },
                held => held?,
            };
            let Some(held) = held else { break };
            rows.push(&Line {
                kind: held.namespace.noun(),
                name: Named::of(&held.name),
                state: if held.is_held { "holds" } else { "waits" },
                held: Held::of(&held.entry, ttl_left_s(held.ttl_left)),
            })?;
        }
    }
    rows.finish()?;
    Ok(Exit::Success.into())
}
