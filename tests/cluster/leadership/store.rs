//! A store in memory with etcd's revisions.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use signalbox::cluster::coordinator::{
    CallError, Compare, Coordinator, Entry, Operation, Range, RangeAnswer, Revision, Transaction,
    TransactionAnswer,
};
use signalbox::cluster::keys::{decode, end_of_prefix};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Store {
    pub revision: Revision,
    entries: BTreeMap<Vec<u8>, (Vec<u8>, Revision)>,
}

impl Store {
    pub fn transact(&mut self, transaction: &Transaction) -> TransactionAnswer {
        let held = transaction.compare.iter().all(|compare| match compare {
            Compare::Modified { key, at } => self.modified(key) == *at,
            Compare::Value { key, is } => self.entries.get(key).is_some_and(|(value, _)| value == is),
            Compare::NotAfter { from, to, at } => {
                self.entries.range(from.clone()..to.clone()).all(|(_, (_, modified))| modified <= at)
            }
        });
        let operations = if held { &transaction.then } else { &transaction.otherwise };
        let revision = self.revision + 1;
        let mut has_written = false;
        let mut read = Vec::new();
        let mut written = Vec::new();
        for operation in operations {
            match operation {
                Operation::Put { key, value } => {
                    self.entries.insert(key.clone(), (value.clone(), revision));
                    written.push(key);
                    has_written = true;
                }
                Operation::Delete { key } => {
                    written.push(key);
                    has_written |= self.entries.remove(key).is_some();
                }
                Operation::Read { key } => read.push(self.entry(key)),
            }
        }
        written.sort();
        let is_each_once = written.windows(2).all(|pair| pair[0] != pair[1]);
        assert!(is_each_once, "etcd refuses a transaction that writes a key twice: {transaction:?}");
        self.revision += u64::from(has_written);
        TransactionAnswer { revision: self.revision, held, read }
    }

    pub fn modified(&self, key: &[u8]) -> Revision {
        self.entries.get(key).map_or(0, |(_, modified)| *modified)
    }

    /// The values below a prefix.
    pub fn values<T: DeserializeOwned>(&self, prefix: &[u8]) -> Vec<T> {
        let below = self.entries.range(prefix.to_vec()..end_of_prefix(prefix));
        below.map(|(key, (value, _))| decode(key, value).unwrap()).collect()
    }

    /// A value and its revision.
    pub fn seen(&self, key: &[u8]) -> Option<(Vec<u8>, Revision)> {
        self.entries.get(key).cloned()
    }

    pub fn value<T: DeserializeOwned>(&self, key: &[u8]) -> Option<T> {
        self.entries.get(key).map(|(value, _)| decode(key, value).unwrap())
    }

    /// Somebody writes a key, or deletes it.
    pub fn set(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.revision += 1;
        match value {
            Some(value) => drop(self.entries.insert(key, (value, self.revision))),
            None => drop(self.entries.remove(&key)),
        }
    }

    fn entry(&self, key: &[u8]) -> Option<Entry> {
        let (value, modified) = self.entries.get(key)?;
        Some(Entry { key: key.to_vec(), value: value.clone(), modified: *modified })
    }
}

/// An operator's connection, whose calls are performed at once.
impl Coordinator for Store {
    fn range(&mut self, range: &Range) -> Result<RangeAnswer, CallError> {
        let end = range.to.clone().unwrap_or_else(|| [&range.from[..], &[0]].concat());
        let keys = self.entries.range(range.from.clone()..end).map(|(key, _)| key);
        let entries: Vec<_> = keys.filter_map(|key| self.entry(key)).collect();
        Ok(RangeAnswer { revision: self.revision, count: entries.len() as u64, entries })
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<TransactionAnswer, CallError> {
        Ok(Store::transact(self, transaction))
    }
}
