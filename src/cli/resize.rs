//! `signalbox resize`: changes the capacity of a declared semaphore.

use std::process::ExitCode;

use bytes::Bytes;
use clap::Args;

use super::declare::SLOTS_MAX;
use super::declared::{Change, find, refused};
use super::exit::{Exit, Failure};
use super::name::Name;
use crate::declarations::needs_more;
use signalbox_client::{DeclaredEntry, Direct, Error, Namespace, Resizing, Status};
use signalbox_model::Operation;

const LONG: &str = "\
Change the capacity of a declared semaphore

N sets the capacity; +N and -N change it. A change to less than 0 is refused. After an increase, waiting requests are granted at \
once. After a decrease, holders keep what they hold, and nothing is granted while more is in use than the capacity. \
Waiting requests for more than the new capacity, or for a slot that it does not have, would be refused: if there are any, the \
command says how many and changes nothing, unless --refuse-waiters is given. \"signalbox pause\" refuses none. To the same \
capacity, nothing changes.

The command prints the resulting semaphore in the format of \"signalbox declare\". With --generation, it changes the \
semaphore only if its generation, as printed by \"signalbox list\", is still G.

The server accepts this request from its own machine and from the addresses in admin_from of its configuration.";

const EXAMPLES: &str = "\
Examples:
  signalbox resize deploys 5
  signalbox resize gpu -2
  signalbox resize gpu +2 --json | jq .capacity";

/// Change the capacity of a declared semaphore
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Declared semaphore to change
    #[arg(value_parser = Name::parser())]
    name: Name,

    /// New capacity, or the change of it
    #[arg(value_name = "N|+N|-N", allow_negative_numbers = true, value_parser = resizing)]
    capacity: Resizing,

    /// Refuse the waiting requests for more than the new capacity
    #[arg(long)]
    refuse_waiters: bool,

    #[command(flatten)]
    change: Change,
}

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { name, capacity, refuse_waiters, change } = arguments;
    let server = &change.server;
    let direct = server.direct().await?;
    if !refuse_waiters {
        match server.answer(would_refuse(&direct, name, *capacity)).await? {
            Ok((0, _)) => {}
            Ok((refused, capacity)) => {
                return Err(Failure::new(Exit::Failure, refuses_waiters(name, refused, capacity)));
            }
            Err(error) if error.status() == Some(Status::NotPermitted) => {
                let message = format!(
                    "semaphore {name} was not changed: this client may not read which waiting requests that would refuse; \
                     use a token with the right to read, or add --refuse-waiters"
                );
                return Err(Failure::new(Exit::Failure, message));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let operation = Operation::Resize { name: name.bytes(), how: *capacity, expected: change.generation() };
    let resized = match server.answer(direct.change(&operation)).await? {
        Err(error) if error.status() == Some(Status::InvalidArguments) => {
            let entry = server.answer(find(&direct, name.bytes())).await?.ok().flatten();
            return Err(Failure::new(Exit::Failure, out_of_range(name, *capacity, entry.as_ref())));
        }
        Err(error) => return Err(refused(server, &direct, error, name).await),
        Ok(resized) => resized,
    };
    change.print(name, &resized)
}

/// How many waiting requests the change would refuse, and the new capacity. A change that the server does not allow refuses none.
async fn would_refuse(direct: &Direct, name: &Name, how: Resizing) -> Result<(usize, u32), Error> {
    let Some(entry) = find(direct, name.bytes()).await? else { return Ok((0, 0)) };
    let capacity = match how {
        Resizing::To(capacity) => Some(capacity),
        Resizing::GrowBy(more) => entry.capacity.checked_add(more),
        Resizing::ShrinkBy(less) => entry.capacity.checked_sub(less),
    };
    let Some(capacity) = capacity.filter(|capacity| *capacity < entry.capacity) else { return Ok((0, 0)) };
    Ok((waiting_for_more(direct, name.bytes(), capacity).await?, capacity))
}

/// How many requests that wait for a declared semaphore need more than this capacity.
pub(super) async fn waiting_for_more(direct: &Direct, name: &[u8], capacity: u32) -> Result<usize, Error> {
    let mut waiters = direct.waiters(Namespace::Semaphores, name).await?;
    let mut count = 0;
    while let Some(waiter) = waiters.next().await.transpose()? {
        count += usize::from(needs_more(&waiter, capacity));
    }
    Ok(count)
}

/// The message for a change that was not requested because it would refuse waiting requests.
fn refuses_waiters(name: &Name, refused: usize, capacity: u32) -> String {
    let (requests, need) = if refused == 1 { ("request", "needs") } else { ("requests", "need") };
    format!(
        "semaphore {name} was not changed: {refused} waiting {requests} {need} more than the new capacity {capacity} and \
         would be refused; add --refuse-waiters to refuse them, or stop all grants for a while with \"signalbox pause\""
    )
}

/// The message for a capacity that the semaphore cannot have.
fn out_of_range(name: &Name, how: Resizing, entry: Option<&DeclaredEntry<Bytes>>) -> String {
    let now = entry.map_or(0, |entry| entry.capacity);
    let wanted = match how {
        Resizing::To(capacity) => u64::from(capacity),
        Resizing::GrowBy(more) => u64::from(now) + u64::from(more),
        Resizing::ShrinkBy(less) => {
            return format!(
                "semaphore {name} was not changed: its capacity is {now}, which is less than {less}; reduce it by at most \
                 {now}, or give the new capacity"
            );
        }
    };
    let limit = match entry {
        Some(entry) if entry.numbered => format!("{SLOTS_MAX}, because its resources are numbered slots"),
        Some(_) | None => u32::MAX.to_string(),
    };
    format!("semaphore {name} was not changed: its capacity would be {wanted}; the maximum is {limit}")
}

/// A capacity, or with a sign a change of the capacity.
fn resizing(text: &str) -> Result<Resizing, &'static str> {
    let (make, digits): (fn(u32) -> Resizing, _) = match text.as_bytes().first() {
        Some(b'+') => (Resizing::GrowBy, &text[1..]),
        Some(b'-') => (Resizing::ShrinkBy, &text[1..]),
        _ => (Resizing::To, text),
    };
    let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
    let amount = digits.parse().ok().filter(|_| is_number);
    amount
        .map(make)
        .ok_or("expected a capacity such as 8, or a change such as +2 or -2, of at most 4294967295")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_makes_a_change_of_a_capacity() {
        for (text, expected) in [
            ("0", Resizing::To(0)),
            ("8", Resizing::To(8)),
            ("+8", Resizing::GrowBy(8)),
            ("-8", Resizing::ShrinkBy(8)),
            ("4294967295", Resizing::To(u32::MAX)),
        ] {
            assert_eq!(resizing(text), Ok(expected));
        }
        for text in ["", "+", "-", "++1", "-+1", "1.5", "x", "4294967296"] {
            assert!(resizing(text).is_err(), "{text}");
        }
    }
}
