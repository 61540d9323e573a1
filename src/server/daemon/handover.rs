//! The parts of a node in a handover of the leadership: as the leader that is drained, and as its successor.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::cluster::coordinator::Revision;
use crate::cluster::etcd::EtcdClient;
use crate::cluster::handover::{Leader, Next, Preloaded};
use crate::cluster::keys::{Drain, Keys, Successor};

/// How often a successor tries to read the records, and the pause in between.
const ATTEMPTS_MAX: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

/// The thread of a leader that prepares handovers, until it is dropped.
pub(super) struct Preparation {
    requests: mpsc::Sender<(Drain, Revision)>,
}

/// A handover that is prepared: the successor has read the records.
pub(super) struct Prepared {
    leader: Leader<EtcdClient>,
    next: Next,
}

impl Preparation {
    /// Starts the thread of the node `name`, which leads. `ready` receives the first handover that is prepared.
    pub(super) fn start(
        mut leader: Leader<EtcdClient>,
        name: String,
        ready: oneshot::Sender<Prepared>,
    ) -> io::Result<Self> {
        let (requests, received) = mpsc::channel::<(Drain, Revision)>();
        let prepare = move || {
            for (drain, written) in received {
                info!(to = drain.to, "an operator drains this node: its successor reads the records");
                let prepared = leader.prepare(drain.to.as_deref());
                let prepared = prepared.and_then(|next| leader.check_request(&name, written).map(|()| next));
                match prepared {
                    Ok(next) => {
                        // The daemon may be about to stop for another reason.
                        let _ = ready.send(Prepared { leader, next });
                        return;
                    }
                    Err(refusal) => {
                        leader.trace.stop();
                        warn!(%refusal, "this node goes on to lead");
                        if let Err(error) = leader.refuse(&name, drain, written, &refusal) {
                            warn!(%error, "the operator could not be told that the handover is refused");
                        }
                    }
                }
            }
        };
        thread::Builder::new().name("handover".to_owned()).spawn(prepare)?;
        Ok(Self { requests })
    }

    /// An operator asks for a handover. `written` is the revision of the request.
    pub(super) fn request(&self, drain: Drain, written: Revision) {
        // After a handover was prepared, the thread has ended, and the node is about to leave.
        let _ = self.requests.send((drain, written));
    }
}

impl Prepared {
    /// Who leads next.
    pub(super) fn next(&self) -> &Next {
        &self.next
    }

    /// Gives the successor what it does not know yet. To be called when everything is stored. Blocks. `None`: it has left the
    /// cluster in the meantime, so any node may lead next.
    pub(super) fn complete(self) -> Option<Successor> {
        let Self { mut leader, next } = self;
        if matches!(leader.awaits(&next), Ok(false)) {
            warn!(
                successor = next.successor.node,
                "the successor has left the cluster; any node may lead next"
            );
            return None;
        }
        if let Err(error) = leader.write_changes() {
            warn!(%error, "the successor reads all records again");
        }
        Some(next.successor)
    }
}

/// What a successor has read in advance.
#[derive(Clone, Default)]
pub(super) struct Preload(Arc<Mutex<Slot>>);

#[derive(Default)]
struct Slot {
    /// The handover for which records are wanted.
    wanted: Option<Revision>,
    records: Option<Preloaded>,
}

impl Preload {
    /// Reads the records for this handover, in a thread of its own, and calls `done` then. `None`: forgets what was read.
    pub(super) fn want(
        &self,
        handover: Option<Revision>,
        coordinator: Option<EtcdClient>,
        keys: &Keys,
        done: impl FnOnce(Revision) + Send + 'static,
    ) {
        *self.slot() = Slot { wanted: handover, records: None };
        let (Some(handover), Some(mut coordinator)) = (handover, coordinator) else { return };
        let (this, keys) = (self.clone(), keys.clone());
        let read = move || {
            for _ in 0..ATTEMPTS_MAX {
                let begun = Instant::now();
                match Preloaded::read(&mut coordinator, &keys, handover) {
                    Ok(records) => {
                        if this.put(handover, records) {
                            info!(ms = begun.elapsed().as_millis(), "the records were read for the handover");
                            done(handover);
                        }
                        return;
                    }
                    Err(error) => warn!(%error, "the records cannot be read for the handover"),
                }
                thread::sleep(PAUSE);
            }
        };
        if let Err(error) = thread::Builder::new().name("preload".to_owned()).spawn(read) {
            warn!(%error, "the records cannot be read for the handover");
        }
    }

    /// What was read, if it is complete.
    pub(super) fn take(&self) -> Option<Preloaded> {
        std::mem::take(&mut *self.slot()).records
    }

    /// Returns whether the records are still wanted.
    fn put(&self, handover: Revision, records: Preloaded) -> bool {
        let mut slot = self.slot();
        let is_wanted = slot.wanted == Some(handover);
        if is_wanted {
            slot.records = Some(records);
        }
        is_wanted
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
