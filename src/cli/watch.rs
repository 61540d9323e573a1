//! `signalbox watch`: prints the events of names as they happen.

use std::io::{self, Write};
use std::process::ExitCode;

use bytes::Bytes;
use clap::Args;
use serde::Serialize;

use super::exit::Failure;
use super::name::Name;
use super::output::{Form, Named, escaped, json};
use super::server::{Server, block_on};
use crate::client::{Disconnect, Event, EventKind, Scope};

const LONG: &str = "\
Print the events of a counter or semaphore, or of all names with a prefix

The output starts with the current state: one present event for each name, then live. Then each event is printed when \
it happens: granted, released, queued (a request started to wait), left (a request stopped waiting without a grant), \
expired (a lease ended), revoked, resized, removed. If the output is read too slowly, the server drops events and \
reports missed, with their number as the resources. The command runs until it is stopped, or until the connection to \
the server is lost (exit status 69).

On a terminal, the output is a table with a header. Otherwise it is one line per event, without a header, with these \
columns, separated by tabs: event, grant, session, resources of the event, resources in use after it, requests waiting \
after it, name. A missing value is -. Characters are escaped as by \"signalbox dump\".

With --json, the output is one object per line with the keys number (which grows by 1), event, grant, session, \
resources, in_use, waiting and name. A name that is not UTF-8 has the key name_hex, in hexadecimal digits; an event \
without a name has neither key.";

const EXAMPLES: &str = "\
Examples:
  signalbox watch backup
  signalbox watch --semaphore 'deploys/*' --json
  signalbox watch '*'
  signalbox watch --exact 'a name that ends in *'";

/// Print the events of a counter or semaphore, or of all names with a prefix
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Name to watch; a * at the end makes it a prefix
    #[arg(value_name = "NAME|PREFIX*", value_parser = Name::parser())]
    name: Name,

    /// Treat a * at the end as a part of the name
    #[arg(long)]
    exact: bool,

    /// Print one JSON object per line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: Server,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    block_on(watch(arguments, Form::of_output(arguments.json)))
}

async fn watch(arguments: &Arguments, form: Form) -> Result<ExitCode, Failure> {
    let Arguments { name, exact, server, .. } = arguments;
    let scope = match name.bytes().strip_suffix(b"*").filter(|_| !exact) {
        Some(prefix) => Scope::Prefix(prefix),
        None => Scope::Name(name.bytes()),
    };
    let direct = server.direct().await?;
    let mut events = server.answer(direct.watch(server.namespace(), scope)).await??;
    // Standard output flushes after each line, so that events are visible when they happen.
    let mut out = io::stdout().lock();
    write_header(form, &mut out)?;
    while let Some(event) = events.next().await {
        write_event(form, &mut out, &event?)?;
    }
    // The server never ends a watch in an orderly way.
    Err(crate::client::Error::from(Disconnect::ClosedByServer).into())
}

fn write_header(form: Form, out: &mut impl Write) -> io::Result<()> {
    if form != Form::Table {
        return Ok(());
    }
    let (event, grant, session) = ("EVENT", "GRANT", "SESSION");
    let (resources, in_use, waiting) = ("RESOURCES", "IN USE", "WAITING");
    writeln!(
        out,
        "{event:<8}  {grant:>20}  {session:>20}  {resources:>10}  {in_use:>10}  {waiting:>10}  NAME"
    )
}

fn write_event(form: Form, out: &mut impl Write, event: &Event<Bytes>) -> io::Result<()> {
    let Some(kind) = word(event.kind) else { return Ok(()) };
    if form == Form::Json {
        return writeln!(out, "{}", json(&Line::of(event, kind)));
    }
    let number = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
    let (grant, session) = (number(event.grant.map(|grant| grant.0)), number(event.session));
    let Event { resources, in_use, waiting, .. } = event;
    let name = if event.name.is_empty() { "-".to_owned() } else { escaped(&event.name) };
    match form {
        Form::Table => {
            write!(
                out,
                "{kind:<8}  {grant:>20}  {session:>20}  {resources:>10}  {in_use:>10}  {waiting:>10}  "
            )?;
            writeln!(out, "{name}")
        }
        _ => writeln!(out, "{kind}\t{grant}\t{session}\t{resources}\t{in_use}\t{waiting}\t{name}"),
    }
}

/// The kind of an event in one word; `None` for a kind that this version does not know, which is ignored.
fn word(kind: EventKind) -> Option<&'static str> {
    Some(match kind {
        EventKind::Present => "present",
        EventKind::Live => "live",
        EventKind::Missed => "missed",
        EventKind::Granted => "granted",
        EventKind::Released => "released",
        EventKind::Queued => "queued",
        EventKind::Left => "left",
        EventKind::Expired => "expired",
        EventKind::Revoked => "revoked",
        EventKind::Resized => "resized",
        EventKind::Removed => "removed",
        EventKind::Paused => "paused",
        EventKind::Resumed => "resumed",
        EventKind::SlotOut => "slot-out",
        EventKind::SlotIn => "slot-in",
        EventKind::Other(_) => return None,
    })
}

/// An event in JSON.
#[derive(Serialize)]
struct Line<'a> {
    number: u64,
    event: &'static str,
    /// A string: many JSON readers convert numbers to doubles, which would round it.
    grant: Option<String>,
    session: Option<u64>,
    resources: u32,
    in_use: u32,
    waiting: u32,
    #[serde(flatten)]
    name: Option<Named<'a>>,
}

impl<'a> Line<'a> {
    fn of(event: &'a Event<Bytes>, kind: &'static str) -> Self {
        Self {
            number: event.number,
            event: kind,
            grant: event.grant.map(|grant| grant.0.to_string()),
            session: event.session,
            resources: event.resources,
            in_use: event.in_use,
            waiting: event.waiting,
            name: (!event.name.is_empty()).then(|| Named::of(&event.name)),
        }
    }
}
