//! `signalbox sysv`: System V semaphore sets: runs programs with them, lists, shows and removes them.
//!
//! `status`, `holders`, `waiters` and `watch` are about a set with the option `--sysv`; what they print is here, too.

mod key;
mod library;
mod list;
mod program;
mod remove;
mod run;
mod set;
mod settings;
mod show;
mod users;
mod watch;

use std::process::ExitCode;

use clap::{Args, Subcommand};

pub(super) use set::{SetName, completions};
pub(super) use show::show_named;
pub(super) use users::list_users;
pub(super) use watch::{Watched, watch};

use super::exit::{Exit, Failure};
use super::name::Name;
use super::server::{Server, block_on};

const LONG: &str = "\
Run programs with System V semaphores, and list, show and remove sets

Programs that call semget, semop and semctl use the semaphores of their own host. With \"signalbox sysv run\" they share \
them with programs on other hosts, without changes: a library sends the calls to the server.

\"list\", \"show\" and \"remove\" correspond to ipcs and ipcrm. \"signalbox status\" and \"signalbox watch\" are about a set with \
the option --sysv.";

const EXAMPLES: &str = "\
Examples:
  signalbox sysv run --server lock.example.org --keys all -- php worker.php
  signalbox sysv list
  signalbox sysv show 0x2a
  signalbox status --holders --sysv 0x2a";

/// Run programs with System V semaphores, and list, show and remove sets
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES, disable_help_subcommand = true)]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Run(run::Arguments),
    List(list::Arguments),
    Show(show::Arguments),
    Remove(remove::Arguments),
}

/// The option of the subcommands whose NAME may be a set.
#[derive(Debug, Args)]
pub(super) struct SysvOption {
    /// The name is a System V semaphore set: its key (0x2a, 42), or id: and its id; see "signalbox sysv"
    #[arg(id = "sysv", long = "sysv", global = true)]
    is_given: bool,
}

impl SysvOption {
    pub(super) fn is_given(&self) -> bool {
        self.is_given
    }

    /// The set of the name; `None`: the name is not one of a set.
    pub(super) fn set(&self, name: &Name, server: &Server) -> Result<Option<SetName>, Failure> {
        if !self.is_given {
            return Ok(None);
        }
        self.check(server)?;
        let text = str::from_utf8(name.bytes()).unwrap_or_default();
        let set = text.parse().map_err(|error| Failure::new(Exit::Usage, format!("{name} {error}")))?;
        Ok(Some(set))
    }

    /// Refuses the option beside the one of another kind.
    pub(super) fn check(&self, server: &Server) -> Result<(), Failure> {
        if self.is_given && server.kind().is_some() {
            let message = "--sysv contradicts --counter and --semaphore; omit these, and if the server has only \
                           the port of the semaphores, give it with --server HOST:PORT";
            return Err(Failure::new(Exit::Usage, message));
        }
        Ok(())
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.action {
        Action::Run(arguments) => run::run(arguments),
        Action::List(arguments) => block_on(list::list(arguments)),
        Action::Show(arguments) => block_on(show::show(arguments)),
        Action::Remove(arguments) => block_on(remove::remove(arguments)),
    }
}
