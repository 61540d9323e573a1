//! Where clients reach the nodes of the cluster that this node leads.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use signalbox_cluster::keys::Advertised;

/// Where clients reach the nodes of the cluster that this node leads.
#[derive(Debug)]
pub(super) struct Whereabouts {
    /// The number of this node's term.
    pub(super) epoch: u32,
    pub(super) renew_deadline: Duration,
    pub(super) leader: Advertised,
    others: Mutex<Arc<Advertised>>,
    /// Where the next leader is, or may be; `None`: this node continues to lead.
    next: Mutex<Option<Arc<Advertised>>>,
}

impl Whereabouts {
    /// This node leads in an epoch, and is reached there.
    pub(super) fn new(epoch: u32, renew_deadline: Duration, leader: Advertised) -> Self {
        Self { epoch, renew_deadline, leader, others: Mutex::default(), next: Mutex::default() }
    }

    /// Where the other nodes are reached.
    pub(super) fn others(&self) -> Arc<Advertised> {
        Arc::clone(&self.others.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_others(&self, others: Advertised) {
        *self.others.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(others);
    }

    pub(super) fn next(&self) -> Option<Arc<Advertised>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_next(&self, next: Advertised) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(next));
    }
}
