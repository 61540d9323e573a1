//! The store in memory: what becomes of calls on its network. `differential` compares its answers with etcd's.

use signalbox::cluster::coordinator::{CallError, Coordinator, Range, Transaction, TransactionAnswer};

use crate::support::calls::{always, delete, entry, modified, one, put, read, refused};
use crate::support::etcd::{Delivery, FakeEtcd, Handle};

/// A step of a chain: holds only directly after what was written at `mark`.
fn step(mark: u64, value: &[u8]) -> Transaction {
    Transaction {
        compare: vec![modified("m", mark)],
        then: vec![put("m", value)],
        otherwise: vec![read("m")],
    }
}

#[track_caller]
fn unanswered(answer: Result<TransactionAnswer, CallError>) {
    assert!(matches!(answer, Err(CallError::Unanswered(_))), "{answer:?}");
}

fn value_of_m(client: &mut Handle) -> Option<Vec<u8>> {
    client.range(&one("m")).unwrap().entries.pop().map(|entry| entry.value)
}

#[test]
fn a_call_is_lost_or_its_answer_is() {
    let etcd = FakeEtcd::default();
    let mut client = etcd.client();
    etcd.decide(client.number(), Delivery::NotDelivered);
    unanswered(client.transact(&step(0, b"1")));
    assert_eq!(value_of_m(&mut client), None);
    etcd.decide(client.number(), Delivery::AnswerLost);
    unanswered(client.transact(&step(0, b"1")));
    let again = client.transact(&step(0, b"1")).unwrap();
    assert_eq!(again.read, [Some(entry("m", b"1", again.revision))], "the repetition finds the first");
    for delivery in [Delivery::NotDelivered, Delivery::AnswerLost, Delivery::Late] {
        etcd.decide(client.number(), delivery);
        assert!(matches!(client.range(&one("m")), Err(CallError::Unanswered(_))));
    }
    assert_eq!(etcd.take_performed().len(), 2);
}

#[test]
fn a_late_transaction_is_performed_when_the_test_says_so() {
    let etcd = FakeEtcd::default();
    let [mut first, mut second] = [etcd.client(), etcd.client()];
    for value in [b"1", b"2"] {
        etcd.decide(first.number(), Delivery::Late);
        unanswered(first.transact(&step(0, value)));
    }
    assert_eq!(etcd.late(), 2);
    assert_eq!(value_of_m(&mut second), None);
    assert!(etcd.perform_late(1).unwrap().held, "the second overtakes the first");
    assert!(!etcd.perform_late(0).unwrap().held);
    assert_eq!(value_of_m(&mut second).unwrap(), b"2");
    etcd.decide(first.number(), Delivery::Late);
    unanswered(first.transact(&always(vec![delete("m")])));
    etcd.lose_late(0);
    assert_eq!(etcd.late(), 0);
    assert_eq!(value_of_m(&mut second).unwrap(), b"2");
}

#[test]
fn one_client_is_cut_off_and_the_others_are_not() {
    let etcd = FakeEtcd::default();
    let [mut first, mut second] = [etcd.client(), etcd.client()];
    etcd.cut_off(first.number(), true);
    unanswered(first.transact(&step(0, b"1")));
    assert!(second.transact(&step(0, b"2")).unwrap().held);
    etcd.cut_off(first.number(), false);
    assert!(!first.transact(&step(0, b"1")).unwrap().held);
}

#[test]
fn without_a_leader_nothing_is_performed_and_while_frozen_it_is_performed_later() {
    let etcd = FakeEtcd::default();
    let mut client = etcd.client();
    etcd.set_leader(false);
    unanswered(client.transact(&step(0, b"1")));
    etcd.set_leader(true);
    assert_eq!(value_of_m(&mut client), None);
    etcd.freeze();
    unanswered(client.transact(&step(0, b"1")));
    unanswered(client.transact(&step(0, b"2")));
    assert!(client.range(&one("m")).is_err());
    etcd.thaw();
    assert_eq!(value_of_m(&mut client).unwrap(), b"1");
    assert_eq!(etcd.late(), 0);
}

#[test]
fn without_space_only_reads_and_deletions_are_performed() {
    let etcd = FakeEtcd::default();
    let mut client = etcd.client();
    client.transact(&step(0, b"1")).unwrap();
    etcd.set_full(true);
    let write = always(vec![put("m", b"2")]);
    unanswered(client.transact(&write));
    refused(client.transact(&write), "space exceeded");
    // Also if the branch that writes is not the one that would be performed.
    refused(client.transact(&step(0, b"2")), "space exceeded");
    client.transact(&always(vec![delete("m")])).unwrap();
    etcd.set_full(false);
    client.transact(&write).unwrap();
    etcd.set_full(true);
    unanswered(client.transact(&write));
}

#[test]
fn a_restored_backup_forgets_what_came_after_it() {
    let etcd = FakeEtcd::default();
    let mut client = etcd.client();
    client.transact(&step(0, b"1")).unwrap();
    let backup = etcd.back_up();
    let newer = client.transact(&always(vec![put("m", b"2")])).unwrap().revision;
    etcd.restore(backup);
    assert_eq!(value_of_m(&mut client).unwrap(), b"1");
    refused(client.range(&Range { at: Some(newer), ..one("m") }), "future revision");
    assert_eq!(etcd.with_store(|store| store.revision()), newer - 1);
}
