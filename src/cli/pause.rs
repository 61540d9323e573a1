//! `signalbox pause` and the common part of it and `signalbox resume`.

use std::process::ExitCode;

use clap::Args;

use super::declared::{Change, refused};
use super::exit::Failure;
use super::name::Name;
use signalbox_client::Pausing;

const LONG: &str = "\
Pause a declared semaphore

From then on it grants nothing. Requests keep their places in the queue, and their time limits; holders keep what they \
hold, and can release it. \"signalbox resume\" ends the pause. The pause survives a restart of the server if it has a \
data directory. Unlike \"signalbox resize NAME 0\", it refuses no waiting request.

Semaphores that the server's configuration declares can be paused too; a reload of the configuration keeps the pause. \
The command prints the semaphore in the format of \"signalbox declare\".

The server accepts this request from its own machine and from the addresses in admin_from of its configuration.";

const EXAMPLES: &str = "\
Examples:
  signalbox pause deploys
  signalbox pause deploys && signalbox await-idle --semaphore deploys --wait 1h
  signalbox resume deploys";

/// Pause a declared semaphore
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    paused: Paused,
}

/// The semaphore to pause or to resume.
#[derive(Debug, Args)]
pub(super) struct Paused {
    /// Declared semaphore to pause or to resume
    #[arg(value_parser = Name::parser())]
    name: Name,

    #[command(flatten)]
    change: Change,
}

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    arguments.paused.change(Pausing::Pause).await
}

impl Paused {
    pub(super) async fn change(&self, how: Pausing) -> Result<ExitCode, Failure> {
        let Self { name, change } = self;
        let server = &change.server;
        let direct = server.direct().await?;
        let changed = server.answer(direct.pause(name.bytes(), how, change.generation())).await?;
        let changed = match changed {
            Ok(changed) => changed,
            Err(error) => return Err(refused(server, &direct, error, name).await),
        };
        change.print(name, &changed)
    }
}
