//! `signalbox ping`: checks that a server responds, and prints the round-trip time.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use super::arguments::Common;
use super::exit::{Exit, Failure};
use super::number::within;
use super::own_server::OwnServer;
use super::time::time;
use signalbox_client::PlainClient;

/// Check that the server responds, and print the round-trip time
///
/// With --json, the output is one object for each response, with the keys server, number and time (in milliseconds).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  signalbox ping
  signalbox ping --server lock.example.org -c 3
  signalbox ping --config /etc/signalbox.toml --timeout 2")]
pub(super) struct Arguments {
    /// Number of requests to send
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = within(1..=u32::MAX))]
    count: u32,

    /// Time between a response and the next request
    #[arg(short, long, value_name = "TIME", default_value = "1", value_parser = time)]
    interval: Duration,

    /// Ping the server of this configuration file on this machine
    ///
    /// As a health check does, over a new connection for each request: on the address, the port and behind the proxies that the
    /// file and the SIGNALBOX_CONFIG_ variables of the environment configure. A server that answers that it requires TLS works. The
    /// options of the connection and SIGNALBOX_SERVER do not count, except for --timeout.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// What is pinged.
enum Target {
    /// The server of a configuration file.
    Own(OwnServer),
    /// A server over one connection, and its address.
    Connected(String, PlainClient),
}

pub(super) async fn run(arguments: &Arguments, common: &Common) -> Result<ExitCode, Failure> {
    let Arguments { count, interval, config } = arguments;
    let server = &common.server;
    let target = match config {
        Some(file) => Target::Own(OwnServer::of(file)?),
        None => {
            let (address, client) = server.connect_to_first().await?;
            Target::Connected(address.to_string(), client)
        }
    };
    for number in 1..=*count {
        let sent = Instant::now();
        let address = match &target {
            Target::Own(own) => own.ask(server.timeout()).await?.to_string(),
            Target::Connected(address, client) => {
                server.answer(client.noop()).await??;
                address.clone()
            }
        };
        let milliseconds = sent.elapsed().as_micros() as f64 / 1000.0;
        common.print(
            &json!({ "server": address, "number": number, "time": milliseconds }),
            format_args!("answer from {address}: number={number} time={milliseconds:.3} ms"),
        )?;
        if number < *count {
            tokio::time::sleep(*interval).await;
        }
    }
    Ok(Exit::Success.into())
}
