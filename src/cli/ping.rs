//! `signalbox ping`: checks that a server responds, and prints the round-trip time.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::exit::{Exit, Failure};
use super::number::within;
use super::output::json;
use super::server::Server;
use super::time::time;

const EXAMPLES: &str = "\
Examples:
  signalbox ping
  signalbox ping --server lock.example.org -c 3";

/// Check that the server responds, and print the round-trip time
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Number of requests to send
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = within(1..=u32::MAX))]
    count: u32,

    /// Time between a response and the next request
    #[arg(short, long, value_name = "TIME", default_value = "1", value_parser = time)]
    interval: Duration,

    /// Print one JSON object for each response, with the keys server, number and time (in milliseconds)
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: Server,
}

pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { count, interval, json: as_json, server } = arguments;
    let (address, client) = server.connect_to_first().await?;
    for number in 1..=*count {
        let sent = Instant::now();
        server.answer(client.noop()).await??;
        let milliseconds = sent.elapsed().as_micros() as f64 / 1000.0;
        let text = match as_json {
            true => json(
                &serde_json::json!({ "server": address.to_string(), "number": number, "time": milliseconds }),
            ),
            false => format!("answer from {address}: number={number} time={milliseconds:.3} ms"),
        };
        writeln!(std::io::stdout(), "{text}")?;
        if number < *count {
            tokio::time::sleep(*interval).await;
        }
    }
    Ok(Exit::Success.into())
}
