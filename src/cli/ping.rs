//! `signalbox ping`: checks that a server responds, and prints the round-trip time.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::arguments::Common;
use super::exit::{Exit, Failure};
use super::values::{time, within};
use crate::config::{Config, Loaded, Network};
use signalbox_client::{PlainClient, Status};
use signalbox_protocol::PROXY_HEADER_LOCAL;

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
    /// For health checks. Each request uses a new connection to the address and port that the file and the
    /// SIGNALBOX_CONFIG_ variables of the environment configure; this also works behind configured proxies. A server
    /// that answers that it requires TLS is healthy. Of the connection options, only --timeout has an effect;
    /// SIGNALBOX_SERVER has none.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The server that is pinged.
enum Target {
    /// The server of a configuration file.
    Own(OwnServer),
    /// A server over one connection, and its address.
    Connected(String, PlainClient),
}

pub(super) async fn run(arguments: &Arguments, common: &Common) -> Result<(), Failure> {
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
            Target::Own(own) => own.ask(server.timeout).await?.to_string(),
            Target::Connected(address, client) => {
                server.answer(client.noop()).await?;
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
    Ok(())
}

/// The server of a configuration file, on this machine.
#[derive(Debug)]
struct OwnServer {
    /// The networks from which connections begin with a header of the PROXY protocol.
    proxies: Vec<Network>,
    /// The addresses at which this machine reaches the server, loopback first.
    addresses: Vec<SocketAddr>,
}

impl OwnServer {
    /// Reads the configuration file, and the variables of the environment as the server does.
    fn of(file: &Path) -> Result<Self, Failure> {
        let loaded = Loaded::read(Some(file), std::env::vars_os())?;
        loaded.validate()?;
        let addresses = addresses(&loaded.config);
        Ok(Self { proxies: loaded.config.proxies, addresses })
    }

    /// Sends a Noop over a new connection, and returns the address that has answered. A server that answers that it
    /// requires TLS is healthy too; its certificates are not checked.
    ///
    /// `timeout` is for the connection and the answer together.
    async fn ask(&self, timeout: Duration) -> Result<SocketAddr, Failure> {
        let answered = tokio::time::timeout(timeout, self.noop()).await;
        let list = self.addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
        let failed = |problem: String| {
            Failure::new(Exit::Unavailable, format!("the server of this configuration ({list}) {problem}"))
        };
        match answered {
            Ok(Ok((address, None | Some(Status::TlsRequired)))) => Ok(address),
            Ok(Ok((_, Some(status)))) => Err(failed(format!("answers: {}; see its log", status.message()))),
            Ok(Err(error)) => {
                Err(failed(format!("does not answer: {error}; check that it runs, and its log")))
            }
            Err(_) => Err(failed(format!("did not answer within {} s; see its log", timeout.as_secs_f64()))),
        }
    }

    /// Returns the address that has answered, and the status of its answer, `None` for success.
    async fn noop(&self) -> std::io::Result<(SocketAddr, Option<Status>)> {
        let mut stream = TcpStream::connect(&self.addresses[..]).await?;
        // The server treats a client with an address in these networks as a proxy, and expects its header.
        let (own, server) = (stream.local_addr()?.ip(), stream.peer_addr()?);
        if self.proxies.iter().any(|proxies| proxies.contains(own)) {
            stream.write_all(&PROXY_HEADER_LOCAL).await?;
        }
        match PlainClient::over(stream).noop().await {
            Ok(()) => Ok((server, None)),
            Err(error) if error.status().is_some() => Ok((server, error.status())),
            Err(error) => Err(std::io::Error::other(error)),
        }
    }
}

/// Returns the addresses at which this machine reaches the server, with the port for counters if that is enabled, else
/// that for semaphores. Loopback is first, because this machine may not have the other addresses yet.
fn addresses(config: &Config) -> Vec<SocketAddr> {
    let port = if config.counter.port.enable { config.counter.port.port } else { config.semaphore.port.port };
    let reached = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => *ip,
    };
    let mut ips: Vec<IpAddr> = config.bind.iter().map(reached).collect();
    if ips.is_empty() {
        ips = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    }
    ips.sort_by_key(|ip| !ip.is_loopback());
    ips.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_reached_on_loopback_if_it_listens_there() {
        for (bind, expected) in [
            (&[][..], &["127.0.0.1:11216", "[::1]:11216"][..]),
            (&["0.0.0.0"], &["127.0.0.1:11216"]),
            (&["10.0.0.1", "::"], &["[::1]:11216", "10.0.0.1:11216"]),
            (&["10.0.0.1", "127.0.0.2"], &["127.0.0.2:11216", "10.0.0.1:11216"]),
            (&["10.0.0.1"], &["10.0.0.1:11216"]),
        ] {
            let bind = bind.iter().map(|ip| ip.parse().unwrap()).collect();
            let mut config = Config { bind, ..Config::default() };
            config.counter.port.enable = false;
            let found: Vec<_> = addresses(&config).iter().map(SocketAddr::to_string).collect();
            assert_eq!(found, expected);
        }
    }
}
