//! Is there an order of the operations that explains every answer? The search of Wing and Gong, with Lowe's memory of
//! what was tried.

use std::collections::HashSet;

use super::history::{Name, Operation, State};

/// Operations of one history at most: each is a bit.
pub const OPERATIONS_MAX: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Linearizable,
    NotLinearizable,
    /// The budget was spent before there was an answer. That is no pass.
    Unknown,
}

struct Search<'a> {
    name: Name,
    history: &'a [Operation],
    /// Which operations were ordered, and what they came to; no such pair needs to be tried twice.
    tried: HashSet<(u128, State)>,
    tries_max: usize,
}

/// Looks for an order, trying at most so many partial ones.
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
    /// Whether what was ordered can be followed by all the rest; `None` where the budget is spent.
    fn extend(&mut self, ordered: u128, state: &State) -> Option<bool> {
        let history = self.history;
        let is_left = |index: &usize| ordered & (1 << index) == 0;
        let left = (0..history.len()).filter(is_left);
        // Whatever was invoked after another had returned comes after it.
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
