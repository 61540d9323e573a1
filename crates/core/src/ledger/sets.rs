//! Maps of sets.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

/// Removes an item from the set under a key, and the set with its last item. Returns whether the item was there.
pub(super) fn remove_from<K: Borrow<Q> + Ord, Q: Ord + ?Sized, T: Ord>(
    sets: &mut BTreeMap<K, BTreeSet<T>>,
    key: &Q,
    item: &T,
) -> bool {
    let Some(set) = sets.get_mut(key) else { return false };
    let was_there = set.remove(item);
    if set.is_empty() {
        sets.remove(key);
    }
    was_there
}
