//! Where clients reach the nodes of the cluster that this node leads.

use std::sync::Arc;
use std::time::Duration;

use super::rules::Current;
use signalbox_cluster::keys::Advertised;

/// Where clients reach the nodes of the cluster that this node leads.
#[derive(Debug)]
pub(super) struct Whereabouts {
    /// The number of this node's term.
    pub(super) epoch: u32,
    pub(super) renew_deadline: Duration,
    pub(super) leader: Advertised,
    /// Where the other nodes are reached.
    pub(super) others: Current<Arc<Advertised>>,
    /// Where the next leader is, or may be; `None`: this node continues to lead.
    pub(super) next: Current<Option<Arc<Advertised>>>,
}

impl Whereabouts {
    /// This node leads in an epoch, and is reached there.
    pub(super) fn new(epoch: u32, renew_deadline: Duration, leader: Advertised) -> Self {
        Self { epoch, renew_deadline, leader, others: Current::new(Arc::default()), next: Current::new(None) }
    }
}
