//! The handover of a leadership: what a successor has read in advance is complete with the changes (invariant C9), whenever
//! it read and whatever gets lost; and a leader hands over to a node that can lead, or says why it does not.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use signalbox::cluster::coordinator::{
    CallError, Coordinator, Operation, Range, RangeAnswer, Transaction, TransactionAnswer,
};
use signalbox::cluster::handover::{Leader, Next, Preloaded, Refusal, Request, Trace};
use signalbox::cluster::keys::{
    Advertised, Drain, Handover, Heartbeat, Incarnation, Node, Successor, decode, encode,
};
use signalbox::cluster::leadership::Term;
use signalbox::cluster::preload::Preload;
use signalbox::cluster::timing::Timing;
use signalbox::core::{Change, Key, Record, SessionId};
use signalbox::storage::Storage;

use crate::commits::{keys, loaded, session, storage, take_over};
use crate::support::etcd::{Delivery, FakeEtcd, Handle};
use crate::support::eventually;

/// Random handovers in a run of the tests; `SIGNALBOX_HISTORIES` sets another number.
const HANDOVERS: u32 = 500;

/// Sessions of random commits.
const SESSIONS: u64 = 6;

fn incarnation(run: u32) -> Incarnation {
    Incarnation(format!("{run:032}"))
}

/// The leader of a term, as `take_over` names it.
fn leader<C: Coordinator>(coordinator: C, term: Term, trace: &Trace) -> Leader<C> {
    Leader {
        coordinator,
        keys: keys(),
        name: "a".to_owned(),
        term,
        incarnation: incarnation(term.epoch),
        timing: Timing::new(Duration::from_secs(2)).unwrap(),
        trace: trace.clone(),
        handover: 0,
    }
}

/// Writes keys as somebody else. Returns the revision.
pub(crate) fn write(etcd: &FakeEtcd, then: Vec<Operation>) -> u64 {
    etcd.with_store(|store| store.apply(&Transaction { then, ..Transaction::default() })).unwrap().revision
}

pub(crate) fn put<T: serde::Serialize>(key: Vec<u8>, value: &T) -> Operation {
    Operation::Put { key, value: encode(value) }
}

/// An operator asks node "a", which leads, to hand over.
fn ask(etcd: &FakeEtcd, to: Option<&str>) -> Request {
    let drain = Drain { incarnation: incarnation(1), to: to.map(str::to_owned), refused: None };
    let written = write(etcd, vec![put(keys().drain("a"), &drain)]);
    Request { drain, written }
}

/// The operator gives up.
fn withdraw(etcd: &FakeEtcd) {
    write(etcd, vec![Operation::Delete { key: keys().drain("a") }]);
}

/// A commit: sessions that are stored or removed.
type Writes = Vec<(u64, bool)>;

fn changes(writes: &Writes) -> Vec<Change> {
    let change = |&(number, is_stored): &(u64, bool)| match is_stored {
        true => Change::Put(session(number)),
        false => Change::Delete(Key::Session(SessionId::from_number(number).unwrap())),
    };
    writes.iter().map(change).collect()
}

/// What happens in one handover.
#[derive(Clone, Debug)]
struct History {
    before_trace: Vec<Writes>,
    /// A commit that is in flight when the trace begins, and whether etcd performs it before the successor reads.
    straddling: Option<(Writes, bool)>,
    before_reading: Vec<Writes>,
    after_reading: Vec<Writes>,
    /// What becomes of the attempts to tell the changes.
    deliveries: Vec<Delivery>,
    /// Whether another node leads in between.
    interlude: Option<Writes>,
}

fn history() -> impl Strategy<Value = History> {
    let writes = || prop::collection::vec((1..=SESSIONS, any::<bool>()), 1..4);
    let commits = || prop::collection::vec(writes(), 0..4);
    let delivery = prop_oneof![
        4 => Just(Delivery::Answered),
        2 => Just(Delivery::AnswerLost),
        2 => Just(Delivery::NotDelivered),
    ];
    (
        (commits(), prop::option::of((writes(), any::<bool>())), commits(), commits()),
        prop::collection::vec(delivery, 0..3),
        prop::option::weighted(0.1, writes()),
    )
        .prop_map(
            |((before_trace, straddling, before_reading, after_reading), deliveries, interlude)| History {
                before_trace,
                straddling,
                before_reading,
                after_reading,
                deliveries,
                interlude,
            },
        )
}

/// Returns whether the successor could use what it had read.
fn hand_over(history: &History) -> bool {
    let etcd = FakeEtcd::default();
    let trace = Trace::default();
    let term = take_over(&etcd, 1);
    let mut old = storage(&etcd, term).traced(trace.clone());
    let commit = |old: &mut dyn Storage, commits: &[Writes]| {
        commits.iter().for_each(|writes| old.commit(&changes(writes)).unwrap());
    };
    commit(&mut old, &history.before_trace);
    let mut leader = leader(etcd.client(), term, &trace);
    let mut straddling = history.straddling.as_ref().map(|(writes, _)| old.begin(&changes(writes)).unwrap());
    trace.start();
    let successor = Successor { node: "b".to_owned(), incarnation: incarnation(2) };
    leader.handover = write(&etcd, vec![put(keys().handover(), &Handover { epoch: 1, successor })]);
    let mut client = etcd.client();
    let mut read = || Preloaded::read(&mut client, &keys(), leader.handover).unwrap();
    let mut preloaded = None;
    if let Some(commit) = &mut straddling {
        let is_first = history.straddling.as_ref().is_some_and(|(_, is_first)| *is_first);
        if !is_first {
            preloaded = Some(read());
        }
        let answer = etcd.client().transact(commit.transaction());
        if is_first {
            preloaded = Some(read());
        }
        assert!(old.answered(commit, answer).unwrap().is_ok());
    }
    commit(&mut old, &history.before_reading);
    let preloaded = preloaded.unwrap_or_else(&mut read);
    commit(&mut old, &history.after_reading);
    history.deliveries.iter().for_each(|delivery| etcd.decide(leader.coordinator.number(), *delivery));
    leader.write_changes().unwrap();
    assert!(old.commit(&[Change::Put(session(1))]).unwrap_err().is_ownership_lost(), "it was handed over");
    let mut epoch = 2;
    if let Some(writes) = &history.interlude {
        storage(&etcd, take_over(&etcd, epoch)).commit(&changes(writes)).unwrap();
        epoch += 1;
    }
    let term = take_over(&etcd, epoch);
    let mut new = storage(&etcd, term);
    let is_complete = new.preload(preloaded).unwrap();
    assert!(history.interlude.is_none() || !is_complete, "another node has led in between");
    let mut found = loaded(&mut new);
    let mut expected = loaded(&mut storage(&etcd, term));
    found.sort_by_key(Record::key);
    expected.sort_by_key(Record::key);
    assert_eq!(found, expected);
    is_complete
}

#[test]
fn what_was_read_in_advance_is_complete_with_the_changes() {
    let cases = std::env::var("SIGNALBOX_HISTORIES").map_or(HANDOVERS, |number| number.parse().unwrap());
    let used = AtomicU32::new(0);
    let mut runner = TestRunner::new(Config { cases, ..Config::default() });
    let outcome = runner.run(&history(), |history| {
        used.fetch_add(u32::from(hand_over(&history)), Ordering::Relaxed);
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    let used = used.into_inner();
    assert!(used > cases / 2, "it was used in {used} of {cases} cases");
}

#[test]
fn changes_of_an_earlier_handover_of_the_same_leader_are_not_taken_for_all() {
    let etcd = FakeEtcd::default();
    let trace = Trace::default();
    let term = take_over(&etcd, 1);
    let mut old = storage(&etcd, term).traced(trace.clone());
    let mut leader = leader(etcd.client(), term, &trace);
    let successor = Successor { node: "b".to_owned(), incarnation: incarnation(2) };
    let handover = Handover { epoch: 1, successor };
    let begin = || {
        trace.start();
        write(&etcd, vec![put(keys().handover(), &handover)])
    };
    old.commit(&[Change::Put(session(1))]).unwrap();
    // The first one is refused after the successor has read, and the successor has not noticed. One record replaces another
    // between the two, so the number of records tells nothing.
    let first = begin();
    let preloaded = Preloaded::read(&mut etcd.client(), &keys(), first).unwrap();
    old.commit(&changes(&vec![(1, false), (3, true)])).unwrap();
    leader.handover = begin();
    old.commit(&[Change::Put(session(2))]).unwrap();
    leader.write_changes().unwrap();
    let mut new = storage(&etcd, take_over(&etcd, 2));
    assert!(!new.preload(preloaded).unwrap());
    assert_eq!(loaded(&mut new), [2, 3].map(session));
}

#[test]
fn too_many_changes_are_not_kept() {
    let etcd = FakeEtcd::default();
    let trace = Trace::default();
    let mut old = storage(&etcd, take_over(&etcd, 1)).traced(trace.clone());
    trace.start();
    for part in (1..=30_000).collect::<Vec<u64>>().chunks(1_000) {
        let changes: Vec<_> = part.iter().map(|number| Change::Put(session(*number))).collect();
        old.commit(&changes).unwrap();
    }
    assert_eq!(trace.take(), None);
}

#[test]
fn changes_are_not_known_while_a_commit_is_in_flight() {
    let etcd = FakeEtcd::default();
    let trace = Trace::default();
    let mut old = storage(&etcd, take_over(&etcd, 1)).traced(trace.clone());
    trace.start();
    let mut commit = old.begin(&[Change::Put(session(1))]).unwrap();
    assert_eq!(trace.take(), None, "it may be stored");
    let answer = etcd.client().transact(commit.transaction());
    old.answered(&mut commit, answer).unwrap().unwrap();
    assert_eq!(trace.take().unwrap().len(), 1);
}

/// Nodes besides the leader, whose threads give heartbeats and read records when they are asked to.
pub(crate) struct Others {
    etcd: FakeEtcd,
    is_over: AtomicBool,
}

/// How a node behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Well,
    /// It gives no heartbeat.
    Silent,
    /// It leaves when it is asked to read.
    Leaves,
    /// It gives no more heartbeats when it is asked to read.
    Freezes,
    /// It never reads.
    IsSlow,
}

/// A node in a test.
pub(crate) struct Other {
    name: &'static str,
    run: u32,
    version: &'static str,
    is_eligible: bool,
    manner: Manner,
}

impl Other {
    pub(crate) fn well(name: &'static str, run: u32, version: &'static str) -> Self {
        Self { name, run, version, is_eligible: true, manner: Manner::Well }
    }

    fn heartbeat(&self, count: u64, preloaded: u64) -> Heartbeat {
        let incarnation = incarnation(self.run);
        Heartbeat { incarnation, count, relays_closed_below: 0, relays: 0, preloaded }
    }

    pub(crate) fn node(&self) -> Node {
        Node {
            incarnation: incarnation(self.run),
            invocation: String::new(),
            version: self.version.to_owned(),
            record_format: None,
            addresses: Vec::new(),
            is_eligible: self.is_eligible,
            relays: false,
            relay_endpoint: None,
            advertised: Advertised::default(),
            drains: true,
        }
    }
}

impl Others {
    /// Runs `test` beside these nodes. Returns what it returns, and what the nodes have read last.
    pub(crate) fn run<T>(
        etcd: &FakeEtcd,
        others: &[Other],
        test: impl FnOnce() -> T,
    ) -> (T, Vec<Option<Preloaded>>) {
        let this = Self { etcd: etcd.clone(), is_over: AtomicBool::new(false) };
        for other in others {
            let first = vec![
                put(keys().node(other.name), &other.node()),
                put(keys().heartbeat(other.name), &other.heartbeat(0, 0)),
            ];
            write(etcd, first);
        }
        thread::scope(|scope| {
            let threads: Vec<_> = others.iter().map(|other| scope.spawn(|| this.live(other))).collect();
            let outcome = test();
            this.is_over.store(true, Ordering::Relaxed);
            (outcome, threads.into_iter().map(|thread| thread.join().unwrap()).collect())
        })
    }

    fn live(&self, other: &Other) -> Option<Preloaded> {
        let mut read: Option<(u64, Preloaded)> = None;
        let mut count = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            count += 1;
            let preloaded = read.as_ref().map_or(0, |(handover, _)| *handover);
            if other.manner != Manner::Silent {
                let heartbeat = other.heartbeat(count, preloaded);
                write(&self.etcd, vec![put(keys().heartbeat(other.name), &heartbeat)]);
            }
            let request = self.etcd.with_store(|store| store.get(&keys().handover()));
            let request = request.filter(|entry| {
                let handover: Handover = decode(&entry.key, &entry.value).unwrap();
                handover.successor.incarnation == incarnation(other.run) && entry.modified != preloaded
            });
            match (request, other.manner) {
                (Some(entry), Manner::Well) => {
                    let records = Preloaded::read(&mut self.etcd.client(), &keys(), entry.modified).unwrap();
                    read = Some((entry.modified, records));
                }
                (Some(_), Manner::Freezes) => return None,
                (Some(_), Manner::Leaves) => {
                    write(&self.etcd, vec![Operation::Delete { key: keys().heartbeat(other.name) }]);
                    return None;
                }
                _ => {}
            }
            thread::sleep(Duration::from_millis(5));
        }
        read.map(|(_, records)| records)
    }
}

/// What a leader answers to an operator's request.
fn prepare(others: &[Other], to: Option<&str>) -> Result<Next, Refusal> {
    let etcd = FakeEtcd::default();
    let term = take_over(&etcd, 1);
    write(&etcd, vec![put(keys().node("a"), &Other::well("a", 1, "0.1.0").node())]);
    let request = ask(&etcd, to);
    let obeyed =
        Others::run(&etcd, others, || leader(etcd.client(), term, &Trace::default()).obey(&request)).0;
    obeyed.map_err(|refused| refused.refusal)
}

#[test]
fn the_successor_is_the_node_that_was_named_or_one_of_the_newest_version() {
    let others =
        || [Other::well("b", 2, "0.9.0"), Other::well("c", 3, "0.10.0"), Other::well("d", 4, "0.2.0")];
    assert_eq!(prepare(&others(), None).unwrap().successor.node, "c");
    assert_eq!(prepare(&others(), Some("d")).unwrap().successor.node, "d");
    let relay = Other { is_eligible: false, ..Other::well("c", 3, "0.10.0") };
    let silent = Other { manner: Manner::Silent, ..Other::well("b", 2, "0.9.0") };
    assert_eq!(prepare(&[relay, silent, Other::well("d", 4, "0.2.0")], None).unwrap().successor.node, "d");
}

#[test]
fn a_leader_says_why_it_hands_over_to_nobody() {
    let refused = |others: &[Other], to| prepare(others, to).unwrap_err().to_string();
    let well = || Other::well("b", 2, "0.1.0");
    let nodes = "the cluster has no node \"x\"; it has \"a\", \"b\"";
    assert_eq!(refused(&[well()], Some("x")), nodes);
    assert_eq!(refused(&[well()], Some("a")), "node \"a\" leads itself; name another one");
    let relay = || Other { is_eligible: false, ..well() };
    assert!(refused(&[relay()], Some("b")).contains("node \"b\" may not lead"));
    let silent = || Other { manner: Manner::Silent, ..well() };
    assert!(refused(&[silent()], Some("b")).contains("node \"b\" sends no heartbeats"));
    let second_relay = Other { is_eligible: false, ..Other::well("c", 3, "0.1.0") };
    for others in [&[][..], &[second_relay, silent()]] {
        assert!(refused(others, None).contains("no other node that may lead"));
    }
    let leaves = Other { manner: Manner::Leaves, ..well() };
    assert!(refused(&[leaves], None).contains("has left the cluster while it read the records"));
    let freezes = Other { manner: Manner::Freezes, ..well() };
    assert!(refused(&[freezes], None).contains("node \"b\" sends no heartbeats"));
}

#[test]
fn an_operator_is_told_why_and_a_refused_handover_keeps_nothing() {
    let etcd = FakeEtcd::default();
    let term = take_over(&etcd, 1);
    let trace = Trace::default();
    let mut old = storage(&etcd, term).traced(trace.clone());
    let mut leader = leader(etcd.client(), term, &trace);
    let request = ask(&etcd, None);
    let leaves = Other { manner: Manner::Leaves, ..Other::well("b", 2, "0.1.0") };
    let (refused, _) = Others::run(&etcd, &[leaves], || leader.obey(&request).unwrap_err());
    refused.told.unwrap();
    let told = etcd.with_store(|store| store.get(&keys().drain("a"))).unwrap();
    let told: Drain = decode(&told.key, &told.value).unwrap();
    assert_eq!(told, Drain { refused: Some(refused.refusal.to_string()), ..request.drain });
    assert!(etcd.with_store(|store| store.get(&keys().handover())).is_none());
    old.commit(&[Change::Put(session(1))]).unwrap();
    assert_eq!(trace.take(), None);
}

/// Otherwise the leader would be deaf for the next request until the successor has read, for up to a minute, and the successor
/// would keep all records in memory until another node leads.
#[test]
fn a_leader_and_its_successor_give_up_with_the_operator() {
    let etcd = FakeEtcd::default();
    let term = take_over(&etcd, 1);
    let mut leader = leader(etcd.client(), term, &Trace::default());
    let request = ask(&etcd, None);
    let is_asked = || etcd.with_store(|store| store.get(&keys().handover())).is_some();
    let slow = Other { manner: Manner::IsSlow, ..Other::well("b", 2, "0.1.0") };
    let (refused, _) = Others::run(&etcd, &[slow], || {
        thread::scope(|scope| {
            let obeyed = scope.spawn(|| leader.obey(&request).unwrap_err());
            eventually("the successor is asked", is_asked);
            withdraw(&etcd);
            eventually("the leader gives up", || obeyed.is_finished());
            obeyed.join().unwrap()
        })
    });
    assert_eq!(refused.refusal.to_string(), "the request was withdrawn");
    refused.told.unwrap();
    assert!(!is_asked());
    assert!(etcd.with_store(|store| store.get(&keys().drain("a"))).is_none(), "nobody waits for the answer");
}

#[test]
fn a_successor_that_has_left_is_not_waited_for() {
    let etcd = FakeEtcd::default();
    let term = take_over(&etcd, 1);
    let mut leader = leader(etcd.client(), term, &Trace::default());
    let (request, others) = (ask(&etcd, None), [Other::well("b", 2, "0.1.0")]);
    let (prepared, _) = Others::run(&etcd, &others, || leader.obey(&request));
    let next = prepared.unwrap();
    assert_eq!(leader.complete(next.clone()).successor, Some(next.successor.clone()));
    write(&etcd, vec![put(keys().node("b"), &Other::well("b", 3, "0.1.0").node())]);
    assert_eq!(leader.complete(next.clone()).successor, None, "it is another run");
    write(&etcd, vec![Operation::Delete { key: keys().node("b") }]);
    assert_eq!(leader.complete(next).successor, None);
}

/// A connection on which the first reads get lost, and pauses are over at once.
struct Late {
    inner: Handle,
    losses: u32,
    on_loss: fn(&Preload),
    preload: Preload,
}

impl Coordinator for Late {
    fn range(&mut self, range: &Range) -> Result<RangeAnswer, CallError> {
        if self.losses == 0 {
            return self.inner.range(range);
        }
        self.losses -= 1;
        (self.on_loss)(&self.preload);
        Err(CallError::Unanswered("it is lost".to_owned()))
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<TransactionAnswer, CallError> {
        self.inner.transact(transaction)
    }

    fn pause(&mut self, _: Duration) {}
}

/// Otherwise the leader would wait for it for a minute, if it does not reach etcd for some seconds.
#[test]
fn a_successor_reads_until_it_has_read_or_is_not_wanted() {
    let etcd = FakeEtcd::default();
    take_over(&etcd, 1);
    let read = |losses, on_loss: fn(&Preload)| {
        let preload = Preload::default();
        preload.want(Some(7));
        let mut late = Late { inner: etcd.client(), losses, on_loss, preload: preload.clone() };
        let mut failures = 0;
        let has_read = preload.read(&mut late, &keys(), 7, |_| failures += 1);
        (has_read, failures, preload.take().is_some())
    };
    assert_eq!(read(20, |_| {}), (true, 20, true));
    assert_eq!(read(u32::MAX, |preload| preload.want(None)), (false, 1, false));
    assert_eq!(read(u32::MAX, |preload| preload.want(Some(8))), (false, 1, false));
}

/// A connection that is cut after some calls. A call that is not delivered may be the first that is lost, or its answer.
struct Cut {
    inner: Handle,
    calls_left: usize,
    loses_answer: bool,
}

impl Cut {
    fn call<T>(&mut self, call: impl FnOnce(&mut Handle) -> Result<T, CallError>) -> Result<T, CallError> {
        let lost = || CallError::Unanswered("the connection is cut".to_owned());
        match self.calls_left {
            0 => Err(lost()),
            1 if self.loses_answer => {
                self.calls_left = 0;
                call(&mut self.inner).and_then(|_| Err(lost()))
            }
            _ => {
                self.calls_left -= 1;
                call(&mut self.inner)
            }
        }
    }
}

impl Coordinator for Cut {
    fn range(&mut self, range: &Range) -> Result<RangeAnswer, CallError> {
        self.call(|inner| inner.range(range))
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<TransactionAnswer, CallError> {
        self.call(|inner| inner.transact(transaction))
    }
}

/// The leader, or its successor, is cut off from etcd at each step of a handover, while the leader goes on to store over the
/// other connection that it has.
#[test]
fn a_partition_at_any_step_of_a_handover_loses_nothing() {
    let mut prepared = 0;
    for (calls, loses_answer) in (0..24).flat_map(|calls| [(calls, false), (calls, true)]) {
        let etcd = FakeEtcd::default();
        let term = take_over(&etcd, 1);
        let trace = Trace::default();
        let mut old = storage(&etcd, term).traced(trace.clone());
        old.commit(&changes(&vec![(1, true), (2, true)])).unwrap();
        write(&etcd, vec![put(keys().node("a"), &Other::well("a", 1, "0.1.0").node())]);
        let request = ask(&etcd, None);
        let cut = Cut { inner: etcd.client(), calls_left: calls, loses_answer };
        let mut leader = leader(cut, term, &trace);
        let is_over = AtomicBool::new(false);
        let ((), mut read) = Others::run(&etcd, &[Other::well("b", 2, "0.1.0")], || {
            thread::scope(|scope| {
                scope.spawn(|| {
                    for number in 0.. {
                        old.commit(&changes(&vec![(number % 5 + 1, number % 3 > 0)])).unwrap();
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                });
                let outcome = leader.obey(&request);
                prepared += u32::from(outcome.is_ok());
                is_over.store(true, Ordering::Relaxed);
            });
            // It stops for another reason if it could not prepare: also then, nothing may be lost.
            let _ = leader.write_changes();
        });
        let term = take_over(&etcd, 2);
        let mut new = storage(&etcd, term);
        if let Some(preloaded) = read.pop().flatten() {
            new.preload(preloaded).unwrap();
        }
        let (mut found, mut expected) = (loaded(&mut new), loaded(&mut storage(&etcd, term)));
        found.sort_by_key(Record::key);
        expected.sort_by_key(Record::key);
        assert_eq!(found, expected, "cut after {calls} calls");
    }
    assert!(prepared > 0, "no handover was prepared");
}

/// The snapshot of a leader is not affected by a trace.
#[test]
fn a_leader_that_was_traced_can_still_be_read() {
    let etcd = FakeEtcd::default();
    let trace = Trace::default();
    let mut old = storage(&etcd, take_over(&etcd, 1)).traced(trace.clone());
    trace.start();
    old.commit(&[Change::Put(session(1))]).unwrap();
    assert_eq!(trace.take().unwrap().len(), 1);
    let mut records = 0;
    let read = old.snapshot().unwrap().read(&mut |_| {
        records += 1;
        ControlFlow::Continue(())
    });
    read.unwrap();
    assert_eq!(records, 1);
}
