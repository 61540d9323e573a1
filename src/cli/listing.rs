//! Lists of holders and waiters: the common part of `holders` and `waiters`.
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
use super::output::{Form, Labeled, NOTHING, escaped, json, or_nothing, utc};
use super::server::Server;
use super::slots;
use crate::client::{Direct, Error, ListEntry, Listing, Status};

/// The arguments of both subcommands.
#[derive(Debug, Args)]
pub(super) struct ListArguments {
    /// Name of the counter or semaphore
    #[arg(value_parser = Name::parser())]
    name: Name,

    /// Print one JSON object per line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: Server,
}

/// Which list of a name is printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ListingKind {
    Holders,
    Waiters,
}

/// Prints the list.
pub(super) async fn list(arguments: &ListArguments, kind: ListingKind) -> Result<ExitCode, Failure> {
    let ListArguments { name, json, server } = arguments;
    let form = Form::of_output(*json);
    let mut out = BufWriter::new(io::stdout().lock());
    let direct = server.direct().await?;
    let mut listing = server.answer(ask(&direct, arguments, kind)).await??;
    let mut is_first = true;
    loop {
        let entry = match server.answer(async { listing.next().await.transpose() }).await? {
            Err(Error::Status(Status::NotFound)) => return Err(server.not_found(name)),
            entry => entry?,
        };
        // The header is printed only after the server has answered that the name exists.
        if std::mem::take(&mut is_first) {
            kind.write_header(form, &mut out)?;
        }
        match entry {
            Some(entry) => kind.write_entry(form, &mut out, &entry)?,
            None => break,
        }
    }
    out.flush()?;
    Ok(Exit::Success.into())
}

async fn ask(direct: &Direct, arguments: &ListArguments, kind: ListingKind) -> Result<Listing, Error> {
    let (namespace, name) = (arguments.server.namespace(), arguments.name.bytes());
    match kind {
        ListingKind::Holders => direct.holders(namespace, name).await,
        ListingKind::Waiters => direct.waiters(namespace, name).await,
    }
}

impl ListingKind {
    fn write_header(self, form: Form, out: &mut impl Write) -> io::Result<()> {
        if form != Form::Table {
            return Ok(());
        }
        let (grant, session, resources, since) = ("GRANT", "SESSION", "RESOURCES", "SINCE");
        match self {
            Self::Waiters => write!(out, "{:>8}  {grant:>20}  {session:>20}  {resources:>10}", "POSITION")?,
            Self::Holders => write!(out, "{grant:>20}  {session:>20}  {resources:>10}  {:<8}", "SLOTS")?,
        }
        writeln!(out, "  {since:<20}  ADDRESS  LABEL")
    }

    fn write_entry(
        self,
        form: Form,
        out: &mut impl Write,
        entry: &ListEntry<Bytes, Vec<u16>>,
    ) -> io::Result<()> {
        if form == Form::Json {
            return writeln!(out, "{}", json(&self.line(entry)));
        }
        let ListEntry { grant, session, since, resources, position, label, address, slots } = entry;
        let grant = grant.map_or(NOTHING.to_owned(), |grant| grant.0.to_string());
        let since = since.map_or(NOTHING.to_owned(), utc);
        let (address, label) = (or_nothing(address), or_nothing(label));
        let slots = or_nothing(slots::ranges(slots).as_bytes());
        match (self, form) {
            (Self::Waiters, Form::Table) => {
                write!(out, "{position:>8}  {grant:>20}  {session:>20}  {resources:>10}")?;
            }
            (Self::Holders, Form::Table) => {
                write!(out, "{grant:>20}  {session:>20}  {resources:>10}  {slots:<8}")?;
            }
            (Self::Waiters, _) => write!(out, "{position}\t{grant}\t{session}\t{resources}")?,
            (Self::Holders, _) => write!(out, "{grant}\t{session}\t{resources}\t{slots}")?,
        }
        match form {
            Form::Table => writeln!(out, "  {since:<20}  {address}  {label}"),
            _ => writeln!(out, "\t{since}\t{address}\t{label}"),
        }
    }

    fn line(self, entry: &ListEntry<Bytes, Vec<u16>>) -> Line<'_> {
        let ListEntry { grant, session, since, resources, position, label, address, slots } = entry;
        Line {
            position: Some(*position).filter(|_| self == Self::Waiters),
            grant: grant.map(|grant| grant.0.to_string()),
            session: *session,
            resources: *resources,
            slots: Some(&slots[..]).filter(|_| self == Self::Holders),
            since: *since,
            address: Some(escaped(address)).filter(|address| !address.is_empty()),
            label: Labeled::of(label),
        }
    }
}

/// An entry in JSON.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<u32>,
    /// A string: many JSON readers convert numbers to doubles, which would round it.
    grant: Option<String>,
    session: u64,
    resources: u32,
    /// For holders only; empty if the resources are not numbered.
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<&'a [u16]>,
    /// In seconds since the Unix epoch.
    since: Option<u64>,
    address: Option<String>,
    #[serde(flatten)]
    label: Labeled<'a>,
}
