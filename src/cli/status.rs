//! `signalbox status`: the usage of a name, its capacity, its holders and its queue.

use std::io::{self, Write};

use clap::Args;
use serde_json::{Value, json};

use super::arguments::Common;
use super::exit::Failure;
use super::listing::{self, Leases, ListingKind, State, object_of};
use super::output::{self, Form, merged};
use super::sysv::{SetName, list_users, show_named};
use super::table::{Column, Rows, write_fields};
use super::values::{Name, session_id};
use crate::config::Clients;
use signalbox_client::{HELD_SESSIONS_MAX, Inspected, Namespace, SessionId, SessionKind, Status};
use signalbox_model::views::{Declaration, Named, Usage, ttl_left_s};

/// Show the usage of a limit, its holders and its queue
///
/// The command finds out whether NAME is a counter or a semaphore, and shows both if both exist (a counter with the
/// name of a declared semaphore only if it is in use). It prints the kind, the name, the resources in use, the capacity
/// (a counter has none: each request brings its maximum), how many resources are available, the peak and the number of
/// waiting requests; for a declared semaphore also its flags, generation and label, as in "signalbox list". The holders
/// and the waiting requests follow.
///
/// With --holders or --waiters, only that list is printed. The columns of holders are grant, session, resources, slots
/// (such as 0-3,7), since (UTC), ttl left (seconds until the lease ends unless it is renewed), address, label and
/// flags; those of waiting requests are position in the queue (from 1), grant (the id that the grant will have),
/// session, resources, since, address, label and flags. The flags are those of the semaphore (paused, out=0-3+7, ...):
/// while it is paused, or slots are out, requests wait although none of its resources are in use. Plain Acquires have
/// no grant and no since, and a disconnected session has no address.
///
/// With --json, the output is one object for each kind with the keys kind, name, in_use, capacity, available, peak, waiting,
/// declared (null, or an object with generation, slots, removing, configured, paused, slots_out and label), holders and queue:
/// arrays of objects with the keys grant, session, resources, slots and ttl_left (holders) or position (waiting requests),
/// since (in seconds since 1970), address and label. With --holders or --waiters, it is one such object per line, with paused
/// and slots_out of the semaphore.
///
/// With --session or --client, the output is a list of what these sessions hold and wait for, with the columns kind, name, state
/// (holds, waits) and then those of the holders; the JSON keys are kind, name, state and those of the holders. What connections hold
/// by plain Acquires comes last.
///
/// With --sysv, NAME is a System V semaphore set, by its key (0x2a, 42) or as id:N, and the output is that of
/// "signalbox sysv show". Its holders are the processes with adjustments (SEM_UNDO), with the columns process (its id
/// on the server), process id on its host, user, adjustments (0:+1 adds 1 to semaphore 0 when the process ends), label.
/// Its waiters are the calls that wait, in the order of their arrival: position, process, process id, user, operations
/// (0:-1 UNDO, or 1:0 to wait until semaphore 1 is 0), label. The JSON keys are process, pid, uid, adjustments (objects
/// with semaphore and adjustment) or operations (objects with semaphore, change, nowait and undo), and label.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox status backup
  signalbox status gpu --json | jq .in_use
  signalbox status deploys --holders --json | jq .label
  signalbox status deploys --waiters | wc -l
  signalbox status --client 192.0.2.7
  signalbox status --sysv 0x2a")]
pub(super) struct Arguments {
    /// Name of the limit; with --sysv the key of a set
    #[arg(required_unless_present_any = ["session", "client"], value_parser = Name::parser())]
    name: Option<Name>,

    /// Show what this session holds and waits for, for all names
    #[arg(long, value_name = "ID", conflicts_with_all = ["name", "client"], value_parser = session_id)]
    session: Option<SessionId>,

    /// Show what the sessions of this client hold and wait for
    ///
    /// Its address, a network such as 10.0.0.0/8, token:NAME or certificate:NAME.
    #[arg(long, value_name = "CLIENT", conflicts_with = "name")]
    client: Option<Clients>,

    /// List only the holders, one line each
    #[arg(long, conflicts_with = "waiters")]
    holders: bool,

    /// List only the wait queue, in order, one line for each request
    #[arg(long)]
    waiters: bool,
}

pub(super) async fn run(arguments: &Arguments, common: &Common) -> Result<(), Failure> {
    let Common { server, sysv, .. } = common;
    let Some(name) = &arguments.name else { return print_held(arguments, common).await };
    let list = match (arguments.holders, arguments.waiters) {
        (true, _) => Some(ListingKind::Holders),
        (_, true) => Some(ListingKind::Waiters),
        _ => None,
    };
    match (sysv.then(|| SetName::of(name)).transpose()?, list) {
        (Some(set), Some(list)) => return list_users(common, set, list).await,
        (Some(set), None) => return show_named(common, set).await,
        (None, Some(list)) => return listing::print(common, name, list).await,
        (None, None) => {}
    }
    let direct = server.direct().await?;
    let mut states = Vec::new();
    let mut is_refused = false;
    for namespace in Namespace::one_or_all(server.kind()) {
        match server.answer(State::read(&direct, Some(namespace), name.bytes(), true)).await {
            Ok(state) => states.extend(state),
            // A token may permit names of one kind only.
            Err(error) if error.status() == Some(Status::NotPermitted) => is_refused = true,
            Err(error) => return Err(error.into()),
        }
    }
    // An idle counter with the name of a declared semaphore is left over from before the declaration.
    if server.kind().is_none() && states.iter().any(|state| state.declared.is_some()) {
        states.retain(|state| {
            let Inspected { namespace, in_use, waiting, .. } = state.inspected;
            namespace == Namespace::Semaphores || in_use > 0 || waiting > 0
        });
    }
    if states.is_empty() {
        if is_refused {
            server.answer(direct.inspect(server.kind(), name.bytes())).await?;
        }
        return Err(server.not_found(name).await);
    }
    let mut leases = Leases::new(Some(direct));
    let mut out = io::stdout().lock();
    for (index, state) in states.iter().enumerate() {
        let mut left = Vec::new();
        for holder in &state.holders {
            left.push(leases.left(server, holder).await?);
        }
        match common.json {
            true => writeln!(out, "{}", output::json(&state.object(name, &left)))?,
            false => {
                if index > 0 {
                    writeln!(out)?;
                }
                state.write(name, &left, common.form(), &mut out)?;
            }
        }
    }
    Ok(())
}

impl State {
    fn write(&self, name: &Name, left: &[Option<f64>], form: Form, out: &mut impl Write) -> io::Result<()> {
        write_fields(
            out,
            10,
            &["kind", "name", "in_use", "capacity", "available", "peak", "waiting"],
            &Usage::of(name.bytes(), self.inspected),
            &[],
        )?;
        if let Some(declared) = &self.declared {
            write_fields(out, 10, &["flags", "generation", "label"], &Declaration::of(declared), &[])?;
        }
        for (kind, entries) in [(ListingKind::Holders, &self.holders), (ListingKind::Waiters, &self.queue)] {
            if !entries.is_empty() {
                writeln!(out, "\n{}:", kind.title())?;
                let mut rows = Rows::new(form, kind.columns(), &mut *out);
                for (index, entry) in entries.iter().enumerate() {
                    rows.push(&object_of(entry, left.get(index).copied().flatten()))?;
                }
                rows.finish()?;
            }
        }
        Ok(())
    }

    /// Returns the state of a name in JSON.
    fn object(&self, name: &Name, left: &[Option<f64>]) -> Value {
        let holders = self.holders.iter().zip(left).map(|(holder, left)| object_of(holder, *left));
        let mut object = json!(Usage::of(name.bytes(), self.inspected));
        object["declared"] = json!(self.declared.as_ref().map(Declaration::of));
        object["holders"] = holders.collect();
        object["queue"] = self.queue.iter().map(|waiter| object_of(waiter, None)).collect();
        object
    }
}

/// The columns of what sessions hold and wait for, for all names.
const COLUMNS: [Column; 11] = [
    Column::word("KIND", 9),
    Column::text("NAME"),
    Column::word("STATE", 5),
    Column::number("GRANT", 20),
    Column::number("SESSION", 10).omitted(2),
    Column::number("RESOURCES", 9),
    Column::word("SLOTS", 5),
    Column::utc("SINCE").omitted(1),
    Column::seconds("TTL LEFT", 8).omitted(4),
    Column::text("ADDRESS").omitted(3),
    Column::text("LABEL").omitted(5),
];

/// Prints what sessions hold and wait for, for all names.
async fn print_held(arguments: &Arguments, common: &Common) -> Result<(), Failure> {
    let server = &common.server;
    let direct = server.direct().await?;
    let mut sessions: Vec<_> = arguments.session.into_iter().collect();
    if let Some(client) = &arguments.client {
        let mut all = server.answer(direct.sessions()).await?;
        while let Some(session) = server.next(&mut all).await? {
            // A process of System V calls has no names.
            if session.kind != SessionKind::Process && client.revocation().is_about(&session) {
                sessions.extend(SessionId::from_number(session.session));
            }
        }
    }
    let mut rows = common.rows(&COLUMNS);
    for sessions in sessions.chunks(HELD_SESSIONS_MAX) {
        let mut entries = server.answer(direct.held(sessions)).await?;
        loop {
            let held = match server.next(&mut entries).await {
                Err(error) if error.status() == Some(Status::NoSuchSession) => match arguments.session {
                    Some(session) => {
                        let what = "no leased session and no connection has the id";
                        let advice = "\"signalbox sessions\" lists sessions";
                        return Err(Failure::refused(format!("{what} {session}; {advice}")));
                    }
                    // The sessions have ended meanwhile.
                    None => break,
                },
                held => held?,
            };
            let Some(held) = held else { break };
            let state = if held.is_held { "holds" } else { "waits" };
            rows.push(&merged([
                json!({ "kind": held.namespace.noun() }),
                json!(Named::of(&held.name)),
                json!({ "state": state }),
                object_of(&held.entry, ttl_left_s(held.ttl_left)),
            ]))?;
        }
    }
    Ok(rows.finish()?)
}
