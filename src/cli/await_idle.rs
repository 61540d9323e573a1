//! `signalbox await-idle`: waits until a name is idle, without acquiring it.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::arguments::Common;
use super::exit::{Exit, Failure};
use super::listing::{State, no_such_slot};
use super::messages::warn;
use super::server::other;
use super::values::{Name, WaitLimit, WholeNames, check_wait, shown, wait_limit_or_none, within};
use signalbox_client::{Idle, Namespace, Status};
use signalbox_model::noun;
use signalbox_model::views::Named;

/// Wait until a limit is idle
///
/// Waits until none of its resources are in use, or at most --level of them; with --slot, until that numbered slot is free.
/// Prints how many resources are in use then. The command acquires nothing, so others may acquire the name before the
/// command has exited; to prevent that, reduce the capacity of the semaphore first, or remove it.
///
/// A name that does not exist is idle. A slot that the semaphore does not have is free, and a warning says that there
/// is none. If the name exists, but not as the kind that was given, or --slot is given and it has no numbered slots,
/// the exit status is 1. If the name is not idle in time, the exit status is 75. With --json, the output is one object
/// with the keys name (or name_hex) and in_use.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox await-idle backup
  signalbox resize gpu 6 && signalbox await-idle gpu --level 6 --wait 1h
  signalbox await-idle gpu --slot 7 --wait 0 && echo free")]
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

    /// Wait at most TIME; 0 only checks
    ///
    /// With max, as long as the server allows.
    #[arg(long, value_name = "TIME|max", default_value = "max", value_parser = wait_limit_or_none)]
    wait: WaitLimit,

    #[command(flatten)]
    whole: WholeNames,
}

pub(super) async fn run(arguments: &Arguments, common: &Common) -> Result<(), Failure> {
    arguments.whole.check([&arguments.name])?;
    let Arguments { name, level, slot, wait, .. } = arguments;
    let server = &common.server;
    let direct = server.direct().await?;
    check_wait(*wait, direct.server())?;
    let until = slot.map_or(Idle::Level(*level), Idle::Slot);
    let kind = if slot.is_some() { Some(Namespace::Semaphores) } else { server.kind() };
    let state = server.answer(State::read(&direct, kind, name.bytes(), false)).await?;
    if let (Some(slot), Some(state)) = (slot, &state) {
        check_slot(name, *slot, state)?;
    }
    // A name that does not exist is idle in either namespace.
    let namespace = state.map_or(Namespace::Semaphores, |state| state.inspected.namespace);
    // --timeout does not apply, because the response takes as long as the wait. If the server vanishes, the connection
    // is lost, and the call fails.
    match direct.await_idle(namespace, name.bytes(), until, *wait).await {
        Err(error) if matches!(error.status(), Some(Status::ResourceNotAvailable | Status::TimedOut)) => {
            let inspected = server.answer(direct.inspect(namespace, name.bytes())).await;
            let in_use = inspected.ok().map(|inspected| inspected.in_use);
            Err(Failure::new(Exit::NothingAvailable, busy(arguments, server.kind(), in_use)))
        }
        result => {
            let in_use = match result {
                // The server forgets a name that no client uses, so nothing of it is in use.
                Err(error) if error.status() == Some(Status::NotFound) => match kind {
                    Some(kind) if server.exists_as(other(kind), name).await => {
                        return Err(server.not_found_of(Some(kind), name).await);
                    }
                    _ => 0,
                },
                result => result?,
            };
            let mut object = json!(Named::of(name.bytes()));
            object["in_use"] = json!(in_use);
            common.print(&object, in_use)
        }
    }
}

/// Checks that a semaphore has numbered slots. Warns if it does not have this slot: the server reports such a slot as free,
/// but the number may be mistyped. That is not an error, because the slot may have been in use before the capacity was
/// reduced.
fn check_slot(name: &Name, slot: u16, state: &State) -> Result<(), Failure> {
    let Some(entry) = &state.declared else {
        return Err(Failure::refused(format!(
            "semaphore {name} is not declared, so it has no numbered slots; omit --slot"
        )));
    };
    let message = format!("semaphore {name} has no slot {slot}: {}", no_such_slot(entry));
    match (entry.numbered, u32::from(slot) >= entry.capacity) {
        (false, _) => return Err(Failure::refused(message)),
        (true, true) => warn(&message),
        (true, false) => {}
    }
    Ok(())
}

/// Returns the message for a name that is not idle in time. `in_use` is the amount in use now, if the server reported it.
fn busy(arguments: &Arguments, kind: Option<Namespace>, in_use: Option<u32>) -> String {
    let Arguments { name, level, slot, wait, .. } = arguments;
    let object = format!("{} {name}", noun(kind));
    let (what, state) = match (slot, in_use) {
        (Some(slot), _) => (format!("slot {slot} of {object}: not free"), String::new()),
        (None, Some(in_use)) if in_use > *level => {
            (format!("{object}: not idle"), format!(" ({in_use} in use, at most {level} requested)"))
        }
        // The amount is unknown, or the name became idle after the answer.
        (None, _) => (format!("{object}: not idle"), format!(" (at most {level} in use requested)")),
    };
    match wait {
        Some(Duration::ZERO) => format!("{what}{state}; try again later or use --wait TIME"),
        Some(_) => format!("{what} within {}{state}; try again later or raise --wait", shown(*wait)),
        None => format!("{what} within {}{state}; try again later", shown(*wait)),
    }
}
