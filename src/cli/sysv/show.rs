//! `signalbox sysv show` and `signalbox status --sysv`: one semaphore set with its semaphores and its users.

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;
use serde_json::{Value, json};

use super::set::{self, SetName};
use super::users::{self, Users};
use crate::cli::arguments::Common;
use crate::cli::exit::{Exit, Failure};
use crate::cli::listing::ListingKind;
use crate::cli::messages::warn;
use crate::cli::output::{self, Form, or_none};
use crate::cli::server::Server;
use crate::cli::table::{Column, Rows, figures};
use signalbox_client::Direct;
use signalbox_client::sysv::{Errno, ListedSet, Semaphore};
use signalbox_model::views::{Set, mode_of};

const SEMAPHORES: [Column; 5] = [
    Column::number("NUMBER", 6),
    Column::number("VALUE", 6),
    Column::number("PID", 10),
    Column::number("NCOUNT", 6),
    Column::number("ZCOUNT", 6),
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

/// What `status` calls a set.
const KIND: &str = "sysv";

/// Shows the set of this name.
pub(crate) async fn show_named(common: &Common, name: SetName) -> Result<ExitCode, Failure> {
    let server = &common.server;
    let direct = server.direct().await?;
    let listed = name.find(server, &direct).await?;
    let values = semaphores(server, &direct, name, &listed).await?;
    let users = Users::read(server, &direct, name, listed.set).await?;
    let mut out = io::stdout().lock();
    match common.json {
        true => {
            let (kind, set, Users { holders, queue }) = (KIND, Set::of(&listed), users);
            writeln!(out, "{}", output::json(&Line { kind, set, values, holders, queue }))?
        }
        false => write(&listed, values.as_deref(), &users, common.form(), &mut out)?,
    }
    Ok(Exit::Success.into())
}

/// The semaphores; `None`: the caller may not read them.
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
    let (operated, changed) = (or_none(stat.operated_at), stat.changed_at.to_string());
    let given = [
        ("kind", KIND),
        ("owner", &owner),
        ("creator", &creator),
        ("operated", &operated),
        ("changed", &changed),
    ];
    figures(out, 10, &KEYS, &Set::of(listed), &given)?;
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

/// A semaphore in JSON.
fn value((number, semaphore): (usize, &Semaphore)) -> Value {
    let Semaphore { value, pid, waiting_for_growth, waiting_for_zero } = semaphore;
    json!({ "number": number, "value": value, "pid": pid, "ncount": waiting_for_growth, "zcount": waiting_for_zero })
}

/// A set in JSON.
#[derive(Serialize)]
struct Line {
    kind: &'static str,
    #[serde(flatten)]
    set: Set,
    values: Option<Vec<Value>>,
    holders: Vec<users::Line>,
    queue: Vec<users::Line>,
}
