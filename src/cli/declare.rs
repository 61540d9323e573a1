//! `signalbox declare`: semaphores that stay until they are removed.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::declared::{not_permitted, print};
use super::exit::{Exit, Failure};
use super::name::{Name, in_words};
use super::output::Form;
use super::server::{Server, block_on};
use crate::client::{Declaration, Error, IfExists, Status};

const LONG: &str = "\
Declare semaphores, all of them or none

A declared semaphore stays until \"signalbox remove\", whoever holds it, and has the capacity that is declared, whatever \
those who acquire of it say. \"signalbox resize\" changes that. With --slots its resources are numbered from 0, and whoever \
holds some is told which.

On a terminal what they came to be is a table with a header. In a pipe it is one line a semaphore without a header: \
capacity, resources in use, generation (a number that grows with each change) and name, separated by tabs. Characters are \
escaped as \"signalbox dump\" does. With --json it is one object a line with the keys name, capacity, in_use and \
generation. A name that is no UTF-8 is name_hex, in hexadecimal digits.

The server takes it from its own machine and from the addresses of admin_from in its configuration. Without data_dir in \
its configuration, a restart of the server forgets what was declared.";

const EXAMPLES: &str = "\
Examples:
  signalbox declare deploys --capacity 3
  signalbox declare gpu --capacity 8 --slots --label 'the machines in room 3'
  signalbox declare --capacity 8 --if-exists set licences/a licences/b";

/// Declare semaphores, all of them or none
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Semaphores to declare
    #[arg(value_name = "NAME", required = true, value_parser = Name::parser())]
    names: Vec<Name>,

    /// How many resources each of them has
    #[arg(long, value_name = "N")]
    capacity: u32,

    /// Number the resources, from 0
    #[arg(long)]
    slots: bool,

    /// What people call them
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    label: OsString,

    /// What to do where one of them is declared already
    #[arg(long, value_enum, value_name = "WHAT", default_value = "fail")]
    if_exists: Existing,

    /// Print one JSON object a line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: Server,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Existing {
    /// Declare none of them; the exit status is 1
    Fail,
    /// Leave it as it is
    Keep,
    /// Make it what is declared here
    Set,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    block_on(declare(arguments))
}

async fn declare(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { names, capacity, slots, label, if_exists, json, server } = arguments;
    let (capacity, numbered, label) = (*capacity, *slots, label.as_encoded_bytes());
    let names_bytes = names.iter().map(Name::bytes);
    let declarations: Vec<_> =
        names_bytes.map(|name| Declaration { name, capacity, numbered, label }).collect();
    let if_exists = match if_exists {
        Existing::Fail => IfExists::Fail,
        Existing::Keep => IfExists::Keep,
        Existing::Set => IfExists::Set,
    };
    let direct = server.direct().await?;
    let settled = server.answer(direct.declare(&declarations, if_exists)).await?;
    let settled = settled.map_err(|error| refused(error, names))?;
    print(Form::of_output(*json), names.iter().zip(&settled))?;
    Ok(Exit::Success.into())
}

/// That a server has refused it, as a sentence about what was to be declared.
fn refused(error: Error, names: &[Name]) -> Failure {
    let message = match (error, names) {
        (Error::Status(Status::AlreadyExists), [name]) => format!(
            "{name} is declared already; --if-exists keep leaves it as it is, --if-exists set makes it what is wanted"
        ),
        (Error::Status(Status::AlreadyExists), _) => format!(
            "one of {} is declared already, so none was; --if-exists keep leaves it as it is, --if-exists set makes it \
             what is wanted",
            in_words(names)
        ),
        (Error::Status(Status::InUse), _) => format!(
            "what is held of {} does not fit what is to be declared, so nothing was; wait until it is given back",
            in_words(names)
        ),
        (Error::Status(Status::NotPermitted), _) => {
            not_permitted(&format!("{} is declared otherwise by it", in_words(names)))
        }
        (error, _) => return error.into(),
    };
    Failure::new(Exit::Failure, message)
}
