//! `signalbox stats`: prints the server's statistics.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use serde::{Serialize, Serializer};

use super::exit::{Exit, Failure};
use super::output::{escaped, json};
use super::server::{Server, block_on};
use crate::client::Statistic;

const EXAMPLES: &str = "\
Examples:
  signalbox stats
  signalbox stats --json | jq .curr_connections";

/// Print the server's statistics
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Print one JSON object; whole numbers are JSON numbers, other values are strings
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: Server,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    block_on(stats(arguments))
}

async fn stats(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let client = arguments.server.connect().await?;
    let items = arguments.server.answer(client.stats()).await??;
    let text = if arguments.json { json(&Items(&items)) + "\n" } else { aligned(&items) };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(Exit::Success.into())
}

fn aligned(items: &[Statistic]) -> String {
    let rows: Vec<_> =
        items.iter().map(|item| (escaped(item.name.as_bytes()), escaped(item.value.as_bytes()))).collect();
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}

/// The items as one JSON object, in the server's order.
struct Items<'a>(&'a [Statistic]);

impl Serialize for Items<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|item| (&item.name, Value::of(&item.value))))
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Value<'a> {
    Number(u64),
    Text(&'a str),
}

impl<'a> Value<'a> {
    /// A number only if it is printed as the same text, so that nothing is lost.
    fn of(text: &'a str) -> Self {
        match text.parse::<u64>() {
            Ok(number) if number.to_string() == text => Self::Number(number),
            _ => Self::Text(text),
        }
    }
}
