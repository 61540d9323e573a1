//! `signalbox resize`: changes the capacity of a declared semaphore.

use std::process::ExitCode;

use bytes::Bytes;
use clap::Args;

use super::declare::SLOTS_MAX;
use super::declared::{Change, find, refused};
use super::exit::{Exit, Failure};
use super::name::Name;
use signalbox_client::{DeclaredEntry, Resizing, Status};
use signalbox_model::Operation;

const LONG: &str = "\
Change the capacity of a declared semaphore

N sets the capacity; +N and -N change it. A change to less than 0 is refused. After an increase, waiting requests are granted at \
once. After a decrease, holders keep what they hold, and nothing is granted while more is in use than the capacity. \
Waiting requests for more than the new capacity are refused, with 0 all of them; \"signalbox pause\" refuses none. To the \
same capacity, nothing changes.

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

    #[command(flatten)]
    change: Change,
}

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { name, capacity, change } = arguments;
    let server = &change.server;
    let direct = server.direct().await?;
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
