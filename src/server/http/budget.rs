//! How much memory the answers take that clients have not received yet.
//!
//! An answer is composed as a whole, and is then sent as fast as its client takes it. Without a bound, clients that read slowly
//! would have the server hold as much as they like.
//!
//! Invariants: an answer that takes more than [`FREE_BYTES`] counts from then on, until its last bytes are given to the
//! connection; all answers that count take no more than [`AnswerBudget::max`] together; a connection has one answer at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::metrics::Count;
use super::super::throttle::Throttle;
use super::answer::ApiError;
use super::shared::Shared;

/// An answer of no more bytes does not count, so that health, figures and usual pages are always answered.
pub(super) const FREE_BYTES: usize = 64 * 1024;

/// Answers may take one in so many parts of `memory_max`, but always [`BUDGET_LEAST`].
const MEMORY_PART: u64 = 8;

/// More than the greatest answer takes while it is composed.
const BUDGET_LEAST: u64 = 8 << 20;

/// What all answers take.
#[derive(Debug, Default)]
pub(super) struct AnswerBudget {
    in_use: AtomicU64,
    /// Answers for which there was no room.
    pub(super) refused: Count,
    refusals: Throttle,
}

/// What one answer takes, until it is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    shared: Arc<Shared>,
    /// What is reserved: nothing, or more than [`FREE_BYTES`].
    bytes: u64,
}

impl AnswerBudget {
    /// The most bytes that answers may take together, for a `memory_max` in bytes.
    fn max(memory_max: u64) -> u64 {
        (memory_max / MEMORY_PART).max(BUDGET_LEAST)
    }
}

impl Reservation {
    /// The reservation of an answer that takes nothing yet.
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), bytes: 0 }
    }

    /// The answer takes so many bytes now. Fails if it counts, takes more than before, and there is no room.
    pub(super) fn set(&mut self, bytes: usize) -> Result<(), ApiError> {
        let bytes = if bytes > FREE_BYTES { bytes as u64 } else { 0 };
        let budget = &self.shared.answers;
        if let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) {
            let server = self.shared.stage().server();
            let (max, is_exhausted) = server.map_or((BUDGET_LEAST, false), |server| {
                (AnswerBudget::max(server.memory.limit().max), server.memory.is_exhausted())
            });
            if is_exhausted || budget.in_use.load(Ordering::Relaxed).saturating_add(more) > max {
                budget.refused.add(1);
                if budget.refusals.permits() {
                    tracing::warn!(
                        answers = budget.in_use.load(Ordering::Relaxed),
                        answers_max = max,
                        "a long HTTP answer is refused: memory_max is reached, or clients do not take their answers; find \
                         the client that reads so slowly"
                    );
                }
                return Err(ApiError::busy());
            }
            budget.in_use.fetch_add(more, Ordering::Relaxed);
        } else {
            budget.in_use.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shared.answers.in_use.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const MIB: usize = 1 << 20;

    #[test]
    fn long_answers_have_a_budget_and_short_ones_need_none() {
        let shared = Arc::new(Shared::new(&Config::without_file(), None));
        let [mut first, mut second, mut third] = [(); 3].map(|()| Reservation::new(&shared));
        first.set(7 * MIB).unwrap();
        second.set(MIB).unwrap();
        let refused = third.set(FREE_BYTES + 1).unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.code), (503, "busy"));
        third.set(FREE_BYTES).unwrap();
        assert!(first.set(7 * MIB + 1).is_err(), "an answer that grows needs room too");
        first.set(6 * MIB).unwrap();
        third.set(MIB).unwrap();
        drop((first, second));
        third.set(8 * MIB).unwrap();
        drop(third);
        assert_eq!((shared.answers.in_use.load(Ordering::Relaxed), shared.answers.refused.value()), (0, 2));
    }

    #[test]
    fn the_budget_is_a_part_of_the_memory() {
        assert_eq!(AnswerBudget::max(128 << 20), 16 << 20);
        assert_eq!(AnswerBudget::max(1 << 20), BUDGET_LEAST);
    }
}
