//! `signalbox sysv`: runs programs with System V semaphore sets, and lists, shows and removes sets.
//!
//! With `--sysv`, `status` and `watch` are about a set; what they print is here, too.

mod library;
mod program;
mod run;
mod set;
mod settings;
mod show;
mod watch;

use clap::{Args, Subcommand};

use set::SetArgument;
pub(super) use set::{SetName, names_of_sets};
pub(super) use show::{list_users, show_named};
pub(super) use watch::watch;

use super::arguments::Common;
use super::exit::Failure;
use super::server::block_on;
use super::table::Column;
use signalbox_model::views::Set;

/// Run programs with System V semaphores, and list, show and remove sets
///
/// Programs that call semget, semop and semctl use the semaphores of their own host. With "signalbox sysv run" they share
/// them with programs on other hosts, without changes: a library sends the calls to the server.
///
/// "list", "show" and "remove" correspond to ipcs and ipcrm. With --sysv, "signalbox status" and "signalbox watch" are
/// about a set.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox sysv run --server lock.example.org --keys all -- php worker.php
  signalbox sysv list
  signalbox sysv show 0x2a
  signalbox status --holders --sysv 0x2a")]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Run(run::Arguments),
    /// List the System V semaphore sets
    ///
    /// The columns are: key (in hexadecimal digits), id, user and group of the owner, mode (in octal digits), number of semaphores,
    /// calls that wait, processes with adjustments (SEM_UNDO), time of the last operation, time of the last change of values or
    /// owner by semctl, or of the creation (UTC), flags: durable (it survives a restart of the server), fifo (a call that takes
    /// from a semaphore waits for those before it). A set that was made without a key (IPC_PRIVATE) has none.
    ///
    /// With --json, the output is one object per line with the keys key (a string, or null), id, uid, gid, creator_uid,
    /// creator_gid, mode (a string), semaphores, waiting, adjusting, operated and changed (in seconds since 1970),
    /// durable and fifo.
    #[command(after_help = "\
Examples:
  signalbox sysv list
  signalbox sysv list --json | jq 'select(.waiting > 0)'")]
    List,
    /// Show a System V semaphore set, its semaphores and the processes that use it
    ///
    /// Prints the key, the id, the owner and the creator (user:group), the mode, the number of semaphores, of calls that wait
    /// and of processes with adjustments, the times of the last operation and of the last change by semctl, and the flags (as
    /// in "signalbox sysv list"). For each semaphore, number, value, process id of the last operation, and the calls that wait
    /// for the value to grow (NCOUNT) or to become 0 (ZCOUNT) follow. Then come the holders: processes with adjustments, which
    /// the server adds to the values when the process ends; and the queue: calls that wait, with their operations, such as 0:-1
    /// UNDO (take 1 from semaphore 0, and give it back when the process ends) or 1:0 (wait until semaphore 1 is 0).
    ///
    /// The values are shown if the mode permits the user of this command to read the set.
    ///
    /// With --json, the output is one object with the keys of "signalbox sysv list", kind (sysv), values (an array of objects
    /// with number, value, pid, ncount and zcount, or null), holders and queue (arrays of the objects of "signalbox status
    /// --sysv --holders" and "--waiters").
    #[command(after_help = "\
Examples:
  signalbox sysv show 0x2a
  signalbox sysv show --id 1073741825 --json | jq .queue
  signalbox status --sysv 42")]
    Show(SetArgument),
    /// Remove a System V semaphore set
    ///
    /// Calls that wait for the set fail with EIDRM, and later ones with EINVAL, as after ipcrm. Adjustments of the set
    /// are dropped. The owner of the set, its creator and user 0 may remove it: the server checks the user that this
    /// program states, as it does for other programs.
    #[command(after_help = "\
Examples:
  signalbox sysv remove 0x2a
  signalbox sysv remove --id 1073741825")]
    Remove(SetArgument),
}

pub(super) fn run(arguments: &Arguments, common: &Common) -> Result<(), Failure> {
    match &arguments.action {
        Action::Run(arguments) => run::run(arguments, common),
        Action::List => block_on(list(common)),
        Action::Show(set) => block_on(show_named(common, set.name())),
        Action::Remove(set) => block_on(set::remove(set.name(), &common.server)),
    }
}

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

/// Lists the semaphore sets, as `ipcs -s` does. Entries are written as they arrive, so memory does not grow with their number.
async fn list(common: &Common) -> Result<(), Failure> {
    let server = &common.server;
    let mut rows = common.rows(&COLUMNS);
    let direct = server.direct().await?;
    let mut sets = server.answer(direct.sets()).await?;
    while let Some(listed) = server.next(&mut sets).await? {
        rows.push(&Set::of(&listed))?;
    }
    Ok(rows.finish()?)
}
