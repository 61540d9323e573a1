//! Reads the state of a name: its declaration, its holders and its wait queue. Prints the latter two, the lists of
//! `signalbox status`.
//!
//! [`print()`] writes entries as they arrive, so memory does not grow with their number. Writing blocks the only thread on
//! purpose: if the output is read slowly, the server must send slowly. [`State::read`] collects them instead.

use bytes::Bytes;
use serde_json::{Value, json};

use super::arguments::Common;
use super::exit::Failure;
use super::messages::warn;
use super::output::MISSING;
use super::server::Server;
use super::table::{self, Column};
use super::values::Name;
use signalbox_client::{DeclaredEntry, Direct, Error, Inspected, ListEntry, Namespace, Series, Status};
use signalbox_model::views::{self, Declaration};

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

/// One of the two lists of a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ListingKind {
    Holders,
    Waiters,
}

/// Prints one of the lists of a name.
pub(super) async fn print(common: &Common, name: &Name, kind: ListingKind) -> Result<(), Failure> {
    let server = &common.server;
    let mut rows = common.rows(kind.columns_with_flags());
    let direct = server.direct().await?;
    let namespace = server.resolve(&direct, name).await?;
    let declared = server.answer(find_declared_as(&direct, namespace, name.bytes())).await?;
    let flags = declared.as_ref().map_or(MISSING.to_owned(), flags);
    let mut leases = Leases::new(match kind {
        ListingKind::Holders => Some(server.direct().await?),
        ListingKind::Waiters => None,
    });
    let mut is_empty = true;
    let mut listing = server.answer(request(&direct, namespace, name.bytes(), kind)).await?;
    loop {
        match server.next(&mut listing).await {
            Err(error) if error.status() == Some(Status::NotFound) => {
                return Err(server.not_found(name).await);
            }
            Err(error) => return Err(error.into()),
            Ok(Some(entry)) => {
                is_empty = false;
                let left = leases.left(server, &entry).await?;
                let mut object = object_of(&entry, left);
                // These may be why a request waits.
                object["paused"] = json!(declared.as_ref().is_some_and(|declared| declared.paused));
                object["slots_out"] =
                    json!(declared.as_ref().map_or(&[][..], |declared| &declared.slots_out));
                rows.push_with(&object, &[("FLAGS", &flags)])?;
            }
            Ok(None) => break,
        }
    }
    rows.finish()?;
    // No row has shown the flags.
    if let (true, false, Some(entry)) = (is_empty, common.json, &declared)
        && (entry.paused || !entry.slots_out.is_empty())
    {
        let kind = if kind == ListingKind::Holders { "holders" } else { "waiters" };
        warn(&format!("semaphore {name} has no {kind}; its flags: {flags}"));
    }
    Ok(())
}

/// The state of a name.
#[derive(Debug)]
pub(super) struct State {
    pub(super) inspected: Inspected,
    pub(super) declared: Option<DeclaredEntry<Bytes>>,
    pub(super) holders: Vec<Entry>,
    pub(super) queue: Vec<Entry>,
}

impl State {
    /// Requests the state, with the holders and the queue only if `wants_lists`. Returns `None` if the name does not
    /// exist.
    pub(super) async fn read(
        direct: &Direct,
        kind: Option<Namespace>,
        name: &[u8],
        wants_lists: bool,
    ) -> Result<Option<Self>, Error> {
        let read = async {
            let inspected = direct.inspect(kind, name).await?;
            let namespace = inspected.namespace;
            let declared = find_declared_as(direct, namespace, name).await?;
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

/// The maximum number of holders whose leases are requested: each takes a request.
const LEASES_MAX: usize = 1_000;

/// Requests how long the leases of holders last, over a separate connection, so that a list can be read meanwhile.
pub(super) struct Leases {
    /// `None` if the list has no holders.
    direct: Option<Direct>,
    requested: usize,
}

impl Leases {
    pub(super) fn new(direct: Option<Direct>) -> Self {
        Self { direct, requested: 0 }
    }

    /// Returns how long the lease of a holder lasts, in seconds; `None` if there is no lease, if this client may not read
    /// it, or after [`LEASES_MAX`] requests.
    pub(super) async fn left(&mut self, server: &Server, entry: &Entry) -> Result<Option<f64>, Error> {
        let (Some(direct), Some(grant), true) = (&self.direct, entry.grant, self.requested < LEASES_MAX)
        else {
            return Ok(None);
        };
        self.requested += 1;
        match server.answer(direct.verify(grant)).await {
            Err(error) if error.status().is_none() => Err(error),
            verified => Ok(verified.ok().and_then(|verified| views::ttl_left_s(verified.ttl_left))),
        }
    }
}

/// A holder or a waiter.
pub(super) type Entry = ListEntry<Bytes, Vec<u16>>;

/// Returns all entries of a list.
pub(super) async fn all(
    direct: &Direct,
    namespace: Namespace,
    name: &[u8],
    kind: ListingKind,
) -> Result<Vec<Entry>, Error> {
    request(direct, namespace, name, kind).await?.all().await
}

async fn request(
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

    /// Returns the columns of [`object_of`], without the flags.
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

    /// Returns the title of the list in `status`.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Holders => "holders",
            Self::Waiters => "queue",
        }
    }
}

/// Returns a holder, which has the position 0, or a waiter in JSON. `ttl_left` is how many seconds the lease of a holder
/// lasts without a renewal; a waiter has no such key.
pub(super) fn object_of(entry: &Entry, ttl_left: Option<f64>) -> Value {
    let mut object = json!(views::Entry::of(entry));
    if entry.position == 0 {
        object["ttl_left"] = json!(ttl_left);
    }
    object
}

/// Returns the declared semaphore of a name, if there is one. The list is ordered by name, so the name itself precedes
/// all longer ones.
pub(super) async fn find_declared(
    direct: &Direct,
    name: &[u8],
) -> Result<Option<DeclaredEntry<Bytes>>, Error> {
    let first = direct.list(name).await?.next().await.transpose()?;
    Ok(first.filter(|entry| entry.name == name))
}

/// Like [`find_declared`], but returns `None` for a counter.
async fn find_declared_as(
    direct: &Direct,
    namespace: Namespace,
    name: &[u8],
) -> Result<Option<DeclaredEntry<Bytes>>, Error> {
    match namespace {
        Namespace::Counters => Ok(None),
        Namespace::Semaphores => find_declared(direct, name).await,
    }
}

/// Returns why a declared semaphore does not have a slot.
pub(super) fn no_such_slot(entry: &DeclaredEntry<Bytes>) -> String {
    match (entry.numbered, entry.capacity) {
        (false, _) => {
            "its resources are not numbered; \"signalbox declare --slots --if-exists set\" numbers them"
                .to_owned()
        }
        (true, 0) => "its capacity is 0; \"signalbox resize\" changes it".to_owned(),
        (true, capacity) => format!(
            "its capacity is {capacity}, so its slots are 0 to {}; \"signalbox resize\" changes the capacity",
            capacity - 1
        ),
    }
}

/// Returns the flags of a semaphore, separated by commas.
pub(super) fn flags(entry: &DeclaredEntry<Bytes>) -> String {
    table::flags(&json!(Declaration::of(entry)))
}
