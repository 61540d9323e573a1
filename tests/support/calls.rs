//! Short forms of the parts of calls to etcd.

use signalbox_cluster::coordinator::{CallError, Compare, Entry, Operation, Range, Revision, Transaction};

pub fn put(key: &str, value: &[u8]) -> Operation {
    Operation::Put { key: key.into(), value: value.into() }
}

pub fn delete(key: &str) -> Operation {
    Operation::Delete { key: key.into() }
}

pub fn read(key: &str) -> Operation {
    Operation::Read { key: key.into() }
}

pub fn modified(key: &str, at: Revision) -> Compare {
    Compare::Modified { key: key.into(), at }
}

/// A transaction without comparisons.
pub fn always(then: Vec<Operation>) -> Transaction {
    Transaction { then, ..Transaction::default() }
}

pub fn one(key: &str) -> Range {
    Range { from: key.into(), to: None, at: None, count_only: false }
}

pub fn between(from: &str, to: &str) -> Range {
    Range { to: Some(to.into()), ..one(from) }
}

pub fn entry(key: &str, value: &[u8], modified: Revision) -> Entry {
    Entry { key: key.into(), value: value.into(), modified }
}

#[track_caller]
pub fn refused<T: std::fmt::Debug>(answer: Result<T, CallError>, what: &str) {
    let Err(CallError::Refused(sentence)) = answer else { panic!("refused: {answer:?}") };
    assert!(sentence.contains(what), "{sentence}");
}
