//! `signalbox list`: lists declared semaphores.
//!
//! Entries are written as they arrive, so memory does not grow with their number. For the same reason the texts are the
//! last columns: the widths of all others are known in advance. Writing blocks the only thread on purpose, so that a
//! slow reader of the output slows the server down.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use bytes::Bytes;
use clap::Args;
use serde::Serialize;

use super::exit::{Exit, Failure};
use super::name::Name;
use super::output::{Form, Labeled, NOTHING, Named, escaped, json, or_nothing};
use super::server::{Server, block_on};
use super::slots;
use crate::client::DeclaredEntry;

const LONG: &str = "\
List declared semaphores, ordered by name

On a terminal, the output is a table with a header. Otherwise it is one line per semaphore, without a header, with \
these columns, separated by tabs: capacity, resources in use, waiting requests, generation (the number of its last \
change), flags, name, label. The flags, separated by commas, are slots (its resources are numbered), removing (it is \
removed when its last holder has released it), configured (the server's configuration file declares it), paused (it \
grants nothing until \"signalbox resume\") and out=0-3+7 (these slots are out of service). A missing value is -. Characters are escaped as by \"signalbox dump\".

With --json, the output is one object per line with the keys name, capacity, in_use, waiting, generation, slots, \
removing, configured, paused, slots_out (an array) and label. A name or label that is not UTF-8 has the key name_hex or label_hex, in hexadecimal \
digits.";

const EXAMPLES: &str = "\
Examples:
  signalbox list
  signalbox list licences/
  signalbox list --json | jq 'select(.waiting > 0)'";

/// List declared semaphores, ordered by name
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// List only names that start with PREFIX
    #[arg(value_parser = Name::parser())]
    prefix: Option<Name>,

    /// Print one JSON object per line
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
        "FLAGS"
    )
}

fn write_entry(form: Form, out: &mut impl Write, entry: &DeclaredEntry<Bytes>) -> io::Result<()> {
    if form == Form::Json {
        return writeln!(out, "{}", json(&Line::of(entry)));
    }
    let DeclaredEntry { generation, capacity, in_use, waiting, .. } = entry;
    let (generation, flags) = (generation.0, flags(entry));
    let (name, label) = (escaped(&entry.name), or_nothing(&entry.label));
    if form == Form::Table {
        write!(out, "{capacity:>10}  {in_use:>10}  {waiting:>10}  {generation:>20}  {flags:<10}  ")?;
        writeln!(out, "{name}  {label}")
    } else {
        writeln!(out, "{capacity}\t{in_use}\t{waiting}\t{generation}\t{flags}\t{name}\t{label}")
    }
}

/// The flags of a semaphore, separated by commas.
fn flags(entry: &DeclaredEntry<Bytes>) -> String {
    let DeclaredEntry { numbered, removing, configured, paused, .. } = *entry;
    let words = [(numbered, "slots"), (removing, "removing"), (configured, "configured"), (paused, "paused")];
    let words = words.into_iter().filter(|(is_so, _)| *is_so).map(|(_, word)| word.to_owned());
    let ranges = (!entry.slots_out.is_empty()).then(|| slots::ranges(&entry.slots_out));
    // The commas are between the flags.
    let out = ranges.map(|ranges| format!("out={}", ranges.replace(',', "+")));
    let words: Vec<_> = words.chain(out).collect();
    if words.is_empty() { NOTHING.to_owned() } else { words.join(",") }
}

/// An entry in JSON.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    name: Named<'a>,
    capacity: u32,
    in_use: u32,
    waiting: u32,
    /// A string: many JSON readers convert numbers to doubles, which would round it.
    generation: String,
    slots: bool,
    removing: bool,
    configured: bool,
    paused: bool,
    slots_out: &'a [u16],
    #[serde(flatten)]
    label: Labeled<'a>,
}

impl<'a> Line<'a> {
    fn of(entry: &'a DeclaredEntry<Bytes>) -> Self {
        let DeclaredEntry {
            generation,
            capacity,
            in_use,
            waiting,
            numbered,
            removing,
            configured,
            paused,
            ..
        } = *entry;
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
            paused,
            slots_out: &entry.slots_out,
            label: Labeled::of(&entry.label),
        }
    }
}
