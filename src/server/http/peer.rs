//! The sender of a request, and how the request arrived.

use std::net::IpAddr;
use std::sync::Arc;

use super::super::client_address::Client;

/// The client of a request, and its connection.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) client: Arc<Client>,
    /// The address of this machine that the client has connected to.
    pub(super) local: IpAddr,
    pub(super) is_encrypted: bool,
}

impl Peer {
    /// The client of a request on this connection that another program forwards.
    pub(super) fn forwarded(&self) -> Self {
        let Client { address, certificate } = &*self.client;
        let client = Client { address: address.forwarded(), certificate: certificate.clone() };
        Self { client: Arc::new(client), ..*self }
    }
}

#[cfg(test)]
impl Peer {
    /// A client on this machine.
    pub(super) fn of_test() -> Self {
        use super::super::client_address::ClientAddress;
        let address = ClientAddress::of_peer(([127, 0, 0, 1], 1).into());
        let client = Arc::new(Client { address, certificate: Arc::default() });
        Self { client, local: IpAddr::from([127, 0, 0, 1]), is_encrypted: false }
    }
}
