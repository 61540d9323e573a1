//! How many connections a port has, and may have.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Port, Server};
use crate::core::Namespace;

/// A place among the connections of a port, given up when it is dropped.
#[derive(Debug)]
pub struct Admission {
    server: Arc<Server>,
    namespace: Namespace,
}

impl Admission {
    /// A place, unless the port has as many connections as it may.
    pub(super) fn ask(server: &Arc<Server>, namespace: Namespace) -> Option<Self> {
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
