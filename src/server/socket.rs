//! Sockets: binds listeners, and sets the options of connections.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tracing::warn;

use crate::config::{Config, is_covered};

/// Connections that may wait to be accepted. The kernel lowers it to net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// Binds a service port on the configured addresses.
pub(super) fn bind_port(config: &Config, port: u16) -> io::Result<Vec<TcpListener>> {
    // A node of a cluster accepts nothing before it has joined, and without relays, before it leads.
    let accept = if config.cluster.is_enabled() { Accept::Later } else { Accept::Now };
    bind_all(&config.bind, config.floating_ip(), port, accept)
}

/// Binds a port on these addresses. It accepts connections at once.
pub(super) fn bind_addresses(addresses: &[IpAddr], port: u16) -> io::Result<Vec<TcpListener>> {
    bind_all(addresses, None, port, Accept::Now)
}

/// Binds a port on these addresses, or on every address if there is none.
fn bind_all(
    addresses: &[IpAddr],
    floating: Option<IpAddr>,
    port: u16,
    accept: Accept,
) -> io::Result<Vec<TcpListener>> {
    if addresses.is_empty() {
        return bind_every_address(port, accept);
    }
    let needed = addresses.iter().filter(|ip| !is_covered(**ip, addresses));
    let needed = needed.map(|ip| (*ip, Need::Expected));
    let floating = floating.into_iter().map(|ip| (ip, Need::MayComeLater));
    floating.chain(needed).map(|(ip, need)| bind(SocketAddr::new(ip, port), need, accept)).collect()
}

/// Binds every address of both families, or of IPv4 only if the machine has no IPv6.
fn bind_every_address(port: u16, accept: Accept) -> io::Result<Vec<TcpListener>> {
    match bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), Need::Present, accept) {
        Err(error) if lacks_ipv6(&error) => {
            Ok(vec![bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), Need::Present, accept)?])
        }
        listener => Ok(vec![listener?]),
    }
}

/// Binds the address for relays of other nodes. It accepts connections once [`listen`] was called.
pub(super) fn bind_for_relays(address: SocketAddr) -> io::Result<TcpListener> {
    bind(address, Need::Expected, Accept::Later)
}

/// Whether the machine must have an address already.
#[derive(Clone, Copy)]
enum Need {
    /// Every address of a family: without it, the machine lacks the family.
    Present,
    /// The network may get it only after the start. It may also be a mistake, so there is a warning.
    Expected,
    /// A virtual address moves between machines, and is bound before it arrives.
    MayComeLater,
}

/// When a bound socket accepts connections.
#[derive(Clone, Copy)]
enum Accept {
    Now,
    /// Once [`listen`] was called; until then it refuses them.
    Later,
}

fn bind(address: SocketAddr, need: Need, accept: Accept) -> io::Result<TcpListener> {
    let explain = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
    let bound = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if let IpAddr::V6(ip) = address.ip() {
            socket.set_only_v6(!ip.is_unspecified())?;
        }
        let may_come_later = || match address {
            SocketAddr::V4(_) => socket.set_freebind_v4(true),
            SocketAddr::V6(_) => socket.set_freebind_v6(true),
        };
        if let Need::MayComeLater = need {
            may_come_later()?;
        }
        match (socket.bind(&address.into()), need) {
            (Err(error), Need::Expected)
                if error.kind() == io::ErrorKind::AddrNotAvailable && !address.ip().is_unspecified() =>
            {
                may_come_later()?;
                socket.bind(&address.into())?;
                warn!(
                    %address,
                    "this machine does not have the address; clients can connect there as soon as it has; if it never will, \
                     correct the configuration"
                );
            }
            (bound, _) => bound?,
        }
        if let Accept::Now = accept {
            socket.listen(BACKLOG)?;
        }
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    bound().map_err(explain)
}

/// Has a bound socket accept connections.
pub(super) fn listen(listener: &TcpListener) -> io::Result<()> {
    SockRef::from(listener).listen(BACKLOG)
}

fn lacks_ipv6(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::AddrNotAvailable)
}

/// Makes the kernel detect a vanished peer within `peer_timeout`, and send responses without delay.
///
/// The kernel probes an idle connection after 2/7 of the timeout, and then every 1/7. Neither unanswered probes nor
/// unacknowledged data may last longer than 5/7: data may be sent just before the first probe, so both together stay
/// within the timeout. The last option also ends a connection whose peer is alive but takes no output for that long.
pub(super) fn prepare_connection(stream: &impl AsFd, peer_timeout: Duration) -> io::Result<()> {
    let part = peer_timeout / 7;
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time((part * 2).max(Duration::from_secs(1)))
            .with_interval(part.max(Duration::from_secs(1)))
            .with_retries(3),
    )?;
    socket.set_tcp_user_timeout(Some(part * 5))
}
