//! A store in memory with etcd's revisions.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use signalbox::cluster::coordinator::{Compare, Entry, Operation, Revision, Transaction, TransactionAnswer};
use signalbox::cluster::keys::decode;
use signalbox::cluster::members::Reading;

use super::keys;

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

    /// A value and its revision.
    pub fn seen(&self, key: &[u8]) -> Option<(Vec<u8>, Revision)> {
        self.entries.get(key).cloned()
    }

    pub fn value<T: DeserializeOwned>(&self, key: &[u8]) -> Option<T> {
        self.entries.get(key).map(|(value, _)| decode(key, value).unwrap())
    }

    /// All nodes and heartbeats.
    pub fn reading(&self) -> Reading {
        Reading {
            revision: self.revision,
            nodes: self.below(&keys().nodes()).map(|(name, value, _)| (name, value)).collect(),
            heartbeats: self
                .below(&keys().heartbeats())
                .map(|(name, value, modified)| (name, (value, modified)))
                .collect(),
        }
    }

    fn below<T: DeserializeOwned>(&self, prefix: &[u8]) -> impl Iterator<Item = (String, T, Revision)> {
        let entries = self.entries.iter().filter_map(move |(key, (value, modified))| {
            let name = String::from_utf8(key.strip_prefix(prefix)?.to_vec()).unwrap();
            Some((name, decode(key, value).unwrap(), *modified))
        });
        entries.collect::<Vec<_>>().into_iter()
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
