//! `signalbox sysv list`: lists the semaphore sets, as `ipcs -s` does.

use std::io::{self, BufWriter};
use std::process::ExitCode;

use crate::cli::arguments::Common;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::{NOTHING, json, utc};
use crate::cli::table::{Column, Rows};
use signalbox_client::sysv::{ListedSet, Order, SetStat};
use signalbox_model::views::{Set, key_of, mode_of};

const COLUMNS: [Column; 11] = [
    Column::word("KEY", 10),
    Column::number("ID", 10),
    Column::number("USER", 6),
    Column::number("GROUP", 6),
    Column::word("MODE", 4),
    Column::number("SEMAPHORES", 10),
    Column::number("WAITING", 7),
    Column::number("ADJUSTING", 9),
    Column::word("OPERATED", 20).omitted(1),
    Column::word("CHANGED", 20).omitted(2),
    Column::word("FLAGS", 5),
];

/// Entries are written as they arrive, so memory does not grow with their number.
pub(super) async fn list(common: &Common) -> Result<ExitCode, Failure> {
    let server = &common.server;
    let mut rows = Rows::new(common.form(), &COLUMNS, BufWriter::new(io::stdout().lock()));
    let direct = server.direct().await?;
    let mut sets = server.answer(direct.sets()).await??;
    while let Some(listed) = server.answer(async { sets.next().await.transpose() }).await?? {
        rows.push(|| cells(&listed), || json(&Set::of(&listed)))?;
    }
    rows.finish()?;
    Ok(Exit::Success.into())
}

fn cells(listed: &ListedSet) -> Vec<String> {
    let ListedSet { set, stat, waiting, adjusting, .. } = listed;
    vec![
        key_cell(stat),
        set.to_string(),
        stat.ownership.uid.to_string(),
        stat.ownership.gid.to_string(),
        mode_of(stat),
        stat.count.to_string(),
        waiting.to_string(),
        adjusting.to_string(),
        operated(stat),
        utc(stat.changed_at.0),
        flags(listed),
    ]
}

/// The flags of a set in a column.
pub(super) fn flags(listed: &ListedSet) -> String {
    let words = [(listed.is_durable, "durable"), (listed.order == Order::Fifo, "fifo")];
    let words: Vec<_> = words.into_iter().filter(|(is_set, _)| *is_set).map(|(_, word)| word).collect();
    if words.is_empty() { NOTHING.to_owned() } else { words.join(",") }
}

/// The key of a set in a column.
pub(super) fn key_cell(stat: &SetStat) -> String {
    key_of(stat).unwrap_or_else(|| NOTHING.to_owned())
}

/// The time of the last operation in a column.
pub(super) fn operated(stat: &SetStat) -> String {
    stat.operated_at.map_or_else(|| NOTHING.to_owned(), |at| utc(at.0))
}
