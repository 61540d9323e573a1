//! A map whose keys mostly grow.

use std::collections::VecDeque;
use std::collections::vec_deque::IntoIter;
use std::mem;

/// The capacity up to which [`RingMap::shrink`] frees nothing, so that a small map does not allocate again and again.
const SPARE_ENTRIES: usize = 64;

/// A map in a ring buffer of entries that are sorted by key. Changes at the front and at the back take constant time.
/// Other changes move up to half of the entries, so the map is meant for thousands of entries at most. With growing keys,
/// a tree would need twice the memory, because its nodes stay half empty.
#[derive(Debug)]
pub(super) struct RingMap<K, V>(VecDeque<(K, V)>);

impl<K, V> Default for RingMap<K, V> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<K: Copy + Ord, V> RingMap<K, V> {
    fn position_of(&self, key: K) -> Result<usize, usize> {
        self.0.binary_search_by_key(&key, |(key, _)| *key)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, key: K) -> Option<&V> {
        Some(&self.0[self.position_of(key).ok()?].1)
    }

    /// Sets the value of a key, and returns the previous one.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.position_of(key) {
            Ok(position) => Some(mem::replace(&mut self.0[position].1, value)),
            Err(position) => {
                if self.0.is_empty() {
                    // Most maps have one entry at a time.
                    self.0.reserve_exact(1);
                }
                self.0.insert(position, (key, value));
                None
            }
        }
    }

    /// Removes a key. Removing the last one frees the memory.
    pub(super) fn remove(&mut self, key: K) {
        if let Ok(position) = self.position_of(key) {
            self.0.remove(position);
        }
        if self.0.is_empty() {
            self.0 = VecDeque::new();
        }
    }

    /// Removes and returns the entry with the lowest key.
    pub(super) fn pop_first(&mut self) -> Option<(K, V)> {
        self.0.pop_front()
    }

    /// Removes and returns the entry with the lowest key if that key is below `bound`.
    pub(super) fn pop_first_below(&mut self, bound: K) -> Option<(K, V)> {
        self.0.pop_front_if(|(key, _)| *key < bound)
    }

    /// Frees memory, if most of it is unused.
    pub(super) fn shrink(&mut self) {
        if self.0.capacity() > SPARE_ENTRIES && self.0.len() < self.0.capacity() / 8 {
            self.0.shrink_to(self.0.len() * 2);
        }
    }

    /// The entries with higher keys than this one, by key; `None`: all entries.
    pub(super) fn after(&self, key: Option<K>) -> impl Iterator<Item = (K, &V)> {
        let first =
            key.map_or(0, |key| self.position_of(key).map_or_else(|next| next, |position| position + 1));
        self.0.range(first..).map(|(key, value)| (*key, value))
    }

    /// All entries, by key.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> {
        self.0.iter().map(|(key, value)| (*key, value))
    }
}

impl<K, V> IntoIterator for RingMap<K, V> {
    type Item = (K, V);
    type IntoIter = IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u8, u16),
        Remove(u8),
        PopBelow(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = 0..32_u8;
        prop_oneof![
            4 => (key.clone(), any::<u16>()).prop_map(|(key, value)| Step::Insert(key, value)),
            2 => key.clone().prop_map(Step::Remove),
            1 => key.prop_map(Step::PopBelow),
        ]
    }

    proptest! {
        #[test]
        fn it_behaves_like_a_tree(steps in prop::collection::vec(step(), 0..200)) {
            let (mut ring, mut tree) = (RingMap::default(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Insert(key, value) => {
                        ring.insert(key, value);
                        tree.insert(key, value);
                    }
                    Step::Remove(key) => {
                        ring.remove(key);
                        tree.remove(&key);
                    }
                    Step::PopBelow(bound) => {
                        let first = tree.first_entry().filter(|first| *first.key() < bound);
                        prop_assert_eq!(ring.pop_first_below(bound), first.map(|first| first.remove_entry()));
                    }
                }
                prop_assert!(ring.iter().eq(tree.iter().map(|(key, value)| (*key, value))));
                prop_assert!((0..32).all(|key| ring.get(key) == tree.get(&key)));
            }
            prop_assert!(ring.into_iter().eq(tree));
        }
    }
}
