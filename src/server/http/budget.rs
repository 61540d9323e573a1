//! How much memory the answers take that clients have not received yet.
//!
//! An answer is composed as a whole, and is then sent as fast as its client takes it. Without a bound, clients that read slowly
//! would have the server hold as much as they like.
//!
//! Invariants: an answer that takes more than [`FREE_BYTES`] counts from then on, until its last bytes are given to the
//! connection; all answers that count take no more than [`answers_max`] together; once half of that is in use, an
//! answer gets no more if the other answers of its client take the client's share; a connection has one answer at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::client_address::ClientAddress;
use super::answer::ApiError;
use super::shared::Shared;
use super::shared_limit::{Amount, Exhausted, SharedLimit};

/// An answer of no more bytes does not count, so that health, figures and usual pages are always answered.
pub(super) const FREE_BYTES: usize = 64 * 1024;

/// Answers may take one in so many parts of `memory_max`, but always [`BUDGET_LEAST`].
const MEMORY_PART: u64 = 8;

/// More than the greatest answer takes while it is composed.
const BUDGET_LEAST: u64 = 8 << 20;

/// What all answers take, in bytes.
pub(super) fn answers() -> SharedLimit {
    SharedLimit::new(
        "memory of HTTP answers",
        "a long HTTP answer is refused: memory_max is reached, or clients do not take their answers; find the clients that \
         read so slowly",
    )
}

/// What one answer to a client takes, in all of its reservations.
#[derive(Debug)]
pub(super) struct AnswerMemory {
    shared: Arc<Shared>,
    client: ClientAddress,
    /// What is reserved.
    bytes: AtomicU64,
}

/// A part of what one answer takes, until it is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    answer: Arc<AnswerMemory>,
    /// What is reserved: nothing, or more than [`FREE_BYTES`].
    bytes: u64,
}

/// The most bytes that answers may take together, for a `memory_max` in bytes.
fn answers_max(memory_max: u64) -> u64 {
    (memory_max / MEMORY_PART).max(BUDGET_LEAST)
}

impl AnswerMemory {
    /// An answer to this client, which takes nothing yet.
    pub(super) fn new(shared: &Arc<Shared>, client: ClientAddress) -> Arc<Self> {
        Arc::new(Self { shared: Arc::clone(shared), client, bytes: AtomicU64::new(0) })
    }

    fn take(&self, more: u64) -> Result<(), ApiError> {
        let (answers, server) = (&self.shared.answers, self.shared.stage().server());
        let max = server.as_ref().map_or(BUDGET_LEAST, |server| answers_max(server.memory.limit().max));
        let is_exhausted = server.as_ref().is_some_and(|server| server.memory.is_exhausted());
        // An answer that has begun is not refused because of itself.
        let amount = Amount { before: self.bytes.load(Ordering::Relaxed), more };
        let taken = if is_exhausted {
            Err(Exhausted::Limit)
        } else {
            answers.take(self.client.key(), amount, (max, self.shared.share()))
        };
        let Err(exhausted) = taken else {
            self.bytes.fetch_add(more, Ordering::Relaxed);
            return Ok(());
        };
        answers.note_refusal(self.client, exhausted, server.as_deref());
        Err(match exhausted {
            Exhausted::Share(_) => ApiError::busy_for_client(),
            Exhausted::Limit => ApiError::busy(),
        })
    }

    fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.shared.answers.give_back(self.client.key(), bytes);
    }
}

impl Reservation {
    /// A reservation for a part of an answer that takes nothing yet.
    pub(super) fn new(answer: &Arc<AnswerMemory>) -> Self {
        Self { answer: Arc::clone(answer), bytes: 0 }
    }

    /// The part takes so many bytes now. Fails if it counts, takes more than before, and there is no room.
    pub(super) fn set(&mut self, bytes: usize) -> Result<(), ApiError> {
        let bytes = if bytes > FREE_BYTES { bytes as u64 } else { 0 };
        if bytes > self.bytes {
            self.answer.take(bytes - self.bytes)?;
        } else {
            self.answer.give_back(self.bytes - bytes);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.answer.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::super::listener::Peer;
    use super::*;
    use crate::config::Config;

    const MIB: usize = 1 << 20;

    fn shared() -> Arc<Shared> {
        Arc::new(Shared::new(&Config::without_file(), None))
    }

    /// Some answers to clients of their own.
    fn answers<const N: usize>(shared: &Arc<Shared>) -> [Reservation; N] {
        let mut number = 0;
        [(); N].map(|()| {
            number += 1;
            let client = ClientAddress::of_peer(([127, 0, 0, number], 1).into());
            Reservation::new(&AnswerMemory::new(shared, client))
        })
    }

    #[test]
    fn long_answers_have_a_budget_and_short_ones_need_none() {
        let shared = shared();
        let [mut first, mut second, mut third] = answers(&shared);
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
        assert_eq!((shared.answers.in_use(), shared.answers.refused.value()), (0, 2));
    }

    #[test]
    fn a_client_that_does_not_take_its_answers_leaves_room_for_others() {
        let shared = shared();
        let client = Peer::of_test().client.address;
        let ask = || {
            let mut answer = Reservation::new(&AnswerMemory::new(&shared, client));
            answer.set(MIB).map(|()| answer)
        };
        let taken: Vec<_> = std::iter::from_fn(|| ask().ok()).collect();
        assert_eq!(taken.len(), 4, "a share binds once half is in use");
        let refused = ask().unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.code), (503, "busy"));
        let [_, mut other] = answers(&shared);
        other.set(4 * MIB).unwrap();
        drop(taken);
        ask().unwrap();
    }

    /// The parts of an answer are one answer: its client has no other, so its share does not end it half way.
    #[test]
    fn an_answer_is_not_refused_because_of_itself() {
        let shared = shared();
        let answer = AnswerMemory::new(&shared, Peer::of_test().client.address);
        let [mut items, mut text] = [(); 2].map(|()| Reservation::new(&answer));
        for mib in 1..=6 {
            items.set(mib * MIB).unwrap();
        }
        text.set(2 * MIB).unwrap();
        assert!(text.set(3 * MIB).is_err(), "the budget of all is a limit for it too");
    }

    #[test]
    fn the_budget_is_a_part_of_the_memory() {
        assert_eq!(answers_max(128 << 20), 16 << 20);
        assert_eq!(answers_max(1 << 20), BUDGET_LEAST);
    }
}
