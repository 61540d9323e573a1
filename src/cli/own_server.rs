//! The server of a configuration file, on this machine: what a health check needs to know is in its configuration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::exit::{Exit, Failure};
use crate::config::{Config, Loaded, Network};
use signalbox_client::Status;
use signalbox_protocol::{HEADER_BYTES, Opaque, PROXY_HEADER_LOCAL, Request};

/// How to reach it.
#[derive(Debug)]
pub(super) struct OwnServer {
    /// Where connections begin with a header of the PROXY protocol.
    proxies: Vec<Network>,
    /// Those that it listens on: loopback first.
    addresses: Vec<SocketAddr>,
}

impl OwnServer {
    /// Reads the configuration file, and the variables of the environment as the server does.
    pub(super) fn of(file: &Path) -> Result<Self, Failure> {
        let loaded = Loaded::read(Some(file), std::env::vars_os())?;
        loaded.validate()?;
        let addresses = addresses(&loaded.config);
        Ok(Self { proxies: loaded.config.proxies, addresses })
    }

    /// Sends a Noop over a new connection, and returns the address that has answered. A server that answers that it requires
    /// TLS works too: what its certificates are is not asked.
    ///
    /// `timeout`: for the connection and the answer together.
    pub(super) async fn ask(&self, timeout: Duration) -> Result<SocketAddr, Failure> {
        let asked = tokio::time::timeout(timeout, self.noop()).await;
        let list = self.addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
        let failed = |problem: String| {
            Failure::new(Exit::Unavailable, format!("the server of this configuration ({list}) {problem}"))
        };
        match asked {
            Ok(Ok((address, 0))) => Ok(address),
            Ok(Ok((address, status))) if Status::from_code(status) == Some(Status::TlsRequired) => {
                Ok(address)
            }
            Ok(Ok((_, status))) => Err(failed(format!("answers with the status {status:#04x}; see its log"))),
            Ok(Err(error)) => {
                Err(failed(format!("does not answer: {error}; check that it runs, and its log")))
            }
            Err(_) => Err(failed(format!("did not answer within {} s; see its log", timeout.as_secs_f64()))),
        }
    }

    /// The address that has answered, and the status of its answer.
    async fn noop(&self) -> std::io::Result<(SocketAddr, u8)> {
        let mut stream = TcpStream::connect(&self.addresses[..]).await?;
        let mut request = Vec::new();
        // The server takes this command for a proxy.
        let own = stream.local_addr()?.ip();
        if self.proxies.iter().any(|proxies| proxies.contains(own)) {
            request.extend(PROXY_HEADER_LOCAL);
        }
        Request::Noop.compose(Opaque([0; 4]), &mut request);
        stream.write_all(&request).await?;
        let mut answer = [0; HEADER_BYTES];
        stream.read_exact(&mut answer).await?;
        Ok((stream.peer_addr()?, answer[2]))
    }
}

/// Where the server listens for the namespace that it serves, or for counters if it serves both. Loopback is first: other
/// addresses may arrive later.
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
