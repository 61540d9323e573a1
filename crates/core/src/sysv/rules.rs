//! What the configuration says of the sets of some keys.

use std::ops::RangeInclusive;

use signalbox_model::sysv::{IPC_PRIVATE, Order};

/// What applies to the sets with some keys, from when they are created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRule {
    /// The keys, as numbers without a sign. 0 stands for sets without a key.
    pub keys: RangeInclusive<u32>,
    /// In which order waiting calls are performed, if the rule says.
    pub order: Option<Order>,
    /// Whether the sets outlive the process, if there is a store.
    pub is_durable: bool,
}

/// All rules. A key may be in several of them.
#[derive(Debug, Default)]
pub(super) struct Rules(Vec<KeyRule>);

impl Rules {
    pub(super) fn new(rules: Vec<KeyRule>) -> Self {
        Self(rules)
    }

    /// The order of a new set.
    pub(super) fn order_of(&self, key: i32) -> Order {
        self.of(key).find_map(|rule| rule.order).unwrap_or_default()
    }

    /// Whether a new set is durable.
    pub(super) fn is_durable(&self, key: i32) -> bool {
        self.of(key).any(|rule| rule.is_durable)
    }

    fn of(&self, key: i32) -> impl Iterator<Item = &KeyRule> {
        self.0.iter().filter(move |rule| rule.keys.contains(&key.cast_unsigned()))
    }
}

const _: () = assert!(IPC_PRIVATE == 0);
