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
use super::reach::Reach;

/// For how many looks in a row, a millisecond apart or more, none of the relays may close when all are to close for good. Looks,
/// because a process that was frozen has to get time to close them.
const STUCK_LOOKS_MAX: u32 = 2000;

/// Clients that lose their leader together do not have the node look once for each.
const SUSPICION_PERIOD: Duration = Duration::from_millis(50);

/// In how short a time the leader has to end connections for a suspicion that it has failed.
const ENDS_PERIOD: Duration = Duration::from_millis(100);

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
    /// Since when the ends are counted.
    ends_since: BootTime,
    /// How many connections the leader has ended since then.
    ends: u32,
}

/// A leader to which clients can be relayed.
#[derive(Debug)]
pub struct RelayTerm {
    epoch: u32,
    endpoint: RelayEndpoint,
    reach: Reach,
    over: CancellationToken,
}

/// Relays that do not close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{connections} relayed connections are open, and none of them has closed for {STUCK_LOOKS_MAX} ms")]
pub struct Stuck {
    /// How many are open.
    connections: u32,
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
        let Relaying { epoch_min, leader, deadline } = relaying;
        let mut state = self.state();
        state.raise_epoch_min(epoch_min);
        let is_present = fence.now() < deadline;
        let leader = leader.filter(|(epoch, _)| *epoch >= state.epoch_min && is_present);
        let is_changed = state.follow(leader);
        // After the cancellation of the former term: what its leader sent before it was replaced must not be forwarded now.
        fence.set(deadline);
        drop(state);
        if is_changed {
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

    /// Closes all relays if the deadline has passed. Returns whether some are still open then: other nodes may soon count on
    /// their end.
    pub fn enforce(&self) -> bool {
        let state = self.state();
        if state.open.is_empty() || !self.0.fence.is_past() {
            return false;
        }
        self.follow_nobody(state);
        true
    }

    /// Closes all relays for good, and waits until they are closed. That may take long if there are many: until then, this node
    /// gives heartbeats, as a standby or as the leader, and no other one counts on their end.
    ///
    /// # Errors
    ///
    /// [`Stuck`]: they do not close. The process has to end, and must not leave the cluster before that.
    pub async fn close(&self) -> Result<(), Stuck> {
        self.begin_to_close();
        let (mut least, mut looks) = (u32::MAX, 0);
        loop {
            let connections = self.relayed().connections;
            if connections == 0 {
                return Ok(());
            }
            looks = if connections < least { 0 } else { looks + 1 };
            if looks > STUCK_LOOKS_MAX {
                return Err(Stuck { connections });
            }
            least = connections;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn begin_to_close(&self) {
        let mut state = self.state();
        state.raise_epoch_min(u32::MAX);
        self.follow_nobody(state);
    }

    fn follow_nobody(&self, mut state: MutexGuard<'_, State>) {
        let is_changed = state.follow(None);
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
    /// Relays of lower epochs have to be closed from now on.
    fn raise_epoch_min(&mut self, epoch_min: u32) {
        self.epoch_min = self.epoch_min.max(epoch_min);
        self.note_closed();
    }

    /// Follows this leader, or none. Returns whether it is another one than before; the term of that one is over.
    fn follow(&mut self, leader: Option<(u32, RelayEndpoint)>) -> bool {
        let is_same = match (&self.leader, &leader) {
            (Some(term), Some((epoch, endpoint))) => term.epoch == *epoch && term.endpoint == *endpoint,
            (None, None) => true,
            _ => false,
        };
        if is_same {
            return false;
        }
        let begin = |(epoch, endpoint)| {
            let (reach, over) = Default::default();
            Arc::new(RelayTerm { epoch, endpoint, reach, over })
        };
        if let Some(former) = std::mem::replace(&mut self.leader, leader.map(begin)) {
            former.over.cancel();
        }
        true
    }

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

    /// Whether it is reached.
    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// Completes when the term is over.
    pub fn over(&self) -> WaitForCancellationFuture<'_> {
        self.over.cancelled()
    }
}

impl Relay {
    /// Whether bytes may be forwarded. To be asked before each write to either side.
    pub fn may_forward(&self) -> bool {
        !self.relays.0.fence.is_past() && !self.term.over.is_cancelled()
    }

    /// The term to which it belongs.
    pub fn term(&self) -> &RelayTerm {
        &self.term
    }

    /// The leader has accepted the connection.
    pub fn count(&self) {
        self.relays.state().relayed += 1;
    }

    /// The leader has ended the connection before its client. A leader that works does so with a single one, after bad input for
    /// example; one that fails or stops does so with all at once. To be called before this is dropped.
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
            self.relays.suspect();
        }
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
    use std::task::{Context, Wake, Waker};

    use super::*;
    use crate::keys::RelaySecret;

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
        relays.apply(led(2, 100));
        assert!(present(&relays).is_none(), "what the node knows of the next leader is too old");
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

    /// Remembers whether the fence was past when a term was cancelled.
    struct Cancelled {
        fence: Fence,
        was_past: Mutex<Vec<bool>>,
    }

    impl Wake for Cancelled {
        fn wake(self: Arc<Self>) {
            self.was_past.lock().unwrap().push(self.fence.is_past());
        }
    }

    #[test]
    fn a_term_is_over_before_the_deadline_is_extended_for_the_next() {
        let (relays, clock) = relays();
        relays.apply(led(1, 100));
        let term = present(&relays).unwrap();
        let cancelled = Arc::new(Cancelled { fence: relays.fence().clone(), was_past: Mutex::default() });
        let waker = Waker::from(Arc::clone(&cancelled));
        let mut over = std::pin::pin!(term.over());
        assert!(over.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        // The node wakes after its deadline, and learns of another leader before a relay has had a turn.
        clock.store(150, Ordering::Relaxed);
        relays.apply(led(2, 1000));
        assert_eq!(*cancelled.was_past.lock().unwrap(), [true]);
        assert!(present(&relays).is_some());
    }

    #[test]
    fn a_node_that_leads_may_close_its_relays_until_its_deadline() {
        let (relays, clock) = relays();
        relays.apply(led(1, 100));
        let relay = relays.enter(&present(&relays).unwrap()).unwrap();
        // It leads in epoch 2, and has renewed its leadership.
        relays.apply(Relaying { epoch_min: u32::MAX, leader: None, deadline: at(200) });
        assert!(!relay.may_forward());
        assert!(!relays.enforce(), "nobody else counts on their end");
        clock.store(200, Ordering::Relaxed);
        assert!(relays.enforce());
    }

    #[test]
    fn the_end_of_one_connection_is_no_suspicion_and_that_of_most_is() {
        let (relays, clock) = relays();
        let looks = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&looks);
        relays.on_news(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        clock.store(1000, Ordering::Relaxed);
        relays.apply(led(1, 100_000));
        let term = present(&relays).unwrap();
        let mut open: Vec<_> = (0..10).map(|_| relays.enter(&term).unwrap()).collect();
        let mut end = |ms| {
            clock.store(ms, Ordering::Relaxed);
            open.pop().unwrap().ended_by_leader();
            looks.load(Ordering::Relaxed)
        };
        // One bad request now and then.
        assert_eq!([end(1000), end(1100), end(1200)], [0; 3]);
        // The leader stops.
        assert_eq!([end(2000), end(2001), end(2002)], [0, 0, 1], "half of the connections");
        assert_eq!(end(2003), 1, "the node has just looked");
        assert_eq!([end(3000), end(4000), end(5000)], [1; 3], "the last one, too");
    }

    #[tokio::test(start_paused = true)]
    async fn relays_are_closed_for_good_as_long_as_some_of_them_close() {
        let (relays, _) = relays();
        relays.apply(led(1, 1000));
        let term = present(&relays).unwrap();
        let open: Vec<_> = (0..4).map(|_| relays.enter(&term).unwrap()).collect();
        let closing = tokio::spawn({
            let relays = relays.clone();
            async move { relays.close().await }
        });
        let begun = tokio::time::Instant::now();
        for relay in open {
            tokio::time::sleep(Duration::from_millis(1900)).await;
            // A look at etcd is answered meanwhile, as for a node that leaves.
            relays.apply(led(1, 100_000));
            assert!(!relay.may_forward() && present(&relays).is_none());
            assert!(relays.enter(&term).is_none());
            assert_eq!(relays.relayed().closed_below, 1);
        }
        assert_eq!(closing.await.unwrap(), Ok(()));
        assert!(begun.elapsed() < Duration::from_millis(4 * 1900 + 100), "it waits for them alone");
        assert_eq!(relays.relayed(), Relayed { closed_below: u32::MAX, connections: 0 });

        let (relays, _) = self::relays();
        relays.apply(led(1, 1000));
        let stuck = relays.enter(&present(&relays).unwrap()).unwrap();
        assert_eq!(relays.close().await, Err(Stuck { connections: 1 }));
        assert!(!stuck.may_forward());
    }
}
