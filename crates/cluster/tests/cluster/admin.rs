//! What the commands of an operator do to the keys of a cluster, and when they refuse: `release`, `forget`, `finalize`, `status`.

use std::collections::VecDeque;
use std::time::Duration;

use serde::de::DeserializeOwned;
use signalbox_cluster::admin::{Finalized, Release, finalize, forget, release, status};
use signalbox_cluster::coordinator::{
    CallError, Coordinator, Operation, Range, RangeAnswer, Transaction, TransactionAnswer,
};
use signalbox_cluster::error::AdminError;
use signalbox_cluster::keys::{Drain, Format, Heartbeat, LAYOUT, Leadership, LeadershipState, Node, decode};
use signalbox_cluster::timing::BootTime;
use signalbox_storage::FORMAT;

use crate::commits::{keys, take_over};
use crate::etcd::{FakeEtcd, Handle};
use crate::handover::{Other, put, write};

/// An operator's connection. Time passes only where the command pauses. Others write at some of these times, and just before one
/// of the transactions.
pub(crate) struct Operator {
    etcd: FakeEtcd,
    inner: Handle,
    now: BootTime,
    /// In the order of the times, since the command began.
    pub(crate) writes: VecDeque<(Duration, Operation)>,
    /// The number of transactions before it, and the writes.
    pub(crate) before_transaction: Option<(usize, Vec<Operation>)>,
    transactions: usize,
}

impl Operator {
    pub(crate) fn of(etcd: &FakeEtcd) -> Self {
        let (inner, now) = (etcd.client(), BootTime::default());
        let (writes, before_transaction, transactions) = Default::default();
        Self { etcd: etcd.clone(), inner, now, writes, before_transaction, transactions }
    }
}

impl Coordinator for Operator {
    fn range(&mut self, range: &Range) -> Result<RangeAnswer, CallError> {
        self.inner.range(range)
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<TransactionAnswer, CallError> {
        if let Some((_, writes)) = self.before_transaction.take_if(|(number, _)| *number == self.transactions)
        {
            write(&self.etcd, writes);
        }
        self.transactions += 1;
        self.inner.transact(transaction)
    }

    fn pause(&mut self, span: Duration) {
        self.now = self.now.after(span);
        while let Some((_, due)) = self.writes.pop_front_if(|(at, _)| *at <= self.now.0) {
            write(&self.etcd, vec![due]);
        }
    }

    fn now(&self) -> BootTime {
        self.now
    }
}

const OF_CLUSTER: Format = Format { layout: LAYOUT, record_format: FORMAT, renew_deadline_ms: 2000 };

/// A cluster that this run leads.
fn led_by(run: u32) -> FakeEtcd {
    let etcd = FakeEtcd::default();
    take_over(&etcd, run);
    write(&etcd, vec![put(keys().format(), &OF_CLUSTER)]);
    etcd
}

fn stored<T: DeserializeOwned>(etcd: &FakeEtcd, key: &[u8]) -> Option<T> {
    etcd.with_store(|store| store.get(key)).map(|entry| decode(key, &entry.value).unwrap())
}

fn leadership(etcd: &FakeEtcd) -> Leadership {
    stored(etcd, &keys().leadership()).unwrap()
}

/// Node "a" has joined, in its first run, which a service manager has started as "x".
fn joined(etcd: &FakeEtcd) -> Other {
    let a = Other::well("a", 1, "0.1.0");
    let node = Node { invocation: "x".to_owned(), ..a.node() };
    write(etcd, vec![put(keys().node("a"), &node), a.beat(0)]);
    a
}

fn is_member(etcd: &FakeEtcd) -> bool {
    let keys = [keys().node("a"), keys().heartbeat("a")];
    let [node, heartbeat] = keys.map(|key| etcd.with_store(|store| store.get(&key)).is_some());
    assert_eq!(node, heartbeat, "both are there, or none");
    node
}

#[test]
fn a_release_is_of_the_run_that_has_ended_and_of_what_it_leads() {
    let etcd = led_by(1);
    let a = joined(&etcd);
    let another = release(&mut Operator::of(&etcd), &keys(), "a", Some("y")).unwrap();
    assert_eq!((another, is_member(&etcd)), (Release::Nothing, true), "a later run has joined");
    let mut operator = Operator::of(&etcd);
    operator.writes.push_back((Duration::from_millis(100), a.beat(1)));
    let alive = release(&mut operator, &keys(), "a", None);
    assert!(matches!(alive, Err(AdminError::Alive(_))), "{alive:?}");
    assert_eq!((leadership(&etcd).state, is_member(&etcd)), (LeadershipState::Held, true));

    let held = leadership(&etcd);
    let released = release(&mut Operator::of(&etcd), &keys(), "a", Some("x")).unwrap();
    assert_eq!((released, is_member(&etcd)), (Release::Released, false));
    assert_eq!(leadership(&etcd), Leadership { state: LeadershipState::Released, ..held });

    let etcd = led_by(2);
    joined(&etcd);
    let held = leadership(&etcd);
    let left = release(&mut Operator::of(&etcd), &keys(), "a", Some("x")).unwrap();
    assert_eq!((left, is_member(&etcd)), (Release::Left, false));
    assert_eq!(leadership(&etcd), held, "another node leads");
}

#[test]
fn a_release_does_not_undo_a_takeover() {
    let etcd = led_by(1);
    joined(&etcd);
    let next = Leadership { epoch: 2, node: "b".to_owned(), ..leadership(&led_by(2)) };
    let mut operator = Operator::of(&etcd);
    operator.before_transaction = Some((0, vec![put(keys().leadership(), &next)]));
    let released = release(&mut operator, &keys(), "a", Some("x"));
    assert!(matches!(released, Err(AdminError::Changed)), "{released:?}");
    assert_eq!(leadership(&etcd), next);
}

#[test]
fn a_node_is_forgotten_unless_it_leads_or_sends_heartbeats() {
    let of_a = |state| Leadership { node: "a".to_owned(), state, ..leadership(&led_by(1)) };
    let etcd = led_by(1);
    let a = joined(&etcd);
    write(&etcd, vec![put(keys().leadership(), &of_a(LeadershipState::Held))]);
    let leads = forget(&mut Operator::of(&etcd), &keys(), "a");
    assert!(matches!(leads, Err(AdminError::Leads(_))), "{leads:?}");

    write(&etcd, vec![put(keys().leadership(), &of_a(LeadershipState::Released))]);
    let mut operator = Operator::of(&etcd);
    operator.before_transaction = Some((0, vec![a.beat(1)]));
    let returned = forget(&mut operator, &keys(), "a");
    assert!(matches!(returned, Err(AdminError::Changed)), "{returned:?}");
    assert!(is_member(&etcd));

    let drain = Drain { incarnation: a.node().incarnation, to: None, refused: None };
    write(&etcd, vec![put(keys().drain("a"), &drain)]);
    forget(&mut Operator::of(&etcd), &keys(), "a").unwrap();
    assert!(!is_member(&etcd));
    assert_eq!(stored::<Drain>(&etcd, &keys().drain("a")), None, "its next run is not asked to leave");
}

/// A relay may forward for the lease duration after its last heartbeat.
#[test]
fn a_node_that_relays_is_silent_for_the_lease_duration_before_it_is_forgotten() {
    for (relays, is_forgotten) in [(true, false), (false, true)] {
        let etcd = led_by(2);
        let a = joined(&etcd);
        write(&etcd, vec![put(keys().node("a"), &Node { relays, ..a.node() })]);
        let mut operator = Operator::of(&etcd);
        // The lease duration is 2.3 s. A node that does not relay is watched for two periods of heartbeats, of 333 ms.
        operator.writes.push_back((Duration::from_millis(2200), a.beat(1)));
        let forgotten = forget(&mut operator, &keys(), "a");
        assert_eq!(forgotten.is_ok(), is_forgotten, "{forgotten:?}");
        assert_eq!(is_member(&etcd), !is_forgotten);
    }
}

#[test]
fn the_format_is_not_raised_blindly() {
    let with = |format: Option<Format>, node: Option<Node>| {
        let etcd = FakeEtcd::default();
        let format = format.map(|format| put(keys().format(), &format));
        let node = node.map(|node| put(keys().node("a"), &node));
        write(&etcd, format.into_iter().chain(node).collect());
        (finalize(&mut Operator::of(&etcd), &keys(), FORMAT + 1), stored::<Format>(&etcd, &keys().format()))
    };
    let reads = |record_format| Some(Node { record_format, ..Other::well("a", 1, "0.1.0").node() });
    let stores = |record_format| Format { record_format, ..OF_CLUSTER };
    let new = stores(FORMAT + 1);
    let refused = |format, node| {
        let (outcome, after) = with(format, node);
        assert_eq!(after, format);
        outcome.unwrap_err()
    };
    assert!(matches!(refused(None, reads(FORMAT + 1)), AdminError::NoCluster(_)));
    assert!(matches!(refused(Some(OF_CLUSTER), None), AdminError::NoNodes));
    assert!(matches!(refused(Some(OF_CLUSTER), reads(FORMAT)), AdminError::Unready { .. }));
    let newest = stores(FORMAT + 2);
    assert!(matches!(refused(Some(newest), reads(FORMAT + 2)), AdminError::Newer { .. }));
    let unfinished = Format { layout: 0, ..OF_CLUSTER };
    assert!(matches!(refused(Some(unfinished), reads(FORMAT + 1)), AdminError::Layout(0)));
    let (done, after) = with(Some(new), None);
    assert_eq!((done.unwrap(), after), (Finalized { from: FORMAT + 1, to: FORMAT + 1 }, Some(new)));
    let (raised, after) = with(Some(OF_CLUSTER), reads(FORMAT + 1));
    assert_eq!((raised.unwrap(), after), (Finalized { from: FORMAT, to: FORMAT + 1 }, Some(new)));
}

#[test]
fn the_relays_of_a_node_are_those_that_its_present_run_has_reported() {
    let etcd = led_by(1);
    let beat = |of: &Other| Heartbeat {
        incarnation: of.node().incarnation,
        count: 1,
        relays_closed_below: 0,
        relays: 3,
    };
    for (name, relays, run_of_heartbeat) in
        [("relays", true, 1), ("does-not", false, 1), ("restarted", true, 2)]
    {
        let node = Node { relays, ..Other::well("a", 1, "0.1.0").node() };
        let beat = beat(&Other::well("a", run_of_heartbeat, "0.1.0"));
        write(&etcd, vec![put(keys().node(name), &node), put(keys().heartbeat(name), &beat)]);
    }
    let found = status(&mut Operator::of(&etcd), &keys()).unwrap();
    let relays = ["relays", "does-not", "restarted"].map(|name| found.nodes[name].relays);
    assert_eq!(relays, [Some(3), None, None]);
}
