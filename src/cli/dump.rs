//! `signalbox dump`: lists every name of a namespace with its usage.
//!
//! Entries are written as they arrive, so memory does not grow with the number of names. Writing blocks the only thread on purpose, so that a
//! slow reader of the output slows the server down.

use std::io::{self, BufWriter};
use std::process::ExitCode;

use bytes::Bytes;
use clap::Args;
use serde::Serialize;

use super::exit::{Exit, Failure};
use super::output::{Form, escaped, json};
use super::pattern::{self, PatternArguments};
use super::server::Server;
use super::table::{Column, Rows};
use signalbox_client::DumpEntry;
use signalbox_model::views::Named;

const LONG: &str = "\
List all counters, or with --semaphore all semaphores

Without an argument, all of them are listed; with NAME this one, and with a * at the end all with this prefix. If NAME does \
not exist, the exit status is 1; a prefix that no name has is no error.

On a terminal, the output is a table with a header. Otherwise it is one line per name, without a header, with these \
columns, separated by tabs: resources in use, peak (the most that were in use at the same time), name. In both, a \
backslash in a name is printed as \\\\, a tab as \\t, a newline as \\n, and each byte of another control character, of a \
direction mark, of an invisible character or of a space other than the usual one, or that is not UTF-8, as \\xNN; \"printf \
%b\" of bash converts this back into the name.

With --json, the output is one object per line with the keys name, consumption and peak. A name that is not UTF-8 has \
the key name_hex instead of name: its bytes in hexadecimal digits.

The list is not a snapshot: a name that is created or removed while it is printed may or may not be listed.";

const EXAMPLES: &str = "\
Examples:
  signalbox dump
  signalbox dump 'jobs/*'
  signalbox dump | sort -rn | head
  signalbox dump --json | jq 'select(.consumption > 0)'";

const COLUMNS: [Column; 3] =
    [Column::number("CONSUMPTION", 11), Column::number("PEAK", 10), Column::text("NAME")];

/// List all counters, or with --semaphore all semaphores
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    pattern: PatternArguments,

    /// Print one JSON object per line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: Server,
}

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { pattern, json: as_json, server } = arguments;
    let (scope, form) = (pattern.scope(), Form::of_output(*as_json));
    let mut rows = Rows::new(form, &COLUMNS, BufWriter::new(io::stdout().lock()));
    let client = server.connect().await?;
    let mut dump = server.answer(client.dump()).await??;
    let mut is_empty = true;
    while let Some(entry) = server.answer(async { dump.next().await.transpose() }).await?? {
        let DumpEntry { consumption, peak, name } = &entry;
        // The server sends all names.
        if !pattern::contains(scope, name) {
            continue;
        }
        is_empty = false;
        let cells = || vec![consumption.to_string(), peak.to_string(), escaped(name)];
        rows.push(cells, || json(&Line::of(&entry)))?;
    }
    rows.finish()?;
    if let (true, Some(name)) = (is_empty, pattern.name()) {
        return Err(server.not_found_of(Some(server.namespace()), name).await);
    }
    Ok(Exit::Success.into())
}

/// An entry in JSON.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    name: Named,
    consumption: u32,
    peak: u32,
}

impl Line {
    fn of(entry: &DumpEntry<Bytes>) -> Self {
        Self { name: Named::of(&entry.name), consumption: entry.consumption, peak: entry.peak }
    }
}
