//! `signalbox list`: lists declared semaphores, and other names that are in use or that requests wait for.

use std::cmp::Reverse;
use std::io;

use bytes::Bytes;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::arguments::Common;
use super::exit::Failure;
use super::output::merged;
use super::server::Server;
use super::table::Column;
use super::values::{Name, PatternArguments, unix_now_s};
use signalbox_client::{DeclaredEntry, Direct, Error, EventKind, Namespace, Scope, Status};
use signalbox_model::views::{Declaration, Named};

/// The maximum number of names whose holders and queues are requested, those with the longest queues first: each takes
/// up to three requests.
const DETAILED_MAX: usize = 1_000;

const COLUMNS: [Column; 10] = [
    Column::word("KIND", 9),
    Column::number("IN USE", 8),
    Column::number("CAPACITY", 8),
    Column::number("WAITING", 7),
    Column::number("LONGEST", 7).under("longest_wait").omitted(3),
    Column::number("HOLDERS", 7).omitted(4),
    Column::word("FLAGS", 8),
    Column::number("GENERATION", 20).omitted(2),
    Column::text("NAME"),
    Column::text("LABEL").omitted(1),
];

/// List declared semaphores, and the names that are in use
///
/// Without an argument, all of them are listed, ordered by name; with NAME, only this one; with PREFIX*, all with this
/// prefix. If NAME does not exist, the exit status is 1; a prefix that no name has is not an error.
///
/// The columns are: kind, resources in use, capacity (a counter has none: each request brings its maximum), waiting
/// requests, how long the first of them has waited (in seconds), number of holders, flags, generation (the number of
/// its last change), name and label. The flags, separated by commas, are slots (its resources are numbered), removing
/// (it is removed when its last holder has released it), configured (the server's configuration file declares it),
/// paused (it grants nothing until "signalbox resume") and out=0-3+7 (these slots are out of service). A name that is
/// not declared has no flags, no generation and no label. Holders and waits are shown for at most 1,000 names, those
/// with the longest queues first.
///
/// With --json, the output is one object per line with the keys kind, name, in_use, capacity, waiting, longest_wait, holders and
/// declared; if that is true, also generation, slots, removing, configured, paused, slots_out (an array) and label.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox list
  signalbox list 'licences/*' --sort wait
  signalbox list --waiting --json | jq .longest_wait")]
pub(super) struct Arguments {
    #[command(flatten)]
    pattern: PatternArguments,

    /// List only names that requests wait for
    #[arg(long)]
    waiting: bool,

    /// List only declared semaphores
    #[arg(long, conflicts_with = "counter")]
    declared: bool,

    /// Order of the list
    #[arg(long, value_enum, value_name = "COLUMN", default_value = "name")]
    sort: Sort,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sort {
    Name,
    /// Most resources in use first
    InUse,
    /// Most waiting requests first
    Waiting,
    /// Longest wait first
    Wait,
}

/// One row of the list: a name and its usage.
pub(super) struct Row {
    pub(super) namespace: Namespace,
    pub(super) name: Bytes,
    in_use: u32,
    waiting: u32,
    declared: Option<DeclaredEntry<Bytes>>,
    /// `None` for a counter, or if it was not requested.
    capacity: Option<u32>,
    /// `None` if they were not requested.
    holders: Option<usize>,
    /// `None` if no request waits, or if it was not requested.
    longest_wait_s: Option<u64>,
}

pub(super) async fn run(arguments: &Arguments, common: &Common) -> Result<(), Failure> {
    let Arguments { pattern, waiting, declared, sort } = arguments;
    let (scope, server) = (pattern.scope(), &common.server);
    let direct = server.direct().await?;
    let mut names = names(server, &direct, scope, *declared).await?;
    if let (Some(name), true) = (pattern.name(), names.is_empty()) {
        return Err(server.not_found(name).await);
    }
    names.retain(|row| !waiting || row.waiting > 0);
    let mut by_queue: Vec<_> = names.iter_mut().collect();
    by_queue.sort_by_key(|row| Reverse((row.waiting, row.in_use)));
    for row in by_queue.into_iter().take(DETAILED_MAX) {
        match server.answer(row.read_details(&direct)).await {
            // The name no longer exists.
            Err(error) if error.status() == Some(Status::NotFound) => {}
            result => result?,
        }
    }
    match sort {
        Sort::Name => {}
        Sort::InUse => names.sort_by_key(|row| Reverse(row.in_use)),
        Sort::Waiting => names.sort_by_key(|row| Reverse(row.waiting)),
        Sort::Wait => names.sort_by_key(|row| Reverse(row.longest_wait_s)),
    }
    Ok(print(common, &names)?)
}

/// Returns the names of the kinds that the options select, ordered by name, without what [`Row::read_details`] adds.
pub(super) async fn names(
    server: &Server,
    direct: &Direct,
    scope: Scope<&[u8]>,
    only_declared: bool,
) -> Result<Vec<Row>, Failure> {
    let mut names = Vec::new();
    let mut refusal = None;
    for namespace in Namespace::one_or_all(server.kind()) {
        let read = match namespace {
            Namespace::Semaphores => declared_names(server, direct, scope, &mut names).await,
            Namespace::Counters => Ok(()),
        };
        let read = match read {
            Ok(()) if !only_declared => names_in_use(server, direct, namespace, scope, &mut names).await,
            read => read,
        };
        match read {
            // A token may permit names of one kind only.
            Err(error) if error.status() == Some(Status::NotPermitted) => refusal = Some(error),
            read => read?,
        }
    }
    match refusal {
        Some(refusal) if names.is_empty() => return Err(hinted(refusal, scope)),
        _ => {}
    }
    names.sort_by(|one, other| {
        let rank = |row: &Row| (row.namespace, row.declared.is_none());
        one.name.cmp(&other.name).then_with(|| rank(one).cmp(&rank(other)))
    });
    // A declared semaphore that is in use is listed twice: as declared, and as in use.
    names.dedup_by(|next, first| (next.namespace, &next.name) == (first.namespace, &first.name));
    // The server keeps an unused counter for a while. It is listed only if it was requested by its name.
    let is_used = |row: &Row| row.declared.is_some() || row.in_use > 0 || row.waiting > 0;
    if matches!(scope, Scope::Prefix(_)) || names.iter().any(is_used) {
        names.retain(is_used);
    }
    Ok(names)
}

/// Returns the failure of a refused listing, with advice for a client that may not read all of the names.
pub(super) fn hinted(refusal: Error, scope: Scope<&[u8]>) -> Failure {
    match scope {
        Scope::Prefix(_) if refusal.status() == Some(Status::NotPermitted) => Failure::refused(format!(
            "{refusal}; to see only names that this client may read, give their prefix, as in \"signalbox list 'web/*'\""
        )),
        _ => refusal.into(),
    }
}

pub(super) async fn print_declared(common: &Common, direct: &Direct, name: &Name) -> Result<(), Failure> {
    let mut names = Vec::new();
    let server = &common.server;
    declared_names(server, direct, Scope::Name(name.bytes()), &mut names).await?;
    for row in &mut names {
        server.answer(row.read_details(direct)).await?;
    }
    Ok(print(common, &names)?)
}

fn print(common: &Common, names: &[Row]) -> io::Result<()> {
    let mut rows = common.rows(&COLUMNS);
    names.iter().try_for_each(|row| rows.push(&row.object()))?;
    rows.finish()
}

async fn declared_names(
    server: &Server,
    direct: &Direct,
    scope: Scope<&[u8]>,
    names: &mut Vec<Row>,
) -> Result<(), Error> {
    // The list is ordered by name, so the name itself precedes all longer ones.
    let (Scope::Prefix(prefix) | Scope::Name(prefix)) = scope;
    let mut declared = server.answer(direct.list(prefix)).await?;
    while let Some(entry) = server.next(&mut declared).await?
        && scope.contains(&entry.name)
    {
        let row = Row::new(Namespace::Semaphores, entry.name.clone(), entry.in_use, entry.waiting);
        names.push(Row { capacity: Some(entry.capacity), declared: Some(entry), ..row });
    }
    Ok(())
}

/// Adds the names that a Watch reports at its start. The Watch ends with the connection.
async fn names_in_use(
    server: &Server,
    direct: &Direct,
    namespace: Namespace,
    scope: Scope<&[u8]>,
    names: &mut Vec<Row>,
) -> Result<(), Error> {
    let mut present = server.answer(direct.watch(namespace, scope)).await?;
    while let Some((_, event)) = server.next(&mut present).await?
        && event.kind != EventKind::Live
    {
        if event.kind == EventKind::Present {
            names.push(Row::new(namespace, event.name, event.in_use, event.waiting));
        }
    }
    Ok(())
}

impl Row {
    fn new(namespace: Namespace, name: Bytes, in_use: u32, waiting: u32) -> Self {
        let (declared, capacity, holders, longest_wait_s) = (None, None, None, None);
        Self { namespace, name, in_use, waiting, declared, capacity, holders, longest_wait_s }
    }

    /// Requests what the lists of names do not have.
    async fn read_details(&mut self, direct: &Direct) -> Result<(), Error> {
        let Self { namespace, name, .. } = self;
        if self.capacity.is_none() && *namespace == Namespace::Semaphores {
            self.capacity = Some(direct.inspect(*namespace, name).await?.capacity);
        }
        if self.waiting > 0
            && let Some(first) = direct.waiters(*namespace, name).await?.next().await.transpose()?
        {
            self.longest_wait_s = first.since.map(|since| unix_now_s().saturating_sub(since));
        }
        let mut count = 0;
        if self.in_use > 0 {
            let mut holders = direct.holders(*namespace, name).await?;
            while holders.next().await.transpose()?.is_some() {
                count += 1;
            }
        }
        self.holders = Some(count);
        Ok(())
    }

    /// Returns the row in JSON, with the longest wait in seconds.
    fn object(&self) -> Value {
        merged([
            json!({ "kind": self.namespace.noun() }),
            json!(Named::of(&self.name)),
            json!({
                "in_use": self.in_use,
                "capacity": self.capacity,
                "waiting": self.waiting,
                "longest_wait": self.longest_wait_s,
                "holders": self.holders,
                "declared": self.declared.is_some(),
            }),
            json!(self.declared.as_ref().map(Declaration::of)),
        ])
    }
}
