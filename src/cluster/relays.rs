//! The connections of clients that a node relays to the leader: to which leader, and until when.
//!
//! Invariant C5 (`docs/decisions/0028`): a new leader answers no client before the relays of earlier epochs are closed. So
//! a relay belongs to a term. It forwards nothing after it has learned of a later epoch, or after its deadline: the renew
//! deadline after the sending of the node's last heartbeat that etcd has confirmed. The node's heartbeats say below which
//! epoch all relays are closed, and that is never taken back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use super::clock::BootTime;
use super::fence::Fence;
use super::keys::RelayEndpoint;
use super::leadership::{Relayed, Relaying};

/// Clients that lose their leader together do not have the node look once for each.
const SUSPICION_PERIOD: Duration = Duration::from_millis(50);

/// The relays of a node.
#[derive(Clone)]
pub struct Relays(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// After its deadline, nothing is forwarded.
    fence: Fence,
    /// Wakes those that wait for another leader, in the order in which they came: tokio's watch channel wakes them in a random
    /// one, which no simulation could repeat.
    leader_changed: Notify,
    /// Has the node look at the cluster, and give a heartbeat, at once.
    hurry: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct State {
    /// Relays of lower epochs have to be closed, and none is opened.
    epoch_min: u32,
    /// Relays of lower epochs are closed.
    closed_below: u32,
    /// Open relays by epoch; only those above 0.
    open: BTreeMap<u32, u32>,
    /// How many clients were relayed since the start.
    relayed: u64,
    /// The leader to which clients can be relayed at present.
    leader: Option<Arc<RelayTerm>>,
    /// When the leader was suspected last.
    suspected_at: BootTime,
}

/// A leader to which clients can be relayed.
#[derive(Debug)]
pub struct RelayTerm {
    epoch: u32,
    endpoint: RelayEndpoint,
    over: CancellationToken,
}

/// One relayed connection. It counts until it is dropped, after both of its sockets were closed.
pub struct Relay {
    relays: Relays,
    term: Arc<RelayTerm>,
}

impl Relays {
    /// No relays. Nothing is forwarded after the deadline of the fence, which [`Self::apply`] sets.
    pub fn new(fence: Fence) -> Self {
        let (state, leader_changed, hurry) = Default::default();
        Self(Arc::new(Shared { state, fence, leader_changed, hurry }))
    }

    /// Sets the function that makes the node look at the cluster, and give a heartbeat, at once. Call it once.
    pub fn on_news(&self, hurry: impl Fn() + Send + Sync + 'static) {
        let is_first = self.0.hurry.set(Box::new(hurry)).is_ok();
        assert!(is_first, "a node has one part in its cluster");
    }

    /// Follows what the node knows of the cluster. Relays to leaders of earlier epochs begin to close.
    pub fn apply(&self, relaying: Relaying) {
        let Shared { fence, leader_changed, .. } = &*self.0;
        fence.set(relaying.deadline);
        let mut state = self.state();
        state.epoch_min = state.epoch_min.max(relaying.epoch_min);
        state.note_closed();
        let wanted = relaying.leader.filter(|(epoch, _)| *epoch >= state.epoch_min && !fence.is_past());
        if let (Some(term), Some((epoch, endpoint))) = (&state.leader, &wanted)
            && !term.over.is_cancelled()
            && term.is(*epoch, endpoint)
        {
            return;
        }
        let leader = wanted
            .map(|(epoch, endpoint)| Arc::new(RelayTerm { epoch, endpoint, over: CancellationToken::new() }));
        let has_leader = leader.is_some();
        let former = std::mem::replace(&mut state.leader, leader);
        if let Some(term) = &former {
            term.over.cancel();
        }
        drop(state);
        if has_leader || former.is_some() {
            leader_changed.notify_waiters();
        }
    }

    /// The facts about the relays that the node's heartbeats carry.
    pub fn relayed(&self) -> Relayed {
        let state = self.state();
        Relayed { closed_below: state.closed_below, connections: state.open.values().sum() }
    }

    /// How many connections of clients were relayed since the start.
    pub fn relayed_total(&self) -> u64 {
        self.state().relayed
    }

    /// Nothing is forwarded after its deadline.
    pub fn fence(&self) -> &Fence {
        &self.0.fence
    }

    /// The leader to which clients can be relayed at present.
    pub fn leader(&self) -> Option<Arc<RelayTerm>> {
        self.state().leader.clone()
    }

    /// Completes at the next change of [`Self::leader`] after this call.
    pub fn leader_changed(&self) -> Notified<'_> {
        self.0.leader_changed.notified()
    }

    /// Counts a connection that is going to be relayed; `None`: the term is over. To be called before anything is sent.
    pub fn enter(&self, term: &Arc<RelayTerm>) -> Option<Relay> {
        let mut state = self.state();
        if term.epoch < state.epoch_min || term.over.is_cancelled() {
            return None;
        }
        *state.open.entry(term.epoch).or_default() += 1;
        Some(Relay { relays: self.clone(), term: Arc::clone(term) })
    }

    /// The leader seems to have failed: the node looks at the cluster at once, unless it has just done so.
    pub fn suspect(&self) {
        let now = self.0.fence.now();
        let mut state = self.state();
        if now.since(state.suspected_at) < SUSPICION_PERIOD {
            return;
        }
        state.suspected_at = now;
        drop(state);
        self.hurry();
    }

    fn hurry(&self) {
        if let Some(hurry) = self.0.hurry.get() {
            hurry();
        }
    }

    /// Closes all relays if the deadline has passed. Returns whether some are still open then.
    pub fn enforce(&self) -> bool {
        let mut state = self.state();
        if state.open.is_empty() || !self.0.fence.is_past() {
            return false;
        }
        let former = state.leader.take();
        drop(state);
        if let Some(term) = former {
            term.over.cancel();
            self.0.leader_changed.notify_waiters();
        }
        true
    }

    /// Closes all relays for good, and waits until they are closed.
    pub async fn close(&self) {
        let none = Relaying { epoch_min: u32::MAX, leader: None, deadline: Default::default() };
        self.apply(none);
        while !self.state().open.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns whether more epochs are closed than before.
    fn note_closed(&mut self) -> bool {
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

    /// Completes when the term is over.
    pub fn over(&self) -> WaitForCancellationFuture<'_> {
        self.over.cancelled()
    }

    fn is(&self, epoch: u32, endpoint: &RelayEndpoint) -> bool {
        self.epoch == epoch && self.endpoint == *endpoint
    }
}

impl Relay {
    /// Whether bytes may be forwarded. To be asked before each write to either side.
    pub fn may_forward(&self) -> bool {
        !self.term.over.is_cancelled() && !self.relays.0.fence.is_past()
    }

    /// The term to which it belongs.
    pub fn term(&self) -> &RelayTerm {
        &self.term
    }

    /// The leader has accepted the connection.
    pub fn count(&self) {
        self.relays.state().relayed += 1;
    }

    /// The leader has ended the connection in a way that it never does while it works.
    pub fn suspect_leader(&self) {
        self.relays.suspect();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let mut state = self.relays.state();
        let open = state.open.get_mut(&self.term.epoch).expect("it was counted");
        *open -= 1;
        if *open == 0 {
            state.open.remove(&self.term.epoch);
        }
        let is_news = state.note_closed();
        drop(state);
        if is_news {
            // A new leader may wait for it.
            self.relays.hurry();
        }
    }
}

impl std::fmt::Debug for Relays {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relays").field("relayed", &self.relayed()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").field("term", &self.term).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    use super::*;
    use crate::cluster::keys::RelaySecret;

    /// Relays by a clock that is set in milliseconds.
    fn relays() -> (Relays, Arc<AtomicU64>) {
        let clock = Arc::new(AtomicU64::new(1));
        let shared = Arc::clone(&clock);
        let now = move || BootTime(Duration::from_millis(shared.load(Ordering::Relaxed)));
        (Relays::new(Fence::new(now)), clock)
    }

    fn at(ms: u64) -> BootTime {
        BootTime(Duration::from_millis(ms))
    }

    fn endpoint() -> RelayEndpoint {
        RelayEndpoint { address: ([10, 0, 0, 1], 1).into(), secret: RelaySecret("00".to_owned()) }
    }

    fn led(epoch: u32, deadline: u64) -> Relaying {
        Relaying { epoch_min: epoch, leader: Some((epoch, endpoint())), deadline: at(deadline) }
    }

    fn present(relays: &Relays) -> Option<Arc<RelayTerm>> {
        relays.leader()
    }

    #[test]
    fn an_epoch_is_closed_when_its_last_relay_is() {
        let (relays, _) = relays();
        let news = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&news);
        relays.on_news(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        relays.apply(led(3, 1000));
        assert_eq!(relays.relayed(), Relayed { closed_below: 3, connections: 0 });
        let term = present(&relays).unwrap();
        let (one, two) = (relays.enter(&term).unwrap(), relays.enter(&term).unwrap());
        assert!(one.may_forward());
        relays.apply(led(5, 1000));
        assert!(!one.may_forward(), "its term is over");
        assert!(relays.enter(&term).is_none());
        drop(one);
        assert_eq!(relays.relayed(), Relayed { closed_below: 3, connections: 1 });
        assert_eq!(news.load(Ordering::Relaxed), 0);
        drop(two);
        assert_eq!(relays.relayed(), Relayed { closed_below: 5, connections: 0 });
        assert_eq!(news.load(Ordering::Relaxed), 1, "the new leader waits for it");
        assert!(relays.enter(&present(&relays).unwrap()).is_some());
    }

    #[test]
    fn nothing_is_forwarded_after_the_deadline() {
        let (relays, clock) = relays();
        relays.apply(led(1, 100));
        let term = present(&relays).unwrap();
        let relay = relays.enter(&term).unwrap();
        assert!(!relays.enforce());
        clock.store(100, Ordering::Relaxed);
        assert!(!relay.may_forward());
        assert!(relays.enforce(), "it is still open");
        assert!(present(&relays).is_none());
        drop(relay);
        assert!(!relays.enforce());
        // The same leader is there again.
        relays.apply(led(1, 200));
        assert!(relays.enter(&term).is_none(), "it was closed for good");
        assert!(relays.enter(&present(&relays).unwrap()).unwrap().may_forward());
    }

    #[test]
    fn what_was_closed_is_not_opened_again() {
        let (relays, _) = relays();
        relays.apply(led(7, 1000));
        relays.apply(led(6, 1000));
        assert!(present(&relays).is_none());
        assert_eq!(relays.relayed().closed_below, 7);
        relays.apply(Relaying { epoch_min: u32::MAX, leader: None, deadline: at(0) });
        assert_eq!(relays.relayed().closed_below, u32::MAX);
        relays.apply(led(8, 1000));
        assert!(present(&relays).is_none(), "a process that has led relays no more");
    }
}
