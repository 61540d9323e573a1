//! Clients, as an administrator names them.

use std::str::FromStr;

use super::network::Network;
use signalbox_access::CertificateName;
use signalbox_model::{AddressRange, Revocation};

/// Some clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clients {
    /// Those with an address of this network.
    Network(Network),
    /// Those with this identity: `token:NAME`, or `certificate:` and a name with its type.
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
#[error(
    "must be an IP address, a network such as 10.0.0.0/8, token:NAME, or certificate:NAME with a name such as dns:worker-1, uri:… \
     or cn:…"
)]
pub struct UnknownClients;

impl FromStr for Clients {
    type Err = UnknownClients;

    fn from_str(text: &str) -> Result<Self, UnknownClients> {
        match text.split_once(':') {
            Some(("token", "")) => Err(UnknownClients),
            Some(("token", _)) => Ok(Self::Identity(text.to_owned())),
            Some(("certificate", name)) => {
                let name: CertificateName = name.parse().map_err(|_| UnknownClients)?;
                Ok(Self::Identity(format!("certificate:{name}")))
            }
            _ => text.parse().map(Self::Network).map_err(|_| UnknownClients),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_named_by_address_network_or_identity() {
        for text in
            ["token:web", "token:a:b", "certificate:cn:CN with spaces", "certificate:uri:spiffe://A/b"]
        {
            assert_eq!(text.parse(), Ok(Clients::Identity(text.to_owned())));
        }
        assert_eq!("certificate:dns:A.b".parse(), Ok(Clients::Identity("certificate:dns:a.b".to_owned())));
        for text in ["192.0.2.1", "10.0.0.0/8", "2001:db8::/64", "::1"] {
            assert_eq!(text.parse::<Clients>(), Ok(Clients::Network(text.parse().unwrap())));
        }
        for text in ["", "token:", "certificate:", "certificate:web", "tokens:a", "Token:a", "web"] {
            assert_eq!(text.parse::<Clients>(), Err(UnknownClients), "{text}");
        }
    }
}
