//! `signalbox remove`: removes a declared semaphore.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::declared::refused;
use super::exit::{Exit, Failure};
use super::name::Name;
use super::number::within;
use super::server::Server;
use super::time::time_or_none;
use signalbox_client::{Generation, Milliseconds, Removal, Status};
use signalbox_model::Operation;

const LONG: &str = "\
Remove a declared semaphore

Requests that wait for it are refused with the status \"Removed\". With --generation, it is removed only if its \
generation, as printed by \"signalbox list\", is still G.

The server accepts this request from its own machine and from the addresses in admin_from of its configuration.";

const EXAMPLES: &str = "\
Examples:
  signalbox remove deploys
  signalbox remove gpu --when last-holder
  signalbox remove gpu --when now --grace 5m";

/// Remove a declared semaphore
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Declared semaphore to remove
    #[arg(value_parser = Name::parser())]
    name: Name,

    /// When to remove it
    #[arg(long, value_enum, value_name = "WHEN", default_value = "idle")]
    when: When,

    /// With --when now: how long holders keep their resources, so that they can stop; 0 for no time [default: 10]
    #[arg(long, value_name = "TIME", value_parser = time_or_none)]
    grace: Option<Duration>,

    /// Remove it only if its generation is G
    #[arg(long, value_name = "G", value_parser = within(1..=u64::MAX))]
    generation: Option<u64>,

    #[command(flatten)]
    server: Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum When {
    /// Now if it has no holders; otherwise do nothing and exit with status 1
    Idle,
    /// When its last holder has released it; until then, nothing more is granted
    LastHolder,
    /// Now: its holders are notified, and lose it when the grace period ends
    Now,
}

/// How a semaphore is removed. Fails if there is a grace period that no holder gets.
pub(super) fn removal(when: When, grace: Option<Duration>) -> Result<Removal, Failure> {
    if grace.is_some() && when != When::Now {
        let message = "--grace is only valid with --when now; add --when now, or omit --grace";
        return Err(Failure::new(Exit::Usage, message));
    }
    Ok(match when {
        When::Idle => Removal::IfIdle,
        When::LastHolder => Removal::WithLastHolder,
        When::Now => {
            Removal::Now { grace: grace.map_or(Milliseconds::GRACE_DEFAULT, Milliseconds::saturating_from) }
        }
    })
}

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { name, when, grace, generation, server } = arguments;
    let how = removal(*when, *grace)?;
    let direct = server.direct().await?;
    let operation = Operation::Remove { name: name.bytes(), how, expected: generation.map(Generation) };
    match server.answer(direct.change(&operation)).await? {
        Err(error) if error.status() == Some(Status::InUse) => {
            let message = format!(
                "semaphore {name} was not removed because it is held; release it first, or use --when last-holder or \
                 --when now"
            );
            Err(Failure::new(Exit::Failure, message))
        }
        Err(error) => Err(refused(server, &direct, error, name).await),
        Ok(_) => Ok(Exit::Success.into()),
    }
}
