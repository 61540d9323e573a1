//! `signalbox delete`: deletes a counter that is not in use.

use std::process::ExitCode;

use clap::Args;

use super::exit::{Exit, Failure};
use super::name::Name;
use super::server::{Server, permission_denied};
use signalbox_client::{Namespace, Status};
use signalbox_model::Operation;

const LONG: &str = "\
Delete a counter that is not in use

The first request that acquires a counter creates it, and \"signalbox dump\" lists it until the end of the interval \
(counter.stat_interval in the server's configuration) in which it was last in use. This command deletes a counter \
earlier, for example because its name was mistyped. The peak of its interval is lost.

A counter that is held, or that a request waits for, is not deleted, and the exit status is 1: \"signalbox status\" shows \
its holders and its queue, and \"signalbox revoke\" takes it from them. A declared semaphore is removed by \"signalbox \
remove\"; other semaphores vanish soon after they are released.

The server accepts this request from its own machine and from the addresses in admin_from of its configuration.";

const EXAMPLES: &str = "\
Examples:
  signalbox delete bakcup";

/// Delete a counter that is not in use
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Counter to delete
    #[arg(value_parser = Name::parser())]
    name: Name,

    #[command(flatten)]
    server: Server,
}

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.server.kind() == Some(Namespace::Semaphores) {
        let message = "delete is for counters; use \"signalbox remove\" for a declared semaphore; other semaphores vanish \
                       soon after they are released";
        return Err(Failure::new(Exit::Usage, message));
    }
    let Arguments { name, server } = arguments;
    let direct = server.direct().await?;
    let what_failed = format!("counter {name} was not deleted");
    let message = match server.answer(direct.change(&Operation::DeleteCounter { name: name.bytes() })).await?
    {
        Err(error) if error.status() == Some(Status::NotFound) => {
            return Err(server.not_found_of(Some(Namespace::Counters), name).await);
        }
        Err(error) if error.status() == Some(Status::InUse) => {
            let state = match server.answer(direct.inspect(Namespace::Counters, name.bytes())).await? {
                Ok(usage) => format!("{} in use, {} waiting", usage.in_use, usage.waiting),
                Err(_) => "it is in use".to_owned(),
            };
            format!(
                "{what_failed}: {state}; \"signalbox status\" shows its holders and its queue; wait for them, or use \
                 \"signalbox revoke\""
            )
        }
        Err(error) if error.status() == Some(Status::NotPermitted) => permission_denied(&what_failed),
        result => return Ok(result.map(|_| Exit::Success.into())?),
    };
    Err(Failure::new(Exit::Failure, message))
}
