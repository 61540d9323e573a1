//! The processes that use a set: those with adjustments are its holders, the calls that wait are its waiters.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use serde::Serialize;

use super::set::SetName;
use crate::cli::arguments::Common;
use crate::cli::exit::{Exit, Failure};
use crate::cli::listing::ListingKind;
use crate::cli::output::Form;
use crate::cli::server::Server;
use crate::cli::table::{Column, Rows};
use signalbox_client::sysv::{ListedUser, Operation, SetId, UserRole};
use signalbox_client::{Direct, Status};
use signalbox_model::views::User;

const HOLDERS: [Column; 5] = [
    Column::number("PROCESS", 20).omitted(1),
    Column::number("PID", 10),
    Column::number("USER", 6).under("uid"),
    Column::text("ADJUSTMENTS"),
    Column::text("LABEL"),
];

const WAITERS: [Column; 6] = [
    Column::number("POSITION", 8),
    Column::number("PROCESS", 20).omitted(1),
    Column::number("PID", 10),
    Column::number("USER", 6).under("uid"),
    Column::text("OPERATIONS"),
    Column::text("LABEL"),
];

/// Prints the holders or the waiters of a set: `status --sysv --holders` and `--waiters`.
pub(crate) async fn list_users(
    common: &Common,
    name: SetName,
    kind: ListingKind,
) -> Result<ExitCode, Failure> {
    let server = &common.server;
    let direct = server.direct().await?;
    let listed = name.find(server, &direct).await?;
    let users = Users::read(server, &direct, name, listed.set).await?;
    users.write(kind, common.form(), BufWriter::new(io::stdout().lock()))?;
    Ok(Exit::Success.into())
}

/// All users of a set, in JSON.
pub(super) struct Users {
    pub(super) holders: Vec<Line>,
    pub(super) queue: Vec<Line>,
}

impl Users {
    pub(super) async fn read(
        server: &Server,
        direct: &Direct,
        name: SetName,
        set: SetId,
    ) -> Result<Self, Failure> {
        let all = match server.all(direct.set_users(set)).await {
            // It was removed after it was found.
            Err(error) if error.status() == Some(Status::NotFound) => return Err(name.missing()),
            all => all?,
        };
        let (adjusting, waiting): (Vec<_>, Vec<_>) =
            all.iter().partition(|user| user.role == UserRole::Adjusts);
        let holder = |user| Line::of(None, user, adjustment_text);
        let waiter = |(index, user)| Line::of(Some(index + 1), user, operation_text);
        Ok(Self {
            holders: adjusting.into_iter().map(holder).collect(),
            queue: waiting.into_iter().enumerate().map(waiter).collect(),
        })
    }

    pub(super) fn of(&self, kind: ListingKind) -> &[Line] {
        match kind {
            ListingKind::Holders => &self.holders,
            ListingKind::Waiters => &self.queue,
        }
    }

    pub(super) fn write(&self, kind: ListingKind, form: Form, out: impl Write) -> io::Result<()> {
        let (columns, title): (&[_], _) = match kind {
            ListingKind::Holders => (&HOLDERS, "ADJUSTMENTS"),
            ListingKind::Waiters => (&WAITERS, "OPERATIONS"),
        };
        let mut rows = Rows::new(form, columns, out);
        for line in self.of(kind) {
            rows.push_with(line, &[(title, &line.operations)])?;
        }
        rows.finish()
    }
}

/// An operation, such as `0:-1 UNDO`: the number of the semaphore, what is added to its value (0: it waits until the value
/// is 0), and the flags.
fn operation_text(operation: &Operation) -> String {
    let mut text = adjustment_text(operation);
    for (is_set, word) in [(operation.is_nowait(), " NOWAIT"), (operation.is_undone(), " UNDO")] {
        if is_set {
            text.push_str(word);
        }
    }
    text
}

fn adjustment_text(operation: &Operation) -> String {
    let Operation { number, change, .. } = operation;
    if *change == 0 { format!("{number}:0") } else { format!("{number}:{change:+}") }
}

/// A user in JSON.
#[derive(Serialize)]
pub(super) struct Line {
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<usize>,
    #[serde(flatten)]
    user: User,
    /// What it holds or waits for, as text.
    #[serde(skip)]
    operations: String,
}

impl Line {
    fn of(position: Option<usize>, user: &ListedUser, text: fn(&Operation) -> String) -> Self {
        let operations = user.operations.iter().map(text).collect::<Vec<_>>().join(", ");
        Self { position, user: User::of(user), operations }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use signalbox_client::sysv::{IPC_NOWAIT, SEM_UNDO};

    #[test]
    fn an_operation_is_readable() {
        for (change, flags, expected) in [
            (-1, SEM_UNDO, "3:-1 UNDO"),
            (0, 0, "3:0"),
            (2, IPC_NOWAIT | SEM_UNDO, "3:+2 NOWAIT UNDO"),
            (-32768, 0, "3:-32768"),
        ] {
            assert_eq!(operation_text(&Operation { number: 3, change, flags }), expected);
        }
    }
}
