//! `signalbox sysv show` and `signalbox status --sysv`: one semaphore set with its semaphores and its users.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::list;
use super::set::{self, SetArgument, SetName};
use super::users::{self, Users};
use crate::cli::exit::{Exit, Failure, warn};
use crate::cli::listing::ListingKind;
use crate::cli::output::{Form, json, utc};
use crate::cli::server::Server;
use crate::cli::table::{Column, Rows};
use signalbox_client::Direct;
use signalbox_client::sysv::{Errno, ListedSet, Ownership, Semaphore};
use signalbox_model::views::{Set, mode_of};

const LONG: &str = "\
Show a System V semaphore set, its semaphores and the processes that use it

Prints the key, the id, the owner and the creator (user:group), the mode, the number of semaphores, of calls that wait and \
of processes with adjustments, the times of the last operation and of the last change by semctl, and the flags (as in \
\"signalbox sysv list\"). For each semaphore, \
number, value, process id of the last operation, and the calls that wait for the value to grow (NCOUNT) or to become 0 \
(ZCOUNT) follow. Then come the holders: processes with adjustments, which the server adds to the values when the process \
ends; and the queue: calls that wait, with their operations, such as 0:-1 UNDO (take 1 from semaphore 0, and give it back \
when the process ends) or 1:0 (wait until semaphore 1 is 0).

The values are shown if the mode permits the user of this command to read the set.

With --json, the output is one object with the keys of \"signalbox sysv list\", kind (sysv), values (an array of objects \
with number, value, pid, ncount and zcount, or null), holders and queue (arrays of the objects of \"signalbox status \
--sysv --holders\" and \"--waiters\").";

const EXAMPLES: &str = "\
Examples:
  signalbox sysv show 0x2a
  signalbox sysv show --id 1073741825 --json | jq .queue
  signalbox status --sysv 42";

const SEMAPHORES: [Column; 5] = [
    Column::number("NUMBER", 6),
    Column::number("VALUE", 6),
    Column::number("PID", 10),
    Column::number("NCOUNT", 6),
    Column::number("ZCOUNT", 6),
];

/// Show a System V semaphore set, its semaphores and the processes that use it
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    set: SetArgument,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: Server,
}

pub(super) async fn show(arguments: &Arguments) -> Result<ExitCode, Failure> {
    show_named(&arguments.server, arguments.set.name(), arguments.json).await
}

/// Shows the set of this name.
pub(crate) async fn show_named(
    server: &Server,
    name: SetName,
    wants_json: bool,
) -> Result<ExitCode, Failure> {
    let direct = server.direct().await?;
    let listed = name.find(server, &direct).await?;
    let semaphores = semaphores(server, &direct, name, &listed).await?;
    let users = Users::read(server, &direct, name, listed.set).await?;
    let mut out = io::stdout().lock();
    let shown = Shown { listed, semaphores, users };
    match wants_json {
        true => writeln!(out, "{}", shown.json())?,
        false => shown.write(&mut out)?,
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
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let ListedSet { set, stat, waiting, adjusting, .. } = &self.listed;
        let Ownership { uid, gid, .. } = stat.ownership;
        writeln!(out, "kind        sysv\nkey         {}\nid          {set}", list::key_cell(stat))?;
        writeln!(out, "owner       {uid}:{gid}")?;
        writeln!(out, "creator     {}:{}", stat.creator_uid, stat.creator_gid)?;
        writeln!(out, "mode        {}\nsemaphores  {}", mode_of(stat), stat.count)?;
        writeln!(out, "waiting     {waiting}\nadjusting   {adjusting}")?;
        writeln!(out, "operated    {}\nchanged     {}", list::operated(stat), utc(stat.changed_at.0))?;
        writeln!(out, "flags       {}", list::flags(&self.listed))?;
        if let Some(semaphores) = &self.semaphores {
            writeln!(out, "\nsemaphores:")?;
            let mut rows = Rows::new(Form::of_output(false), &SEMAPHORES, &mut *out);
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
            let mut rows = Rows::new(Form::of_output(false), users::columns(kind), &mut *out);
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
