//! The threads of a node in a handover of the leadership: as the leader that is drained, and as its successor.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::cluster::coordinator::Revision;
use crate::cluster::etcd::EtcdClient;
use crate::cluster::handover::{Leader, Next, Refused, Request};
use crate::cluster::keys::{Keys, Successor};
use crate::cluster::preload::Preload;

/// The thread of a leader that prepares handovers, until it is dropped.
pub(super) struct Preparation {
    requests: mpsc::Sender<Request>,
}

/// A handover that is prepared: the successor has read the records.
pub(super) struct Prepared {
    leader: Leader<EtcdClient>,
    next: Next,
}

impl Preparation {
    /// Starts the thread of a node that leads. `ready` receives the first handover that is prepared.
    pub(super) fn start(
        mut leader: Leader<EtcdClient>,
        ready: oneshot::Sender<Prepared>,
    ) -> io::Result<Self> {
        let (requests, received) = mpsc::channel::<Request>();
        let prepare = move || {
            for request in received {
                info!(to = request.drain.to, "an operator drains this node: its successor reads the records");
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
        thread::Builder::new().name("handover".to_owned()).spawn(prepare)?;
        Ok(Self { requests })
    }

    /// An operator asks for a handover.
    pub(super) fn request(&self, request: Request) {
        // After a handover was prepared, the thread has ended, and the node is about to leave.
        let _ = self.requests.send(request);
    }
}

impl Prepared {
    /// Who leads next.
    pub(super) fn next(&self) -> &Next {
        &self.next
    }

    /// Gives the successor what it does not know yet, when everything is stored. Blocks. `None`: it has left the cluster in the
    /// meantime, so any node may lead next.
    pub(super) fn complete(self) -> Option<Successor> {
        let Self { mut leader, next } = self;
        let name = next.successor.node.clone();
        let completed = leader.complete(next);
        if completed.successor.is_none() {
            warn!(successor = name, "the successor has left the cluster; any node may lead next");
        }
        if let Err(error) = completed.written {
            warn!(%error, "the successor reads all records again");
        }
        completed.successor
    }
}

/// Reads the records in advance for this handover, in a thread of its own, and calls `done` then. `None`: forgets what was
/// read.
pub(super) fn preload(
    preload: &Preload,
    handover: Option<Revision>,
    coordinator: Option<EtcdClient>,
    keys: &Keys,
    done: impl FnOnce(Revision) + Send + 'static,
) {
    preload.want(handover);
    let (Some(handover), Some(mut coordinator)) = (handover, coordinator) else { return };
    let (preload, keys) = (preload.clone(), keys.clone());
    let read = move || {
        let begun = Instant::now();
        let mut has_failed = false;
        let failed = |error| {
            if !std::mem::replace(&mut has_failed, true) {
                warn!(%error, "the records cannot be read for the handover; this is tried until it succeeds");
            }
        };
        if preload.read(&mut coordinator, &keys, handover, failed) {
            info!(ms = begun.elapsed().as_millis(), "the records were read for the handover");
            done(handover);
        }
    };
    if let Err(error) = thread::Builder::new().name("preload".to_owned()).spawn(read) {
        warn!(%error, "the records cannot be read for the handover");
    }
}
