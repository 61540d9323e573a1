//! `signalbox watch`: prints the events of names as they happen.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use serde_json::{Value, json};

use super::arguments::Common;
use super::exit::Failure;
use super::list;
use super::output::{escaped, merged, text_or_dash};
use super::server::Server;
use super::sysv::{self, SetName};
use super::table::{Column, Rows};
use super::values::{Name, scope, time, unix_now_s};
use signalbox_client::{Direct, Disconnect, Event, EventKind, Namespace, Series, SessionEntry};
use signalbox_model::views::Named;

const COLUMNS: [Column; 9] = [
    Column::utc("TIME"),
    Column::word("EVENT", 8),
    Column::number("GRANT", 20).omitted(1),
    Column::number("SESSION", 20).omitted(2),
    Column::number("RESOURCES", 10),
    Column::number("IN USE", 10),
    Column::number("WAITING", 10),
    Column::text("NAME"),
    Column::text("CLIENT").omitted(3),
];

/// Print the events of a limit, or of all names with a prefix
///
/// The output starts with the current state: one present event for each name, then live. Then each event is printed
/// when it happens: granted, released, queued (a request started to wait), left (a request stopped waiting without a
/// grant), expired (a lease ended), revoked, declared and resized (the capacity is in the column RESOURCES), removed,
/// paused, resumed, slot-out and slot-in (a slot was taken out of service or put back; its number is in the column
/// RESOURCES). If the output is read too slowly, the server drops events and reports missed, with their number in the
/// column RESOURCES. The command runs until it is stopped, or until the connection to the server is lost (exit status
/// 69).
///
/// The columns are: time (UTC, when the event was printed), event, grant, session, resources of the event, resources in use
/// after it, requests waiting after it, name, client (the label of the session, or else its address).
///
/// With --json, the output is one object per line with the keys time (in seconds since 1970), number (which grows by 1 for each
/// kind), kind, event, grant, session, resources, in_use, waiting, name and client. An event without a name lacks that key.
///
/// With --sysv, the name is a System V semaphore set, by its key (0x2a, 42) or as id:N; * stands for all sets. The
/// server has no events of sets: this program requests their state every second (--interval), and prints what has
/// changed; it does not see what happens between two requests. The events are present, live, created, changed and
/// removed. The columns are: event, key, id, calls that wait, processes with adjustments, time of the last operation,
/// values (missing if the mode does not permit reading them). The JSON keys are event, those of "signalbox sysv list",
/// and values (an array).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox watch backup
  signalbox watch 'deploys/*' --json
  signalbox watch '*'
  signalbox watch --exact 'a name that ends in *'
  signalbox watch --sysv 0x2a")]
pub(super) struct Arguments {
    /// Name to watch; a * at the end makes it a prefix; with --sysv the key of a set, or * for all sets
    #[arg(value_name = "NAME|PREFIX*", value_parser = Name::parser())]
    name: Name,

    /// Treat a * at the end as a part of the name
    #[arg(long, conflicts_with = "sysv")]
    exact: bool,

    /// With --sysv: how long to wait between two requests to the server [default: 1]
    #[arg(long, value_name = "TIME", requires = "sysv", value_parser = time)]
    interval: Option<Duration>,
}

/// The minimum time between two listings of the sessions, which show the clients of events.
const LISTED_EVERY: Duration = Duration::from_secs(1);

/// The default of `--interval`.
const INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn run(arguments: &Arguments, common: &Common) -> Result<(), Failure> {
    let Arguments { name, interval, .. } = arguments;
    let Common { server, sysv, .. } = common;
    if !sysv {
        return watch(arguments, common).await;
    }
    let watched = if name.bytes() == b"*" { None } else { Some(SetName::of(name)?) };
    sysv::watch(server, watched, interval.unwrap_or(INTERVAL), common.form()).await
}

async fn watch(arguments: &Arguments, common: &Common) -> Result<(), Failure> {
    let (Arguments { name, exact, .. }, server) = (arguments, &common.server);
    let scope = scope(name, *exact);
    let direct = server.direct().await?;
    let mut watches = Vec::new();
    for namespace in Namespace::one_or_all(server.kind()) {
        watches.push(server.answer(direct.watch(namespace, scope)).await?);
    }
    let mut incomplete = watches.len();
    let mut clients = Clients { server, direct: None, known: HashMap::new(), listed_at: None };
    // Standard output flushes after each line, so that events are visible when they happen.
    let mut rows = Rows::new(common.form(), &COLUMNS, io::stdout().lock());
    while let Some(event) = next(&mut watches).await {
        let (number, event) = event.map_err(|error| list::hinted(error, scope))?;
        // A kind that this version does not know is ignored.
        let Some(kind) = event.kind.name() else { continue };
        if event.kind == EventKind::Live {
            // Both kinds are shown as one watch: "live" is printed once, when both are complete.
            incomplete -= 1;
            if incomplete > 0 {
                continue;
            }
        }
        let (time_s, client) = (unix_now_s(), clients.of(event.session).await);
        let shown = text_or_dash(client.unwrap_or_default());
        rows.push_with(&object_of(time_s, number, &event, kind, client), &[("CLIENT", &shown)])?;
        if event.kind != EventKind::Present {
            // From now on, events are visible when they happen.
            rows.settle()?;
        }
    }
    // The server never ends a watch in an orderly way.
    Err(signalbox_client::Error::from(Disconnect::ClosedByServer).into())
}

/// Returns the next event of one or two watches; `None` if a watch has ended.
async fn next<T>(watches: &mut [Series<T>]) -> Option<Result<T, signalbox_client::Error>> {
    let [first, rest @ ..] = watches else { return None };
    match rest.first_mut() {
        None => first.next().await,
        Some(second) => tokio::select! {
            event = first.next() => event,
            event = second.next() => event,
        },
    }
}

/// The clients of sessions, for the column CLIENT.
struct Clients<'a> {
    server: &'a Server,
    direct: Option<Direct>,
    known: HashMap<u64, Bytes>,
    /// When the sessions were last listed.
    listed_at: Option<Instant>,
}

impl Clients<'_> {
    /// Returns the label of a session, or else its address. For an unknown session, lists the sessions again, at most
    /// once in [`LISTED_EVERY`]. `None` if the session was not listed then, or if this client may not list them.
    async fn of(&mut self, session: Option<u64>) -> Option<&[u8]> {
        let session = session?;
        let is_due = self.listed_at.is_none_or(|listed_at| listed_at.elapsed() > LISTED_EVERY);
        if !self.known.contains_key(&session) && is_due {
            let listed = tokio::time::timeout(self.server.timeout, self.list()).await;
            self.known = listed.ok().flatten().unwrap_or_default();
            self.listed_at = Some(Instant::now());
        }
        self.known.get(&session).map(|client| &client[..])
    }

    async fn list(&mut self) -> Option<HashMap<u64, Bytes>> {
        let direct = match self.direct.take() {
            Some(direct) => direct,
            None => self.server.direct().await.ok()?,
        };
        let mut sessions = direct.sessions().await.ok()?;
        let mut known = HashMap::new();
        while let Some(SessionEntry { session, label, address, .. }) =
            sessions.next().await.transpose().ok()?
        {
            known.insert(session, if label.is_empty() { address } else { label });
        }
        self.direct = Some(direct);
        Some(known)
    }
}

/// Returns an event in JSON. `time_s` is when it was printed, in seconds since the Unix epoch.
fn object_of(time_s: u64, number: u64, event: &Event<Bytes>, kind: &str, client: Option<&[u8]>) -> Value {
    let name = (!event.name.is_empty()).then(|| Named::of(&event.name));
    merged([
        json!({
            "time": time_s,
            "number": number,
            "kind": event.namespace.noun(),
            "event": kind,
            // Strings: many JSON readers convert numbers to doubles, which would round them.
            "grant": event.grant.map(|grant| grant.0.to_string()),
            "session": event.session.map(|session| session.to_string()),
            "resources": event.resources,
            "in_use": event.in_use,
            "waiting": event.waiting,
        }),
        json!(name),
        json!({ "client": client.map(escaped) }),
    ])
}
