//! The sockets that the daemon listens on: bound here, or passed by systemd.

use std::io;
use std::net::TcpListener;

use tracing::warn;

use super::super::port::{port_config, port_name};
use super::super::{socket, systemd};
use super::error::DaemonError;
use crate::config::{Config, HttpConfig};
use signalbox_model::Namespace;

/// What was bound.
pub(super) struct Bound {
    /// The service ports.
    pub(super) ports: Vec<(Namespace, TcpListener)>,
    /// The HTTP listener; none if it is not enabled. Its sockets accept connections at once.
    pub(super) http: Vec<TcpListener>,
    /// The port for relays of other nodes, which accepts connections while this node leads.
    pub(super) relays: Option<TcpListener>,
}

/// Binds the enabled ports. A port may have several listeners. Those of a node of a cluster refuse connections until
/// [`listen`] is called.
pub(super) fn bind(config: &Config) -> Result<Bound, DaemonError> {
    let mut inherited = systemd::inherited_listeners()?;
    if config.cluster.is_enabled() && !config.cluster.relays() && !inherited.is_empty() {
        let problem = "systemd has handed over sockets, and would accept connections while this node does not lead; disable \
                       the socket unit (systemctl disable --now signalbox.socket), or set cluster.bind";
        return Err(DaemonError::ClusterSettings { problem: problem.to_owned() });
    }
    let mut bound = Vec::new();
    for namespace in Namespace::ALL {
        let port_config = port_config(config, namespace);
        if !port_config.enable {
            continue;
        }
        let mut listeners = with_port(&mut inherited, port_config.port);
        if listeners.is_empty() {
            let bound = socket::bind_port(config, port_config.port);
            listeners = bound.map_err(|source| not_bound(namespace, port_config.port, source))?;
        }
        bound.extend(listeners.into_iter().map(|listener| (namespace, listener)));
    }
    let mut http = Vec::new();
    if config.http.enable {
        http = with_port(&mut inherited, config.http.port);
        if http.is_empty() {
            let HttpConfig { bind, port, .. } = &config.http;
            let key = || format!("http.port = {port}");
            let bound = socket::bind_addresses(bind, *port);
            http = bound.map_err(|source| DaemonError::Bind { key: key(), source })?;
        }
    }
    let bind_relays = |address| {
        let key = || format!("cluster.bind = {address}");
        socket::bind_for_relays(address).map_err(|source| DaemonError::Bind { key: key(), source })
    };
    let relays = config.cluster.bind.filter(|_| config.cluster.is_enabled()).map(bind_relays).transpose()?;
    for listener in inherited {
        let address = listener.local_addr().map_or_else(|error| error.to_string(), |a| a.to_string());
        warn!(
            address,
            "a socket was handed over for a port that the configuration does not enable; it is closed"
        );
    }
    Ok(Bound { ports: bound, http, relays })
}

/// Takes the sockets of a port out of those that were handed over.
fn with_port(inherited: &mut Vec<TcpListener>, port: u16) -> Vec<TcpListener> {
    let has_port =
        |listener: &mut TcpListener| listener.local_addr().is_ok_and(|address| address.port() == port);
    inherited.extract_if(.., has_port).collect()
}

/// Has the bound ports accept connections.
pub(super) fn listen(listeners: &[(Namespace, TcpListener)]) -> Result<(), DaemonError> {
    listeners.iter().try_for_each(|(namespace, listener)| {
        let port = listener.local_addr()?.port();
        socket::listen(listener).map_err(|source| not_bound(*namespace, port, source))
    })
}

fn not_bound(namespace: Namespace, port: u16, source: io::Error) -> DaemonError {
    DaemonError::Bind { key: format!("{}.port = {port}", port_name(namespace)), source }
}
