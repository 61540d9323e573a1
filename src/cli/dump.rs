//! `signalbox dump`: lists every name of a namespace with its usage.
//!
//! Entries are written as they arrive, so memory does not grow with the number of names. For the same reason the name is
//! the last column: the widths of the others are known in advance. Writing blocks the only thread on purpose, so that a
//! slow reader of the output slows the server down.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use bytes::Bytes;
use clap::Args;
use serde::Serialize;

use super::exit::{Exit, Failure};
use super::output::{Form, Named, escaped, json};
use super::server::{Server, block_on};
use crate::client::DumpEntry;

const LONG: &str = "\
List all counters, or with --semaphore all semaphores

On a terminal, the output is a table with a header. Otherwise it is one line per name, without a header, with these \
columns, separated by tabs: resources in use, peak (the most that were in use at the same time), name. In both, a \
backslash in a name is printed as \\\\, a tab as \\t, a newline as \\n, and each byte of another control character or \
of a direction mark, or that is not UTF-8, as \\xNN; \"printf %b\" of bash converts this back into the name.

With --json, the output is one object per line with the keys name, consumption and peak. A name that is not UTF-8 has \
the key name_hex instead of name: its bytes in hexadecimal digits.

The list is not a snapshot: a name that is created or removed while it is printed may or may not be listed.";

const EXAMPLES: &str = "\
Examples:
  signalbox dump
  signalbox dump | sort -rn | head
  signalbox dump --json | jq 'select(.consumption > 0)'";

/// List all counters, or with --semaphore all semaphores
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: Server,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    block_on(dump(&arguments.server, Form::of_output(arguments.json)))
}

async fn dump(server: &Server, form: Form) -> Result<ExitCode, Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    let client = server.connect().await?;
    let mut dump = server.answer(client.dump()).await??;
    write_header(form, &mut out)?;
    while let Some(entry) = server.answer(async { dump.next().await.transpose() }).await?? {
        write_entry(form, &mut out, &entry)?;
    }
    out.flush()?;
    Ok(Exit::Success.into())
}

fn write_header(form: Form, out: &mut impl Write) -> io::Result<()> {
    match form {
        Form::Table => writeln!(out, "{:>11}  {:>10}  NAME", "CONSUMPTION", "PEAK"),
        Form::Tabs | Form::Json => Ok(()),
    }
}

fn write_entry(form: Form, out: &mut impl Write, entry: &DumpEntry<Bytes>) -> io::Result<()> {
    let DumpEntry { consumption, peak, name } = entry;
    match form {
        Form::Table => writeln!(out, "{consumption:>11}  {peak:>10}  {}", escaped(name)),
        Form::Tabs => writeln!(out, "{consumption}\t{peak}\t{}", escaped(name)),
        Form::Json => writeln!(out, "{}", json(&Line::of(entry))),
    }
}

/// An entry in JSON.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    name: Named<'a>,
    consumption: u32,
    peak: u32,
}

impl<'a> Line<'a> {
    fn of(entry: &'a DumpEntry<Bytes>) -> Self {
        Self { name: Named::of(&entry.name), consumption: entry.consumption, peak: entry.peak }
    }
}
