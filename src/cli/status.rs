//! `signalbox status`: the usage of a name, its capacity, its holders and its queue.

use std::io::{self, Write};
use std::process::ExitCode;

use bytes::Bytes;
use clap::Args;
use serde::Serialize;

use super::declared;
use super::exit::{Exit, Failure};
use super::list;
use super::listing::{self, Entry, ListingKind};
use super::name::Name;
use super::output::{Form, NOTHING, escaped, json, or_nothing};
use super::server::Server;
use super::sysv::{SysvOption, list_users, show_named};
use super::table::Rows;
use signalbox_client::{DeclaredEntry, Direct, Error, Namespace, Status};
use signalbox_model::views::{self, Declaration, Usage};

const LONG: &str = "\
Show the usage of a limit, its holders and its queue

The command finds out whether NAME is a counter or a semaphore, and shows both if both exist. It \
prints the kind, the name, the resources in use, the capacity (a counter has none: each request brings its maximum), how \
many resources are available, the peak and the number of waiting requests; of a declared semaphore also its flags, \
generation and label, as in \"signalbox list\". The holders and the waiting requests follow.

With --holders or --waiters, only that list is printed. On a terminal, it is a table with a header. Otherwise it is one line per \
holder or waiting request, without a header, with columns separated by tabs: of holders grant, session, resources, slots (such as \
0-3,7), since (UTC), address, label, flags; of waiting requests position in the queue (from 1), grant (the id that it will have), \
session, resources, since, address, label, flags. The flags are those of the semaphore (paused, out=0-3+7, ...): while it is \
paused, or slots are out, requests wait although none of its resources are in use. A missing value is -: plain Acquires have no \
grant, a disconnected session has no address. Characters are escaped as by \"signalbox dump\".

With --json, the output is one object for each kind with the keys kind, name, in_use, capacity, available, peak, waiting, \
declared (null, or an object with generation, slots, removing, configured, paused, slots_out and label), holders and \
queue: arrays of objects with the keys grant, session, resources, slots (holders) or position (waiting requests), since (in \
seconds since 1970), address and label. With --holders or --waiters, it is one such object per line, with paused and slots_out of \
the semaphore. A missing value is null. A name or label that is not UTF-8 has the key name_hex or label_hex, in hexadecimal digits.

With --sysv, NAME is a System V semaphore set, by its key (0x2a, 42) or as id:N, and the output is that of \"signalbox sysv \
show\". Its holders are the processes with adjustments (SEM_UNDO), with the columns process (its id on the server), process id on \
its host, user, adjustments (0:+1 adds 1 to semaphore 0 when the process ends), label. Its waiters are the calls that wait, in the \
order in which they came: position, process, process id, user, operations (0:-1 UNDO, or 1:0 to wait until semaphore 1 is 0), \
label. The JSON keys are process, pid, uid, adjustments (objects with semaphore and adjustment) or operations (objects with \
semaphore, change, nowait and undo), and label.";

const EXAMPLES: &str = "\
Examples:
  signalbox status backup
  signalbox status gpu --json | jq .in_use
  signalbox status deploys --holders --json | jq .label
  signalbox status deploys --waiters | wc -l
  signalbox status --sysv 0x2a";

/// Show the usage of a limit, its holders and its queue
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Name of the limit; with --sysv the key of a set
    #[arg(value_parser = Name::parser())]
    name: Name,

    /// List only the holders, one line each
    #[arg(long, conflicts_with = "waiters")]
    holders: bool,

    /// List only the wait queue, in order, one line for each request
    #[arg(long)]
    waiters: bool,

    /// Print one JSON object, or with --holders and --waiters one per line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    sysv: SysvOption,

    #[command(flatten)]
    server: Server,
}

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { name, json, sysv, server, .. } = arguments;
    let list = match (arguments.holders, arguments.waiters) {
        (true, _) => Some(ListingKind::Holders),
        (_, true) => Some(ListingKind::Waiters),
        _ => None,
    };
    match (sysv.set(name, server)?, list) {
        (Some(set), Some(list)) => return list_users(server, set, list, *json).await,
        (Some(set), None) => return show_named(server, set, *json).await,
        (None, Some(list)) => return listing::print(server, name, list, *json).await,
        (None, None) => {}
    }
    let direct = server.direct().await?;
    let mut states = Vec::new();
    let mut refusal = None;
    for namespace in Namespace::one_or_all(server.kind()) {
        match State::read(server, &direct, namespace, name).await? {
            Ok(state) => states.extend(state),
            // A token may be for names of one kind.
            Err(error) if error.status() == Some(Status::NotPermitted) => refusal = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    if let (Some(refusal), true) = (refusal, states.is_empty()) {
        return Err(refusal.into());
    }
    if states.is_empty() {
        return Err(server.not_found(name).await);
    }
    let mut out = io::stdout().lock();
    for (index, state) in states.into_iter().enumerate() {
        match json {
            true => writeln!(out, "{}", state.into_json())?,
            false => {
                if index > 0 {
                    writeln!(out)?;
                }
                state.write(&mut out)?;
            }
        }
    }
    Ok(Exit::Success.into())
}

/// What the server says about a name.
struct State<'a> {
    name: &'a Name,
    usage: Usage,
    declared: Option<DeclaredEntry<Bytes>>,
    holders: Vec<Entry>,
    queue: Vec<Entry>,
}

impl<'a> State<'a> {
    /// `None`: the name does not exist.
    async fn read(
        server: &Server,
        direct: &Direct,
        namespace: Namespace,
        name: &'a Name,
    ) -> Result<Result<Option<Self>, Error>, Failure> {
        let bytes = name.bytes();
        let read = async {
            let usage = Usage::of(bytes, direct.inspect(namespace, bytes).await?);
            let declared = match namespace {
                Namespace::Counters => None,
                Namespace::Semaphores => declared::find(direct, bytes).await?,
            };
            let holders = listing::all(direct, namespace, bytes, ListingKind::Holders).await?;
            let queue = listing::all(direct, namespace, bytes, ListingKind::Waiters).await?;
            Ok(Self { name, usage, declared, holders, queue })
        };
        Ok(match server.answer(read).await? {
            Err(error) if error.status() == Some(Status::NotFound) => Ok(None),
            state => state.map(Some),
        })
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let Usage { kind, in_use, capacity, available, peak, waiting, .. } = self.usage;
        let or_nothing_of =
            |number: Option<u32>| number.map_or(NOTHING.to_owned(), |number| number.to_string());
        let (capacity, available) = (or_nothing_of(capacity), or_nothing_of(available));
        let name = escaped(self.name.bytes());
        writeln!(out, "kind        {kind}\nname        {name}\nin_use      {in_use}")?;
        writeln!(
            out,
            "capacity    {capacity}\navailable   {available}\npeak        {peak}\nwaiting     {waiting}"
        )?;
        if let Some(declared) = &self.declared {
            let (generation, label) = (declared.generation.0, or_nothing(&declared.label));
            writeln!(
                out,
                "flags       {}\ngeneration  {generation}\nlabel       {label}",
                list::flags(declared)
            )?;
        }
        for (title, kind, entries) in
            [("holders", ListingKind::Holders, &self.holders), ("queue", ListingKind::Waiters, &self.queue)]
        {
            if entries.is_empty() {
                continue;
            }
            writeln!(out, "\n{title}:")?;
            let mut rows = Rows::new(Form::of_output(false), kind.columns(), &mut *out);
            for entry in entries {
                rows.push(|| kind.cells(entry), String::new)?;
            }
            rows.finish()?;
        }
        Ok(())
    }

    fn into_json(self) -> String {
        json(&Line {
            usage: self.usage,
            declared: self.declared.as_ref().map(Declaration::of),
            holders: self.holders.iter().map(views::Entry::of).collect(),
            queue: self.queue.iter().map(views::Entry::of).collect(),
        })
    }
}

/// The state of a name in JSON.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    usage: Usage,
    declared: Option<Declaration>,
    holders: Vec<views::Entry>,
    queue: Vec<views::Entry>,
}
