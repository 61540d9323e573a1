//! `signalbox get`: prints the usage of a counter, or the available resources of a semaphore.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::exit::{Exit, Failure};
use super::name::Name;
use super::output::json;
use super::server::Server;
use signalbox_client::{Namespace, Resources, Status};
use signalbox_model::views::Named;

const LONG: &str = "\
Print how many resources of a counter are in use, or with --semaphore how many of a semaphore are available

With --json, the output is one object with the keys name and in_use (with --semaphore, name and available). A name that \
is not UTF-8 has the key name_hex instead of name: its bytes in hexadecimal digits. \"signalbox status\" prints more.";

const EXAMPLES: &str = "\
Examples:
  signalbox get backup
  signalbox get --semaphore deploys";

/// Print how many resources of a counter are in use, or with --semaphore how many of a semaphore are available
#[derive(Debug, Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Name of the counter or semaphore
    #[arg(value_parser = Name::parser())]
    name: Name,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: Server,
}

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { name, json: as_json, server } = arguments;
    let client = server.connect().await?;
    match server.answer(client.get(name.bytes())).await? {
        Err(error) if error.status() == Some(Status::NotFound) => {
            Err(server.not_found_of(Some(server.namespace()), name).await)
        }
        result => {
            let Resources(number) = result?;
            let text = if *as_json { json(&Line::of(name, server, number)) } else { number.to_string() };
            writeln!(std::io::stdout(), "{text}")?;
            Ok(Exit::Success.into())
        }
    }
}

/// The number in JSON.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    name: Named,
    /// Of a counter.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_use: Option<u32>,
    /// Of a semaphore.
    #[serde(skip_serializing_if = "Option::is_none")]
    available: Option<u32>,
}

impl Line {
    fn of(name: &Name, server: &Server, number: u32) -> Self {
        let is_counter = server.namespace() == Namespace::Counters;
        Self {
            name: Named::of(name.bytes()),
            in_use: is_counter.then_some(number),
            available: (!is_counter).then_some(number),
        }
    }
}
