//! `signalbox pause` and `signalbox resume`: pause a declared semaphore, and end its pause.

use std::process::ExitCode;

use clap::Args;

use super::declared::{Change, refused};
use super::exit::Failure;
use super::name::Name;
use signalbox_model::{Operation, ServiceChange};

pub(super) const PAUSE_LONG: &str = "\
Pause a declared semaphore

From then on it grants nothing. Requests keep their places in the queue, and their time limits; holders keep what they \
hold, and can release it. \"signalbox resume\" ends the pause. The pause survives a restart of the server if it has a \
data directory. Unlike \"signalbox resize NAME 0\", it refuses no waiting request.

Semaphores that the server's configuration declares can be paused too; a reload of the configuration keeps the pause. \
The command prints the semaphore in the format of \"signalbox declare\".

The server accepts this request from its own machine and from the addresses in admin_from of its configuration.";

pub(super) const PAUSE_EXAMPLES: &str = "\
Examples:
  signalbox pause deploys
  signalbox pause deploys && signalbox await-idle --semaphore deploys --wait 1h
  signalbox resume deploys";

pub(super) const RESUME_LONG: &str = "\
End the pause of a declared semaphore

The queue is served at once, in its order. A semaphore that is not paused stays as it is. The command prints the semaphore \
in the format of \"signalbox declare\".

The server accepts this request from its own machine and from the addresses in admin_from of its configuration.";

pub(super) const RESUME_EXAMPLES: &str = "\
Examples:
  signalbox resume deploys
  signalbox resume deploys --generation 1882571025678336021";

// Without a description, which each of the two subcommands has of its own.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Declared semaphore to pause or to resume
    #[arg(value_parser = Name::parser())]
    name: Name,

    #[command(flatten)]
    change: Change,
}

pub(super) async fn run(arguments: &Arguments, how: ServiceChange) -> Result<ExitCode, Failure> {
    let Arguments { name, change } = arguments;
    let server = &change.server;
    let direct = server.direct().await?;
    let operation = Operation::ChangeService { name: name.bytes(), how, expected: change.generation() };
    match server.answer(direct.change(&operation)).await? {
        Ok(changed) => change.print(name, &changed),
        Err(error) => Err(refused(server, &direct, error, name).await),
    }
}
