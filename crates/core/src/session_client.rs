//! The client of a session, as listings show it and revocations find it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The client that is attached to a session or was last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionClient {
    /// Its address.
    pub address: SocketAddr,
    /// The identity that it has proven, as the server names it; `None`: it has proven none.
    pub identity: Option<Arc<str>>,
}

/// Some clients, whose sessions an administrator revokes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientSelector {
    /// Those with these addresses. Addresses of IPv4 are those to which they are mapped in IPv6.
    Addresses(RangeInclusive<Ipv6Addr>),
    /// Those that have proven this identity, from any address.
    Identity(Box<str>),
}

impl ClientSelector {
    /// Whether a client is one of them.
    pub(super) fn selects(&self, client: &SessionClient) -> bool {
        match self {
            Self::Addresses(addresses) => addresses.contains(&match client.address.ip() {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            }),
            Self::Identity(identity) => client.identity.as_deref() == Some(identity),
        }
    }
}

impl fmt::Display for ClientSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Addresses(addresses) if addresses.start() == addresses.end() => {
                addresses.start().to_canonical().fmt(f)
            }
            Self::Addresses(addresses) => {
                let [first, last] = [addresses.start(), addresses.end()].map(Ipv6Addr::to_canonical);
                write!(f, "{first} to {last}")
            }
            Self::Identity(identity) => identity.escape_debug().fmt(f),
        }
    }
}
