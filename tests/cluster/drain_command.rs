//! The command `signalbox cluster drain` when etcd does not answer: it leaves no request behind, and a repeated one is one.

use std::time::Duration;

use signalbox::cluster::admin::{AdminError, Persistent};
use signalbox::cluster::coordinator::{
    CallError, Coordinator, Operation, Range, RangeAnswer, Revision, Transaction, TransactionAnswer,
};
use signalbox::cluster::drain::drain;
use signalbox::cluster::keys::{Format, LAYOUT};
use signalbox::storage::FORMAT;

use crate::commits::{keys, take_over};
use crate::handover::{Other, Others, put, write};
use crate::support::etcd::{FakeEtcd, Handle};

/// A connection on which answers get lost, from the first transaction on.
struct Deaf {
    etcd: FakeEtcd,
    inner: Handle,
    /// How many answers to transactions get lost; then the connection is whole again.
    losses: usize,
    /// Whether answers to reads get lost as long as well.
    loses_reads: bool,
    has_asked: bool,
    /// The revisions of the request after each transaction.
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

/// Drains a node that gives heartbeats and does not leave. Returns how the command ends, and the revisions of its request.
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
    let (ended, _) = Others::run(&etcd, &[Other::well("a", 1, "0.1.0")], || {
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
        assert_eq!(requests.last(), Some(&None), "the node would leave, and nobody would know");
    }
}

/// A node that leads would begin its handover again for a request of another revision.
#[test]
fn a_request_that_is_repeated_is_written_once() {
    let (ended, requests) = run(1, false);
    assert!(matches!(ended, AdminError::NotInTime { .. }), "{ended}");
    let [Some(first), repeated, .., None] = requests[..] else { panic!("{requests:?}") };
    assert_eq!(repeated, Some(first));
}

/// The node has left before the repetition arrives.
#[test]
fn a_request_that_was_obeyed_before_it_was_repeated_has_succeeded() {
    struct Obeyed(FakeEtcd, Handle, bool);
    impl Coordinator for Obeyed {
        fn range(&mut self, range: &Range) -> Result<RangeAnswer, CallError> {
            self.1.range(range)
        }

        fn transact(&mut self, transaction: &Transaction) -> Result<TransactionAnswer, CallError> {
            let answer = self.1.transact(transaction);
            if std::mem::replace(&mut self.2, true) {
                return answer;
            }
            let gone = [keys().node("a"), keys().drain("a")].map(|key| Operation::Delete { key });
            write(&self.0, gone.into());
            Err(lost())
        }
    }
    let etcd = led_by_a();
    let mut persistent = Persistent::new(Obeyed(etcd.clone(), etcd.client(), false), 1);
    let limit = Duration::from_secs(10);
    let (drained, _) = Others::run(&etcd, &[Other::well("a", 2, "0.1.0")], || {
        drain(&mut persistent, &keys(), "a", None, limit)
    });
    drained.unwrap();
}
