//! `signalbox watch --sysv`: prints changes of semaphore sets.
//!
//! The server has no events of sets, so this program requests their state repeatedly, and prints what has changed since
//! the last answer.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use serde_json::json;

use super::set::{self, SetName};
use crate::cli::exit::Failure;
use crate::cli::output::{Form, MISSING, merged, slot_list};
use crate::cli::server::Server;
use crate::cli::table::{Column, Rows};
use signalbox_client::Direct;
use signalbox_client::sysv::{Errno, ListedSet, Process, SetId};
use signalbox_model::views::Set;

const COLUMNS: [Column; 7] = [
    Column::word("EVENT", 8),
    Column::word("KEY", 10),
    Column::number("ID", 10),
    Column::number("WAITING", 7),
    Column::number("ADJUSTING", 9),
    Column::utc("OPERATED").omitted(1),
    Column::text("VALUES"),
];

/// The state of a set.
#[derive(Clone, Debug, PartialEq)]
struct State {
    listed: ListedSet,
    /// `None` if the user may not read them.
    values: Option<Vec<u16>>,
}

/// Prints the present sets, all or one, and then changes, until the connection is lost.
pub(crate) async fn watch(
    server: &Server,
    watched: Option<SetName>,
    interval: Duration,
    form: Form,
) -> Result<(), Failure> {
    let direct = server.direct().await?;
    let process = set::open_process(server, &direct, "watch").await?;
    let mut known = states(server, &direct, &process, watched).await?;
    // Standard output flushes after each line, so that events are visible when they happen.
    let mut rows = Rows::new(form, &COLUMNS, io::stdout().lock());
    known.values().try_for_each(|state| push(&mut rows, "present", Some(state)))?;
    push(&mut rows, "live", None)?;
    rows.settle()?;
    loop {
        tokio::time::sleep(interval).await;
        let now = states(server, &direct, &process, watched).await?;
        for (event, state) in changes(&known, &now) {
            push(&mut rows, event, Some(state))?;
        }
        known = now;
    }
}

async fn states(
    server: &Server,
    direct: &Direct,
    process: &Process,
    watched: Option<SetName>,
) -> Result<BTreeMap<SetId, State>, Failure> {
    let is_watched = |listed: &ListedSet| watched.is_none_or(|name| name.matches(listed));
    let mut states = BTreeMap::new();
    for listed in server.all(direct.sets()).await?.into_iter().filter(is_watched) {
        let values = match server.answer(process.values(listed.set)).await {
            Ok(values) => Some(values),
            // It was removed after it was listed.
            Err(error) if error.errno() == Some(Errno::Inval) => continue,
            Err(error) if error.errno() == Some(Errno::Access) => None,
            Err(error) => return Err(error.into()),
        };
        states.insert(listed.set, State { listed, values });
    }
    Ok(states)
}

/// Returns the changes between two states of all sets, each with the last known state of its set. Removed sets come
/// first, so that a set that was created again with the same key comes after them.
fn changes<'a>(
    before: &'a BTreeMap<SetId, State>,
    now: &'a BTreeMap<SetId, State>,
) -> impl Iterator<Item = (&'static str, &'a State)> {
    let removed = before.iter().filter(|(set, _)| !now.contains_key(set));
    let removed = removed.map(|(_, state)| ("removed", state));
    let changed = now.iter().filter_map(|(set, state)| match before.get(set) {
        None => Some(("created", state)),
        Some(known) => (known != state).then_some(("changed", state)),
    });
    removed.chain(changed)
}

fn push(rows: &mut Rows<impl Write>, event: &'static str, state: Option<&State>) -> io::Result<()> {
    let values = state.and_then(|state| state.values.as_deref());
    let text = values.map_or_else(|| MISSING.to_owned(), slot_list);
    let set = state.map(|state| Set::of(&state.listed));
    let object = merged([json!({ "event": event }), json!(set), json!({ "values": values })]);
    rows.push_with(&object, &[("VALUES", &text)])
}
