//! The limits on the connections of a port: that of all clients, and the share of each.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::client_address::ClientAddress;
use super::shares::{ClientUsage, Exhausted};
use super::{Port, Server};
use crate::core::{ClientKey, Namespace};

/// Counts one connection of a port, and of its client, until it is dropped.
#[derive(Debug)]
pub struct Admission {
    server: Arc<Server>,
    namespace: Namespace,
    /// `None`: the header of the proxy has not been read yet.
    client: Option<Counted>,
}

/// A client, and since when the connection counts for it.
#[derive(Debug)]
struct Counted {
    client: ClientKey,
    since: Instant,
    usage: Arc<ClientUsage>,
}

/// The port has as many connections as its limit allows.
#[derive(Debug)]
pub(super) struct PortFull;

impl Admission {
    /// Admits a connection from this peer, unless the port has reached its limit. `Ok(None)`: the client has its share.
    pub(super) fn request(
        server: &Arc<Server>,
        namespace: Namespace,
        peer: ClientAddress,
    ) -> Result<Option<Self>, PortFull> {
        let port = server.port(namespace);
        let connections_max = port.connections_max.load(Ordering::Relaxed);
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

    /// Counts the connection for its client from now on, unless that has its share: then the connection has to be closed.
    pub(super) fn admit_client(&mut self, client: ClientAddress) -> bool {
        let shares = &self.server.shares;
        let (max, ports) = (self.server.connections_limit(self.port()), self.limited_ports());
        let all = ports.iter().map(|port| self.server.port(*port).metrics.curr_connections.value());
        // This connection is counted already.
        let in_use = (all.sum::<u64>() as usize).saturating_sub(1);
        let share = shares.share();
        let usage = shares.enter(client.key(), self.namespace, |connections| {
            let own = ports.iter().map(|port| connections[*port as usize] as usize).sum();
            !share.is_exhausted(max, in_use, own)
        });
        let exhausted = match usage {
            Ok(usage) => {
                self.client = Some(Counted { client: client.key(), since: Instant::now(), usage });
                return true;
            }
            Err(exhausted) => exhausted,
        };
        let max_connections = match self.namespace {
            Namespace::Counters => "counter.max_connections",
            Namespace::Semaphores => "semaphore.max_connections",
        };
        let (limit, share) = match exhausted {
            Exhausted::Connections => (max_connections, share.of(max)),
            Exhausted::ShortConnections(share) => ("short_connections", share),
        };
        self.port().metrics.refused_connections.add(1);
        shares.note_refusal(client, limit, share as u64);
        false
    }

    /// The ports of which the limit is: this one, or all if only the process has a limit.
    fn limited_ports(&self) -> &'static [Namespace] {
        match (self.port().connections_max.load(Ordering::Relaxed), self.namespace) {
            (0, _) => &Namespace::ALL,
            (_, Namespace::Counters) => &[Namespace::Counters],
            (_, Namespace::Semaphores) => &[Namespace::Semaphores],
        }
    }

    /// What the connections of the client have together. The connection has been admitted for its client.
    pub(super) fn client_usage(&self) -> Arc<ClientUsage> {
        self.client.as_ref().map_or_else(Arc::default, |counted| Arc::clone(&counted.usage))
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
        if let Some(Counted { client, since, .. }) = self.client {
            self.server.shares.leave(client, self.namespace, since);
        }
    }
}
