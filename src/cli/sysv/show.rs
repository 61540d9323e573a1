//! `signalbox sysv show` and `signalbox status --sysv`: one semaphore set with its semaphores, and the processes that use it:
//! those with adjustments are its holders, the calls that wait are its waiters.

use std::io::{self, BufWriter, Write};

use serde_json::{Value, json};

use super::set::{self, SetName};
use crate::cli::arguments::Common;
use crate::cli::exit::Failure;
use crate::cli::listing::ListingKind;
use crate::cli::messages::warn;
use crate::cli::output::{self, Form, merged, value_or_dash};
use crate::cli::server::Server;
use crate::cli::table::{Column, Rows, write_fields};
use signalbox_client::sysv::{Errno, ListedSet, ListedUser, Operation, Semaphore, SetId, UserRole};
use signalbox_client::{Direct, Status};
use signalbox_model::views::{Set, User, mode_of};

const SEMAPHORES: [Column; 5] = [
    Column::number("NUMBER", 6),
    Column::number("VALUE", 6),
    Column::number("PID", 10),
    Column::number("NCOUNT", 6),
    Column::number("ZCOUNT", 6),
];

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

const KEYS: [&str; 12] = [
    "kind",
    "key",
    "id",
    "owner",
    "creator",
    "mode",
    "semaphores",
    "waiting",
    "adjusting",
    "operated",
    "changed",
    "flags",
];

/// The kind of a set in `status`.
const KIND: &str = "sysv";

pub(crate) async fn show_named(common: &Common, name: SetName) -> Result<(), Failure> {
    let server = &common.server;
    let direct = server.direct().await?;
    let listed = name.find(server, &direct).await?;
    let values = semaphores(server, &direct, name, &listed).await?;
    let users = Users::read(server, &direct, name, listed.set).await?;
    let mut out = io::stdout().lock();
    match common.json {
        true => {
            let [holders, queue] = ListingKind::ALL.map(|kind| users.objects(kind));
            let lists = json!({ "values": values, "holders": holders, "queue": queue });
            let object = merged([json!({ "kind": KIND }), json!(Set::of(&listed)), lists]);
            writeln!(out, "{}", output::json(&object))?
        }
        false => write(&listed, values.as_deref(), &users, common.form(), &mut out)?,
    }
    Ok(())
}

/// Returns the semaphores; `None` if the user may not read them.
async fn semaphores(
    server: &Server,
    direct: &Direct,
    name: SetName,
    listed: &ListedSet,
) -> Result<Option<Vec<Value>>, Failure> {
    let process = set::open_process(server, direct, "sysv show").await?;
    match server.answer(process.semaphores(listed.set)).await {
        Ok(semaphores) => Ok(Some(semaphores.iter().enumerate().map(value).collect())),
        Err(error) if error.errno() == Some(Errno::Access) => {
            warn(&format!(
                "the values of {name} are not shown: its mode {} does not permit user {} to read it; run as user {} or 0",
                mode_of(&listed.stat),
                set::caller().uid,
                listed.stat.ownership.uid
            ));
            Ok(None)
        }
        Err(error) if error.errno() == Some(Errno::Inval) => Err(name.missing()),
        Err(error) => Err(error.into()),
    }
}

fn write(
    listed: &ListedSet,
    values: Option<&[Value]>,
    users: &Users,
    form: Form,
    out: &mut impl Write,
) -> io::Result<()> {
    let stat = &listed.stat;
    let owner = format!("{}:{}", stat.ownership.uid, stat.ownership.gid);
    let creator = format!("{}:{}", stat.creator_uid, stat.creator_gid);
    let (operated, changed) = (value_or_dash(stat.operated_at), stat.changed_at.to_string());
    let given = [
        ("kind", KIND),
        ("owner", &owner),
        ("creator", &creator),
        ("operated", &operated),
        ("changed", &changed),
    ];
    write_fields(out, 10, &KEYS, &Set::of(listed), &given)?;
    if let Some(values) = values {
        writeln!(out, "\nsemaphores:")?;
        let mut rows = Rows::new(form, &SEMAPHORES, &mut *out);
        values.iter().try_for_each(|semaphore| rows.push(semaphore))?;
        rows.finish()?;
    }
    for kind in ListingKind::ALL {
        if !users.of(kind).is_empty() {
            writeln!(out, "\n{}:", kind.title())?;
            users.write(kind, form, &mut *out)?;
        }
    }
    Ok(())
}

/// Returns a semaphore in JSON.
fn value((number, semaphore): (usize, &Semaphore)) -> Value {
    let Semaphore { value, pid, waiting_for_growth, waiting_for_zero } = semaphore;
    json!({ "number": number, "value": value, "pid": pid, "ncount": waiting_for_growth, "zcount": waiting_for_zero })
}

/// Prints the holders or the waiters of a set: `status --sysv --holders` and `--waiters`.
pub(crate) async fn list_users(common: &Common, name: SetName, kind: ListingKind) -> Result<(), Failure> {
    let server = &common.server;
    let direct = server.direct().await?;
    let listed = name.find(server, &direct).await?;
    let users = Users::read(server, &direct, name, listed.set).await?;
    users.write(kind, common.form(), BufWriter::new(io::stdout().lock()))?;
    Ok(())
}

/// A user of a set in JSON, and what it holds or waits for as text.
type UserLine = (Value, String);

/// All users of a set.
struct Users {
    holders: Vec<UserLine>,
    queue: Vec<UserLine>,
}

impl Users {
    async fn read(server: &Server, direct: &Direct, name: SetName, set: SetId) -> Result<Self, Failure> {
        let all = match server.all(direct.set_users(set)).await {
            // It was removed after it was found.
            Err(error) if error.status() == Some(Status::NotFound) => return Err(name.missing()),
            all => all?,
        };
        let (adjusting, waiting): (Vec<_>, Vec<_>) =
            all.iter().partition(|user| user.role == UserRole::Adjusts);
        let text = |user: &ListedUser, text: fn(&Operation) -> String| {
            user.operations.iter().map(text).collect::<Vec<_>>().join(", ")
        };
        let holder = |user| (json!(User::of(user)), text(user, adjustment_text));
        let waiter = |(index, user): (usize, &ListedUser)| {
            let object = merged([json!({ "position": index + 1 }), json!(User::of(user))]);
            (object, text(user, operation_text))
        };
        Ok(Self {
            holders: adjusting.into_iter().map(holder).collect(),
            queue: waiting.into_iter().enumerate().map(waiter).collect(),
        })
    }

    fn of(&self, kind: ListingKind) -> &[UserLine] {
        match kind {
            ListingKind::Holders => &self.holders,
            ListingKind::Waiters => &self.queue,
        }
    }

    fn objects(&self, kind: ListingKind) -> Vec<&Value> {
        self.of(kind).iter().map(|(object, _)| object).collect()
    }

    fn write(&self, kind: ListingKind, form: Form, out: impl Write) -> io::Result<()> {
        let (columns, title): (&[_], _) = match kind {
            ListingKind::Holders => (&HOLDERS, "ADJUSTMENTS"),
            ListingKind::Waiters => (&WAITERS, "OPERATIONS"),
        };
        let mut rows = Rows::new(form, columns, out);
        for (object, operations) in self.of(kind) {
            rows.push_with(object, &[(title, operations)])?;
        }
        rows.finish()
    }
}

/// Returns an operation as text, such as `0:-1 UNDO`: the number of the semaphore, what is added to its value (0 waits
/// until the value is 0), and the flags.
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
