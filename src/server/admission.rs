//! The limits on the connections of a port: one for all clients together, and the share of each.

use std::slice;
use std::sync::Arc;

use super::client_address::ClientAddress;
use super::port::Port;
use super::shares::{ClientUsage, ConnectionKind, ConnectionLimit, Counted};
use super::state::Server;
use signalbox_model::Namespace;

/// A connection that counts against the limits of its port and of its client until this is dropped.
#[derive(Debug)]
pub struct Admission {
    server: Arc<Server>,
    namespace: Namespace,
    /// `None`: the header of the proxy has not been read yet.
    client: Option<Counted>,
}

/// The port has as many connections as its limit allows.
#[derive(Debug)]
pub(super) struct PortFull;

impl Admission {
    /// Admits a connection from this peer, unless the port has reached its limit. `Ok(None)`: the client has used up its share.
    pub(super) fn request(
        server: &Arc<Server>,
        namespace: Namespace,
        peer: ClientAddress,
    ) -> Result<Option<Self>, PortFull> {
        let port = server.port(namespace);
        let connections_max = server.connections_max(namespace);
        let before = port.metrics.curr_connections.increment();
        let mut admission = Self { server: Arc::clone(server), namespace, client: None };
        if connections_max > 0 && before >= u64::from(connections_max) {
            port.metrics.refused_connections.add(1);
            return Err(PortFull);
        }
        if !server.is_proxy(peer) && !admission.admit_client(peer) {
            return Ok(None);
        }
        port.metrics.total_connections.add(1);
        Ok(Some(admission))
    }

    /// Counts the connection for its client from now on, unless the client has used up its share. Returns whether it is
    /// counted; if not, the connection must be closed.
    pub(super) fn admit_client(&mut self, client: ClientAddress) -> bool {
        let name = match self.namespace {
            Namespace::Counters => "counter.max_connections",
            Namespace::Semaphores => "semaphore.max_connections",
        };
        let kind = ConnectionKind::from(self.namespace);
        let connections_of = |namespace| self.server.port(namespace).metrics.curr_connections.value();
        // The limit is that of this port, or that of all ports together if only the process has one.
        let (of, all): (&[_], u64) = match self.server.connections_max(self.namespace) {
            0 => (&ConnectionKind::SERVICE_PORTS, Namespace::ALL.into_iter().map(connections_of).sum()),
            _ => (slice::from_ref(&kind), connections_of(self.namespace)),
        };
        let max = self.server.connections_limit(self.namespace);
        // This connection is counted already.
        let limit = ConnectionLimit { name, max, in_use: (all as usize).saturating_sub(1), of };
        self.client = self.server.rules.shares.enter(client, kind, limit);
        if self.client.is_none() {
            self.port().metrics.refused_connections.add(1);
        }
        self.client.is_some()
    }

    /// Returns the usage that all connections of the client share. The client must have been admitted.
    pub(super) fn client_usage(&self) -> Arc<ClientUsage> {
        self.client.as_ref().map_or_else(Arc::default, |counted| Arc::clone(counted.usage()))
    }

    /// Notes that the client has begun a handshake on the connection and not completed it.
    pub(super) fn note_unfinished_handshake(&mut self) {
        if let Some(counted) = &mut self.client {
            counted.note_unfinished_handshake();
        }
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    pub(super) fn port(&self) -> &Port {
        self.server.port(self.namespace)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.port().metrics.curr_connections.decrement();
    }
}
