//! The sockets that the daemon listens on: bound here, or passed by systemd (`etc/signalbox.socket`).

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use listenfd::ListenFd;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tracing::warn;

use super::super::port::{port_config, port_name};
use super::error::DaemonError;
use crate::config::{Config, is_covered};
use signalbox_model::Namespace;

/// The number of connections that may wait to be accepted. The kernel lowers it to net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// The sockets that the daemon listens on.
pub(super) struct Bound {
    pub(super) ports: Vec<(Namespace, TcpListener)>,
    /// The HTTP listener; empty if it is not enabled. Its sockets accept connections at once.
    pub(super) http: Vec<TcpListener>,
    /// The port for relays of other nodes, which accepts connections while this node leads.
    pub(super) relays: Option<TcpListener>,
}

/// Binds the enabled ports. A port may have several listeners. If this is a node of a cluster, the service ports that are
/// bound here refuse connections until [`listen`] is called, and the port for relays until [`listen_on`] is.
pub(super) fn bind(config: &Config) -> Result<Bound, DaemonError> {
    let mut inherited = inherited_listeners()?;
    let is_node = config.cluster.is_enabled();
    if is_node && !config.cluster.relays() && !inherited.is_empty() {
        let problem = "systemd has handed over sockets, and would accept connections while this node does not lead; disable \
                       the socket unit (systemctl disable --now signalbox.socket), or set cluster.bind";
        return Err(DaemonError::ClusterSettings(problem.to_owned()));
    }
    // A node of a cluster accepts nothing before it has joined and, if it does not relay clients, before it leads.
    let accept = if is_node { Accept::Later } else { Accept::Now };
    let mut ports = Vec::new();
    for namespace in Namespace::ALL {
        let port_config = port_config(config, namespace);
        if !port_config.enable {
            continue;
        }
        let mut listeners = with_port(&mut inherited, port_config.port);
        if listeners.is_empty() {
            let bound = bind_port(&config.bind, config.floating_ip(), port_config.port, accept);
            listeners = bound.map_err(|source| not_bound(namespace, port_config.port, source))?;
        }
        ports.extend(listeners.into_iter().map(|listener| (namespace, listener)));
    }
    let mut http = Vec::new();
    if config.http.enable {
        let port = config.http.port;
        http = with_port(&mut inherited, port);
        if http.is_empty() {
            let bound = bind_port(&config.http.bind, None, port, Accept::Now);
            http =
                bound.map_err(|source| DaemonError::Bind { key: format!("http.port = {port}"), source })?;
        }
    }
    let bind_relays = |address| {
        let bound = bind_address(address, Presence::Expected, Accept::Later);
        bound.map_err(|source| DaemonError::Bind { key: format!("cluster.bind = {address}"), source })
    };
    let relays = config.cluster.bind.filter(|_| is_node).map(bind_relays).transpose()?;
    for listener in inherited {
        let address = listener.local_addr().map_or_else(|error| error.to_string(), |a| a.to_string());
        warn!(
            address,
            "a socket was handed over for a port that the configuration does not enable; it is closed"
        );
    }
    Ok(Bound { ports, http, relays })
}

/// Returns the sockets that systemd bound before the process started.
fn inherited_listeners() -> io::Result<Vec<TcpListener>> {
    let mut inherited = ListenFd::from_env();
    let mut listeners = Vec::new();
    for index in 0..inherited.len() {
        if let Some(listener) = inherited.take_tcp_listener(index)? {
            listener.set_nonblocking(true)?;
            listeners.push(listener);
        }
    }
    Ok(listeners)
}

/// Takes the sockets of a port out of those that were handed over.
fn with_port(inherited: &mut Vec<TcpListener>, port: u16) -> Vec<TcpListener> {
    let has_port =
        |listener: &mut TcpListener| listener.local_addr().is_ok_and(|address| address.port() == port);
    inherited.extract_if(.., has_port).collect()
}

/// Starts listening on the bound ports.
pub(super) fn listen(listeners: &[(Namespace, TcpListener)]) -> Result<(), DaemonError> {
    listeners.iter().try_for_each(|(namespace, listener)| {
        let port = listener.local_addr()?.port();
        listen_on(listener).map_err(|source| not_bound(*namespace, port, source))
    })
}

/// Starts listening on a bound socket.
pub(super) fn listen_on(listener: &TcpListener) -> io::Result<()> {
    SockRef::from(listener).listen(BACKLOG)
}

fn not_bound(namespace: Namespace, port: u16, source: io::Error) -> DaemonError {
    DaemonError::Bind { key: format!("{}.port = {port}", port_name(namespace)), source }
}

/// Binds a port on these addresses, or on every address if the list is empty.
fn bind_port(
    addresses: &[IpAddr],
    floating: Option<IpAddr>,
    port: u16,
    accept: Accept,
) -> io::Result<Vec<TcpListener>> {
    if addresses.is_empty() {
        return bind_every_address(port, accept);
    }
    let needed = addresses.iter().filter(|ip| !is_covered(**ip, addresses));
    let needed = needed.map(|ip| (*ip, Presence::Expected));
    let floating = floating.into_iter().map(|ip| (ip, Presence::MayComeLater));
    floating
        .chain(needed)
        .map(|(ip, presence)| bind_address(SocketAddr::new(ip, port), presence, accept))
        .collect()
}

/// Binds every address of both families, or only of IPv4 if the machine has no IPv6.
fn bind_every_address(port: u16, accept: Accept) -> io::Result<Vec<TcpListener>> {
    match bind_address(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), Presence::Expected, accept) {
        Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::AddrNotAvailable) => Ok(
            vec![bind_address(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), Presence::Expected, accept)?],
        ),
        listener => Ok(vec![listener?]),
    }
}

/// The expectation about an address that is bound.
#[derive(Clone, Copy)]
enum Presence {
    /// The machine has the address. If it does not, the network may come up late, or the address is a mistake, so there is
    /// a warning.
    Expected,
    /// The machine need not have the address: a virtual address moves between machines, and is bound before it arrives.
    MayComeLater,
}

/// When a bound socket accepts connections.
#[derive(Clone, Copy)]
enum Accept {
    Now,
    /// After [`listen`] or [`listen_on`] was called; until then, the kernel refuses them.
    Later,
}

fn bind_address(address: SocketAddr, presence: Presence, accept: Accept) -> io::Result<TcpListener> {
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
        if let Presence::MayComeLater = presence {
            may_come_later()?;
        }
        match (socket.bind(&address.into()), presence) {
            (Err(error), Presence::Expected)
                if error.kind() == ErrorKind::AddrNotAvailable && !address.ip().is_unspecified() =>
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
