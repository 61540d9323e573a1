//! `signalbox await-idle`: waits until others have left a name, without taking anything of it.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::exit::{Exit, Failure};
use super::name::Name;
use super::server::{Server, block_on};
use super::time::time_or_none;
use crate::client::{Error, Idle, Status};

const LONG: &str = "\
Wait until a counter or semaphore is idle

That is until nothing of it is in use, or no more than --level says; with --slot, until nobody holds that one of its \
numbered slots. Prints how many resources are in use then. Nothing is taken, so others may have acquired of it \
before this program has ended: where that matters, shrink or remove the semaphore first.

Where it does not become idle in time, the exit status is 75.";

const EXAMPLES: &str = "\
Examples:
  signalbox await-idle backup
  signalbox resize gpu 6 && signalbox await-idle --semaphore gpu --level 6 --wait 1h
  signalbox await-idle --semaphore gpu --slot 7 --wait 0 && echo free";

/// Wait until a counter or semaphore is idle
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Counter or semaphore to wait for
    #[arg(value_parser = Name::parser())]
    name: Name,

    /// Wait until no more than N resources are in use
    #[arg(long, value_name = "N", default_value = "0")]
    level: u32,

    /// Wait until nobody holds slot N of a semaphore instead
    #[arg(long, value_name = "N", requires = "semaphore", conflicts_with = "level")]
    slot: Option<u16>,

    /// How long to wait at most; 0 only looks. Without it, as long as the server lets it
    #[arg(long, value_name = "TIME", value_parser = time_or_none)]
    wait: Option<Duration>,

    #[command(flatten)]
    server: Server,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    block_on(await_idle(arguments))
}

async fn await_idle(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { name, level, slot, wait, server } = arguments;
    let direct = server.direct().await?;
    let until = slot.map_or(Idle::Level(*level), Idle::Slot);
    // The answer may take as long as the waiting; a server that vanished ends the connection.
    match direct.await_idle(server.namespace(), name.bytes(), until, *wait).await {
        Err(Error::Status(Status::NotFound)) => Err(server.not_found(name)),
        Err(Error::Status(Status::ResourceNotAvailable | Status::TimedOut)) => {
            Err(Failure::new(Exit::NothingAvailable, busy(arguments)))
        }
        result => {
            writeln!(std::io::stdout(), "{}", result?)?;
            Ok(Exit::Success.into())
        }
    }
}

/// That it was not idle in time.
fn busy(arguments: &Arguments) -> String {
    let Arguments { name, level, slot, server, .. } = arguments;
    let what = match (slot, level) {
        (Some(slot), _) => format!("slot {slot} of the semaphore {name} is held"),
        (None, 0) => format!("the {} {name} is in use", server.kind()),
        (None, level) => format!("more than {level} of the {} {name} are in use", server.kind()),
    };
    format!("{what} still; try again later, or give --wait more time")
}
