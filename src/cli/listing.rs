//! The holders of a name, and its wait queue: the lists of `signalbox status`.
//!
//! Entries are written as they arrive, so memory does not grow with their number. Writing blocks the only thread on purpose, so that a
//! slow reader of the output slows the server down.

use std::process::ExitCode;

use bytes::Bytes;
use serde::Serialize;
use serde_json::json;

use super::arguments::Common;
use super::declared;
use super::exit::{Exit, Failure};
use super::messages::warn;
use super::name::Name;
use super::output::NOTHING;
use super::server::Server;
use super::table::Column;
use signalbox_client::{DeclaredEntry, Direct, Error, Inspected, ListEntry, Namespace, Series, Status};
use signalbox_model::views;

/// The flags of the semaphore, as in `list`. They are the same in every row.
const FLAGS: Column = Column::word("FLAGS", 6);

const HOLDERS: [Column; 9] = [
    Column::number("GRANT", 20),
    Column::number("SESSION", 20).omitted(2),
    Column::number("RESOURCES", 10),
    Column::word("SLOTS", 8),
    Column::utc("SINCE").omitted(1),
    Column::seconds("TTL LEFT", 8).omitted(5),
    Column::text("ADDRESS").omitted(3),
    Column::text("LABEL"),
    FLAGS,
];

const WAITERS: [Column; 8] = [
    Column::number("POSITION", 8),
    Column::number("GRANT", 20).omitted(1),
    Column::number("SESSION", 20).omitted(3),
    Column::number("RESOURCES", 10),
    Column::utc("SINCE").omitted(2),
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
    let mut rows = common.rows(kind.columns_with_flags());
    let direct = server.direct().await?;
    let namespace = server.resolve(&direct, name).await?;
    let declared = server.answer(declared::find_as(&direct, namespace, name.bytes())).await?;
    let flags = declared.as_ref().map_or(NOTHING.to_owned(), declared::flags);
    let mut leases = Leases::new(match kind {
        ListingKind::Holders => Some(server.direct().await?),
        ListingKind::Waiters => None,
    });
    let mut is_empty = true;
    let mut listing = server.answer(ask(&direct, namespace, name.bytes(), kind)).await?;
    loop {
        match server.next(&mut listing).await {
            Err(error) if error.status() == Some(Status::NotFound) => {
                return Err(server.not_found(name).await);
            }
            Err(error) => return Err(error.into()),
            Ok(Some(entry)) => {
                is_empty = false;
                let left = leases.left(server, &entry).await?;
                let mut object = json!(Held::of(&entry, left));
                // Why a request waits.
                object["paused"] = json!(declared.as_ref().is_some_and(|declared| declared.paused));
                object["slots_out"] =
                    json!(declared.as_ref().map_or(&[][..], |declared| &declared.slots_out));
                rows.push_with(&object, &[("FLAGS", &flags)])?;
            }
            Ok(None) => break,
        }
    }
    rows.finish()?;
    // Without a row, there is no place for the flags.
    if let (true, false, Some(entry)) = (is_empty, common.json, &declared)
        && (entry.paused || !entry.slots_out.is_empty())
    {
        let kind = if kind == ListingKind::Holders { "holders" } else { "waiters" };
        warn(&format!("semaphore {name} has no {kind}; its flags: {flags}"));
    }
    Ok(Exit::Success.into())
}

/// What the server says about a name at one moment.
#[derive(Debug)]
pub(super) struct State {
    pub(super) inspected: Inspected,
    pub(super) declared: Option<DeclaredEntry<Bytes>>,
    pub(super) holders: Vec<Entry>,
    pub(super) queue: Vec<Entry>,
}

impl State {
    /// One of its lists.
    pub(super) fn list(&self, kind: ListingKind) -> &[Entry] {
        match kind {
            ListingKind::Holders => &self.holders,
            ListingKind::Waiters => &self.queue,
        }
    }

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
    pub(super) async fn left(&mut self, server: &Server, entry: &Entry) -> Result<Option<f64>, Error> {
        let (Some(direct), Some(grant), true) = (&self.direct, entry.grant, self.asked < LEASES_MAX) else {
            return Ok(None);
        };
        self.asked += 1;
        match server.answer(direct.verify(grant)).await {
            Err(error) if error.status().is_none() => Err(error),
            verified => Ok(verified.ok().and_then(|verified| views::ttl_left_s(verified.ttl_left))),
        }
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
    ask(direct, namespace, name, kind).await?.all().await
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
    pub(super) const ALL: [Self; 2] = [Self::Holders, Self::Waiters];

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

    /// What `status` calls the list.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Holders => "holders",
            Self::Waiters => "queue",
        }
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
