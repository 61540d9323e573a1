//! Commands of `signalbox cluster` when etcd does not answer, or the node ends: `drain` leaves no request behind, and what is
//! repeated is done once.

use std::time::Duration;

use signalbox_cluster::admin::{ClusterStatus, NodeStatus, Release, finalize, forget, release, status};
use signalbox_cluster::coordinator::{
    CallError, Coordinator, Operation, Persistent, Range, RangeAnswer, Revision, Transaction,
    TransactionAnswer,
};
use signalbox_cluster::drain::{Drained, drain};
use signalbox_cluster::error::AdminError;
use signalbox_cluster::keys::{Drain, Format, LAYOUT, Leadership, LeadershipState, Node, decode};
use signalbox_cluster::timing::BootTime;
use signalbox_storage::FORMAT;

use crate::admin::Operator;
use crate::commits::{keys, take_over};
use crate::etcd::{FakeEtcd, Handle};
use crate::handover::{Other, Others, put, write};

/// A connection on which answers get lost, from the first transaction on.
struct Deaf {
    etcd: FakeEtcd,
    inner: Handle,
    /// The number of further answers to transactions that get lost.
    losses: usize,
    /// Whether answers to reads get lost too, until `losses` is 0.
    loses_reads: bool,
    has_asked: bool,
    /// The revision of the request to drain after each transaction.
    requests: Vec<Option<Revision>>,
}

fn lost() -> CallError {
    CallError::Unanswered("the answer is lost".to_owned())
}

impl Coordinator for Deaf {
    fn range(&mut self, range: &Range) -> Result<RangeAnswer, CallError> {
        if self.has_asked && self.loses_reads && self.losses > 0 {
            Err(lost())
        } else {
            self.inner.range(range)
        }
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<TransactionAnswer, CallError> {
        let answer = self.inner.transact(transaction);
        self.has_asked = true;
        let request = self.etcd.with_store(|store| store.get(&keys().drain("a")));
        self.requests.push(request.map(|entry| entry.modified));
        if self.losses == 0 {
            return answer;
        }
        self.losses -= 1;
        Err(lost())
    }
}

/// A cluster that node "a" leads.
fn led_by_a() -> FakeEtcd {
    let etcd = FakeEtcd::default();
    take_over(&etcd, 1);
    let format = Format { layout: LAYOUT, record_format: FORMAT, renew_deadline_ms: 2000 };
    write(&etcd, vec![put(keys().format(), &format)]);
    etcd
}

/// Drains a node that sends heartbeats and does not leave. Returns how the command ends, and the revisions of its request.
fn run(losses: usize, loses_reads: bool) -> (AdminError, Vec<Option<Revision>>) {
    let etcd = led_by_a();
    let deaf = Deaf {
        inner: etcd.client(),
        etcd: etcd.clone(),
        losses,
        loses_reads,
        has_asked: false,
        requests: Vec::new(),
    };
    let mut persistent = Persistent::new(deaf, 1);
    let limit = Duration::from_millis(100);
    let ended = Others::run(&etcd, &[Other::well("a", 1, "0.1.0")], || {
        drain(&mut persistent, &keys(), "a", None, limit).unwrap_err()
    });
    (ended, std::mem::take(&mut persistent.inner_mut().requests))
}

#[test]
fn a_command_whose_request_is_not_answered_withdraws_it() {
    for loses_reads in [false, true] {
        let (ended, requests) = run(usize::MAX, loses_reads);
        assert!(matches!(ended, AdminError::Call(_)), "{ended}");
        assert!(requests.first().is_some_and(Option::is_some), "it was written");
        assert_eq!(requests.last(), Some(&None), "the node would leave, and no operator would know");
    }
}

/// A node that leads would begin its handover again for a request of another revision.
#[test]
fn a_request_that_is_repeated_is_written_once() {
    let (ended, requests) = run(1, false);
    assert!(matches!(ended, AdminError::NotInTime(..)), "{ended}");
    let [Some(first), repeated, .., None] = requests[..] else { panic!("{requests:?}") };
    assert_eq!(repeated, Some(first));
}

/// Performs `happens` between the first transaction and its answer, which is lost if `loses_answer` is set.
struct Meanwhile {
    etcd: FakeEtcd,
    inner: Handle,
    happens: Vec<Operation>,
    loses_answer: bool,
}

impl Meanwhile {
    fn connect(etcd: &FakeEtcd, happens: Vec<Operation>, loses_answer: bool) -> Persistent<Self> {
        Persistent::new(Self { etcd: etcd.clone(), inner: etcd.client(), happens, loses_answer }, 1)
    }
}

impl Coordinator for Meanwhile {
    fn range(&mut self, range: &Range) -> Result<RangeAnswer, CallError> {
        self.inner.range(range)
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<TransactionAnswer, CallError> {
        let answer = self.inner.transact(transaction);
        if !self.happens.is_empty() {
            write(&self.etcd, std::mem::take(&mut self.happens));
        }
        if std::mem::take(&mut self.loses_answer) { Err(lost()) } else { answer }
    }
}

/// An etcd that answers for 150 ms, is silent for 1.6 s, and so on. It has a new heartbeat of "a" soon after each silence.
struct Slow {
    etcd: FakeEtcd,
    inner: Handle,
    began: BootTime,
    /// Milliseconds since `began`.
    ms: u64,
    beats: u64,
}

impl Slow {
    const PERIOD_MS: u64 = 1750;
    const ANSWERS_MS: u64 = 150;
    const BEAT_MS: u64 = 60;

    fn advance(&mut self, ms: u64) {
        self.ms += ms;
        while self.ms >= self.beats * Self::PERIOD_MS + Self::BEAT_MS {
            write(&self.etcd, vec![Other::well("a", 1, "0.1.0").beat(self.beats)]);
            self.beats += 1;
        }
    }
}

impl Coordinator for Slow {
    fn range(&mut self, range: &Range) -> Result<RangeAnswer, CallError> {
        let phase = self.ms % Self::PERIOD_MS;
        self.advance(if phase < Self::ANSWERS_MS { 1 } else { Self::PERIOD_MS - phase });
        self.inner.range(range)
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<TransactionAnswer, CallError> {
        self.inner.transact(transaction)
    }

    fn pause(&mut self, span: Duration) {
        self.advance(span.as_millis() as u64);
    }

    fn now(&self) -> BootTime {
        self.began.after(Duration::from_millis(self.ms))
    }
}

#[test]
fn a_node_is_not_silent_because_etcd_is_slow() {
    for (is_silent, heartbeats) in [(false, 1), (true, 0)] {
        let etcd = led_by_a();
        let node = Other::well("a", 1, "0.1.0");
        write(&etcd, vec![put(keys().node("a"), &node.node()), node.beat(0)]);
        let beats = if is_silent { u64::from(u32::MAX) } else { 1 };
        let (inner, began) = (etcd.client(), BootTime::now());
        let mut slow = Slow { inner, etcd, began, ms: Slow::BEAT_MS, beats };
        let found = status(&mut slow, &keys()).unwrap();
        assert_eq!(found.nodes["a"].heartbeat_age.iter().count(), heartbeats, "after {} ms", slow.ms);
        assert!(slow.ms < 10_000, "it watches for a bounded time");
    }
}

fn delete(key: Vec<u8>) -> Operation {
    Operation::Delete { key }
}

/// The leadership of this node, held by the run `of`.
fn held_by(node: &str, of: &Other, epoch: u32) -> Leadership {
    let incarnation = of.node().incarnation;
    Leadership { epoch, node: node.to_owned(), incarnation, state: LeadershipState::Held, successor: None }
}

#[test]
fn the_node_that_leads_after_a_drained_leader_is_reported() {
    let etcd = led_by_a();
    let next = held_by("b", &Other::well("b", 2, "0.1.0"), 2);
    let happens = vec![delete(keys().node("a")), delete(keys().drain("a")), put(keys().leadership(), &next)];
    let mut persistent = Meanwhile::connect(&etcd, happens, false);
    let drained = Others::run(&etcd, &[Other::well("a", 1, "0.1.0")], || {
        drain(&mut persistent, &keys(), "a", None, Duration::from_secs(10))
    });
    assert_eq!(drained.unwrap(), Drained { has_led: true, leader: Some(("b".to_owned(), 2)) });
}

/// A node that has died, or has started again since, does not lead.
#[test]
fn the_node_that_leads_is_the_run_with_the_leadership_and_sends_heartbeats() {
    let [run, next_run] = [1, 2].map(|run| Other::well("a", run, "0.1.0"));
    let format = Format { layout: LAYOUT, record_format: FORMAT, renew_deadline_ms: 2000 };
    for (of, heartbeat_age, expected) in [
        (&run, Some(Duration::ZERO), Some("a")),
        (&run, None, None),
        (&next_run, Some(Duration::ZERO), None),
        (&next_run, None, None),
    ] {
        let node = NodeStatus { node: of.node(), heartbeat_age, relays: None };
        let mut status = ClusterStatus {
            format,
            leadership: Some(held_by("a", &run, 1)),
            marker: None,
            nodes: [("a".to_owned(), node)].into(),
            records: 0,
        };
        assert_eq!(status.leader(), expected, "{heartbeat_age:?}");
        status.leadership.as_mut().unwrap().state = LeadershipState::Released;
        assert_eq!(status.leader(), None);
    }
}

/// The node has left before the repetition arrives.
#[test]
fn a_request_that_was_obeyed_before_it_was_repeated_has_succeeded() {
    let etcd = led_by_a();
    let gone = vec![delete(keys().node("a")), delete(keys().drain("a"))];
    let mut persistent = Meanwhile::connect(&etcd, gone, true);
    let limit = Duration::from_secs(10);
    let drained = Others::run(&etcd, &[Other::well("a", 2, "0.1.0")], || {
        drain(&mut persistent, &keys(), "a", None, limit)
    });
    drained.unwrap();
}

/// `signalbox cluster release` removes the node of a process that has died, or its next run takes its place; or another
/// operator removes the request while the node continues.
#[test]
fn what_happens_to_the_node_or_to_the_request_is_not_reported_as_drained() {
    let next_run = put(keys().node("a"), &Other::well("a", 3, "0.1.0").node());
    for (happens, is_dead) in
        [(delete(keys().node("a")), true), (next_run, true), (delete(keys().drain("a")), false)]
    {
        let etcd = led_by_a();
        let mut persistent = Meanwhile::connect(&etcd, vec![happens], false);
        let limit = Duration::from_secs(10);
        let drained = Others::run(&etcd, &[Other::well("a", 2, "0.1.0")], || {
            drain(&mut persistent, &keys(), "a", None, limit)
        });
        let error = drained.unwrap_err();
        assert!(matches!(error, AdminError::Died(_)) == is_dead, "{error}");
        assert!(matches!(error, AdminError::Changed) != is_dead, "{error}");
        assert_eq!(etcd.with_store(|store| store.get(&keys().drain("a"))), None);
    }
}

/// The answer is lost, and the repetition finds what the first attempt has done.
#[test]
fn what_was_done_before_it_was_repeated_has_succeeded() {
    let etcd = led_by_a();
    let node = Node { record_format: FORMAT + 1, ..Other::well("b", 2, "0.1.0").node() };
    let format = Format { layout: LAYOUT, record_format: FORMAT, renew_deadline_ms: 2000 };
    write(&etcd, vec![put(keys().node("b"), &node), put(keys().format(), &format)]);
    let deaf = || Meanwhile::connect(&etcd, Vec::new(), true);
    let finalized = finalize(&mut deaf(), &keys(), FORMAT + 1).unwrap();
    assert_eq!((finalized.from, finalized.to), (FORMAT, FORMAT + 1));
    assert_eq!(release(&mut deaf(), &keys(), "b", Some("")).unwrap(), Release::Left);
    write(&etcd, vec![put(keys().node("b"), &node)]);
    forget(&mut deaf(), &keys(), "b").unwrap();
    assert_eq!(etcd.with_store(|store| store.get(&keys().node("b"))), None);
}

#[test]
fn a_node_that_changes_meanwhile_is_not_reported_as_removed() {
    let etcd = led_by_a();
    let node = put(keys().node("b"), &Other::well("b", 2, "0.1.0").node());
    write(&etcd, vec![node.clone()]);
    // Each command finds its comparisons false, because the record is written again before its transaction.
    let overtaken = || {
        let mut operator = Operator::of(&etcd);
        operator.before_transaction = Some((0, vec![node.clone()]));
        operator
    };
    let released = release(&mut overtaken(), &keys(), "b", Some(""));
    assert!(matches!(released, Err(AdminError::Changed)), "{released:?}");
    let forgotten = forget(&mut overtaken(), &keys(), "b");
    assert!(matches!(forgotten, Err(AdminError::Changed)), "{forgotten:?}");
}

/// An operator's connection whose time passes only in pauses. The node sends a heartbeat in each pause, until it is asked to drain.
struct FallsSilent {
    etcd: FakeEtcd,
    inner: Handle,
    node: Other,
    now: BootTime,
    has_asked: bool,
}

impl Coordinator for FallsSilent {
    fn range(&mut self, range: &Range) -> Result<RangeAnswer, CallError> {
        self.inner.range(range)
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<TransactionAnswer, CallError> {
        self.has_asked = true;
        self.inner.transact(transaction)
    }

    fn pause(&mut self, span: Duration) {
        self.now = self.now.after(span);
        if !self.has_asked {
            write(&self.etcd, vec![self.node.beat(1)]);
        }
    }

    fn now(&self) -> BootTime {
        self.now
    }
}

#[test]
fn a_node_that_falls_silent_is_waited_for_during_the_lease_duration() {
    let etcd = led_by_a();
    let node = Other::well("a", 2, "0.1.0");
    write(&etcd, vec![put(keys().node("a"), &node.node()), node.beat(0)]);
    let (inner, now) = (etcd.client(), BootTime::default());
    let mut operator = FallsSilent { etcd: etcd.clone(), inner, node, now, has_asked: false };
    let ended = drain(&mut operator, &keys(), "a", None, Duration::from_secs(60)).unwrap_err();
    let AdminError::FellSilent(_, silence) = &ended else { panic!("{ended}") };
    assert_eq!(*silence, Duration::from_millis(2300), "the lease duration");
    assert_eq!(
        etcd.with_store(|store| store.get(&keys().drain("a"))),
        None,
        "it is not drained when it continues"
    );
}

/// A cluster that node "a" leads, which gives a heartbeat every 200 ms for this long, and an operator.
fn beating(etcd: &FakeEtcd, ms: u64) -> Operator {
    let a = Other::well("a", 1, "0.1.0");
    write(etcd, vec![put(keys().node("a"), &a.node()), a.beat(0)]);
    let mut operator = Operator::of(etcd);
    let beats = (200..ms).step_by(200).map(|at| (Duration::from_millis(at), a.beat(at)));
    operator.writes.extend(beats);
    operator
}

/// The request of another operator.
fn another() -> Drain {
    let incarnation = Other::well("a", 1, "0.1.0").node().incarnation;
    Drain { incarnation, to: Some("b".to_owned()), refused: None }
}

fn assert_other_request_is_there(etcd: &FakeEtcd) {
    let entry = etcd.with_store(|store| store.get(&keys().drain("a"))).expect("it is there");
    assert_eq!(decode::<Drain>(&entry.key, &entry.value).unwrap(), another());
}

#[test]
fn the_request_of_another_operator_is_neither_waited_for_nor_withdrawn() {
    let etcd = led_by_a();
    let mut operator = beating(&etcd, 60_000);
    let replaced = (Duration::from_millis(2050), put(keys().drain("a"), &another()));
    let position = operator.writes.iter().position(|(at, _)| *at > replaced.0).unwrap();
    operator.writes.insert(position, replaced);
    let ended = drain(&mut operator, &keys(), "a", None, Duration::from_secs(30));
    assert!(matches!(ended, Err(AdminError::Changed)), "{ended:?}");
    assert_other_request_is_there(&etcd);

    // It comes at the moment at which this one is withdrawn.
    let etcd = led_by_a();
    let mut operator = beating(&etcd, 60_000);
    operator.before_transaction = Some((1, vec![put(keys().drain("a"), &another())]));
    let ended = drain(&mut operator, &keys(), "a", None, Duration::from_secs(10));
    assert!(matches!(ended, Err(AdminError::NotInTime(..))), "{ended:?}");
    assert_other_request_is_there(&etcd);
}

/// It has left, but could not release the leadership.
#[test]
fn a_drained_leader_is_not_its_own_successor() {
    let etcd = led_by_a();
    let mut operator = beating(&etcd, 2000);
    let left = [delete(keys().node("a")), delete(keys().drain("a"))];
    operator.writes.extend(left.map(|removed| (Duration::from_secs(2), removed)));
    let drained = drain(&mut operator, &keys(), "a", None, Duration::from_secs(30));
    assert_eq!(drained.unwrap(), Drained { has_led: true, leader: None });
}
