//! The cluster as this process knows it: for metrics, probes and the status page, and for clients. Reading it
//! sends no request to etcd.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::current::Current;
use super::lock;
use signalbox_cluster::keys::Advertised;
use signalbox_cluster::leadership::Phase;
use signalbox_cluster::members::{MemberPoller, SeenNode};
use signalbox_cluster::relays::Relays;
use signalbox_cluster::timing::{BootTime, Fence};

#[derive(Clone, Debug)]
pub(super) struct NodeView {
    pub(super) name: String,
    pub(super) renew_deadline: Duration,
    /// The deadline of this node as the leader.
    pub(super) fence: Fence,
    /// The relays of this node's clients, which have a deadline of their own.
    pub(super) relays: Relays,
    pub(super) phase: Arc<Mutex<Phase>>,
    /// The nodes of the cluster; `None` for a node that may not lead.
    pub(super) members: Option<MemberPoller>,
}

impl NodeView {
    pub(super) fn leads(&self) -> bool {
        matches!(self.phase(), Phase::Leading(_))
    }

    /// Returns the node that leads, as far as this one knows, and its epoch.
    pub(super) fn leader(&self) -> Option<(String, u32)> {
        match self.phase() {
            Phase::Leading(term) => Some((self.name.clone(), term.epoch)),
            Phase::Standby { leader } => leader,
            Phase::Joining | Phase::Leaving | Phase::Over(_) => None,
        }
    }

    /// Returns how long ago this node sent the last heartbeat that etcd has confirmed; `None`: etcd has confirmed none.
    pub(super) fn heartbeat_age(&self) -> Option<Duration> {
        let fence = if self.leads() { &self.fence } else { self.relays.fence() };
        let sent = fence.deadline()?.0.checked_sub(self.renew_deadline)?;
        Some(BootTime::now().since(BootTime(sent)))
    }

    /// Returns whether clients that connect to this node are served by the leader.
    pub(super) fn reaches_leader(&self) -> bool {
        self.relays.leader().is_some()
    }

    /// Returns all nodes as this one has seen them; empty for a node that may not lead.
    pub(super) fn nodes(&self) -> Vec<SeenNode> {
        let poller = self.members.as_ref();
        poller.map_or_else(Vec::new, |poller| poller.members().seen(BootTime::now()))
    }

    fn phase(&self) -> Phase {
        lock(&self.phase).clone()
    }
}

/// Where clients reach the nodes of the cluster that this node leads.
#[derive(Debug)]
pub(super) struct Whereabouts {
    /// The number of this node's term.
    pub(super) epoch: u32,
    pub(super) renew_deadline: Duration,
    pub(super) leader: Advertised,
    /// Where clients reach the other nodes.
    pub(super) others: Current<Arc<Advertised>>,
    /// Where the next leader is, or may be; `None`: this node continues to lead.
    pub(super) next: Current<Option<Arc<Advertised>>>,
}

impl Whereabouts {
    /// Returns the whereabouts of a node that leads in an epoch; clients reach it at `leader`.
    pub(super) fn new(epoch: u32, renew_deadline: Duration, leader: Advertised) -> Self {
        Self { epoch, renew_deadline, leader, others: Current::new(Arc::default()), next: Current::new(None) }
    }
}
