//! The settings of the listener that may change while the server runs.

use std::net::IpAddr;

use crate::config::{Config, Network};

/// They are replaced as a whole.
#[derive(Debug)]
pub(super) struct Settings {
    /// In lower case.
    pub(super) hosts: Vec<String>,
    /// Names that begin with one of these have series of their own.
    pub(super) names: Vec<String>,
    /// The most names of a namespace that have.
    pub(super) names_max: usize,
    /// The networks of the proxies, whose connections begin with a header.
    proxies: Vec<Network>,
    /// The most connections that requests for leases come by.
    pub(super) lease_connections_max: usize,
}

impl Settings {
    pub(super) fn of(config: &Config) -> Self {
        Self {
            hosts: config.http.hosts.clone(),
            names: config.http.names.clone(),
            names_max: config.http.names_max as usize,
            proxies: config.proxies.clone(),
            lease_connections_max: config.http.lease_connections_max as usize,
        }
    }

    /// Whether the connections of this peer have to begin with a proxy's header.
    pub(super) fn is_proxy(&self, peer: IpAddr) -> bool {
        self.proxies.iter().any(|network| network.contains(peer))
    }
}
