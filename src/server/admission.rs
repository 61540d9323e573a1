//! The limit on the connections of a port.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Port, Server};
use crate::core::Namespace;

/// Counts one connection of a port, until it is dropped.
#[derive(Debug)]
pub struct Admission {
    server: Arc<Server>,
    namespace: Namespace,
}

impl Admission {
    /// Admits a connection, unless the port has reached its limit.
    pub(super) fn request(server: &Arc<Server>, namespace: Namespace) -> Option<Self> {
        let port = server.port(namespace);
        let connections_max = port.connections_max.load(Ordering::Relaxed);
        let before = port.metrics.curr_connections.increment();
        if connections_max > 0 && before >= u64::from(connections_max) {
            port.metrics.curr_connections.decrement();
            port.metrics.refused_connections.add(1);
            return None;
        }
        port.metrics.total_connections.add(1);
        Some(Self { server: Arc::clone(server), namespace })
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
