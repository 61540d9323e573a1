//! Searches for an order of the operations that explains every answer: the algorithm of Wing and Gong, with Lowe's cache
//! of states that were tried.

use std::collections::HashSet;

use super::history::{Name, Operation, State};

/// Operations of one history at most: each is a bit.
pub const OPERATIONS_MAX: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Linearizable,
    NotLinearizable,
    /// The budget was exhausted before a result. That is not a pass.
    Unknown,
}

struct Search<'a> {
    name: Name,
    history: &'a [Operation],
    /// Sets of ordered operations and their resulting states. No such pair needs to be tried twice.
    tried: HashSet<(u128, State)>,
    tries_max: usize,
}

/// Searches for an order, and tries at most `tries_max` partial orders.
pub fn check(name: Name, history: &[Operation], tries_max: usize) -> Verdict {
    assert!(history.len() <= OPERATIONS_MAX, "a history of {} operations is too long", history.len());
    let connections = history.iter().map(|operation| operation.connection + 1).max().unwrap_or(0);
    let mut search = Search { name, history, tried: HashSet::new(), tries_max };
    match search.extend(0, &State::new(connections)) {
        Some(true) => Verdict::Linearizable,
        Some(false) => Verdict::NotLinearizable,
        None => Verdict::Unknown,
    }
}

impl Search<'_> {
    /// Returns true if the remaining operations can follow the ordered ones, `None` if the budget is exhausted.
    fn extend(&mut self, ordered: u128, state: &State) -> Option<bool> {
        let history = self.history;
        let is_left = |index: &usize| ordered & (1 << index) == 0;
        let left = (0..history.len()).filter(is_left);
        // An operation that was invoked after another one had returned follows it.
        let Some(first_returned_ns) = left.clone().map(|index| history[index].returned_ns).min() else {
            return Some(true);
        };
        for index in left {
            let operation = &history[index];
            if operation.invoked_ns > first_returned_ns {
                continue;
            }
            let Some(after) = state.after(self.name, operation) else { continue };
            let ordered = ordered | (1 << index);
            if !self.tried.insert((ordered, after.clone())) {
                continue;
            }
            if self.tried.len() > self.tries_max {
                return None;
            }
            if self.extend(ordered, &after)? {
                return Some(true);
            }
        }
        Some(false)
    }
}
