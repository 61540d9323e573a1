//! Commits to an etcd that loses answers and gets requests late: what was reported as stored
//! is stored once and stays, what was refused is committed again until it is stored, and a former leader stores nothing.

use std::ops::ControlFlow;

use std::collections::BTreeMap;

use proptest::prelude::*;
use signalbox_cluster::coordinator::{CallError, Compare, Coordinator, Operation, Range, Transaction};
use signalbox_cluster::keys::{
    Incarnation, Keys, Leadership, LeadershipState, Marker, encode, end_of_prefix,
};
use signalbox_cluster::leadership::Term;
use signalbox_cluster::store::ClusterStorage;
use signalbox_cluster::timing::{BootTime, Fence};
use signalbox_core::{Change, DeclarationRecord, Key, Origin, Record, Service, SessionRecord};
use signalbox_storage::{CommitError, FORMAT, Storage};

use crate::etcd::{Delivery, FakeEtcd};
use signalbox_model::{SessionId, SessionKey};

/// Random histories in a run of the tests; `SIGNALBOX_HISTORIES` sets another number.
const HISTORIES: u32 = 2_000;

pub fn keys() -> Keys {
    Keys::new("test")
}

/// Takes over as a node does. Returns the new term.
pub fn take_over(etcd: &FakeEtcd, epoch: u32) -> Term {
    let leadership = Leadership {
        epoch,
        node: format!("node-{epoch}"),
        incarnation: Incarnation(format!("{epoch:032}")),
        state: LeadershipState::Held,
        successor: None,
    };
    let then = vec![
        Operation::Put { key: keys().leadership(), value: encode(&leadership) },
        Operation::Put { key: keys().marker(), value: encode(&Marker { epoch, commit: 0 }) },
    ];
    let transaction = Transaction { then, ..Transaction::default() };
    let revision = etcd.with_store(|store| store.apply(&transaction)).unwrap().revision;
    Term { epoch, leadership_modified: revision, record_format: FORMAT }
}

/// The records in the store, by the rest of their keys.
fn stored(etcd: &FakeEtcd) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let prefix = keys().records();
    let range = Range { to: Some(end_of_prefix(&prefix)), from: prefix, at: None, count_only: false };
    let entries = etcd.with_store(|store| store.range(&range)).unwrap().entries;
    entries.into_iter().map(|entry| (entry.key, entry.value)).collect()
}

#[derive(Clone, Debug)]
enum Event {
    /// A commit, with the outcomes of its first attempts; later attempts are answered.
    Commit { writes: Vec<(u8, Option<u8>)>, attempts: Vec<Attempt> },
    /// A delayed request arrives.
    Arrival(prop::sample::Index),
    /// Another node takes over.
    TakeOver,
}

#[derive(Clone, Copy, Debug)]
enum Attempt {
    Delivered(Delivery),
    /// etcd refuses the attempt, whatever the outcome of those before it.
    Refused,
}

fn event() -> impl Strategy<Value = Event> {
    let attempt = prop_oneof![
        2 => Just(Attempt::Delivered(Delivery::NotDelivered)),
        2 => Just(Attempt::Delivered(Delivery::AnswerLost)),
        3 => Just(Attempt::Delivered(Delivery::Late)),
        1 => Just(Attempt::Delivered(Delivery::Answered)),
        2 => Just(Attempt::Refused),
    ];
    let commit =
        (prop::collection::vec((0..4_u8, any::<Option<u8>>()), 1..4), prop::collection::vec(attempt, 0..4));
    prop_oneof![
        6 => commit.prop_map(|(writes, attempts)| Event::Commit { writes, attempts }),
        3 => any::<prop::sample::Index>().prop_map(Event::Arrival),
        1 => Just(Event::TakeOver),
    ]
}

fn key(of: u8) -> Vec<u8> {
    [keys().records(), vec![3, of, of]].concat()
}

/// The last write of each key.
fn operations(writes: &[(u8, Option<u8>)]) -> Vec<Operation> {
    let last: BTreeMap<_, _> = writes.iter().copied().collect();
    let operation = |(of, value): (u8, Option<u8>)| match value {
        Some(value) => Operation::Put { key: key(of), value: vec![value] },
        None => Operation::Delete { key: key(of) },
    };
    last.into_iter().map(operation).collect()
}

fn apply(model: &mut BTreeMap<Vec<u8>, Vec<u8>>, operations: &[Operation]) {
    for operation in operations {
        match operation {
            Operation::Put { key, value } => model.insert(key.clone(), value.clone()),
            Operation::Delete { key } => model.remove(key),
            Operation::Read { .. } => None,
        };
    }
}

/// Checks that the store has what was reported as stored, and nothing else except, possibly, the last refused writes.
fn check(
    model: &BTreeMap<Vec<u8>, Vec<u8>>,
    refused: Option<&[(u8, Option<u8>)]>,
    etcd: &FakeEtcd,
) -> Result<(), TestCaseError> {
    let mut with_refused = model.clone();
    apply(&mut with_refused, &operations(refused.unwrap_or_default()));
    let found = stored(etcd);
    prop_assert!(found == *model || found == with_refused, "{found:?} is stored, but {model:?} was reported");
    Ok(())
}

/// Returns whether a transaction compares what it must before it writes records of the term (invariant C1).
fn is_compared(transaction: &Transaction, term: &Term) -> bool {
    let compares = |key: &[u8]| {
        transaction.compare.iter().any(|compare| match compare {
            Compare::Modified { key: of, at } => of == key && *at == term.leadership_modified,
            Compare::Value { key: of, .. } => of == key,
            Compare::NotAfter { .. } => false,
        })
    };
    compares(&keys().leadership()) && compares(&keys().marker())
}

/// A fence whose deadline never passes.
fn open_fence() -> Fence {
    let fence = Fence::new(BootTime::default);
    fence.set(BootTime(std::time::Duration::from_secs(1)));
    fence
}

/// Performs the attempts of a commit until its outcome is known.
fn commit(
    etcd: &FakeEtcd,
    client: &mut dyn Coordinator,
    storage: &mut ClusterStorage<()>,
    (writes, attempts): (&[(u8, Option<u8>)], &[Attempt]),
) -> Result<(), CommitError> {
    let commit = storage.begin_writes(operations(writes));
    let mut attempts = attempts.iter();
    for _ in 0..20 {
        let answer = match attempts.next() {
            Some(Attempt::Refused) => Err(CallError::Refused("it is too large".to_owned())),
            Some(Attempt::Delivered(delivery)) => {
                etcd.decide(0, *delivery);
                client.transact(commit.transaction())
            }
            None => client.transact(commit.transaction()),
        };
        if let Some(outcome) = storage.answered(&commit, answer) {
            return outcome;
        }
    }
    panic!("a commit whose attempts are answered has an outcome")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("SIGNALBOX_HISTORIES").map_or(HISTORIES, |number| number.parse().unwrap())
    ))]

    #[test]
    fn the_store_has_what_was_reported_as_stored(events in prop::collection::vec(event(), 1..20)) {
        let etcd = FakeEtcd::default();
        let mut client = etcd.client();
        let term = take_over(&etcd, 1);
        let mut storage = ClusterStorage::new((), keys(), term, open_fence());
        let mut model = BTreeMap::new();
        // Writes that etcd refused, and may have applied nevertheless.
        let mut refused: Option<&[_]> = None;
        let mut leads = true;
        let mut epoch = 1;
        for event in &events {
            match event {
                Event::Arrival(late) if etcd.late() > 0 => {
                    etcd.perform_late(late.index(etcd.late())).unwrap();
                }
                Event::Arrival(_) => {}
                Event::TakeOver => {
                    epoch += 1;
                    take_over(&etcd, epoch);
                    leads = false;
                }
                Event::Commit { writes, attempts } => {
                    let before = stored(&etcd);
                    let writes = refused.take().unwrap_or(writes);
                    match commit(&etcd, &mut client, &mut storage, (writes, attempts)) {
                        Ok(()) => {
                            prop_assert!(leads, "a former leader stores nothing");
                            apply(&mut model, &operations(writes));
                        }
                        Err(CommitError::NotStored(_)) => refused = Some(writes),
                        Err(lost) => {
                            prop_assert!(!leads, "{lost}");
                            prop_assert_eq!(&before, &stored(&etcd));
                            refused = Some(writes);
                            break;
                        }
                    }
                }
            }
            check(&model, refused, &etcd)?;
        }
        while etcd.late() > 0 {
            etcd.perform_late(0).unwrap();
            check(&model, refused, &etcd)?;
        }
        let sent = etcd.take_performed();
        prop_assert!(sent.iter().all(|performed| is_compared(performed, &term)));
    }
}

pub fn session(number: u64) -> Record {
    let session = SessionId::from_number(number).unwrap();
    let (key, label) = (SessionKey([7; 16]), Box::default());
    Record::Session(SessionRecord { session, key, ttl_ms: 1000, label, revoked_grace_ms: None })
}

pub fn declaration(name: &[u8]) -> Record {
    Record::Declaration(DeclarationRecord {
        name: name.into(),
        capacity: 1,
        label: Box::default(),
        numbered: false,
        generation: 1,
        created: 1,
        origin: Origin::Request,
        removing: false,
        evicted_grace_ms: None,
        service: Service::default(),
    })
}

pub fn storage(etcd: &FakeEtcd, term: Term) -> ClusterStorage<crate::etcd::Handle> {
    ClusterStorage::new(etcd.client(), keys(), term, open_fence())
}

pub fn loaded(storage: &mut dyn Storage) -> Vec<Record> {
    let mut records = Vec::new();
    storage.load(&mut |record| records.push(record)).unwrap();
    records
}

#[test]
fn records_of_unknown_kinds_are_not_left_out() {
    let etcd = FakeEtcd::default();
    let key = [&keys().records()[..], &[0xee, 0, 1]].concat();
    let then = vec![Operation::Put { key, value: vec![1] }];
    etcd.with_store(|store| store.apply(&Transaction { then, ..Transaction::default() })).unwrap();
    let loaded = storage(&etcd, take_over(&etcd, 1)).load(&mut |_| {});
    assert!(loaded.unwrap_err().to_string().contains("there are 1 records"));
}

#[test]
fn many_records_are_loaded_as_they_were_at_the_takeover_kind_by_kind() {
    let etcd = FakeEtcd::default();
    let mut first = storage(&etcd, take_over(&etcd, 1));
    let sessions: Vec<_> = (1..=10_000).map(session).collect();
    for part in sessions.chunks(1_000) {
        let changes: Vec<_> = part.iter().cloned().map(Change::Put).collect();
        first.commit(&changes).unwrap();
    }
    let declared = declaration(b"gpu");
    first.commit(&[Change::Put(Record::Mark(9)), Change::Put(declared.clone())]).unwrap();
    let term = take_over(&etcd, 2);
    let mut second = storage(&etcd, term);
    second.commit(&[Change::Put(session(20_000))]).unwrap();
    let records = loaded(&mut second);
    assert_eq!(records[..2], [Record::Mark(9), declared]);
    let mut found = records[2..].to_vec();
    found.sort_by_key(|record| match record {
        Record::Session(session) => session.session.number(),
        other => panic!("{other:?}"),
    });
    assert_eq!(found, sessions, "without the one that came after the takeover");
    assert_eq!((second.epoch(), second.batch_limit().changes), (2, 4_000));
}

#[test]
fn a_snapshot_is_of_one_moment_while_the_leader_commits() {
    let etcd = FakeEtcd::default();
    let mut leader = storage(&etcd, take_over(&etcd, 1));
    // So many that they are read in four parts: the last one after the reader of the first has ended.
    let sessions: Vec<_> = (1..=12_001).map(session).collect();
    for part in sessions.chunks(1_000) {
        let changes: Vec<_> = part.iter().cloned().map(Change::Put).collect();
        leader.commit(&changes).unwrap();
    }
    let mut found = Vec::new();
    let read = leader.snapshot().unwrap().read(&mut |record| {
        if found.is_empty() {
            let deleted = Change::Delete(Key::Session(SessionId::from_number(5_000).unwrap()));
            leader.commit(&[Change::Put(session(20_000)), deleted]).unwrap();
        }
        found.push(record);
        ControlFlow::Continue(())
    });
    read.unwrap();
    found.sort_by_key(Record::key);
    assert_eq!(found, sessions);
    let mut records = 0;
    let stopped = leader.snapshot().unwrap().read(&mut |_| {
        records += 1;
        ControlFlow::Break(())
    });
    stopped.unwrap();
    assert_eq!(records, 1);
}

#[test]
fn the_last_change_of_a_key_counts_and_a_former_leader_learns_that_it_is_one() {
    let etcd = FakeEtcd::default();
    let mut first = storage(&etcd, take_over(&etcd, 1));
    let key = Key::Session(SessionId::from_number(1).unwrap());
    let changes = [
        Change::Put(session(1)),
        Change::Delete(key.clone()),
        Change::Put(session(2)),
        Change::Put(session(1)),
        Change::Delete(key),
    ];
    first.commit(&changes).unwrap();
    let term = take_over(&etcd, 2);
    assert_eq!(loaded(&mut storage(&etcd, term)), [session(2)]);
    let lost = first.commit(&[Change::Put(session(3))]).unwrap_err();
    assert!(matches!(lost, CommitError::LeadershipLost { epoch: 1, .. }), "{lost}");
    assert!(lost.is_ownership_lost() && lost.to_string().contains("node-2"), "{lost}");
    assert_eq!(loaded(&mut storage(&etcd, term)), [session(2)]);
}

#[test]
fn changes_that_are_too_large_are_refused() {
    let etcd = FakeEtcd::default();
    let mut storage = storage(&etcd, take_over(&etcd, 1));
    let large: Vec<_> =
        (0..30).map(|n| Change::Put(declaration(&[&[n][..], &[b'x'; 60_000]].concat()))).collect();
    let refused = storage.commit(&large).unwrap_err();
    assert!(matches!(refused, CommitError::NotStored(_)), "{refused}");
    assert!(!refused.is_ownership_lost());
    assert_eq!(stored(&etcd).len(), 0);
}

#[test]
fn a_commit_without_an_answer_ends_at_the_deadline() {
    let etcd = FakeEtcd::default();
    let term = take_over(&etcd, 1);
    let fence = Fence::new(BootTime::default);
    let client = etcd.client();
    etcd.set_leader(false);
    let mut storage = ClusterStorage::new(client, keys(), term, fence);
    let lost = storage.commit(&[Change::Put(session(1))]).unwrap_err();
    assert!(lost.is_ownership_lost(), "{lost}");
}

/// `FORMAT + 1` stands for a future format. Each record states its format, and a program refuses an unknown one.
#[test]
fn records_are_written_in_the_format_of_the_term_and_an_unknown_format_is_refused() {
    let etcd = FakeEtcd::default();
    let term = Term { record_format: FORMAT + 1, ..take_over(&etcd, 1) };
    storage(&etcd, term).commit(&[Change::Put(Record::Mark(7))]).unwrap();
    assert!(stored(&etcd).values().all(|value| u32::from(value[0]) == FORMAT + 1));
    let refused = storage(&etcd, take_over(&etcd, 2)).load(&mut |_| {}).unwrap_err().to_string();
    assert!(refused.contains(&format!("format {}", FORMAT + 1)) && refused.contains("update"), "{refused}");
}
