//! `signalbox stats`: prints the server's statistics.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value};

use super::exit::{Exit, Failure};
use super::output::{escaped, json};
use super::server::Server;
use signalbox_client::Statistic;

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

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let client = arguments.server.connect().await?;
    let items = arguments.server.answer(client.stats()).await??;
    let object = || items.iter().map(|item| (item.name.clone(), value(&item.value))).collect::<Map<_, _>>();
    let text = if arguments.json { json(&object()) + "\n" } else { aligned(&items) };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(Exit::Success.into())
}

fn aligned(items: &[Statistic]) -> String {
    let rows: Vec<_> =
        items.iter().map(|item| (escaped(item.name.as_bytes()), escaped(item.value.as_bytes()))).collect();
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}

/// The value in JSON: a number only if it is printed as the same text, so that nothing is lost.
fn value(text: &str) -> Value {
    match text.parse::<u64>() {
        Ok(number) if number.to_string() == text => number.into(),
        _ => text.into(),
    }
}
