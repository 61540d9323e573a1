//! `signalbox sysv list`: lists the semaphore sets, as `ipcs -s` does.

use std::io::{self, BufWriter};
use std::process::ExitCode;

use crate::cli::arguments::Common;
use crate::cli::exit::{Exit, Failure};
use crate::cli::table::{Column, Rows};
use signalbox_model::views::Set;

const COLUMNS: [Column; 11] = [
    Column::word("KEY", 10),
    Column::number("ID", 10),
    Column::number("USER", 6).under("uid"),
    Column::number("GROUP", 6).under("gid"),
    Column::word("MODE", 4),
    Column::number("SEMAPHORES", 10),
    Column::number("WAITING", 7),
    Column::number("ADJUSTING", 9),
    Column::utc("OPERATED").omitted(1),
    Column::utc("CHANGED").omitted(2),
    Column::word("FLAGS", 5),
];

/// Entries are written as they arrive, so memory does not grow with their number.
pub(super) async fn list(common: &Common) -> Result<ExitCode, Failure> {
    let server = &common.server;
    let mut rows = Rows::new(common.form(), &COLUMNS, BufWriter::new(io::stdout().lock()));
    let direct = server.direct().await?;
    let mut sets = server.answer(direct.sets()).await??;
    while let Some(listed) = server.next(&mut sets).await?? {
        rows.push(&Set::of(&listed))?;
    }
    rows.finish()?;
    Ok(Exit::Success.into())
}
