//! The connections of clients that a node relays to the leader: to which leader, and until when.
//!
//! Invariant C5 (`docs/decisions/0028`): a new leader answers no client before the relays of earlier epochs are closed.
//! So a relay belongs to a term. It forwards nothing after the node has learned of a later epoch, or after its
//! deadline: the renew deadline after the sending of the node's last heartbeat that etcd has confirmed. The node's
//! heartbeats report the epoch below which all relays are closed, which never falls.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::futures::Notified;
use tokio::sync::{self, Notify};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use super::keys::RelayEndpoint;
use super::leadership::{RelayReport, RelayTarget};
use super::timing::{BootTime, Fence};

/// The number of successive checks, at least a millisecond apart, that may find no further relay closed while all are
/// being closed. Checks are counted, and time is not measured, because a process that was frozen needs time to close
/// its relays.
const STUCK_CHECKS_MAX: u32 = 2000;

/// The shortest time between two polls of etcd because of suspicions: when many clients lose their leader at the same
/// time, the node does not poll once for each of them.
const SUSPICION_PERIOD: Duration = Duration::from_millis(50);

/// The time within which the ends of connections are counted together, to find whether the leader has failed.
const ENDS_PERIOD: Duration = Duration::from_millis(100);

/// The relays of a node.
#[derive(Clone)]
pub struct Relays(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Nothing is forwarded after its deadline.
    fence: Fence,
    /// Wakes the clients that wait for a leader, in their order: tokio's watch channel would wake them in a random order, which
    /// no simulation could repeat.
    leader_changed: Notify,
    /// Makes the node poll etcd, and send a heartbeat, at once.
    poll_now: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct State {
    /// Relays of lower epochs must be closed, and no new ones are opened.
    epoch_min: u32,
    /// Relays of lower epochs are closed.
    closed_below: u32,
    /// The number of open relays by epoch, without zeros.
    open: BTreeMap<u32, u32>,
    /// The number of clients that were relayed since the start.
    relayed: u64,
    /// The leader to which clients can be relayed now.
    leader: Option<Arc<RelayTerm>>,
    /// When the leader was last suspected of a failure.
    suspected_at: BootTime,
    /// When the present [`ENDS_PERIOD`] began.
    ends_since: BootTime,
    /// How many connections the leader has ended since then.
    ends: u32,
}

/// A leader to which clients can be relayed.
#[derive(Debug)]
pub struct RelayTerm {
    epoch: u32,
    endpoint: RelayEndpoint,
    /// Whether the last attempt to connect has reached the leader; false before the first one.
    is_reached: AtomicBool,
    /// Held during an attempt while the leader is not reached. The mutex is fair: clients lock it in their order.
    attempt: sync::Mutex<()>,
    over: CancellationToken,
}

/// The relays of a node do not close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{connections} relayed connections are open, and none of them has closed during {STUCK_CHECKS_MAX} checks"
)]
pub struct Stuck {
    /// The number of open relays.
    connections: u32,
}

/// One relayed connection. It counts as open until it is dropped, which must be after both of its sockets were closed.
pub struct Relay {
    relays: Relays,
    term: Arc<RelayTerm>,
}

impl Relays {
    /// Creates an empty set of relays. Nothing is forwarded after the deadline of the fence, which [`Self::apply`]
    /// sets.
    pub fn new(fence: Fence) -> Self {
        let (state, leader_changed, poll_now) = Default::default();
        Self(Arc::new(Shared { state, fence, leader_changed, poll_now }))
    }

    /// Sets the function that makes the node poll etcd, and send a heartbeat, at once. Must be called only once.
    pub fn on_poll_needed(&self, poll_now: impl Fn() + Send + Sync + 'static) {
        let is_first = self.0.poll_now.set(Box::new(poll_now)).is_ok();
        assert!(is_first, "a node joins once");
    }

    /// Applies what the node knows about the leader. Relays to leaders of earlier epochs begin to close.
    pub fn apply(&self, target: RelayTarget) {
        let Shared { fence, leader_changed, .. } = &*self.0;
        let RelayTarget { epoch_min, leader, deadline } = target;
        let mut state = self.state();
        state.raise_epoch_min(epoch_min);
        let is_present = fence.now() < deadline;
        let leader = leader.filter(|(epoch, _)| *epoch >= state.epoch_min && is_present);
        let is_changed = state.set_leader(leader);
        // Set the deadline only after the former term is cancelled: bytes that its leader sent before it was
        // replaced must not be forwarded now.
        fence.set(deadline);
        drop(state);
        if is_changed {
            leader_changed.notify_waiters();
        }
    }

    /// The report about the relays for the node's heartbeats.
    pub fn report(&self) -> RelayReport {
        let state = self.state();
        RelayReport { closed_below: state.closed_below, connections: state.open.values().sum() }
    }

    /// The number of client connections that were relayed since the start.
    pub fn relayed_total(&self) -> u64 {
        self.state().relayed
    }

    /// The fence: nothing is forwarded after its deadline.
    pub fn fence(&self) -> &Fence {
        &self.0.fence
    }

    /// The leader to which clients can be relayed now.
    pub fn leader(&self) -> Option<Arc<RelayTerm>> {
        self.state().leader.clone()
    }

    /// Completes at the next change of [`Self::leader`] after this call.
    pub fn leader_changed(&self) -> Notified<'_> {
        self.0.leader_changed.notified()
    }

    /// Counts a new connection to a leader; `None`: the term is over. Must be called before anything is sent.
    pub fn open(&self, term: &Arc<RelayTerm>) -> Option<Relay> {
        let mut state = self.state();
        if term.epoch < state.epoch_min || term.over.is_cancelled() {
            return None;
        }
        *state.open.entry(term.epoch).or_default() += 1;
        Some(Relay { relays: self.clone(), term: Arc::clone(term) })
    }

    /// Makes the node poll etcd at once because the leader seems to have failed, unless it has just polled for that
    /// reason.
    pub fn suspect_leader(&self) {
        let now = self.0.fence.now();
        let mut state = self.state();
        if now.since(state.suspected_at) < SUSPICION_PERIOD {
            return;
        }
        state.suspected_at = now;
        drop(state);
        self.poll_now();
    }

    fn poll_now(&self) {
        if let Some(poll_now) = self.0.poll_now.get() {
            poll_now();
        }
    }

    /// Closes all relays if the deadline has passed. Returns whether some are still open: other nodes may soon assume that
    /// they are closed.
    pub fn close_overdue(&self) -> bool {
        let state = self.state();
        if state.open.is_empty() || !self.0.fence.is_past() {
            return false;
        }
        self.clear_leader(state);
        true
    }

    /// Closes all relays for good, and waits until they are closed. That may take long if there are many. Meanwhile,
    /// this node sends heartbeats as a standby or as the leader, so no other node assumes that they are closed.
    ///
    /// # Errors
    ///
    /// [`Stuck`]: the relays do not close. The process has to end, and must not leave the cluster before that.
    pub async fn close(&self) -> Result<(), Stuck> {
        {
            let mut state = self.state();
            state.raise_epoch_min(u32::MAX);
            self.clear_leader(state);
        }
        let (mut least, mut checks) = (u32::MAX, 0);
        loop {
            let connections = self.report().connections;
            if connections == 0 {
                return Ok(());
            }
            checks = if connections < least { 0 } else { checks + 1 };
            if checks > STUCK_CHECKS_MAX {
                return Err(Stuck { connections });
            }
            least = connections;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn clear_leader(&self, mut state: MutexGuard<'_, State>) {
        let is_changed = state.set_leader(None);
        drop(state);
        if is_changed {
            self.0.leader_changed.notify_waiters();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Requires that relays of lower epochs are closed from now on.
    fn raise_epoch_min(&mut self, epoch_min: u32) {
        self.epoch_min = self.epoch_min.max(epoch_min);
        self.update_closed_below();
    }

    /// Sets the leader. Returns whether it differs from the previous one, whose term is over then.
    fn set_leader(&mut self, leader: Option<(u32, RelayEndpoint)>) -> bool {
        let is_same = match (&self.leader, &leader) {
            (Some(term), Some((epoch, endpoint))) => term.epoch == *epoch && term.endpoint == *endpoint,
            (None, None) => true,
            _ => false,
        };
        if is_same {
            return false;
        }
        let begin = |(epoch, endpoint)| {
            let (is_reached, attempt, over) = Default::default();
            Arc::new(RelayTerm { epoch, endpoint, is_reached, attempt, over })
        };
        if let Some(former) = std::mem::replace(&mut self.leader, leader.map(begin)) {
            former.over.cancel();
        }
        true
    }

    /// Computes [`State::closed_below`]. Returns whether it has risen.
    fn update_closed_below(&mut self) -> bool {
        let lowest = self.open.keys().next().copied().unwrap_or(u32::MAX);
        let before = self.closed_below;
        self.closed_below = before.max(self.epoch_min.min(lowest));
        self.closed_below > before
    }
}

impl RelayTerm {
    /// The epoch of the leader.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The address at which the leader accepts relayed connections, and its secret.
    pub fn endpoint(&self) -> &RelayEndpoint {
        &self.endpoint
    }

    /// Waits until a client may try to connect to the leader. Until the leader is reached, clients make one attempt at
    /// a time, so that not every client tries to connect to a failed leader. The caller keeps the guard during its
    /// attempt, and during the pause after a failed one. `None`: the leader is reached, and clients connect
    /// concurrently.
    pub async fn begin_attempt(&self) -> Option<sync::MutexGuard<'_, ()>> {
        if self.is_reached.load(Ordering::Relaxed) {
            return None;
        }
        let guard = self.attempt.lock().await;
        (!self.is_reached.load(Ordering::Relaxed)).then_some(guard)
    }

    /// Notes whether the last attempt has reached the leader.
    pub fn set_reached(&self, is_reached: bool) {
        self.is_reached.store(is_reached, Ordering::Relaxed);
    }

    /// Completes when the term is over.
    pub fn over(&self) -> WaitForCancellationFuture<'_> {
        self.over.cancelled()
    }
}

impl Relay {
    /// Returns whether bytes may be forwarded. Check this before each write to either side.
    pub fn may_forward(&self) -> bool {
        !self.relays.0.fence.is_past() && !self.term.over.is_cancelled()
    }

    /// The term to which the relay belongs.
    pub fn term(&self) -> &Arc<RelayTerm> {
        &self.term
    }

    /// Counts a relayed client, when the leader has accepted the connection.
    pub fn count(&self) {
        self.relays.state().relayed += 1;
    }

    /// Notes that the leader, and not the client, has ended the connection, and suspects the leader if it has ended
    /// many at once. A healthy leader ends single connections, for example after bad input; one that fails or stops
    /// ends all at once. Must be called before the relay is dropped.
    pub fn ended_by_leader(&self) {
        let now = self.relays.0.fence.now();
        let mut state = self.relays.state();
        if now.since(state.ends_since) >= ENDS_PERIOD {
            (state.ends_since, state.ends) = (now, 0);
        }
        state.ends += 1;
        let open: u32 = state.open.values().sum();
        let is_suspicious = state.ends > 1 && state.ends >= open / 2;
        drop(state);
        if is_suspicious {
            self.relays.suspect_leader();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let mut state = self.relays.state();
        let open = state.open.get_mut(&self.term.epoch).expect("an open relay is counted");
        *open -= 1;
        if *open == 0 {
            state.open.remove(&self.term.epoch);
        }
        let has_risen = state.update_closed_below();
        drop(state);
        if has_risen {
            // A new leader may wait for this report.
            self.relays.poll_now();
        }
    }
}

impl std::fmt::Debug for Relays {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relays").field("report", &self.report()).finish_non_exhaustive()
    }
}
