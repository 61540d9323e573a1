//! The plain operations of yrmcds' protocol, which every server of the protocol supports: `signalbox get`, `dump` and `stats`.
//!
//! The entries of a dump are written as they arrive, so memory does not grow with the number of names. Writing blocks
//! the only thread on purpose: if the output is read slowly, the server must send slowly.

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::arguments::Common;
use super::exit::Failure;
use super::list;
use super::output::{self, escaped};
use super::table::Column;
use super::values::{Name, PatternArguments};
use signalbox_client::{DumpEntry, Namespace, Resources, Scope, Statistic, Status};
use signalbox_model::views::Named;

/// Print how many resources of a counter are in use, or with --semaphore how many of a semaphore are available
///
/// With --json, the output is one object with the keys name and in_use (with --semaphore, name and available). "signalbox
/// status" prints more.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox get backup
  signalbox get --semaphore deploys")]
pub(super) struct Get {
    /// Name of the counter or semaphore
    #[arg(value_parser = Name::parser())]
    name: Name,
}

pub(super) async fn get(arguments: &Get, common: &Common) -> Result<(), Failure> {
    let (name, server) = (&arguments.name, &common.server);
    let client = server.connect().await?;
    match server.answer(client.get(name.bytes())).await {
        Err(error) if error.status() == Some(Status::NotFound) => {
            Err(server.not_found_of(Some(server.namespace()), name).await)
        }
        result => {
            let Resources(number) = result?;
            let mut object = json!(Named::of(name.bytes()));
            object[if server.namespace() == Namespace::Counters { "in_use" } else { "available" }] =
                json!(number);
            common.print(&object, number)
        }
    }
}

const COLUMNS: [Column; 3] =
    [Column::number("CONSUMPTION", 11), Column::number("PEAK", 10), Column::text("NAME")];

/// List all counters, or with --semaphore all semaphores
///
/// Without an argument, all of them are listed; with NAME, only this one; with PREFIX*, all with this prefix. If NAME
/// does not exist, the exit status is 1; a prefix that no name has is not an error.
///
/// The columns are: resources in use, peak (the most that were in use at the same time), name. With --json, the output is one
/// object per line with the keys name, consumption and peak.
///
/// The list is not a snapshot: a name that is created or removed while it is printed may or may not be listed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox dump
  signalbox dump 'jobs/*'
  signalbox dump | sort -rn | head
  signalbox dump --json | jq 'select(.consumption > 0)'")]
pub(super) struct Dump {
    #[command(flatten)]
    pattern: PatternArguments,
}

pub(super) async fn dump(arguments: &Dump, common: &Common) -> Result<(), Failure> {
    let pattern = &arguments.pattern;
    let (scope, server) = (pattern.scope(), &common.server);
    let mut rows = common.rows(&COLUMNS);
    let client = server.connect().await?;
    let mut dump = server.answer(client.dump()).await?;
    let mut is_empty = true;
    let hinted = |error| list::hinted(error, Scope::Prefix(b""));
    while let Some(entry) = server.next(&mut dump).await.map_err(hinted)? {
        // The server sends all names.
        if !scope.contains(&entry.name) {
            continue;
        }
        is_empty = false;
        let DumpEntry { consumption, peak, name } = entry;
        rows.push(&Entry { name: Named::of(&name), consumption, peak })?;
    }
    rows.finish()?;
    if let (true, Some(name)) = (is_empty, pattern.name()) {
        return Err(server.not_found_of(Some(server.namespace()), name).await);
    }
    Ok(())
}

/// An entry in JSON.
#[derive(Serialize)]
struct Entry {
    #[serde(flatten)]
    name: Named,
    consumption: u32,
    peak: u32,
}

/// Print the server's statistics
///
/// With --json, the output is one object, in which whole numbers are numbers and other values are strings.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox stats
  signalbox stats --json | jq .curr_connections")]
pub(super) struct Stats {}

pub(super) async fn stats(_: &Stats, common: &Common) -> Result<(), Failure> {
    let client = common.server.connect().await?;
    let items = common.server.answer(client.stats()).await?;
    let object = || items.iter().map(|item| (item.name.clone(), value(&item.value))).collect::<Map<_, _>>();
    let text = if common.json { output::json(&object()) + "\n" } else { aligned(&items) };
    Ok(io::stdout().write_all(text.as_bytes())?)
}

fn aligned(items: &[Statistic]) -> String {
    let rows: Vec<_> =
        items.iter().map(|item| (escaped(item.name.as_bytes()), escaped(item.value.as_bytes()))).collect();
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}

/// Returns the value in JSON: a number only if it is printed as the same text, so that nothing is lost.
fn value(text: &str) -> Value {
    match text.parse::<u64>() {
        Ok(number) if number.to_string() == text => number.into(),
        _ => text.into(),
    }
}
