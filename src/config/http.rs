//! The section `[http]`.

use std::net::{IpAddr, Ipv4Addr};

/// The HTTP listener: metrics, health and the JSON API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// Whether there is one.
    pub enable: bool,
    /// Addresses to listen on, without duplicates. An empty list means every address of the machine.
    pub bind: Vec<IpAddr>,
    /// The TCP port, from 1.
    pub port: u16,
    /// What requests may name as their host, besides loopback and the addresses of the machine; in lower case, without
    /// duplicates.
    pub hosts: Vec<String>,
    /// Names that begin with one of these have metrics of their own, as declared semaphores have.
    pub names: Vec<String>,
    /// The most names that have metrics of their own.
    pub names_max: u32,
    /// The most connections at a time that requests for leases come by, each of which may wait.
    pub lease_connections_max: u32,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            enable: false,
            bind: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            port: 11217,
            hosts: Vec::new(),
            names: Vec::new(),
            names_max: 1000,
            lease_connections_max: 10_000,
        }
    }
}

/// Whether a request can name this as its host: a name of the domain name system, in lower case, without a port.
pub(super) fn is_host(name: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'))
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_without_a_port() {
        for host in ["localhost", "box.example.org", "a_b-c.d9"] {
            assert!(is_host(host), "{host}");
        }
        for other in ["", "Box", "a..b", ".", "a:80", "http://a", "a/b", "a.", "*.a", "[::1]", "ä"] {
            assert!(!is_host(other), "{other}");
        }
    }
}
