//! Opens TCP connections that detect the failure of the server's host.

use std::future::ready;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::address::{Address, COUNTER_PORT};
use super::error::ConnectError;
use super::race::{Accepted, Limit, Stage, first_answer};

/// How long a server's host may be silent before the connection ends. Keepalive sends three probes, 5 s apart, after
/// 15 s of silence.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const KEEPALIVE_TIME: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// Resolves the host of an address. Returns an address for each IP address of the host, at least one.
pub(super) async fn resolve(address: Address) -> Result<Vec<Address>, ConnectError> {
    if address.exact().is_some() {
        return Ok(vec![address]);
    }
    let unresolved =
        |error| ConnectError::Resolve { host: address.host().to_owned(), source: Arc::new(error) };
    let (host, port) = (address.host().to_owned(), address.port().unwrap_or(COUNTER_PORT));
    let (sender, found) = oneshot::channel();
    // Not `spawn_blocking`, which panics if the system allows no further thread.
    let resolver = thread::Builder::new().name("signalbox-resolver".to_owned());
    let resolve = move || sender.send((host, port).to_socket_addrs());
    resolver.spawn(resolve).map_err(unresolved)?;
    let found = found.await.expect("the thread sends the result before it ends");
    let mut all: Vec<SocketAddr> = Vec::new();
    for found in found.map_err(unresolved)? {
        if !all.contains(&found) {
            all.push(found);
        }
    }
    if all.is_empty() {
        return Err(unresolved(io::ErrorKind::NotFound.into()));
    }
    Ok(all.into_iter().map(|found| address.clone().resolved_to(found)).collect())
}

/// Connects to the first IP address of the host that accepts, within `limit` for all of them.
pub(super) async fn connect(address: &Address, limit: Duration) -> Result<TcpStream, ConnectError> {
    first_of(address, limit, |stream, _| ready(Ok(stream))).await
}

/// Connects to the IP addresses of the host until one accepts and `ask` succeeds there, within `limit` for all of them.
pub(super) async fn first_of<T, A>(
    address: &Address,
    limit: Duration,
    ask: impl Fn(TcpStream, Address) -> A + Clone + Send + 'static,
) -> Result<T, ConnectError>
where
    T: Send + 'static,
    A: Future<Output = Result<T, ConnectError>> + Send,
{
    let late = |address: &Address| ConnectError::TimedOut { address: address.to_string(), limit };
    let resolve = |address: &Address| -> Stage<_, _> { Box::pin(resolve(address.clone())) };
    let ask = |address: &Address, accepted: Accepted| -> Stage<_, _> {
        let (address, ask) = (address.clone(), ask.clone());
        Box::pin(async move {
            let stream = connect_to(&address).await?;
            accepted.note();
            ask(stream, address).await
        })
    };
    let limit = Limit::Until(Instant::now() + limit);
    Ok(first_answer(std::slice::from_ref(address), limit, late, resolve, ask).await?.answer)
}

/// Connects to one of the addresses that [`resolve`] returns.
async fn connect_to(address: &Address) -> Result<TcpStream, ConnectError> {
    let exact = address.exact().expect("the address is resolved");
    open(exact).await.map_err(|source| ConnectError::Refused { address: exact, source: Arc::new(source) })
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

/// Returns the server's address if a connection without TLS leads to another machine; others may read what it carries.
pub(super) fn in_clear(stream: &TcpStream) -> Option<SocketAddr> {
    stream.peer_addr().ok().filter(|peer| !peer.ip().to_canonical().is_loopback())
}
