//! `signalbox declare`: creates semaphores that exist until they are removed.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::declared::{not_permitted, print};
use super::exit::{Exit, Failure};
use super::name::{Name, quoted};
use super::number::within;
use super::output::Form;
use super::pattern::WholeNames;
use super::server::Server;
use super::wanted::has_amount;
use signalbox_client::{Declaration, Error, IfExists, Status};
use signalbox_model::Operation;

const LONG: &str = "\
Declare semaphores, all of them or none

A declared semaphore exists until \"signalbox remove\", whether it is held or not. Its capacity is the declared one; \
clients that acquire it cannot set another. \"signalbox resize\" changes it. With --slots, its resources are numbered \
from 0, and each holder gets the numbers of its resources.

The command prints the resulting semaphores. On a terminal, the output is a table with a header. Otherwise it is one \
line per semaphore, without a header, with these columns, separated by tabs: capacity, resources in use, generation (a \
number that grows with each change), name. Characters are escaped as by \"signalbox dump\". With --json, the output is \
one object per line with the keys name, capacity, in_use and generation. A name that is not UTF-8 has the key name_hex, \
in hexadecimal digits.

The server accepts this request from its own machine and from the addresses in admin_from of its configuration. Without \
data_dir in its configuration, the declarations are lost when the server restarts.";

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

    /// Number of resources of each semaphore
    #[arg(long, value_name = "N", value_parser = within(0..=u32::MAX))]
    capacity: u32,

    /// Number the resources from 0, and grant particular ones
    #[arg(long)]
    slots: bool,

    /// Description for people
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    label: OsString,

    #[command(flatten)]
    whole: WholeNames,

    /// What to do if one of them is already declared
    #[arg(long, value_enum, value_name = "WHAT", default_value = "fail")]
    if_exists: Existing,

    /// Print one JSON object per line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: Server,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Existing {
    /// Declare none of them and exit with status 1
    Fail,
    /// Do not change it
    Keep,
    /// Change it to what is declared here
    Set,
}

/// The most resources of a semaphore with numbered slots.
pub(super) const SLOTS_MAX: u32 = 65_536;

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.slots && arguments.capacity > SLOTS_MAX {
        let capacity = arguments.capacity;
        let message = format!("--capacity {capacity} is more than {SLOTS_MAX}, the maximum with --slots");
        return Err(Failure::new(Exit::Usage, message));
    }
    arguments.whole.check(&arguments.names)?;
    if let Some(name) = arguments.names.iter().find(|name| !arguments.whole.is_exact() && has_amount(name)) {
        let message = format!(
            "{name} ends in an amount, which declare has in --capacity; omit it, or add --exact if it is a part of the name"
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    let Arguments { names, capacity, slots, label, if_exists, json, server, .. } = arguments;
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
    let operation = Operation::Declare { if_exists, declarations };
    let result = server.answer(direct.change(&operation)).await?;
    let declared = match result {
        Err(error) if error.status() == Some(Status::NotPermitted) => {
            let what_failed = format!("cannot declare {}", quoted(names));
            let message = not_permitted(server, &direct, &what_failed, names).await;
            return Err(Failure::new(Exit::Failure, message));
        }
        result => result.map_err(|error| refused(error, names))?,
    };
    print(Form::of_output(*json), names.iter().zip(declared.states()))?;
    Ok(Exit::Success.into())
}

/// The failure of a declaration.
fn refused(error: Error, names: &[Name]) -> Failure {
    let message = match (error.status(), names) {
        (Some(Status::AlreadyExists), [name]) => format!(
            "semaphore {name} is already declared; use --if-exists keep to leave it unchanged, or --if-exists set to \
             change it"
        ),
        (Some(Status::AlreadyExists), _) => format!(
            "none of the semaphores was declared: one of {} already is; use --if-exists keep to leave it unchanged, or \
             --if-exists set to change it",
            quoted(names)
        ),
        (Some(Status::InUse), _) => format!(
            "nothing was declared: the resources of {} cannot be changed between numbered and not numbered while they \
             are held; wait until they are released",
            quoted(names)
        ),
        _ => return error.into(),
    };
    Failure::new(Exit::Failure, message)
}
