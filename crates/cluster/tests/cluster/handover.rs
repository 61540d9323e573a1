//! The handover of a leadership: a leader hands over to a node that can lead, or says why it does not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use signalbox_cluster::coordinator::{Operation, Persistent, Transaction};
use signalbox_cluster::drain::{DrainedLeader, NextLeader};
use signalbox_cluster::error::AdminError;
use signalbox_cluster::keys::{Drain, Heartbeat, Incarnation, Node, decode, encode};
use signalbox_cluster::leadership::DrainRequest;
use signalbox_cluster::leadership::Term;
use signalbox_cluster::timing::Timing;

use crate::commits::{keys, take_over};
use crate::etcd::{FakeEtcd, Handle};

fn incarnation(run: u32) -> Incarnation {
    Incarnation(format!("{run:032}"))
}

/// The leader of a term, as `take_over` names it.
fn leader(etcd: &FakeEtcd, term: Term) -> DrainedLeader<Handle> {
    DrainedLeader {
        coordinator: Persistent::new(etcd.client(), 1),
        keys: keys(),
        name: "a".to_owned(),
        term,
        incarnation: incarnation(term.epoch),
        timing: Timing::new(Duration::from_secs(2)).unwrap(),
    }
}

/// Writes keys as another client. Returns the revision.
pub(crate) fn write(etcd: &FakeEtcd, then: Vec<Operation>) -> u64 {
    etcd.with_store(|store| store.apply(&Transaction { then, ..Transaction::default() })).unwrap().revision
}

pub(crate) fn put<T: serde::Serialize>(key: Vec<u8>, value: &T) -> Operation {
    Operation::Put { key, value: encode(value) }
}

/// An operator asks node "a", which leads, to hand over.
fn ask(etcd: &FakeEtcd, to: Option<&str>) -> DrainRequest {
    let drain = Drain { incarnation: incarnation(1), to: to.map(str::to_owned), refused: None };
    let written = write(etcd, vec![put(keys().drain("a"), &drain)]);
    DrainRequest { drain, written }
}

/// A node in a test.
pub(crate) struct Other {
    name: &'static str,
    run: u32,
    version: &'static str,
    is_eligible: bool,
    is_silent: bool,
}

impl Other {
    pub(crate) fn well(name: &'static str, run: u32, version: &'static str) -> Self {
        Self { name, run, version, is_eligible: true, is_silent: false }
    }

    pub(crate) fn beat(&self, count: u64) -> Operation {
        let incarnation = incarnation(self.run);
        put(keys().heartbeat(self.name), &Heartbeat { incarnation, count, relays_closed_below: 0, relays: 0 })
    }

    pub(crate) fn node(&self) -> Node {
        Node {
            incarnation: incarnation(self.run),
            version: self.version.to_owned(),
            record_format: 1,
            is_eligible: self.is_eligible,
            drains: true,
            ..Node::default()
        }
    }
}

/// Nodes that send heartbeats, each from a thread.
pub(crate) struct Others;

impl Others {
    /// Runs `test` while these nodes send heartbeats.
    pub(crate) fn run<T>(etcd: &FakeEtcd, others: &[Other], test: impl FnOnce() -> T) -> T {
        let is_over = AtomicBool::new(false);
        for other in others {
            write(etcd, vec![put(keys().node(other.name), &other.node()), other.beat(0)]);
        }
        thread::scope(|scope| {
            for other in others.iter().filter(|other| !other.is_silent) {
                scope.spawn(|| {
                    for count in 1.. {
                        if is_over.load(Ordering::Relaxed) {
                            return;
                        }
                        write(etcd, vec![other.beat(count)]);
                        thread::sleep(Duration::from_millis(5));
                    }
                });
            }
            let _over = SetOnDrop(&is_over);
            test()
        })
    }
}

/// Ends the threads of the nodes, also when a test fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The successor that a leader chooses for an operator's request.
fn choose(others: &[Other], to: Option<&str>) -> Result<NextLeader, AdminError> {
    let etcd = FakeEtcd::default();
    let term = take_over(&etcd, 1);
    write(&etcd, vec![put(keys().node("a"), &Other::well("a", 1, "0.1.0").node())]);
    let request = ask(&etcd, to);
    Others::run(&etcd, others, || leader(&etcd, term).choose_successor(&request))
}

#[test]
fn the_successor_is_the_node_that_was_named_or_one_of_the_newest_version() {
    let others =
        || [Other::well("b", 2, "0.9.0"), Other::well("c", 3, "0.10.0"), Other::well("d", 4, "0.2.0")];
    assert_eq!(choose(&others(), None).unwrap().successor.node, "c");
    assert_eq!(choose(&others(), Some("d")).unwrap().successor.node, "d");
    let relay = Other { is_eligible: false, ..Other::well("c", 3, "0.10.0") };
    let silent = Other { is_silent: true, ..Other::well("b", 2, "0.9.0") };
    assert_eq!(choose(&[relay, silent, Other::well("d", 4, "0.2.0")], None).unwrap().successor.node, "d");
}

#[test]
fn a_leader_says_why_it_does_not_hand_over() {
    let refused = |others: &[Other], to| choose(others, to).unwrap_err().to_string();
    let well = || Other::well("b", 2, "0.1.0");
    let nodes = "the cluster has no node \"x\"; it has \"a\", \"b\"";
    assert_eq!(refused(&[well()], Some("x")), nodes);
    assert_eq!(refused(&[well()], Some("a")), "node \"a\" is the leader; name another node");
    let relay = || Other { is_eligible: false, ..well() };
    assert!(refused(&[relay()], Some("b")).contains("node \"b\" may not lead"));
    let silent = || Other { is_silent: true, ..well() };
    assert!(refused(&[silent()], Some("b")).contains("node \"b\" sends no heartbeats"));
    let second_relay = Other { is_eligible: false, ..Other::well("c", 3, "0.1.0") };
    for others in [&[][..], &[second_relay, silent()]] {
        assert!(refused(others, None).contains("no other node that may lead"));
    }
}

#[test]
fn the_heartbeats_of_a_former_run_do_not_count() {
    let etcd = FakeEtcd::default();
    let mut leader = leader(&etcd, take_over(&etcd, 1));
    let request = ask(&etcd, None);
    let refused = Others::run(&etcd, &[Other::well("b", 2, "0.1.0")], || {
        write(&etcd, vec![put(keys().node("b"), &Other::well("b", 3, "0.1.0").node())]);
        leader.choose_successor(&request).unwrap_err()
    });
    assert!(matches!(refused, AdminError::NoOther), "{refused}");
}

/// The request to drain node "a" as it is in etcd.
fn told(etcd: &FakeEtcd) -> Option<Drain> {
    let entry = etcd.with_store(|store| store.get(&keys().drain("a")))?;
    Some(decode(&entry.key, &entry.value).unwrap())
}

#[test]
fn an_operator_is_told_why_unless_the_request_was_withdrawn() {
    let etcd = FakeEtcd::default();
    let mut leader = leader(&etcd, take_over(&etcd, 1));
    let request = ask(&etcd, None);
    let refusal = leader.choose_successor(&request).unwrap_err();
    leader.refuse(&request, &refusal).unwrap();
    let expected = Drain { refused: Some(refusal.to_string()), ..request.drain.clone() };
    assert_eq!(told(&etcd), Some(expected));

    let request = ask(&etcd, None);
    write(&etcd, vec![Operation::Delete { key: keys().drain("a") }]);
    let chosen = Others::run(&etcd, &[Other::well("b", 2, "0.1.0")], || leader.choose_successor(&request));
    let refusal = chosen.unwrap_err();
    assert_eq!(refusal.to_string(), "the request was withdrawn");
    leader.refuse(&request, &refusal).unwrap();
    assert_eq!(told(&etcd), None, "no operator waits for the answer");
}

/// The node that leads now answers it, or will.
#[test]
fn a_former_leader_does_not_answer_an_operator() {
    let etcd = FakeEtcd::default();
    let mut leader = leader(&etcd, take_over(&etcd, 1));
    let request = ask(&etcd, None);
    take_over(&etcd, 2);
    leader.refuse(&request, &AdminError::NoOther).unwrap();
    assert_eq!(told(&etcd), Some(request.drain));
}

#[test]
fn a_successor_that_has_left_is_not_waited_for() {
    let etcd = FakeEtcd::default();
    let mut leader = leader(&etcd, take_over(&etcd, 1));
    let request = ask(&etcd, None);
    let next =
        Others::run(&etcd, &[Other::well("b", 2, "0.1.0")], || leader.choose_successor(&request)).unwrap();
    assert_eq!(leader.confirm_successor(next.successor.clone()), Some(next.successor.clone()));
    etcd.set_leader(false);
    assert_eq!(
        leader.confirm_successor(next.successor.clone()),
        Some(next.successor.clone()),
        "it may still be there"
    );
    etcd.set_leader(true);
    write(&etcd, vec![put(keys().node("b"), &Other::well("b", 3, "0.1.0").node())]);
    assert_eq!(leader.confirm_successor(next.successor.clone()), None, "it is another run");
    write(&etcd, vec![Operation::Delete { key: keys().node("b") }]);
    assert_eq!(leader.confirm_successor(next.successor), None);
}
