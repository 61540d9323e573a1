//! The thread of a leader that prepares a handover when an operator drains the node.

use std::sync::mpsc::{self, Sender};
use std::{io, thread};

use tokio::sync::oneshot;
use tracing::{info, warn};

use signalbox_cluster::drain::{DrainedLeader, NextLeader};
use signalbox_cluster::etcd::EtcdClient;
use signalbox_cluster::keys::Successor;
use signalbox_cluster::leadership::DrainRequest;

/// A handover whose successor is chosen.
pub(super) struct Handover {
    leader: DrainedLeader<EtcdClient>,
    pub(super) next: NextLeader,
}

/// Starts the thread of a node that leads. It handles requests until it has chosen a successor, and sends the handover to `ready`.
pub(super) fn start(
    mut leader: DrainedLeader<EtcdClient>,
    ready: oneshot::Sender<Handover>,
) -> io::Result<Sender<DrainRequest>> {
    let (requests, received) = mpsc::channel::<DrainRequest>();
    let prepare = move || {
        for request in received {
            info!(to = request.drain.to, "an operator drains this node");
            match leader.choose_successor(&request) {
                Ok(next) => {
                    // The daemon may be about to stop for another reason.
                    let _ = ready.send(Handover { leader, next });
                    return;
                }
                Err(refusal) => {
                    warn!(%refusal, "this node continues to lead");
                    if let Err(error) = leader.refuse(&request, &refusal) {
                        warn!(%error, "the refusal of the handover could not be written to etcd");
                    }
                }
            }
        }
    };
    thread::Builder::new().name("handover".to_owned()).spawn(prepare)?;
    Ok(requests)
}

impl Handover {
    /// The run for which the leadership is released, when everything is stored; `None`: any node. Blocks.
    pub(super) fn complete(self) -> Option<Successor> {
        let Self { mut leader, next: NextLeader { successor, .. } } = self;
        let name = successor.node.clone();
        let successor = leader.confirm_successor(successor);
        if successor.is_none() {
            warn!(successor = name, "the successor has left the cluster; any node may lead next");
        }
        successor
    }
}
