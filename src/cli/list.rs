//! `signalbox list`: lists declared semaphores.
//!
//! Entries are written as they arrive, so memory does not grow with their number. Writing blocks the only thread on
//! purpose, so that a slow reader of the output slows the server down.

use std::io::{self, BufWriter};
use std::process::ExitCode;

use bytes::Bytes;
use clap::Args;

use super::exit::{Exit, Failure};
use super::output::{Form, NOTHING, escaped, json, or_nothing};
use super::pattern::{self, PatternArguments};
use super::server::Server;
use super::slots;
use super::table::{Column, Rows};
use signalbox_client::{DeclaredEntry, Scope};
use signalbox_model::views::Semaphore;

const LONG: &str = "\
List declared semaphores, ordered by name

Without an argument, all of them are listed; with NAME this one, and with a * at the end all with this prefix. If NAME is \
not declared, the exit status is 1; a prefix that no name has is no error.

On a terminal, the output is a table with a header. Otherwise it is one line per semaphore, without a header, with \
these columns, separated by tabs: capacity, resources in use, waiting requests, generation (the number of its last \
change), flags, name, label. The flags, separated by commas, are slots (its resources are numbered), removing (it is \
removed when its last holder has released it), configured (the server's configuration file declares it), paused (it \
grants nothing until \"signalbox resume\") and out=0-3+7 (these slots are out of service). A missing value is -. \
Characters are escaped as by \"signalbox dump\".

With --json, the output is one object per line with the keys name, capacity, in_use, waiting, generation, slots, \
removing, configured, paused, slots_out (an array) and label. A name or label that is not UTF-8 has the key name_hex or \
label_hex, in hexadecimal digits.";

const EXAMPLES: &str = "\
Examples:
  signalbox list
  signalbox list 'licences/*'
  signalbox list --json | jq 'select(.waiting > 0)'";

const COLUMNS: [Column; 7] = [
    Column::number("CAPACITY", 10),
    Column::number("IN USE", 10),
    Column::number("WAITING", 10),
    Column::number("GENERATION", 20).omitted(2),
    Column::word("FLAGS", 10),
    Column::text("NAME"),
    Column::text("LABEL").omitted(1),
];

/// List declared semaphores, ordered by name
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
    let Arguments { pattern, json: wants_json, server } = arguments;
    let form = Form::of_output(*wants_json);
    let scope = pattern.scope();
    let mut rows = Rows::new(form, &COLUMNS, BufWriter::new(io::stdout().lock()));
    let direct = server.direct().await?;
    // The list is ordered by name, so the name itself precedes all longer ones.
    let (Scope::Prefix(prefix) | Scope::Name(prefix)) = scope;
    let mut declared = server.answer(direct.list(prefix)).await??;
    let mut is_empty = true;
    while let Some(entry) = server.answer(async { declared.next().await.transpose() }).await?? {
        if !pattern::contains(scope, &entry.name) {
            break;
        }
        is_empty = false;
        rows.push(|| cells(&entry), || json(&Semaphore::of(&entry)))?;
    }
    rows.finish()?;
    if let (true, Some(name)) = (is_empty, pattern.name()) {
        let message = format!(
            "semaphore {name} is not declared; \"signalbox status\" also shows names that are not declared"
        );
        return Err(Failure::new(Exit::Failure, message));
    }
    Ok(Exit::Success.into())
}

fn cells(entry: &DeclaredEntry<Bytes>) -> Vec<String> {
    let DeclaredEntry { generation, capacity, in_use, waiting, name, label, .. } = entry;
    let numbers = [u64::from(*capacity), u64::from(*in_use), u64::from(*waiting), generation.0];
    let mut cells: Vec<_> = numbers.map(|number| number.to_string()).into();
    cells.extend([flags(entry), escaped(name), or_nothing(label)]);
    cells
}

/// The flags of a semaphore, separated by commas.
pub(super) fn flags(entry: &DeclaredEntry<Bytes>) -> String {
    let DeclaredEntry { numbered, removing, configured, paused, .. } = *entry;
    let words = [(numbered, "slots"), (removing, "removing"), (configured, "configured"), (paused, "paused")];
    let words = words.into_iter().filter(|(is_so, _)| *is_so).map(|(_, word)| word.to_owned());
    let ranges = (!entry.slots_out.is_empty()).then(|| slots::ranges(&entry.slots_out));
    // The commas are between the flags.
    let out = ranges.map(|ranges| format!("out={}", ranges.replace(',', "+")));
    let words: Vec<_> = words.chain(out).collect();
    if words.is_empty() { NOTHING.to_owned() } else { words.join(",") }
}
