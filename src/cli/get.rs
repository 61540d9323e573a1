//! `signalbox get`: prints the usage of a counter, or the available resources of a semaphore.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;

use super::exit::{Exit, Failure};
use super::name::Name;
use super::server::{Server, block_on};
use crate::client::{Error, Status};

const EXAMPLES: &str = "\
Examples:
  signalbox get backup
  signalbox get --semaphore deploys";

/// Print how many resources of a counter are in use, or with --semaphore how many of a semaphore are available
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Name of the counter or semaphore
    #[arg(value_parser = Name::parser())]
    name: Name,

    #[command(flatten)]
    server: Server,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    block_on(get(arguments))
}

async fn get(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { name, server } = arguments;
    let client = server.connect().await?;
    match server.answer(client.get(name.bytes())).await? {
        Err(Error::Status(Status::NotFound)) => Err(server.not_found(name)),
        result => {
            writeln!(std::io::stdout(), "{}", result?)?;
            Ok(Exit::Success.into())
        }
    }
}
