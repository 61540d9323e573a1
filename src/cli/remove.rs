//! `signalbox remove`: the end of a declared semaphore.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::declared::refused;
use super::exit::{Exit, Failure};
use super::name::Name;
use super::server::{Server, block_on};
use super::time::time_or_none;
use crate::client::{Error, Generation, Milliseconds, Removal, Status};

const LONG: &str = "\
Remove a declared semaphore

Whoever waits for it is told so. With --generation it is left as it is where somebody else has changed it since \
\"signalbox list\" told that number.

The server takes it from its own machine and from the addresses of admin_from in its configuration.";

const EXAMPLES: &str = "\
Examples:
  signalbox remove deploys
  signalbox remove gpu --when last-holder
  signalbox remove gpu --when now --grace 5m";

/// How long holders keep a semaphore that is removed at once, if nothing else is said.
const GRACE: Duration = Duration::from_secs(10);

/// Remove a declared semaphore
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Declared semaphore to remove
    #[arg(value_parser = Name::parser())]
    name: Name,

    /// When it goes
    #[arg(long, value_enum, value_name = "WHEN", default_value = "idle")]
    when: When,

    /// With --when now: how long holders keep it yet, to come to an end; 0 is not at all [default: 10]
    #[arg(long, value_name = "TIME", value_parser = time_or_none)]
    grace: Option<Duration>,

    /// Only if this is the number of its last change
    #[arg(long, value_name = "G", value_parser = clap::value_parser!(u64).range(1..))]
    generation: Option<u64>,

    #[command(flatten)]
    server: Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum When {
    /// Now, where nobody holds it; else it stays and the exit status is 1
    Idle,
    /// When its last holder has given it back; until then it grants nothing more
    LastHolder,
    /// Now: its holders are told, and lose it when the grace is over
    Now,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.grace.is_some() && arguments.when != When::Now {
        let message =
            "--grace is how long holders keep what goes now; give --when now as well, or leave it out";
        return Err(Failure::new(Exit::Usage, message));
    }
    block_on(remove(arguments))
}

async fn remove(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { name, when, grace, generation, server } = arguments;
    let how = match when {
        When::Idle => Removal::IfIdle,
        When::LastHolder => Removal::WithLastHolder,
        When::Now => Removal::Now { grace: Milliseconds::saturating_from(grace.unwrap_or(GRACE)) },
    };
    let direct = server.direct().await?;
    match server.answer(direct.remove(name.bytes(), how, generation.map(Generation))).await? {
        Err(Error::Status(Status::InUse)) => {
            let message = format!(
                "{name} is held, so it stays; wait until nobody holds it, or give --when last-holder or --when now"
            );
            Err(Failure::new(Exit::Failure, message))
        }
        result => result.map(|()| Exit::Success.into()).map_err(|error| refused(error, name)),
    }
}
