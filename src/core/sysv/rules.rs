//! What the configuration says of the sets of some keys.

use std::ops::RangeInclusive;

use super::set::Order;
use super::sets::PRIVATE;

/// What applies to the sets with some keys, from when they are created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRule {
    /// The keys, as numbers without a sign. 0 stands for sets without a key.
    pub keys: RangeInclusive<u32>,
    /// In which order waiting calls are performed.
    pub order: Order,
}

/// All rules; the first one that names a key applies.
#[derive(Debug, Default)]
pub(super) struct Rules(Vec<KeyRule>);

impl Rules {
    pub(super) fn new(rules: Vec<KeyRule>) -> Self {
        Self(rules)
    }

    /// The order of a new set.
    pub(super) fn order_of(&self, key: i32) -> Order {
        let rule = self.0.iter().find(|rule| rule.keys.contains(&key.cast_unsigned()));
        rule.map_or(Order::Kernel, |rule| rule.order)
    }
}

const _: () = assert!(PRIVATE == 0);
