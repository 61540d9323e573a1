//! The processes that use a set: those with adjustments are its holders, the calls that wait are its waiters.

use std::io::{self, BufWriter};
use std::process::ExitCode;

use serde::Serialize;

use super::set::SetName;
use crate::cli::arguments::Common;
use crate::cli::exit::{Exit, Failure};
use crate::cli::listing::ListingKind;
use crate::cli::output::{json, or_nothing};
use crate::cli::server::Server;
use crate::cli::table::{Column, Rows};
use signalbox_client::sysv::{ListedUser, Operation, SetId, UserRole};
use signalbox_client::{Direct, Status};
use signalbox_model::views::User;

const HOLDERS: [Column; 5] = [
    Column::number("PROCESS", 20).omitted(1),
    Column::number("PID", 10),
    Column::number("USER", 6),
    Column::text("ADJUSTMENTS"),
    Column::text("LABEL"),
];

const WAITERS: [Column; 6] = [
    Column::number("POSITION", 8),
    Column::number("PROCESS", 20).omitted(1),
    Column::number("PID", 10),
    Column::number("USER", 6),
    Column::text("OPERATIONS"),
    Column::text("LABEL"),
];

/// Prints the holders or the waiters of a set: `holders --sysv` and `waiters --sysv`.
pub(crate) async fn list_users(
    common: &Common,
    name: SetName,
    kind: ListingKind,
) -> Result<ExitCode, Failure> {
    let server = &common.server;
    let direct = server.direct().await?;
    let listed = name.find(server, &direct).await?;
    let users = Users::read(server, &direct, name, listed.set).await?;
    let mut rows = Rows::new(common.form(), columns(kind), BufWriter::new(io::stdout().lock()));
    for (index, user) in users.of(kind).iter().enumerate() {
        rows.push(|| cells(kind, index, user), || json(&Line::of(kind, index, user)))?;
    }
    rows.finish()?;
    Ok(Exit::Success.into())
}

/// All users of a set.
pub(super) struct Users {
    adjusting: Vec<ListedUser>,
    waiting: Vec<ListedUser>,
}

impl Users {
    pub(super) async fn read(
        server: &Server,
        direct: &Direct,
        name: SetName,
        set: SetId,
    ) -> Result<Self, Failure> {
        let mut users = server.answer(direct.set_users(set)).await??;
        let mut all = Vec::new();
        loop {
            match server.answer(async { users.next().await.transpose() }).await? {
                // It was removed after it was found.
                Err(error) if error.status() == Some(Status::NotFound) => return Err(name.missing()),
                Err(error) => return Err(error.into()),
                Ok(Some(user)) => all.push(user),
                Ok(None) => break,
            }
        }
        let (adjusting, waiting) = all.into_iter().partition(|user| user.role == UserRole::Adjusts);
        Ok(Self { adjusting, waiting })
    }

    pub(super) fn of(&self, kind: ListingKind) -> &[ListedUser] {
        match kind {
            ListingKind::Holders => &self.adjusting,
            ListingKind::Waiters => &self.waiting,
        }
    }
}

pub(super) fn columns(kind: ListingKind) -> &'static [Column] {
    match kind {
        ListingKind::Holders => &HOLDERS,
        ListingKind::Waiters => &WAITERS,
    }
}

pub(super) fn cells(kind: ListingKind, index: usize, user: &ListedUser) -> Vec<String> {
    let ListedUser { process, pid, uid, label, operations, .. } = user;
    let operation = match kind {
        ListingKind::Holders => adjustment_text,
        ListingKind::Waiters => operation_text,
    };
    let operations = operations.iter().map(operation).collect::<Vec<_>>().join(", ");
    let position = (kind == ListingKind::Waiters).then(|| (index + 1).to_string());
    let rest = [process.to_string(), pid.to_string(), uid.to_string(), operations, or_nothing(label)];
    position.into_iter().chain(rest).collect()
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
}

impl Line {
    pub(super) fn of(kind: ListingKind, index: usize, user: &ListedUser) -> Self {
        let position = (kind == ListingKind::Waiters).then_some(index + 1);
        Self { position, user: User::of(user) }
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
