//! Finds the set that an argument names, lists the names of sets, and removes a set.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use clap::Args;

use crate::cli::exit::Failure;
use crate::cli::server::{Server, label};
use crate::cli::values::Name;
use signalbox_client::Direct;
use signalbox_client::sysv::{Caller, Errno, Identity, ListedSet, Process, SetId};
use signalbox_model::sysv::{IPC_PRIVATE, key};
use signalbox_model::views::key_of;

/// A set, as an argument names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetName {
    Key(i32),
    Id(SetId),
}

/// The argument of a subcommand that is only about sets.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct SetArgument {
    /// Key of the set, as "signalbox sysv list" shows it (0x2a) or in decimal (42)
    #[arg(id = "set", value_name = "KEY", allow_negative_numbers = true, value_parser = named)]
    set: Option<SetName>,

    /// Id of the set, for example of one without a key
    #[arg(long, value_name = "ID", value_parser = id)]
    id: Option<SetId>,
}

impl SetArgument {
    pub(super) fn name(&self) -> SetName {
        self.id.map(SetName::Id).or(self.set).expect("clap requires one of the two")
    }
}

impl FromStr for SetName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let set = match text.strip_prefix("id:") {
            Some(number) => id(number).ok().map(Self::Id),
            None => match key(text) {
                Some(IPC_PRIVATE) => {
                    return Err(
                        "is the key of all sets without a key; name the set by its id, such as id:1073741825",
                    );
                }
                key => key.map(Self::Key),
            },
        };
        set.ok_or(
            "is not the key of a semaphore set; write a key such as 0x2a or 42, or id:N for a set by its id",
        )
    }
}

fn named(text: &str) -> Result<SetName, String> {
    text.parse().map_err(|error| format!("it {error}"))
}

fn id(text: &str) -> Result<SetId, &'static str> {
    let id = text.parse().ok().filter(|id| *id >= 0);
    id.map(SetId).ok_or("expected the id of a set, as \"signalbox sysv list\" shows it")
}

/// For messages.
impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => write!(f, "semaphore set {key:#010x}"),
            Self::Id(id) => write!(f, "semaphore set id:{id}"),
        }
    }
}

impl SetName {
    /// Parses the NAME of a subcommand with `--sysv`.
    pub(crate) fn of(name: &Name) -> Result<Self, Failure> {
        let text = str::from_utf8(name.bytes()).unwrap_or_default();
        text.parse().map_err(|error| Failure::usage(format!("{name} {error}")))
    }

    /// Returns whether `listed` is the set of this name.
    pub(super) fn matches(self, listed: &ListedSet) -> bool {
        match self {
            Self::Key(key) => listed.stat.key == key,
            Self::Id(id) => listed.set == id,
        }
    }

    /// Returns the set of this name on the server. Fails if there is none.
    pub(super) async fn find(self, server: &Server, direct: &Direct) -> Result<ListedSet, Failure> {
        let listed = server.all(direct.sets()).await?;
        listed.into_iter().find(|listed| self.matches(listed)).ok_or_else(|| self.missing())
    }

    pub(super) fn missing(self) -> Failure {
        Failure::refused(format!("{self} does not exist; \"signalbox sysv list\" lists the sets"))
    }
}

/// Opens a process for the calls of this subcommand, with the user and the groups of this process.
pub(super) async fn open_process(server: &Server, direct: &Direct, task: &str) -> Result<Process, Failure> {
    let groups = nix::unistd::getgroups().unwrap_or_default();
    let groups: Vec<u32> = groups.into_iter().map(nix::unistd::Gid::as_raw).collect();
    let label = label(task);
    let identity = Identity { pid: std::process::id(), caller: caller(), groups: &groups, label: &label };
    Ok(server.answer(direct.open_process(&identity)).await?)
}

/// Removes the set of this name, as `ipcrm` does.
pub(super) async fn remove(name: SetName, server: &Server) -> Result<(), Failure> {
    let direct = server.direct().await?;
    let process = open_process(server, &direct, "sysv remove").await?;
    let remove = async {
        let id = match name {
            SetName::Key(key) => process.find(key).await?.0,
            SetName::Id(id) => id,
        };
        process.remove(id).await
    };
    let error = match server.answer(remove).await {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    Err(match error.errno() {
        Some(Errno::NoEnt | Errno::Inval) => name.missing(),
        Some(errno @ Errno::Perm) => Failure::refused(format!(
            "{name} was not removed: only its owner, its creator and user 0 may remove it, and this command is run \
                 by user {} ({errno}); \"signalbox sysv list\" shows the owner",
            caller().uid
        )),
        _ => error.into(),
    })
}

/// Returns the effective user and group of this process.
pub(super) fn caller() -> Caller {
    Caller { uid: nix::unistd::geteuid().as_raw(), gid: nix::unistd::getegid().as_raw() }
}

/// Returns the names of sets, for the completion of a command line.
pub(crate) async fn names_of_sets(server: &Server) -> Option<BTreeSet<String>> {
    let direct = server.direct().await.ok()?;
    let sets = server.all(direct.sets()).await.ok()?;
    let name = |listed: ListedSet| key_of(&listed.stat).unwrap_or_else(|| format!("id:{}", listed.set));
    Some(sets.into_iter().map(name).collect())
}
