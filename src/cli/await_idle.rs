//! `signalbox await-idle`: waits until a name is idle, without acquiring it.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::declared;
use super::exit::{Exit, Failure, warn};
use super::name::Name;
use super::number::within;
use super::output::json;
use super::pattern::WholeNames;
use super::server::{Server, exists, other, resolved};
use super::time::{WaitLimit, check_wait, wait_limit_or_none};
use signalbox_client::{Direct, Idle, Namespace, Status};
use signalbox_model::noun;
use signalbox_model::views::Named;

const LONG: &str = "\
Wait until a limit is idle

Waits until none of its resources are in use, or at most --level of them; with --slot, until that numbered slot is free. \
Prints how many resources are in use then. The command acquires nothing, so others may acquire the name before the \
command has exited; to prevent that, reduce the capacity of the semaphore first, or remove it.

A name that does not exist is idle, and so is a slot that the semaphore does not have, which a message points out. If the \
name exists only as another kind than the one that was given, or has no numbered slots, the exit status is 1. If the name is not idle \
in time, it is 75.";

const EXAMPLES: &str = "\
Examples:
  signalbox await-idle backup
  signalbox resize gpu 6 && signalbox await-idle gpu --level 6 --wait 1h
  signalbox await-idle gpu --slot 7 --wait 0 && echo free";

/// Wait until a limit is idle
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Limit to wait for
    #[arg(value_parser = Name::parser())]
    name: Name,

    /// Wait until at most N resources are in use
    #[arg(long, value_name = "N", default_value = "0", value_parser = within(0..=u32::MAX))]
    level: u32,

    /// Wait until this numbered slot is free instead
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["level", "counter"],
        value_parser = within(0..=u16::MAX)
    )]
    slot: Option<u16>,

    /// Wait at most TIME, or with max as long as the server allows; 0 checks without waiting
    #[arg(long, value_name = "TIME|max", default_value = "max", value_parser = wait_limit_or_none)]
    wait: WaitLimit,

    #[command(flatten)]
    whole: WholeNames,

    /// Print one JSON object with the keys name (or name_hex) and in_use
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: Server,
}

/// The usage in JSON.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    name: Named,
    in_use: u32,
}

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    arguments.whole.check([&arguments.name])?;
    let Arguments { name, level, slot, wait, json: as_json, server, .. } = arguments;
    let direct = server.direct().await?;
    check_wait(*wait, direct.server())?;
    if let Some(slot) = slot {
        check_slot(server, &direct, name, *slot).await?;
    }
    let until = slot.map_or(Idle::Level(*level), Idle::Slot);
    let kind = if slot.is_some() { Some(Namespace::Semaphores) } else { server.kind() };
    let namespace = match server.answer(resolved(&direct, kind, name.bytes())).await? {
        // A name that does not exist is idle; the server says so for each kind.
        Err(error) if error.status() == Some(Status::NotFound) => Namespace::Semaphores,
        namespace => namespace?,
    };
    // No --timeout: the response takes as long as the wait. If the server vanishes, the connection ends.
    match direct.await_idle(namespace, name.bytes(), until, *wait).await {
        Err(error) if matches!(error.status(), Some(Status::ResourceNotAvailable | Status::TimedOut)) => {
            let inspected = server.answer(direct.inspect(namespace, name.bytes())).await?;
            let in_use = inspected.ok().map(|inspected| inspected.in_use);
            Err(Failure::new(Exit::NothingAvailable, busy(arguments, in_use)))
        }
        result => {
            let in_use = match result {
                // A name that no client uses is forgotten, and nothing of it is in use.
                Err(error) if error.status() == Some(Status::NotFound) => match server.kind() {
                    Some(kind) if server.exists_as(other(kind), name).await => {
                        return Err(server.not_found(name).await);
                    }
                    _ => 0,
                },
                result => result?,
            };
            let text = match as_json {
                true => json(&Line { name: Named::of(name.bytes()), in_use }),
                false => in_use.to_string(),
            };
            writeln!(std::io::stdout(), "{text}")?;
            Ok(Exit::Success.into())
        }
    }
}

/// Checks that a semaphore that exists has numbered slots. Points out a slot above its capacity: the server calls it free,
/// but it may be mistyped. It is not refused, because a reduced capacity removes slots that were in use.
async fn check_slot(server: &Server, direct: &Direct, name: &Name, slot: u16) -> Result<(), Failure> {
    let entry = server.answer(declared::find(direct, name.bytes())).await??;
    match &entry {
        Some(entry) if entry.numbered && u32::from(slot) >= entry.capacity => {
            warn(&declared::no_such_slot(name, slot, entry));
        }
        Some(entry) if !entry.numbered => {
            return Err(Failure::new(Exit::Failure, declared::no_such_slot(name, slot, entry)));
        }
        None if server.answer(exists(direct, Namespace::Semaphores, name.bytes())).await?? => {
            let message =
                format!("semaphore {name} is not declared, so it has no numbered slots; omit --slot");
            return Err(Failure::new(Exit::Failure, message));
        }
        Some(_) | None => {}
    }
    Ok(())
}

/// The message if the name is not idle in time. `in_use` is what is in use now, if the server said so.
fn busy(arguments: &Arguments, in_use: Option<u32>) -> String {
    let Arguments { name, level, slot, wait, server, .. } = arguments;
    let object = format!("{} {name}", noun(server.kind()));
    let (what, state) = match (slot, in_use) {
        (Some(slot), _) => (format!("slot {slot} of {object}: not free"), String::new()),
        (None, Some(in_use)) if in_use > *level => {
            (format!("{object}: not idle"), format!(" ({in_use} in use, at most {level} requested)"))
        }
        // It became idle after the server had answered.
        (None, _) => (format!("{object}: not idle"), format!(" (at most {level} in use requested)")),
    };
    match wait {
        Some(Duration::ZERO) => format!("{what}{state}; try again later or use --wait TIME"),
        Some(wait) => {
            format!("{what} within {} s{state}; try again later or raise --wait", wait.as_secs_f64())
        }
        None => format!("{what} within the longest wait that the server allows{state}; try again later"),
    }
}
