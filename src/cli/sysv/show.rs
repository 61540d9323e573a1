//! `signalbox sysv show` and `signalbox status --sysv`: one semaphore set with its semaphores and its users.

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;

use super::list;
use super::set::{self, SetName};
use super::users::{self, Users};
use crate::cli::arguments::Common;
use crate::cli::exit::{Exit, Failure, warn};
use crate::cli::listing::ListingKind;
use crate::cli::output::{self, Form, json, utc};
use crate::cli::server::Server;
use crate::cli::table::{Column, Rows};
use signalbox_client::Direct;
use signalbox_client::sysv::{Errno, ListedSet, Ownership, Semaphore};
use signalbox_model::views::{Set, mode_of};

const SEMAPHORES: [Column; 5] = [
    Column::number("NUMBER", 6),
    Column::number("VALUE", 6),
    Column::number("PID", 10),
    Column::number("NCOUNT", 6),
    Column::number("ZCOUNT", 6),
];

/// Shows the set of this name.
pub(crate) async fn show_named(common: &Common, name: SetName) -> Result<ExitCode, Failure> {
    let server = &common.server;
    let direct = server.direct().await?;
    let listed = name.find(server, &direct).await?;
    let semaphores = semaphores(server, &direct, name, &listed).await?;
    let users = Users::read(server, &direct, name, listed.set).await?;
    let mut out = io::stdout().lock();
    let shown = Shown { listed, semaphores, users };
    match common.json {
        true => writeln!(out, "{}", shown.json())?,
        false => shown.write(common.form(), &mut out)?,
    }
    Ok(Exit::Success.into())
}

/// The semaphores; `None`: the caller may not read them.
async fn semaphores(
    server: &Server,
    direct: &Direct,
    name: SetName,
    listed: &ListedSet,
) -> Result<Option<Vec<Semaphore>>, Failure> {
    let process = set::open_process(server, direct, "sysv show").await?;
    match server.answer(process.semaphores(listed.set)).await? {
        Ok(semaphores) => Ok(Some(semaphores)),
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

/// What the server says about a set.
struct Shown {
    listed: ListedSet,
    semaphores: Option<Vec<Semaphore>>,
    users: Users,
}

impl Shown {
    fn write(&self, form: Form, out: &mut impl Write) -> io::Result<()> {
        let ListedSet { set, stat, waiting, adjusting, .. } = &self.listed;
        let Ownership { uid, gid, .. } = stat.ownership;
        let figures = [
            ("kind", "sysv".to_owned()),
            ("key", list::key_cell(stat)),
            ("id", set.to_string()),
            ("owner", format!("{uid}:{gid}")),
            ("creator", format!("{}:{}", stat.creator_uid, stat.creator_gid)),
            ("mode", mode_of(stat)),
            ("semaphores", stat.count.to_string()),
            ("waiting", waiting.to_string()),
            ("adjusting", adjusting.to_string()),
            ("operated", list::operated(stat)),
            ("changed", utc(stat.changed_at.0)),
            ("flags", list::flags(&self.listed)),
        ];
        output::figures(out, 10, &figures)?;
        if let Some(semaphores) = &self.semaphores {
            writeln!(out, "\nsemaphores:")?;
            let mut rows = Rows::new(form, &SEMAPHORES, &mut *out);
            for (number, semaphore) in semaphores.iter().enumerate() {
                let Semaphore { value, pid, waiting_for_growth, waiting_for_zero } = *semaphore;
                let numbers = [number as u32, value.into(), pid, waiting_for_growth, waiting_for_zero];
                rows.push(|| numbers.map(|number| number.to_string()).into(), String::new)?;
            }
            rows.finish()?;
        }
        for (title, kind) in [("holders", ListingKind::Holders), ("queue", ListingKind::Waiters)] {
            let users = self.users.of(kind);
            if users.is_empty() {
                continue;
            }
            writeln!(out, "\n{title}:")?;
            let mut rows = Rows::new(form, users::columns(kind), &mut *out);
            for (index, user) in users.iter().enumerate() {
                rows.push(|| users::cells(kind, index, user), String::new)?;
            }
            rows.finish()?;
        }
        Ok(())
    }

    fn json(&self) -> String {
        let users = |kind| {
            let users = self.users.of(kind).iter().enumerate();
            users.map(|(index, user)| users::Line::of(kind, index, user)).collect()
        };
        let semaphore = |(number, semaphore): (usize, &Semaphore)| SemaphoreLine {
            number,
            value: semaphore.value,
            pid: semaphore.pid,
            ncount: semaphore.waiting_for_growth,
            zcount: semaphore.waiting_for_zero,
        };
        json(&Line {
            kind: "sysv",
            set: Set::of(&self.listed),
            values: self.semaphores.as_ref().map(|all| all.iter().enumerate().map(semaphore).collect()),
            holders: users(ListingKind::Holders),
            queue: users(ListingKind::Waiters),
        })
    }
}

/// A set in JSON.
#[derive(Serialize)]
struct Line {
    kind: &'static str,
    #[serde(flatten)]
    set: Set,
    values: Option<Vec<SemaphoreLine>>,
    holders: Vec<users::Line>,
    queue: Vec<users::Line>,
}

#[derive(Serialize)]
struct SemaphoreLine {
    number: usize,
    value: u16,
    pid: u32,
    ncount: u32,
    zcount: u32,
}
