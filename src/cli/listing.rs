//! The holders of a name, and its wait queue: the lists of `signalbox status`.
//!
//! Entries are written as they arrive, so memory does not grow with their number. Writing blocks the only thread on purpose, so that a
//! slow reader of the output slows the server down.

use std::io::{self, BufWriter};
use std::process::ExitCode;

use bytes::Bytes;
use serde::Serialize;

use super::declared;
use super::exit::{Exit, Failure, warn};
use super::list;
use super::name::Name;
use super::output::{Form, NOTHING, or_nothing, utc};
use super::server::Server;
use super::slots;
use super::table::{Column, Rows};
use signalbox_client::{DeclaredEntry, Direct, Error, ListEntry, Namespace, Series, Status};
use signalbox_model::views;

/// The flags of the semaphore, as in `list`. They are the same in every row.
const FLAGS: Column = Column::word("FLAGS", 6);

const HOLDERS: [Column; 8] = [
    Column::number("GRANT", 20),
    Column::number("SESSION", 20).omitted(2),
    Column::number("RESOURCES", 10),
    Column::word("SLOTS", 8),
    Column::word("SINCE", 20).omitted(1),
    Column::text("ADDRESS").omitted(3),
    Column::text("LABEL"),
    FLAGS,
];

const WAITERS: [Column; 8] = [
    Column::number("POSITION", 8),
    Column::number("GRANT", 20).omitted(1),
    Column::number("SESSION", 20).omitted(3),
    Column::number("RESOURCES", 10),
    Column::word("SINCE", 20).omitted(2),
    Column::text("ADDRESS").omitted(4),
    Column::text("LABEL"),
    FLAGS,
];

/// Which list of a name is printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ListingKind {
    Holders,
    Waiters,
}

/// Prints one of the lists of a name.
pub(super) async fn print(
    server: &Server,
    name: &Name,
    kind: ListingKind,
    json: bool,
) -> Result<ExitCode, Failure> {
    let out = BufWriter::new(io::stdout().lock());
    let mut rows = Rows::new(Form::of_output(json), kind.columns_with_flags(), out);
    let direct = server.direct().await?;
    let namespace = server.resolve(&direct, name).await?;
    let declared = server.answer(declared_as(&direct, namespace, name.bytes())).await??;
    let flags = declared.as_ref().map_or(NOTHING.to_owned(), list::flags);
    let cells = |entry: &Entry| {
        let mut cells = kind.cells(entry);
        cells.push(flags.clone());
        cells
    };
    let mut is_empty = true;
    let mut listing = server.answer(ask(&direct, namespace, name.bytes(), kind)).await??;
    loop {
        match server.answer(async { listing.next().await.transpose() }).await? {
            Err(error) if error.status() == Some(Status::NotFound) => {
                return Err(server.not_found(name).await);
            }
            Err(error) => return Err(error.into()),
            Ok(Some(entry)) => {
                is_empty = false;
                rows.push(|| cells(&entry), || super::output::json(&Marked::of(&entry, declared.as_ref())))?;
            }
            Ok(None) => break,
        }
    }
    rows.finish()?;
    // Without a row, there is no place for the flags.
    if let (true, false, Some(entry)) = (is_empty, json, &declared)
        && (entry.paused || !entry.slots_out.is_empty())
    {
        let kind = kind.noun();
        warn(&format!("semaphore {name} has no {kind}; its flags: {flags}"));
    }
    Ok(Exit::Success.into())
}

/// The declared semaphore of this name; `None`: it is a counter or not declared, or the server has no declared ones.
pub(super) async fn declared_as(
    direct: &Direct,
    namespace: Namespace,
    name: &[u8],
) -> Result<Option<DeclaredEntry<Bytes>>, Error> {
    match namespace {
        Namespace::Counters => Ok(None),
        Namespace::Semaphores => match declared::find(direct, name).await {
            Err(error) if error.status() == Some(Status::UnknownCommand) => Ok(None),
            found => found,
        },
    }
}

/// A holder or a waiter.
pub(super) type Entry = ListEntry<Bytes, Vec<u16>>;

/// All entries of a list.
pub(super) async fn all(
    direct: &Direct,
    namespace: Namespace,
    name: &[u8],
    kind: ListingKind,
) -> Result<Vec<Entry>, Error> {
    let mut listing = ask(direct, namespace, name, kind).await?;
    let mut entries = Vec::new();
    while let Some(entry) = listing.next().await {
        entries.push(entry?);
    }
    Ok(entries)
}

async fn ask(
    direct: &Direct,
    namespace: Namespace,
    name: &[u8],
    kind: ListingKind,
) -> Result<Series<Entry>, Error> {
    match kind {
        ListingKind::Holders => direct.holders(namespace, name).await,
        ListingKind::Waiters => direct.waiters(namespace, name).await,
    }
}

impl ListingKind {
    /// The columns of [`Self::cells`].
    pub(super) fn columns(self) -> &'static [Column] {
        let [columns @ .., _] = self.columns_with_flags() else { return &[] };
        columns
    }

    fn columns_with_flags(self) -> &'static [Column] {
        match self {
            Self::Holders => &HOLDERS,
            Self::Waiters => &WAITERS,
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Self::Holders => "holders",
            Self::Waiters => "waiters",
        }
    }

    pub(super) fn cells(self, entry: &Entry) -> Vec<String> {
        let ListEntry { grant, session, since, resources, position, label, address, slots } = entry;
        let mut cells = vec![
            grant.map_or(NOTHING.to_owned(), |grant| grant.0.to_string()),
            session.to_string(),
            resources.to_string(),
        ];
        match self {
            Self::Waiters => cells.insert(0, position.to_string()),
            Self::Holders => cells.push(or_nothing(slots::ranges(slots).as_bytes())),
        }
        cells.extend([since.map_or(NOTHING.to_owned(), utc), or_nothing(address), or_nothing(label)]);
        cells
    }
}

/// An entry in JSON, with what of its semaphore is out of service: it is why a request waits.
#[derive(Serialize)]
struct Marked<'a> {
    #[serde(flatten)]
    entry: views::Entry,
    paused: bool,
    slots_out: &'a [u16],
}

impl<'a> Marked<'a> {
    fn of(entry: &Entry, declared: Option<&'a DeclaredEntry<Bytes>>) -> Self {
        let (paused, slots_out) =
            declared.map_or((false, &[][..]), |entry| (entry.paused, &entry.slots_out[..]));
        Self { entry: views::Entry::of(entry), paused, slots_out }
    }
}
