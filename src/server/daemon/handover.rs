//! The thread of a leader that an operator drains.

use std::sync::mpsc::{self, Sender};
use std::{io, thread};

use tokio::sync::oneshot;
use tracing::{info, warn};

use signalbox_cluster::etcd::EtcdClient;
use signalbox_cluster::handover::{Leader, Next, Refused, Request};
use signalbox_cluster::keys::Successor;

/// A leader that has chosen its successor.
pub(super) struct Prepared {
    leader: Leader<EtcdClient>,
    next: Next,
}

/// Starts the thread of a node that leads. It obeys requests until it has chosen a successor, which `ready` receives.
pub(super) fn start(
    mut leader: Leader<EtcdClient>,
    ready: oneshot::Sender<Prepared>,
) -> io::Result<Sender<Request>> {
    let (requests, received) = mpsc::channel::<Request>();
    let obey = move || {
        for request in received {
            info!(to = request.drain.to, "an operator drains this node");
            match leader.obey(&request) {
                Ok(next) => {
                    // The daemon may be about to stop for another reason.
                    let _ = ready.send(Prepared { leader, next });
                    return;
                }
                Err(Refused { refusal, told }) => {
                    warn!(%refusal, "this node goes on to lead");
                    if let Err(error) = told {
                        warn!(%error, "the operator could not be told that the handover is refused");
                    }
                }
            }
        }
    };
    thread::Builder::new().name("handover".to_owned()).spawn(obey)?;
    Ok(requests)
}

impl Prepared {
    /// Who leads next.
    pub(super) fn next(&self) -> &Next {
        &self.next
    }

    /// Whom to release the leadership for, when everything is stored. Blocks. `None`: any node.
    pub(super) fn complete(self) -> Option<Successor> {
        let Self { mut leader, next } = self;
        let name = next.successor.node.clone();
        let successor = leader.successor(next);
        if successor.is_none() {
            warn!(successor = name, "the successor has left the cluster; any node may lead next");
        }
        successor
    }
}
