//! `signalbox list`: the names of the server: declared semaphores, and what is in use or waited for without being declared.

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

/// The most names that are asked for their holders and their queues, those with the longest queues first: each is a request
/// or two.
const ASKED_MAX: usize = 1_000;

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
/// Without an argument, all of them are listed, ordered by name; with NAME this one, and with a * at the end all with this prefix.
/// If there is no such NAME, the exit status is 1; a prefix that no name has is not an error.
///
/// The columns are: kind, resources in use, capacity (a counter has none: each request brings its maximum), waiting requests, for
/// how long the first of them waits (in seconds), number of holders, flags, generation (the number of its last change), name, label.
/// The flags, separated by commas, are slots (its resources are numbered), removing (it is removed when its last holder has released
/// it), configured (the server's configuration file declares it), paused (it grants nothing until "signalbox resume") and
/// out=0-3+7 (these slots are out of service). A name that is not declared has no flags, no generation and no label. Holders and
/// waits are those of at most 1,000 names, those with the longest queues first.
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
    /// `None`: it is a counter, or it was not asked for.
    capacity: Option<u32>,
    /// `None`: they were not asked for.
    holders: Option<usize>,
    /// `None`: no request waits, or it was not asked for.
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
    let mut asked: Vec<_> = names.iter_mut().collect();
    asked.sort_by_key(|row| Reverse((row.waiting, row.in_use)));
    for row in asked.into_iter().take(ASKED_MAX) {
        match server.answer(row.ask(&direct)).await {
            // It is gone since.
            Err(error) if error.status() == Some(Status::NotFound) => {}
            asked => asked?,
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

/// The names of the kinds that the options select, in their order, without what [`Row::ask`] adds.
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
            // A token may be for names of one kind.
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
    // A declared semaphore is in both lists.
    names.dedup_by(|next, first| (next.namespace, &next.name) == (first.namespace, &first.name));
    // A counter that was used before stays for a while; one that was asked for exists.
    let is_used = |row: &Row| row.declared.is_some() || row.in_use > 0 || row.waiting > 0;
    if matches!(scope, Scope::Prefix(_)) || names.iter().any(is_used) {
        names.retain(is_used);
    }
    Ok(names)
}

/// The failure of a client that may not read all of the names, with what it may be permitted to.
pub(super) fn hinted(refusal: Error, scope: Scope<&[u8]>) -> Failure {
    match scope {
        Scope::Prefix(_) if refusal.status() == Some(Status::NotPermitted) => Failure::refused(format!(
            "{refusal}; to see only names that this client may read, give their prefix, as in \"signalbox list 'web/*'\""
        )),
        _ => refusal.into(),
    }
}

/// Prints one declared semaphore.
pub(super) async fn print_one(common: &Common, direct: &Direct, name: &Name) -> Result<(), Failure> {
    let mut names = Vec::new();
    let server = &common.server;
    declared_names(server, direct, Scope::Name(name.bytes()), &mut names).await?;
    for row in &mut names {
        server.answer(row.ask(direct)).await?;
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

/// The names that a Watch reports at its start. It ends with the connection.
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

    /// Asks for what the lists of names do not have.
    async fn ask(&mut self, direct: &Direct) -> Result<(), Error> {
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

    /// The row in JSON. The longest wait is in seconds.
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
