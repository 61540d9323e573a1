//! Clients, as an administrator names them.

use std::str::FromStr;

use super::network::Network;
use signalbox_model::{AddressRange, Revocation};

/// Some clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clients {
    /// Those with an address of this network.
    Network(Network),
    /// Those with this identity: `token:NAME` or `certificate:NAME`.
    Identity(String),
}

impl Clients {
    /// The revocation of their leased sessions.
    pub fn revocation(&self) -> Revocation<'_> {
        match self {
            Self::Network(network) => {
                let (first, last) = network.range().into_inner();
                Revocation::Addresses(AddressRange { first, last })
            }
            Self::Identity(identity) => Revocation::Identity(identity.as_bytes()),
        }
    }
}

/// The text names no clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be an IP address, a network such as 10.0.0.0/8, token:NAME or certificate:NAME")]
pub struct UnknownClients;

impl FromStr for Clients {
    type Err = UnknownClients;

    fn from_str(text: &str) -> Result<Self, UnknownClients> {
        match text.split_once(':') {
            Some(("token" | "certificate", "")) => Err(UnknownClients),
            Some(("token" | "certificate", _)) => Ok(Self::Identity(text.to_owned())),
            _ => text.parse().map(Self::Network).map_err(|_| UnknownClients),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_named_by_address_network_or_identity() {
        for text in ["token:web", "token:a:b", "certificate:CN with spaces"] {
            assert_eq!(text.parse(), Ok(Clients::Identity(text.to_owned())));
        }
        for text in ["192.0.2.1", "10.0.0.0/8", "2001:db8::/64", "::1"] {
            assert_eq!(text.parse::<Clients>(), Ok(Clients::Network(text.parse().unwrap())));
        }
        for text in ["", "token:", "certificate:", "tokens:a", "Token:a", "web"] {
            assert_eq!(text.parse::<Clients>(), Err(UnknownClients), "{text}");
        }
    }
}
