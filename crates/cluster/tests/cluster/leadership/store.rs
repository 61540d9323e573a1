//! The store of one history, in memory. It forgets old revisions, so states that differ only in their past are equal.

use serde::de::DeserializeOwned;
use signalbox_cluster::coordinator::{
    CallError, Coordinator, Operation, Range, RangeAnswer, Revision, Transaction, TransactionAnswer,
};
use signalbox_cluster::keys::decode;

use crate::etcd::FakeStore;

#[derive(Clone, Debug, Default, Hash)]
pub struct Store(FakeStore);

impl Store {
    pub fn transact(&mut self, transaction: &Transaction) -> TransactionAnswer {
        let answer = self.0.apply(transaction).expect("etcd accepts it");
        // This fails if nothing was written.
        let _ = self.0.compact(answer.revision);
        answer
    }

    pub fn revision(&self) -> Revision {
        self.0.revision()
    }

    pub fn modified(&self, key: &[u8]) -> Revision {
        self.0.get(key).map_or(0, |entry| entry.modified)
    }

    /// The values below a prefix.
    pub fn values<T: DeserializeOwned>(&self, prefix: &[u8]) -> Vec<T> {
        let below = self.0.range(&Range::below(prefix)).expect("it is read as of now").entries;
        below.into_iter().map(|entry| decode(&entry.key, &entry.value).unwrap()).collect()
    }

    /// A value and its revision.
    pub fn seen(&self, key: &[u8]) -> Option<(Vec<u8>, Revision)> {
        self.0.get(key).map(|entry| (entry.value, entry.modified))
    }

    pub fn value<T: DeserializeOwned>(&self, key: &[u8]) -> Option<T> {
        self.0.get(key).map(|entry| decode(key, &entry.value).unwrap())
    }

    /// Writes or deletes a key as another client does.
    pub fn set(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        let operation = match value {
            Some(value) => Operation::Put { key, value },
            None => Operation::Delete { key },
        };
        self.transact(&Transaction { then: vec![operation], ..Transaction::default() });
    }
}

/// An operator's connection, whose calls are performed at once.
impl Coordinator for Store {
    fn range(&mut self, range: &Range) -> Result<RangeAnswer, CallError> {
        self.0.range(range)
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<TransactionAnswer, CallError> {
        Ok(Store::transact(self, transaction))
    }
}
