//! The relays of a node: when they are closed, and when the leader is suspected.

use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use signalbox_cluster::keys::{RelayEndpoint, RelaySecret};
use signalbox_cluster::leadership::{RelayReport, RelayTarget};
use signalbox_cluster::relays::Relays;
use signalbox_cluster::timing::{BootTime, Fence};

/// Relays, and the clock that they read, in milliseconds.
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

fn led(epoch: u32, deadline: u64) -> RelayTarget {
    RelayTarget { epoch_min: epoch, leader: Some((epoch, endpoint())), deadline: at(deadline) }
}

#[test]
fn an_epoch_is_closed_when_its_last_relay_is() {
    let (relays, _) = relays();
    let polls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&polls);
    relays.on_poll_needed(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    relays.apply(led(3, 1000));
    assert_eq!(relays.report(), RelayReport { closed_below: 3, connections: 0 });
    let term = relays.leader().unwrap();
    let (one, two) = (relays.open(&term).unwrap(), relays.open(&term).unwrap());
    assert!(one.may_forward());
    relays.apply(led(5, 1000));
    assert!(!one.may_forward(), "its term is over");
    assert!(relays.open(&term).is_none());
    drop(one);
    assert_eq!(relays.report(), RelayReport { closed_below: 3, connections: 1 });
    assert_eq!(polls.load(Ordering::Relaxed), 0);
    drop(two);
    assert_eq!(relays.report(), RelayReport { closed_below: 5, connections: 0 });
    assert_eq!(polls.load(Ordering::Relaxed), 1, "the new leader waits for it");
    assert!(relays.open(&relays.leader().unwrap()).is_some());
}

#[test]
fn nothing_is_forwarded_after_the_deadline() {
    let (relays, clock) = relays();
    relays.apply(led(1, 100));
    let term = relays.leader().unwrap();
    let relay = relays.open(&term).unwrap();
    assert!(!relays.close_overdue());
    clock.store(100, Ordering::Relaxed);
    assert!(!relay.may_forward());
    assert!(relays.close_overdue(), "it is still open");
    assert!(relays.leader().is_none());
    drop(relay);
    assert!(!relays.close_overdue());
    // The same leader is there again.
    relays.apply(led(1, 200));
    assert!(relays.open(&term).is_none(), "it was closed for good");
    assert!(relays.open(&relays.leader().unwrap()).unwrap().may_forward());
    relays.apply(led(2, 100));
    assert!(relays.leader().is_none(), "what the node knows of the next leader is too old");
}

#[test]
fn what_was_closed_is_not_opened_again() {
    let (relays, _) = relays();
    relays.apply(led(7, 1000));
    relays.apply(led(6, 1000));
    assert!(relays.leader().is_none());
    assert_eq!(relays.report().closed_below, 7);
    relays.apply(RelayTarget { epoch_min: u32::MAX, leader: None, deadline: at(0) });
    assert_eq!(relays.report().closed_below, u32::MAX);
    relays.apply(led(8, 1000));
    assert!(relays.leader().is_none(), "a process that has led relays no longer");
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
    let term = relays.leader().unwrap();
    let cancelled = Arc::new(Cancelled { fence: relays.fence().clone(), was_past: Mutex::default() });
    let waker = Waker::from(Arc::clone(&cancelled));
    let mut over = pin!(term.over());
    assert!(over.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    // The node wakes after its deadline, and learns of another leader before a relay has had a turn.
    clock.store(150, Ordering::Relaxed);
    relays.apply(led(2, 1000));
    assert_eq!(*cancelled.was_past.lock().unwrap(), [true]);
    assert!(relays.leader().is_some());
}

#[test]
fn a_node_that_leads_may_close_its_relays_until_its_deadline() {
    let (relays, clock) = relays();
    relays.apply(led(1, 100));
    let relay = relays.open(&relays.leader().unwrap()).unwrap();
    // It leads in epoch 2, and has renewed its leadership.
    relays.apply(RelayTarget { epoch_min: u32::MAX, leader: None, deadline: at(200) });
    assert!(!relay.may_forward());
    assert!(!relays.close_overdue(), "no other node assumes that they are closed");
    clock.store(200, Ordering::Relaxed);
    assert!(relays.close_overdue());
}

#[test]
fn the_leader_is_suspected_when_most_connections_end_and_not_when_one_does() {
    let (relays, clock) = relays();
    let polls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&polls);
    relays.on_poll_needed(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    clock.store(1000, Ordering::Relaxed);
    relays.apply(led(1, 100_000));
    let term = relays.leader().unwrap();
    let mut open: Vec<_> = (0..10).map(|_| relays.open(&term).unwrap()).collect();
    let mut end = |ms| {
        clock.store(ms, Ordering::Relaxed);
        open.pop().unwrap().ended_by_leader();
        polls.load(Ordering::Relaxed)
    };
    // One bad request now and then.
    assert_eq!([end(1000), end(1100), end(1200)], [0; 3]);
    // The leader stops.
    assert_eq!([end(2000), end(2001), end(2002)], [0, 0, 1], "half of the connections");
    assert_eq!(end(2003), 1, "the node has just polled");
    assert_eq!([end(3000), end(4000), end(5000)], [1; 3], "the last one, too");
}

#[test]
fn one_client_at_a_time_tries_to_reach_a_leader() {
    let (relays, _) = relays();
    relays.apply(led(1, 1000));
    let term = relays.leader().unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let Poll::Ready(first) = pin!(term.begin_attempt()).poll(&mut context) else {
        panic!("no other client makes an attempt")
    };
    let (mut second, mut third) = (pin!(term.begin_attempt()), pin!(term.begin_attempt()));
    assert!(second.as_mut().poll(&mut context).is_pending());
    assert!(third.as_mut().poll(&mut context).is_pending());
    // The first attempt fails.
    drop(first);
    assert!(third.as_mut().poll(&mut context).is_pending(), "the second client is before it");
    // The second attempt reaches the leader.
    term.set_reached(true);
    assert!(matches!(second.as_mut().poll(&mut context), Poll::Ready(None)));
    assert!(matches!(third.as_mut().poll(&mut context), Poll::Ready(None)));
    assert!(matches!(pin!(term.begin_attempt()).poll(&mut context), Poll::Ready(None)));
}

#[tokio::test(start_paused = true)]
async fn relays_are_closed_for_good_as_long_as_some_of_them_close() {
    let (relays, _) = relays();
    relays.apply(led(1, 1000));
    let term = relays.leader().unwrap();
    let open: Vec<_> = (0..4).map(|_| relays.open(&term).unwrap()).collect();
    let closing = tokio::spawn({
        let relays = relays.clone();
        async move { relays.close().await }
    });
    let begun = tokio::time::Instant::now();
    for relay in open {
        tokio::time::sleep(Duration::from_millis(1900)).await;
        // A poll is answered meanwhile, as for a node that leaves.
        relays.apply(led(1, 100_000));
        assert!(!relay.may_forward() && relays.leader().is_none());
        assert!(relays.open(&term).is_none());
        assert_eq!(relays.report().closed_below, 1);
    }
    assert_eq!(closing.await.unwrap(), Ok(()));
    assert!(begun.elapsed() < Duration::from_millis(4 * 1900 + 100), "it waits for nothing else");
    assert_eq!(relays.report(), RelayReport { closed_below: u32::MAX, connections: 0 });

    let (relays, _) = self::relays();
    relays.apply(led(1, 1000));
    let stuck = relays.open(&relays.leader().unwrap()).unwrap();
    relays.close().await.unwrap_err();
    assert!(!stuck.may_forward());
}
