//! `signalbox ping`: whether a server answers, and how fast.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::exit::{Exit, Failure};
use super::server::{Server, block_on};
use super::time::time;

const EXAMPLES: &str = "\
Examples:
  signalbox ping
  signalbox ping --server lock.example.org -c 3";

/// Ask the server for a sign of life and print the round-trip time
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// How many times to ask
    #[arg(short, long, default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,

    /// Time between two questions
    #[arg(short, long, value_name = "TIME", default_value = "1", value_parser = time)]
    interval: Duration,

    #[command(flatten)]
    server: Server,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    block_on(ping(arguments))
}

async fn ping(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { count, interval, server } = arguments;
    let address = server.address();
    let client = server.connect().await?;
    for number in 1..=*count {
        let asked = Instant::now();
        server.answer(client.noop()).await??;
        let milliseconds = asked.elapsed().as_secs_f64() * 1000.0;
        writeln!(std::io::stdout(), "answer from {address}: number={number} time={milliseconds:.3} ms")?;
        if number < *count {
            tokio::time::sleep(*interval).await;
        }
    }
    Ok(Exit::Success.into())
}
