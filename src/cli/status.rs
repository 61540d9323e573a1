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
use super::sysv::{SysvOption, show_named};
use super::table::Rows;
use signalbox_client::{DeclaredEntry, Direct, Error, Namespace, Status};
use signalbox_model::views::{self, Declaration, Usage};

const LONG: &str = "\
Show the usage of a limit, its holders and its queue

The command finds out whether NAME is a counter or a semaphore, and shows both if both exist. It \
prints the kind, the name, the resources in use, the capacity (a counter has none: each request brings its maximum), how \
many resources are available, the peak and the number of waiting requests; of a declared semaphore also its flags, \
generation and label, as in \"signalbox list\". The holders and the waiting requests follow, as in \"signalbox holders\" \
and \"signalbox waiters\".

With --json, the output is one object for each kind with the keys kind, name, in_use, capacity, available, peak, waiting, \
declared (null, or an object with generation, slots, removing, configured, paused, slots_out and label), holders and \
queue (arrays of the objects of \"signalbox holders\" and \"signalbox waiters\", without paused and slots_out). A name \
or label that is not UTF-8 has the key name_hex or label_hex, in hexadecimal digits.

With --sysv, NAME is a System V semaphore set, and the output is that of \"signalbox sysv show\".";

const EXAMPLES: &str = "\
Examples:
  signalbox status backup
  signalbox status gpu --json | jq .in_use
  signalbox status --sysv 0x2a";

/// Show the usage of a limit, its holders and its queue
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Name of the limit; with --sysv the key of a set
    #[arg(value_parser = Name::parser())]
    name: Name,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    sysv: SysvOption,

    #[command(flatten)]
    server: Server,
}

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { name, json, sysv, server } = arguments;
    if let Some(set) = sysv.set(name, server)? {
        return show_named(server, set, *json).await;
    }
    let direct = server.direct().await?;
    let given = server.kind();
    let namespaces = given.as_ref().map_or(&Namespace::ALL[..], std::slice::from_ref);
    let mut states = Vec::new();
    let mut refusal = None;
    for namespace in namespaces {
        match State::read(server, &direct, *namespace, name).await? {
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
