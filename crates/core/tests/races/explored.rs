//! A map whose locks a test of races schedules: a part of the core under `--cfg shuttle` (`crates/core/src/sync.rs`).

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::ops::{Deref, DerefMut};

use shuttle::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Fewer than requested: a visit of a thousand empty shards has a thousand points at which shuttle may switch
/// threads, so it would hardly ever choose the schedules that matter.
const SHARDS: usize = 2;

const UNPOISONED: &str = "a run ends with its first panic";

/// A map that locks a shard where DashMap does, and for as long.
#[derive(Debug)]
pub(crate) struct DashMap<K, V, S> {
    shards: [Shard<K, V>; SHARDS],
    hasher: S,
}

#[derive(Debug)]
pub(crate) struct Shard<K, V>(RwLock<Table<K, V>>);

/// A few entries, searched linearly.
#[derive(Clone, Debug)]
pub(crate) struct Table<K, V>(Vec<(K, V)>);

/// An entry whose shard is locked.
pub(crate) struct Found<G> {
    table: G,
    index: usize,
}

pub(crate) enum Entry<'a, K, V> {
    Occupied(Occupied<'a, K, V>),
    Vacant(Vacant<'a, K, V>),
}

pub(crate) struct Occupied<'a, K, V>(Found<RwLockWriteGuard<'a, Table<K, V>>>);

pub(crate) struct Vacant<'a, K, V> {
    table: RwLockWriteGuard<'a, Table<K, V>>,
    key: K,
}

impl<K: Hash + Eq, V, S: BuildHasher> DashMap<K, V, S> {
    pub(crate) fn with_hasher_and_shard_amount(hasher: S, _shards: usize) -> Self {
        let shard = |_| Shard(RwLock::new(Table(Vec::new())));
        Self { shards: std::array::from_fn(shard), hasher }
    }

    pub(crate) fn shards(&self) -> &[Shard<K, V>] {
        &self.shards
    }

    pub(crate) fn hasher(&self) -> &S {
        &self.hasher
    }

    pub(crate) fn determine_shard(&self, hash: usize) -> usize {
        hash % SHARDS
    }

    pub(crate) fn entry(&self, key: K) -> Entry<'_, K, V> {
        let table = self.shard_of(&key).write();
        match table.position(&key) {
            Some(index) => Entry::Occupied(Occupied(Found { table, index })),
            None => Entry::Vacant(Vacant { table, key }),
        }
    }

    pub(crate) fn remove_if<Q>(&self, key: &Q, predicate: impl FnOnce(&K, &V) -> bool) -> Option<(K, V)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut table = self.shard_of(key).write();
        let index = table.position(key)?;
        let (key, value) = &table.0[index];
        predicate(key, value).then(|| table.0.swap_remove(index))
    }

    fn shard_of<Q: Hash + ?Sized>(&self, key: &Q) -> &Shard<K, V> {
        &self.shards[self.determine_shard(self.hasher.hash_one(key) as usize)]
    }
}

impl<K, V> Shard<K, V> {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Table<K, V>> {
        self.0.read().expect(UNPOISONED)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Table<K, V>> {
        self.0.write().expect(UNPOISONED)
    }
}

impl<K, V> Table<K, V> {
    fn position<Q>(&self, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.0.iter().position(|(found, _)| found.borrow() == key)
    }

    pub(crate) fn get(&self, _hash: u64, mut predicate: impl FnMut(&(K, V)) -> bool) -> Option<&(K, V)> {
        self.0.iter().find(|entry| predicate(entry))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    pub(crate) fn into_iter(self) -> std::vec::IntoIter<(K, V)> {
        self.0.into_iter()
    }

    pub(crate) fn shrink_to(&mut self, length: usize, _hash: impl Fn(&(K, V)) -> u64) {
        self.0.shrink_to(length);
    }
}

impl<K: 'static, V: 'static, G: Deref<Target = Table<K, V>>> Found<G> {
    pub(crate) fn key(&self) -> &K {
        &self.table.0[self.index].0
    }
}

impl<'a, K, V> Occupied<'a, K, V> {
    pub(crate) fn into_ref(self) -> Found<RwLockWriteGuard<'a, Table<K, V>>> {
        self.0
    }
}

impl<'a, K, V> Vacant<'a, K, V> {
    pub(crate) fn insert(mut self, value: V) -> Found<RwLockWriteGuard<'a, Table<K, V>>> {
        let index = self.table.len();
        self.table.deref_mut().0.push((self.key, value));
        Found { table: self.table, index }
    }
}
