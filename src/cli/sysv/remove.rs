//! `signalbox sysv remove`: removes a semaphore set, as `ipcrm` does.

use std::process::ExitCode;

use clap::Args;

use super::set::{self, SetArgument, SetName};
use crate::cli::exit::{Exit, Failure};
use crate::cli::server::Server;
use signalbox_client::sysv::Errno;

const LONG: &str = "\
Remove a System V semaphore set

Calls that wait for the set fail with EIDRM, and later ones with EINVAL, as after ipcrm. Adjustments of the set are \
dropped. The owner of the set, its creator and user 0 may remove it: the server checks the user of this command, as it is \
stated by this program, like it checks other programs.";

const EXAMPLES: &str = "\
Examples:
  signalbox sysv remove 0x2a
  signalbox sysv remove --id 1073741825";

/// Remove a System V semaphore set
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    set: SetArgument,

    #[command(flatten)]
    server: Server,
}

pub(super) async fn remove(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { set, server } = arguments;
    let name = set.name();
    let direct = server.direct().await?;
    let process = set::open_process(server, &direct, "sysv remove").await?;
    let remove = async {
        let id = match name {
            SetName::Key(key) => process.find(key).await?.0,
            SetName::Id(id) => id,
        };
        process.remove(id).await
    };
    let error = match server.answer(remove).await? {
        Ok(()) => return Ok(Exit::Success.into()),
        Err(error) => error,
    };
    Err(match error.errno() {
        Some(Errno::NoEnt | Errno::Inval) => name.missing(),
        Some(errno @ Errno::Perm) => {
            let message = format!(
                "{name} was not removed: only its owner, its creator and user 0 may remove it, and this command is run \
                 by user {} ({errno}); \"signalbox sysv list\" shows the owner",
                set::caller().uid
            );
            Failure::new(Exit::Failure, message)
        }
        _ => error.into(),
    })
}
