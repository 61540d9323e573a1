//! The holders of a name, and its wait queue: the lists of `signalbox status`.
//!
//! Entries are written as they arrive, so memory does not grow with their number. Writing blocks the only thread on purpose, so that a
//! slow reader of the output slows the server down.

use std::io::{self, BufWriter};
use std::process::ExitCode;

use bytes::Bytes;
use serde::Serialize;

use super::arguments::Common;
use super::declared;
use super::exit::{Exit, Failure, warn};
use super::name::Name;
use super::output::{NOTHING, or_nothing, utc};
use super::server::Server;
use super::slots;
use super::table::{Column, Rows};
use signalbox_client::{DeclaredEntry, Direct, Error, Inspected, ListEntry, Namespace, Series, Status};
use signalbox_model::views;

/// The flags of the semaphore, as in `list`. They are the same in every row.
const FLAGS: Column = Column::word("FLAGS", 6);

const HOLDERS: [Column; 9] = [
    Column::number("GRANT", 20),
    Column::number("SESSION", 20).omitted(2),
    Column::number("RESOURCES", 10),
    Column::word("SLOTS", 8),
    Column::word("SINCE", 20).omitted(1),
    Column::number("TTL LEFT", 8).omitted(5),
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
pub(super) async fn print(common: &Common, name: &Name, kind: ListingKind) -> Result<ExitCode, Failure> {
    let server = &common.server;
    let mut rows = Rows::new(common.form(), kind.columns_with_flags(), BufWriter::new(io::stdout().lock()));
    let direct = server.direct().await?;
    let namespace = server.resolve(&direct, name).await?;
    let declared = server.answer(declared::find_as(&direct, namespace, name.bytes())).await??;
    let flags = declared.as_ref().map_or(NOTHING.to_owned(), declared::flags);
    let mut leases = Leases::new(match kind {
        ListingKind::Holders => Some(server.direct().await?),
        ListingKind::Waiters => None,
    });
    let cells = |entry: &Entry, left| {
        let mut cells = kind.cells(entry, left);
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
                let left = leases.left(server, &entry).await?;
                rows.push(
                    || cells(&entry, left),
                    || super::output::json(&Marked::of(&entry, left, declared.as_ref())),
                )?;
            }
            Ok(None) => break,
        }
    }
    rows.finish()?;
    // Without a row, there is no place for the flags.
    if let (true, false, Some(entry)) = (is_empty, common.json, &declared)
        && (entry.paused || !entry.slots_out.is_empty())
    {
        let kind = kind.noun();
        warn(&format!("semaphore {name} has no {kind}; its flags: {flags}"));
    }
    Ok(Exit::Success.into())
}

/// What the server says about a name at one moment.
pub(super) struct State {
    pub(super) inspected: Inspected,
    pub(super) declared: Option<DeclaredEntry<Bytes>>,
    pub(super) holders: Vec<Entry>,
    pub(super) queue: Vec<Entry>,
}

impl State {
    /// Asks for it, with the holders and the queue only if they are wanted. `None`: the name does not exist.
    pub(super) async fn read(
        direct: &Direct,
        kind: Option<Namespace>,
        name: &[u8],
        wants_lists: bool,
    ) -> Result<Option<Self>, Error> {
        let read = async {
            let inspected = direct.inspect(kind, name).await?;
            let namespace = inspected.namespace;
            let declared = declared::find_as(direct, namespace, name).await?;
            let (mut holders, mut queue) = (Vec::new(), Vec::new());
            if wants_lists {
                holders = all(direct, namespace, name, ListingKind::Holders).await?;
                queue = all(direct, namespace, name, ListingKind::Waiters).await?;
            }
            Ok(Self { inspected, declared, holders, queue })
        };
        match read.await {
            Err(error) if Error::status(&error) == Some(Status::NotFound) => Ok(None),
            state => state.map(Some),
        }
    }
}

/// The most holders of a list whose leases are asked for: each is a request.
const LEASES_MAX: usize = 1_000;

/// Asks how long the leases of holders last, over a connection of its own, so that a list can be read meanwhile.
pub(super) struct Leases {
    /// `None`: there are no holders.
    direct: Option<Direct>,
    asked: usize,
}

impl Leases {
    pub(super) fn new(direct: Option<Direct>) -> Self {
        Self { direct, asked: 0 }
    }

    /// In seconds. `None`: the holder has no lease, the client may not ask, or there were too many questions.
    pub(super) async fn left(&mut self, server: &Server, entry: &Entry) -> Result<Option<f64>, Failure> {
        let (Some(direct), Some(grant), true) = (&self.direct, entry.grant, self.asked < LEASES_MAX) else {
            return Ok(None);
        };
        self.asked += 1;
        let verified = server.answer(direct.verify(grant)).await?;
        Ok(verified.ok().and_then(|verified| views::ttl_left_s(verified.ttl_left)))
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

    pub(super) fn cells(self, entry: &Entry, left: Option<f64>) -> Vec<String> {
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
        cells.push(since.map_or(NOTHING.to_owned(), utc));
        if self == Self::Holders {
            cells.push(left.map_or(NOTHING.to_owned(), |left| left.floor().to_string()));
        }
        cells.extend([or_nothing(address), or_nothing(label)]);
        cells
    }
}

/// A holder or a waiter in JSON.
#[derive(Serialize)]
pub(super) struct Held {
    #[serde(flatten)]
    entry: views::Entry,
    /// For how many seconds the lease of a holder lasts without a renewal; a waiter has no such key.
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_left: Option<Option<f64>>,
}

impl Held {
    pub(super) fn of(entry: &Entry, ttl_left: Option<f64>) -> Self {
        let is_holder = entry.position == 0;
        Self { entry: views::Entry::of(entry), ttl_left: is_holder.then_some(ttl_left) }
    }
}

/// An entry in JSON, with what of its semaphore is out of service: it is why a request waits.
#[derive(Serialize)]
struct Marked<'a> {
    #[serde(flatten)]
    held: Held,
    paused: bool,
    slots_out: &'a [u16],
}

impl<'a> Marked<'a> {
    fn of(entry: &Entry, ttl_left: Option<f64>, declared: Option<&'a DeclaredEntry<Bytes>>) -> Self {
        let (paused, slots_out) =
            declared.map_or((false, &[][..]), |entry| (entry.paused, &entry.slots_out[..]));
        Self { held: Held::of(entry, ttl_left), paused, slots_out }
    }
}
