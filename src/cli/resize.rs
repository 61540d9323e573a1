//! `signalbox resize`: another capacity for a declared semaphore.

use std::process::ExitCode;

use clap::Args;

use super::declared::{print, refused};
use super::exit::{Exit, Failure};
use super::name::Name;
use super::output::Form;
use super::server::{Server, block_on};
use crate::client::{Error, Generation, Resizing, Status};

const LONG: &str = "\
Change the capacity of a declared semaphore

To so many resources, or by so many more or less; 0 are left where there are fewer. Where it grows, those who wait are \
served at once. Where it shrinks, nobody loses anything: while more is in use than the capacity, nothing is granted.

What it came to be is printed as \"signalbox declare\" does. With --generation it is left as it is where somebody else \
has changed it since \"signalbox list\" told that number.

The server takes it from its own machine and from the addresses of admin_from in its configuration.";

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

    /// How many resources it has from now on, or how many more or less
    #[arg(value_name = "N|+N|-N", allow_negative_numbers = true, value_parser = resizing)]
    capacity: Resizing,

    /// Only if this is the number of its last change
    #[arg(long, value_name = "G", value_parser = clap::value_parser!(u64).range(1..))]
    generation: Option<u64>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: Server,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    block_on(resize(arguments))
}

async fn resize(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { name, capacity, generation, json, server } = arguments;
    let direct = server.direct().await?;
    let generation = generation.map(Generation);
    let settled = match server.answer(direct.resize(name.bytes(), *capacity, generation)).await? {
        Err(Error::Status(Status::InvalidArguments)) => {
            let message = format!(
                "{name} cannot have so many; give a capacity from 0 to {}, of numbered slots to 65536",
                u32::MAX
            );
            return Err(Failure::new(Exit::Failure, message));
        }
        result => result.map_err(|error| refused(error, name))?,
    };
    print(Form::of_output(*json), [(name, &settled)].into_iter())?;
    Ok(Exit::Success.into())
}

/// A capacity, or with a sign what it changes by.
fn resizing(text: &str) -> Result<Resizing, &'static str> {
    let (make, digits): (fn(u32) -> Resizing, _) = match text.as_bytes().first() {
        Some(b'+') => (Resizing::GrowBy, &text[1..]),
        Some(b'-') => (Resizing::ShrinkBy, &text[1..]),
        _ => (Resizing::To, text),
    };
    let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
    let amount = digits.parse().ok().filter(|_| is_number);
    amount.map(make).ok_or("give a number of resources such as 8, or a change such as +2 or -2")
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
