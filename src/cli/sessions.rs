//! `signalbox sessions`: lists all sessions of a server.
//!
//! Entries are written as they arrive, so memory does not grow with their number. Writing blocks the only thread on
//! purpose, so that a slow reader of the output slows the server down.

use std::io::{self, BufWriter};
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;

use super::exit::{Exit, Failure};
use super::output::{Form, NOTHING, json, or_nothing};
use super::server::Server;
use super::table::{Column, Rows};
use signalbox_client::{SessionEntry, TtlLeft};
use signalbox_model::views::{Session, kind_of_session};

const LONG: &str = "\
List all sessions of a server: who is connected, or holds something without a connection

First come leased sessions, then the sessions of connections, then processes of System V semaphores. This command's own \
connection is among them. On a terminal, the output is a table with a header. Otherwise it is one line per session, \
without a header, with these columns, separated by tabs: kind (leased, connection, process), session id, address of the \
client that is connected or was last, whether it is connected (yes, no), age in seconds, grants, waiting requests, \
seconds until it ends unless it is renewed, label, identity of the client (token:NAME or certificate:NAME, with which \
\"signalbox revoke --client\" revokes all of its sessions). A missing value is -: a session that was restored at the start \
of the server has no age, and no address and no identity until its client connects again; a session that ends with its \
connection has no time; a client that has shown no token and no certificate with a rule of its own has no identity. \
Grants do not include what plain Acquires hold; of a process, they are the sets with adjustments (SEM_UNDO). Characters \
are escaped as by \"signalbox dump\".

With --json, the output is one object per line with the keys kind, session, address, connected, age, grants, waiting, \
ttl_left (in seconds), identity and label; a missing value is null. A label that is not UTF-8 has the key label_hex, in hexadecimal \
digits.";

const EXAMPLES: &str = "\
Examples:
  signalbox sessions
  signalbox sessions | awk '$1 == \"leased\" && $4 == \"no\"'
  signalbox sessions --json | jq 'select(.grants > 0) | .address'";

const COLUMNS: [Column; 10] = [
    Column::word("KIND", 10),
    Column::number("SESSION", 20),
    Column::text("ADDRESS"),
    Column::word("CONNECTED", 9).omitted(4),
    Column::number("AGE", 8).omitted(2),
    Column::number("GRANTS", 6),
    Column::number("WAITING", 7).omitted(3),
    Column::number("TTL LEFT", 8).omitted(1),
    Column::text("LABEL"),
    Column::text("IDENTITY").omitted(5),
];

/// List all sessions of a server
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: Server,
}

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { json: wants_json, server } = arguments;
    let out = BufWriter::new(io::stdout().lock());
    let mut rows = Rows::new(Form::of_output(*wants_json), &COLUMNS, out);
    let direct = server.direct().await?;
    let mut sessions = server.answer(direct.sessions()).await??;
    while let Some(entry) = server.answer(async { sessions.next().await.transpose() }).await?? {
        rows.push(|| cells(&entry), || json(&Session::of(&entry)))?;
    }
    rows.finish()?;
    Ok(Exit::Success.into())
}

fn cells(entry: &SessionEntry<Bytes>) -> Vec<String> {
    let SessionEntry { kind, session, attached, age_s, grants, waiting, label, address, identity, .. } =
        entry;
    let number = |number: Option<u64>| number.map_or(NOTHING.to_owned(), |number| number.to_string());
    vec![
        kind_of_session(*kind).to_owned(),
        session.to_string(),
        or_nothing(address),
        if *attached { "yes" } else { "no" }.to_owned(),
        number(age_s.map(u64::from)),
        grants.to_string(),
        waiting.to_string(),
        number(ttl_left(entry).map(|left| left.as_secs())),
        or_nothing(label),
        or_nothing(identity),
    ]
}

/// `None`: it ends with its connection.
pub(super) fn ttl_left(entry: &SessionEntry<Bytes>) -> Option<Duration> {
    match entry.ttl_left {
        TtlLeft::Connection => None,
        TtlLeft::For(left) => Some(left.into()),
    }
}
