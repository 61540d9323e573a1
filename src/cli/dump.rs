//! `signalbox dump`: every name of a namespace with its figures, one a line, as the server sends them.
//!
//! Memory does not grow with the number of names, which is why the name is the last column: the others have a known
//! width. Writing blocks the only thread on purpose, so that a slow reader of the output slows the server down.

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
List every counter or semaphore

On a terminal this is a table with a header. In a pipe it is one line a name without a header: resources in use, most \
resources that were in use at once, and the name, separated by tabs. In both, a backslash in a name is written \\\\, a \
tab \\t, a newline \\n, and each byte of other control characters and of what is no UTF-8 \\xNN; printf %b of bash turns that \
back into the name.

With --json it is one object a line with the keys name, consumption and peak. A name that is no UTF-8 has no JSON \
string: instead of the key name, such an object has name_hex, the name's bytes as hexadecimal digits.

The list is no picture of one moment: names that come or go meanwhile may be listed or not.";

const EXAMPLES: &str = "\
Examples:
  signalbox dump
  signalbox dump | sort -rn | head
  signalbox dump --json | jq 'select(.consumption > 0)'";

/// List every counter or semaphore
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Print one JSON object a line
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
