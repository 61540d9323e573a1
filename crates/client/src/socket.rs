//! Opens TCP connections that detect the failure of the server's host.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout, timeout_at};

use super::address::{Address, COUNTER_PORT};
use super::error::ConnectError;

/// How long a server's host may be silent before the connection ends. Keepalive sends three probes, 5 s apart, after
/// 15 s of silence.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const KEEPALIVE_TIME: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// Connects to the first of the host's addresses that accepts, within `limit` for all of them.
pub(super) async fn connect(address: &Address, limit: Duration) -> Result<TcpStream, ConnectError> {
    let deadline = Instant::now() + limit;
    let timed_out = || ConnectError::TimedOut { address: address.to_string(), limit };
    let host = (address.host(), address.port().unwrap_or(COUNTER_PORT));
    let unresolved =
        |error| ConnectError::Resolve { host: address.host().to_owned(), source: Arc::new(error) };
    let mut candidates: Vec<SocketAddr> = timeout_at(deadline, lookup_host(host))
        .await
        .map_err(|_| timed_out())?
        .map_err(unresolved)?
        .collect();
    candidates.dedup();

    let mut failure = unresolved(io::ErrorKind::NotFound.into());
    for (tried, candidate) in candidates.iter().enumerate() {
        // An equal share of the remaining time, so that a silent address leaves enough for the others.
        let untried = u32::try_from(candidates.len() - tried).expect("a host has few addresses");
        let share = (deadline - Instant::now()) / untried;
        failure = match timeout(share, open(*candidate)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => ConnectError::Refused { address: *candidate, source: Arc::new(error) },
            Err(_) => timed_out(),
        };
    }
    Err(failure)
}

async fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    // Requests are collected before they are written, so Nagle's algorithm would only add delay.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_TIME)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    // Keepalive sends no probes while data is unacknowledged; this option limits that time.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(SILENCE_MAX))?;
    Ok(stream)
}

/// The address of the server that a connection without TLS leads to, if it is on another machine.
pub(super) fn in_clear(stream: &TcpStream) -> Option<SocketAddr> {
    stream.peer_addr().ok().filter(|peer| !peer.ip().to_canonical().is_loopback())
}
