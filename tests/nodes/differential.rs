//! The store in memory against a real etcd: both get the same random transactions and reads, and every answer is
//! compared. So both have the same semantics, and tests with the store in memory are meaningful.
//!
//! `PROPTEST_CASES=3000 cargo test --test nodes differential` searches for longer.

use std::sync::Mutex;

use proptest::prelude::*;
use proptest::test_runner::Config;
use signalbox_cluster::coordinator::{
    CallError, Compare, Coordinator, Entry, Operation, Range, Revision, Transaction,
};
use signalbox_cluster::etcd::EtcdClient;

use crate::support::etcd::{FakeStore, RealEtcd};

/// A key, as the part after the prefix of the history; `None` is the empty key.
type Key = Option<&'static [u8]>;
/// A byte and how often a value repeats it, which is easier to read than the value.
type Value = (u8, usize);

const KEYS: [&[u8]; 6] = [b"", b"\0", b"a", b"a\0", b"b", b"\xff"];
/// Later than all of them.
const END: &[u8] = b"\xff\xff";

/// A revision that depends on the history.
#[derive(Clone, Copy, Debug)]
enum At {
    Zero,
    /// This number of revisions before the present one, but not before the history.
    Ago(u64),
    /// That of the key's last change.
    OfKey,
    Future(u64),
}

#[derive(Clone, Debug)]
enum Guard {
    Modified(Key, At),
    Value(Key, Value),
    NotAfter(Key, Key, At),
}

#[derive(Clone, Debug)]
enum Action {
    Put(Key, Value),
    Delete(Key),
    Read(Key),
}

#[derive(Clone, Debug)]
enum Step {
    Transact {
        guards: Vec<Guard>,
        then: Vec<Action>,
        otherwise: Vec<Action>,
    },
    /// Writes `keys` keys with values of `value_bytes`, but deletes one in `deletes` of them.
    Many {
        keys: usize,
        value_bytes: usize,
        deletes: usize,
    },
    Range {
        from: Key,
        to: Option<Key>,
        at: Option<At>,
        count_only: bool,
    },
    All {
        at: Option<At>,
    },
    Compact(At),
}

fn key() -> impl Strategy<Value = Key> {
    prop_oneof![60 => prop::sample::select(&KEYS[..]).prop_map(Some), 1 => Just(None)]
}

fn value() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![(0, 0), (0, 1), (b'x', 1), (7, 3_000)])
}

fn bytes((byte, count): Value) -> Vec<u8> {
    vec![byte; count]
}

fn at() -> impl Strategy<Value = At> {
    prop_oneof![
        1 => Just(At::Zero),
        4 => (0..4u64).prop_map(At::Ago),
        3 => Just(At::OfKey),
        1 => (1..3u64).prop_map(At::Future),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (key(), value()).prop_map(|(key, value)| Action::Put(key, value)),
        2 => key().prop_map(Action::Delete),
        2 => key().prop_map(Action::Read),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let guard = prop_oneof![
        2 => (key(), at()).prop_map(|(key, at)| Guard::Modified(key, at)),
        1 => (key(), value()).prop_map(|(key, value)| Guard::Value(key, value)),
        1 => (key(), key(), at()).prop_map(|(from, to, at)| Guard::NotAfter(from, to, at)),
    ];
    let actions = || prop::collection::vec(action(), 0..4);
    let some_at = || prop::option::of(at());
    let transact = (prop::collection::vec(guard, 0..3), actions(), actions());
    let counts = prop::sample::select(vec![99, 100, 101, 128, 129, 192, 4_096, 4_097]);
    let many = (counts, prop::sample::select(vec![0, 10, 300, 500, 20_000]), 1..5usize);
    prop_oneof![
        20 => transact.prop_map(|(guards, then, otherwise)| Step::Transact { guards, then, otherwise }),
        1 => many.prop_map(|(keys, value_bytes, deletes)| Step::Many { keys, value_bytes, deletes }),
        8 => (key(), prop::option::of(key()), some_at(), any::<bool>())
            .prop_map(|(from, to, at, count_only)| Step::Range { from, to, at, count_only }),
        4 => some_at().prop_map(|at| Step::All { at }),
        1 => at().prop_map(Step::Compact),
    ]
}

/// A real etcd and the store in memory, which has the same keys since `base`.
struct Pair<'a> {
    etcd: &'a RealEtcd,
    client: &'a mut EtcdClient,
    fake: FakeStore,
    prefix: Vec<u8>,
    /// The difference between a revision of etcd and that of the store in memory.
    ahead: Revision,
}

impl<'a> Pair<'a> {
    fn new(etcd: &'a RealEtcd, client: &'a mut EtcdClient) -> Self {
        let fake = FakeStore::default();
        // Later than what the history before has compacted.
        let begin = Operation::Put { key: b"begin".into(), value: Vec::new() };
        let begin = Transaction { then: vec![begin], ..Transaction::default() };
        let base = client.transact(&begin).unwrap().revision;
        let prefix = format!("{base}/").into_bytes();
        Self { etcd, client, ahead: base - fake.revision(), fake, prefix }
    }

    fn key(&self, key: Key) -> Vec<u8> {
        key.map_or(Vec::new(), |key| [&self.prefix, key].concat())
    }

    /// A revision of the store in memory.
    fn revision(&self, at: At, key: &[u8]) -> Revision {
        let now = self.fake.revision();
        match at {
            At::Zero => 0,
            At::Ago(back) => now.saturating_sub(back).max(1),
            At::OfKey => self.fake.get(key).map_or(0, |entry| entry.modified),
            At::Future(later) => now + later,
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Transact { guards, then, otherwise } => {
                let compare = guards.iter().map(|guard| match guard {
                    Guard::Modified(key, at) => {
                        let key = self.key(*key);
                        Compare::Modified { at: self.revision(*at, &key), key }
                    }
                    Guard::Value(key, value) => Compare::Value { key: self.key(*key), is: bytes(*value) },
                    // The range has at least its first key: etcd takes an empty one for something else.
                    Guard::NotAfter(from, to, at) => {
                        let (from, to) = (self.key(*from), self.key(*to));
                        let at = self.revision(*at, &from);
                        let to = to.max([&from[..], &[0]].concat());
                        Compare::NotAfter { from, to, at }
                    }
                });
                let branch = |actions: &[Action]| -> Vec<Operation> {
                    let operations = actions.iter().map(|action| match action {
                        Action::Put(key, value) => {
                            Operation::Put { key: self.key(*key), value: bytes(*value) }
                        }
                        Action::Delete(key) => Operation::Delete { key: self.key(*key) },
                        Action::Read(key) => Operation::Read { key: self.key(*key) },
                    });
                    operations.collect()
                };
                let transaction = Transaction {
                    compare: compare.collect(),
                    then: branch(then),
                    otherwise: branch(otherwise),
                };
                self.transact(&transaction);
            }
            Step::Many { keys, value_bytes, deletes } => {
                let operation = |number: usize| {
                    let key = [&self.prefix[..], b"many", &number.to_be_bytes()].concat();
                    match number % 8 {
                        7 => Operation::Read { key },
                        rest if rest % deletes == 1 => Operation::Delete { key },
                        _ => Operation::Put { key, value: vec![7; *value_bytes] },
                    }
                };
                let then = (0..*keys).map(operation).collect();
                self.transact(&Transaction { then, ..Transaction::default() });
            }
            Step::Range { from, to, at, count_only } => {
                let from = self.key(*from);
                // The empty key is before all others, and other histories have keys too.
                let is_foreign = from.is_empty() && to.is_some();
                let at = at.map(|at| self.revision(at, &from));
                let to = to.map(|to| self.key(to));
                let from = if is_foreign { self.prefix.clone() } else { from };
                self.range(&Range { from, to, at, count_only: *count_only });
            }
            Step::All { at } => {
                let (from, to) = (self.prefix.clone(), [&self.prefix, END].concat());
                let at = at.map(|at| self.revision(at, &from));
                self.range(&Range { from, to: Some(to), at, count_only: false });
            }
            Step::Compact(at) => {
                let prefix = self.prefix.clone();
                let at = self.revision(*at, &prefix);
                if at > 0 {
                    let compacted = self.etcd.compact(at + self.ahead);
                    assert_eq!(self.fake.compact(at).is_ok(), compacted, "compaction of {at}");
                }
            }
        }
    }

    fn transact(&mut self, transaction: &Transaction) {
        let mut sent = transaction.clone();
        for compare in &mut sent.compare {
            match compare {
                Compare::Modified { at, .. } => *at = self.ahead(*at),
                // Nothing of this history was written before its first revision.
                Compare::NotAfter { at, .. } => *at += self.ahead,
                Compare::Value { .. } => {}
            }
        }
        let expected = self.fake.apply(transaction).map(|mut answer| {
            answer.revision = self.ahead(answer.revision);
            answer.read.iter_mut().flatten().for_each(|entry| self.move_ahead(entry));
            answer
        });
        let found = self.client.transact(&sent);
        assert_eq!(
            kind(found),
            kind(expected),
            "{} comparisons, {} operations",
            sent.compare.len(),
            sent.then.len()
        );
    }

    fn range(&mut self, range: &Range) {
        let sent = Range { at: range.at.map(|at| self.ahead(at.max(1))), ..range.clone() };
        let expected = self.fake.range(range).map(|mut answer| {
            answer.revision = self.ahead(answer.revision);
            answer.entries.iter_mut().for_each(|entry| self.move_ahead(entry));
            answer
        });
        assert_eq!(kind(self.client.range(&sent)), kind(expected), "{sent:?}");
    }

    /// The revision of etcd; that of a missing key is 0 in both.
    fn ahead(&self, revision: Revision) -> Revision {
        if revision == 0 { 0 } else { revision + self.ahead }
    }

    fn move_ahead(&self, entry: &mut Entry) {
        entry.modified = self.ahead(entry.modified);
    }
}

/// An answer, or `None` if it was refused: the texts of refusals differ.
fn kind<T>(answer: Result<T, CallError>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(CallError::Refused(_)) => None,
        Err(other) => panic!("etcd answers: {other}"),
    }
}

/// Compares the store in memory with an etcd of this number of members.
fn compare(members: usize, cases: u32) {
    let Some(etcd) = RealEtcd::start(members) else { return };
    let client = Mutex::new(etcd.client());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    proptest!(config, |(history in prop::collection::vec(step(), 1..40))| {
        // A case that failed leaves the client as it is.
        let mut client = client.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut pair = Pair::new(&etcd, &mut client);
        history.iter().for_each(|step| pair.step(step));
    });
}

#[test]
fn the_store_in_memory_answers_as_etcd_does() {
    let configured = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    compare(1, configured.unwrap_or(150));
}

#[test]
fn three_members_answer_as_one_does() {
    compare(3, 10);
}
