//! `signalbox list`: the declared semaphores, one a line.
//!
//! Memory does not grow with their number, which is why the texts are the last columns: the others have a known width.
//! Writing blocks the only thread on purpose, so that a slow reader of the output slows the server down.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use bytes::Bytes;
use clap::Args;
use serde::Serialize;

use super::exit::{Exit, Failure};
use super::name::Name;
use super::output::{Form, NOTHING, Named, Text, escaped, json, or_nothing};
use super::server::{Server, block_on};
use crate::client::DeclaredEntry;

const LONG: &str = "\
List declared semaphores, in the order of their names

On a terminal this is a table with a header. In a pipe it is one line a semaphore without a header: capacity, resources in \
use, requests that wait, generation (the number of its last change), what else there is to say, name and label, separated \
by tabs. What else is slots where its resources are numbered, removing where it goes with its last holder, and configured \
where the server's configuration declares it, joined by commas. A - stands where there is nothing. Characters are escaped \
as \"signalbox dump\" does.

With --json it is one object a line with the keys name, capacity, in_use, waiting, generation, slots, removing, configured \
and label. A name or label that is no UTF-8 is name_hex or label_hex, in hexadecimal digits.";

const EXAMPLES: &str = "\
Examples:
  signalbox list
  signalbox list licences/
  signalbox list --json | jq 'select(.waiting > 0)'";

/// List declared semaphores, in the order of their names
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// What the names start with; all are listed without it
    #[arg(value_parser = Name::parser())]
    prefix: Option<Name>,

    /// Print one JSON object a line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: Server,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    block_on(list(arguments, Form::of_output(arguments.json)))
}

async fn list(arguments: &Arguments, form: Form) -> Result<ExitCode, Failure> {
    let Arguments { prefix, server, .. } = arguments;
    let mut out = BufWriter::new(io::stdout().lock());
    let direct = server.direct().await?;
    let prefix = prefix.as_ref().map_or(&[][..], Name::bytes);
    let mut declared = server.answer(direct.list(prefix)).await??;
    write_header(form, &mut out)?;
    while let Some(entry) = server.answer(async { declared.next().await.transpose() }).await?? {
        write_entry(form, &mut out, &entry)?;
    }
    out.flush()?;
    Ok(Exit::Success.into())
}

fn write_header(form: Form, out: &mut impl Write) -> io::Result<()> {
    if form != Form::Table {
        return Ok(());
    }
    let (capacity, in_use, waiting, generation) = ("CAPACITY", "IN USE", "WAITING", "GENERATION");
    writeln!(
        out,
        "{capacity:>10}  {in_use:>10}  {waiting:>10}  {generation:>20}  {:<10}  NAME  LABEL",
        "WHAT ELSE"
    )
}

fn write_entry(form: Form, out: &mut impl Write, entry: &DeclaredEntry<Bytes>) -> io::Result<()> {
    if form == Form::Json {
        return writeln!(out, "{}", json(&Line::of(entry)));
    }
    let DeclaredEntry { generation, capacity, in_use, waiting, .. } = entry;
    let (generation, what_else) = (generation.0, what_else(entry));
    let (name, label) = (escaped(&entry.name), or_nothing(&entry.label));
    if form == Form::Table {
        write!(out, "{capacity:>10}  {in_use:>10}  {waiting:>10}  {generation:>20}  {what_else:<10}  ")?;
        writeln!(out, "{name}  {label}")
    } else {
        writeln!(out, "{capacity}\t{in_use}\t{waiting}\t{generation}\t{what_else}\t{name}\t{label}")
    }
}

/// What is true of it, in words.
fn what_else(entry: &DeclaredEntry<Bytes>) -> String {
    let DeclaredEntry { numbered, removing, configured, .. } = *entry;
    let words = [(numbered, "slots"), (removing, "removing"), (configured, "configured")];
    let words: Vec<_> = words.into_iter().filter(|(is_so, _)| *is_so).map(|(_, word)| word).collect();
    if words.is_empty() { NOTHING.to_owned() } else { words.join(",") }
}

/// An entry in JSON. It has at most one of the two labels.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    name: Named<'a>,
    capacity: u32,
    in_use: u32,
    waiting: u32,
    /// As text, since it is larger than what readers that take every number for a double keep whole.
    generation: String,
    slots: bool,
    removing: bool,
    configured: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label_hex: Option<String>,
}

impl<'a> Line<'a> {
    fn of(entry: &'a DeclaredEntry<Bytes>) -> Self {
        let DeclaredEntry { generation, capacity, in_use, waiting, numbered, removing, configured, .. } =
            *entry;
        let Text { text: label, hex: label_hex } = Text::of(&entry.label);
        let generation = generation.0.to_string();
        let slots = numbered;
        Self {
            name: Named::of(&entry.name),
            capacity,
            in_use,
            waiting,
            generation,
            slots,
            removing,
            configured,
            label,
            label_hex,
        }
    }
}
