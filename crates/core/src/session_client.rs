//! The client of a session, as listings show it and revocations find it.

use std::net::SocketAddr;
use std::sync::Arc;

use signalbox_model::AddressRange;

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
pub(super) enum ClientSelector {
    /// Those with these addresses.
    Addresses(AddressRange),
    /// Those that have proven this identity, from any address.
    Identity(Box<str>),
}

impl ClientSelector {
    /// Whether a client is one of them.
    pub(super) fn selects(&self, client: &SessionClient) -> bool {
        match self {
            Self::Addresses(addresses) => addresses.contains(client.address.ip()),
            Self::Identity(identity) => client.identity.as_deref() == Some(identity),
        }
    }
}
