//! `signalbox slot`: takes a slot of a declared semaphore out of service, or puts it back.

use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Args};

use super::declared::{Change, refused, slot_refused};
use super::exit::{Exit, Failure};
use super::name::Name;
use super::number::within;
use super::time::{WaitLimit, check_wait, wait_limit};
use signalbox_client::{Direct, Idle, Namespace, Status};
use signalbox_model::{Operation, ServiceChange};

const LONG: &str = "\
Take a slot of a declared semaphore out of service, or put it back

With --out, slot N is no longer granted. Its holder keeps it: with --wait, the command waits until it is released. \
If that takes longer than TIME, the exit status is 75, and the slot stays out of service. With --in, the slot is granted \
again. The capacity stays the same; resources without numbers get less while slots are out of service. \"signalbox list\" \
shows the slots that are out of service.

A slot stays out of service when the semaphore is resized, and when the server is restarted if it has a data directory. \
Semaphores that the server's configuration declares can be changed too; a reload of the configuration keeps the slots out \
of service. The command prints the semaphore in the format of \"signalbox declare\".

The server accepts this request from its own machine and from the addresses in admin_from of its configuration.";

const EXAMPLES: &str = "\
Examples:
  signalbox slot gpu 3 --out --wait 1h
  signalbox slot gpu 3 --in
  signalbox list --json | jq .slots_out";

/// Take a slot of a declared semaphore out of service, or put it back
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES, group = ArgGroup::new("change").required(true))]
pub(super) struct Arguments {
    /// Declared semaphore with numbered slots
    #[arg(value_parser = Name::parser())]
    name: Name,

    /// Number of the slot, from 0
    #[arg(value_name = "N", value_parser = within(0..=u16::MAX))]
    slot: u16,

    /// Take the slot out of service
    #[arg(long, group = "change")]
    out: bool,

    /// Put the slot back into service
    #[arg(long = "in", group = "change")]
    put_in: bool,

    /// Wait until the holder has released the slot, at most TIME, or with max as long as the server allows
    #[arg(long, value_name = "TIME|max", conflicts_with = "put_in", value_parser = wait_limit)]
    wait: Option<WaitLimit>,

    #[command(flatten)]
    change: Change,
}

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { name, slot, put_in, wait, change, .. } = arguments;
    let server = &change.server;
    let direct = server.direct().await?;
    check_wait(wait.flatten(), direct.server())?;
    let how = if *put_in { ServiceChange::SlotIn(*slot) } else { ServiceChange::SlotOut(*slot) };
    let operation = Operation::ChangeService { name: name.bytes(), how, expected: change.generation() };
    let changed = match server.answer(direct.change(&operation)).await? {
        Err(error) if error.status() == Some(Status::NoSuchSlot) => {
            return Err(slot_refused(server, &direct, error, name, *slot).await);
        }
        Err(error) => return Err(refused(server, &direct, error, name).await),
        Ok(changed) => changed,
    };
    if let Some(limit) = wait {
        await_release(arguments, &direct, *limit).await?;
    }
    change.print(name, &changed)
}

/// Waits until no grant has the slot. Nothing takes it again, as it is out of service.
async fn await_release(
    Arguments { name, slot, .. }: &Arguments,
    direct: &Direct,
    limit: Option<Duration>,
) -> Result<(), Failure> {
    // No --timeout: the response takes as long as the wait. If the server vanishes, the connection ends.
    match direct.await_idle(Namespace::Semaphores, name.bytes(), Idle::Slot(*slot), limit).await {
        Err(error) if error.status() == Some(Status::TimedOut) => {
            let within = limit.map_or_else(
                || "the longest wait that the server allows".to_owned(),
                |limit| format!("{} s", limit.as_secs_f64()),
            );
            let message = format!(
                "slot {slot} of semaphore {name} is out of service, but was not released within {within}; \"signalbox \
                 holders --semaphore\" shows its holder; wait again, or put the slot back with --in"
            );
            Err(Failure::new(Exit::NothingAvailable, message))
        }
        // The semaphore is gone, and the slot with it.
        Err(error) if error.status() == Some(Status::NotFound) => Ok(()),
        result => Ok(result.map(drop)?),
    }
}
