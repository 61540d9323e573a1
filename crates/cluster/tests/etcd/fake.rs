//! A store in memory with etcd's semantics, as `Coordinator` promises them. `tests/nodes/differential.rs` compares it
//! with a real etcd.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::collections::{BTreeMap, BTreeSet};

use signalbox_cluster::coordinator::{
    CallError, Compare, Entry, Operation, Range, RangeAnswer, Revision, Transaction, TransactionAnswer,
};

/// etcd's default of `--max-txn-ops`.
const OPERATIONS_MAX: usize = 128;
/// A longer branch is sent as transactions of `INNER` operations within the transaction.
const FLAT_MAX: usize = 100;
const INNER: usize = 64;
/// etcd's default of `--max-request-bytes`.
const REQUEST_BYTES_MAX: usize = 1_572_864;
/// About the number of bytes that the encoding adds to an operation or comparison.
const FRAME_BYTES: usize = 12;

/// The store: all versions of all keys since the last compaction. A clone of it is a backup.
#[derive(Clone, Debug, Hash)]
pub struct FakeStore {
    revision: Revision,
    /// Reads at revisions below this one are refused.
    compacted: Revision,
    /// The versions of each key, in the order of their revisions.
    keys: BTreeMap<Vec<u8>, Vec<Version>>,
}

#[derive(Clone, Debug, Hash)]
struct Version {
    at: Revision,
    /// `None`: deleted.
    value: Option<Vec<u8>>,
}

impl Default for FakeStore {
    fn default() -> Self {
        Self { revision: 1, compacted: 0, keys: BTreeMap::new() }
    }
}

impl FakeStore {
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// A key as of now.
    pub fn get(&self, key: &[u8]) -> Option<Entry> {
        self.get_at(key, self.revision)
    }

    fn get_at(&self, key: &[u8], at: Revision) -> Option<Entry> {
        let version = self.keys.get(key)?.iter().rev().find(|version| version.at <= at)?;
        let value = version.value.clone()?;
        Some(Entry { key: key.to_vec(), value, modified: version.at })
    }

    pub fn range(&self, range: &Range) -> Result<RangeAnswer, CallError> {
        if range.from.is_empty() && range.to.is_none() {
            return refused("key is not provided");
        }
        let at = range.at.unwrap_or(self.revision).max(1);
        if at > self.revision {
            return refused("required revision is a future revision");
        }
        if at < self.compacted {
            return refused("required revision has been compacted");
        }
        let entries: Vec<_> = match &range.to {
            None => self.get_at(&range.from, at).into_iter().collect(),
            Some(to) if *to <= range.from => Vec::new(),
            Some(to) => {
                let keys = self.keys.range(range.from.clone()..to.clone());
                keys.filter_map(|(key, _)| self.get_at(key, at)).collect()
            }
        };
        let count = entries.len().try_into().unwrap();
        let entries = if range.count_only { Vec::new() } else { entries };
        Ok(RangeAnswer { revision: self.revision, count, entries })
    }

    pub fn apply(&mut self, transaction: &Transaction) -> Result<TransactionAnswer, CallError> {
        check(transaction)?;
        let held = transaction.compare.iter().all(|compare| self.holds(compare));
        let next = self.revision + 1;
        let mut wrote = false;
        let mut read = Vec::new();
        for operation in if held { &transaction.then } else { &transaction.otherwise } {
            match operation {
                Operation::Put { key, value } => {
                    self.write(key, Version { at: next, value: Some(value.clone()) });
                    wrote = true;
                }
                Operation::Delete { key } if self.get_at(key, next).is_some() => {
                    self.write(key, Version { at: next, value: None });
                    wrote = true;
                }
                Operation::Delete { .. } => {}
                // A read sees what was written before it in the same transaction.
                Operation::Read { key } => read.push(self.get_at(key, next)),
            }
        }
        if wrote {
            self.revision = next;
        }
        Ok(TransactionAnswer { revision: self.revision, held, read })
    }

    fn holds(&self, compare: &Compare) -> bool {
        match compare {
            Compare::Modified { key, at } => self.get(key).map_or(0, |entry| entry.modified) == *at,
            Compare::Value { key, is } => self.get(key).is_some_and(|entry| entry.value == *is),
            Compare::NotAfter { from, to, at } => self
                .keys
                .range(from.clone()..to.clone())
                .filter_map(|(key, _)| self.get(key))
                .all(|entry| entry.modified <= *at),
        }
    }

    fn write(&mut self, key: &[u8], version: Version) {
        self.keys.entry(key.to_vec()).or_default().push(version);
    }

    /// Forgets versions that only reads before a revision need.
    pub fn compact(&mut self, at: Revision) -> Result<(), CallError> {
        if at > self.revision {
            return refused("required revision is a future revision");
        }
        if at <= self.compacted {
            return refused("required revision has been compacted");
        }
        self.compacted = at;
        self.keys.retain(|_, versions| {
            let needed = versions.iter().rposition(|version| version.at <= at).unwrap_or(0);
            versions.drain(..needed);
            versions.iter().any(|version| version.at > at || version.value.is_some())
        });
        Ok(())
    }
}

/// Refuses what etcd refuses before it performs anything.
fn check(transaction: &Transaction) -> Result<(), CallError> {
    let Transaction { compare, then, otherwise } = transaction;
    let outer = |branch: &Vec<Operation>| {
        if branch.len() > FLAT_MAX { branch.len().div_ceil(INNER) } else { branch.len() }
    };
    let longest = compare.len().max(outer(then)).max(outer(otherwise));
    let is_nested = then.len().max(otherwise.len()) > FLAT_MAX;
    if longest > OPERATIONS_MAX - if is_nested { INNER } else { 0 } {
        return refused("too many operations in txn request");
    }
    let mut bytes = 0;
    for compare in compare {
        let (key, value) = match compare {
            Compare::Modified { key, .. } => (key, 0),
            Compare::Value { key, is } => (key, is.len()),
            Compare::NotAfter { from, to, .. } => (from, to.len()),
        };
        if key.is_empty() {
            return refused("key is not provided");
        }
        bytes += key.len() + value + FRAME_BYTES;
    }
    for branch in [then, otherwise] {
        let mut written = BTreeSet::new();
        for operation in branch {
            let (key, value, writes) = match operation {
                Operation::Put { key, value } => (key, value.len(), true),
                Operation::Delete { key } => (key, 0, true),
                Operation::Read { key } => (key, 0, false),
            };
            if key.is_empty() {
                return refused("key is not provided");
            }
            if writes && !written.insert(key) {
                return refused("duplicate key given in txn request");
            }
            bytes += key.len() + value + FRAME_BYTES;
        }
    }
    if bytes > REQUEST_BYTES_MAX {
        return refused("request is too large");
    }
    Ok(())
}

fn refused<T>(what: &str) -> Result<T, CallError> {
    Err(CallError::Refused(format!("etcd in memory: {what}")))
}
