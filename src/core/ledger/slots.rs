//! Numbered slots: which number of a semaphore is whose.
//!
//! What plain Acquires hold has no number and takes from the same capacity. So there are always numbers free below the
//! capacity for whoever is granted resources: no more are held than are in use.
//!
//! Invariant: a number is held by one grant at most, whatever the capacity is meanwhile.

use std::collections::BTreeMap;

use super::GrantId;

/// Most slots of a semaphore: their numbers are 0 to 65,535.
pub const SLOTS_MAX: u32 = 1 << 16;

/// Most slots of one grant.
pub const GRANT_SLOTS_MAX: usize = 1024;

const WORD_BITS: usize = u64::BITS as usize;

/// The slots of one semaphore.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// A bit for each number that is held; as many as have been needed.
    held: Vec<u64>,
    /// No word before this one has a number free.
    first_free: usize,
    by_grant: BTreeMap<GrantId, Box<[u16]>>,
}

impl Slots {
    /// Gives a grant the lowest numbers that are free.
    pub(super) fn take(&mut self, grant: GrantId, count: usize) {
        let mut taken = Vec::with_capacity(count);
        let mut word = self.first_free;
        while taken.len() < count {
            if word == self.held.len() {
                self.held.push(0);
            }
            let free = !self.held[word];
            if free == 0 {
                word += 1;
                continue;
            }
            let bit = free.trailing_zeros() as usize;
            self.held[word] |= 1 << bit;
            taken.push((word * WORD_BITS + bit) as u16);
        }
        self.first_free = word;
        self.by_grant.insert(grant, taken.into());
    }

    /// Gives a grant the numbers that it had before. `None`: another has one of them, or the grant has some.
    pub(super) fn take_again(&mut self, grant: GrantId, numbers: &[u16]) -> Option<()> {
        let is_ascending = numbers.is_sorted_by(|one, next| one < next);
        let is_taken =
            numbers.iter().any(|number| self.is_held(*number)) || self.by_grant.contains_key(&grant);
        if !is_ascending || is_taken {
            return None;
        }
        for number in numbers {
            let word = usize::from(*number) / WORD_BITS;
            if word >= self.held.len() {
                self.held.resize(word + 1, 0);
            }
            self.held[word] |= 1 << (usize::from(*number) % WORD_BITS);
        }
        self.by_grant.insert(grant, numbers.into());
        Some(())
    }

    /// Frees the numbers of a grant, if it has any.
    pub(super) fn put_back(&mut self, grant: GrantId) {
        for number in self.by_grant.remove(&grant).iter().flatten() {
            let word = usize::from(*number) / WORD_BITS;
            self.held[word] &= !(1 << (usize::from(*number) % WORD_BITS));
            self.first_free = self.first_free.min(word);
        }
    }

    /// The numbers that a grant has, from the lowest.
    pub(super) fn of(&self, grant: GrantId) -> &[u16] {
        self.by_grant.get(&grant).map_or(&[], |numbers| numbers)
    }

    /// Whether somebody has this number.
    pub(super) fn is_held(&self, number: u16) -> bool {
        let word = self.held.get(usize::from(number) / WORD_BITS).copied().unwrap_or(0);
        word & (1 << (usize::from(number) % WORD_BITS)) != 0
    }

    /// Says what is wrong, if anything: every number that is held is one grant's.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut held = vec![0_u64; self.held.len()];
        for (grant, numbers) in &self.by_grant {
            for number in numbers {
                let (word, bit) = (usize::from(*number) / WORD_BITS, usize::from(*number) % WORD_BITS);
                if held[word] & (1 << bit) != 0 {
                    return Err(format!("grant {grant} has slot {number}, which another has too"));
                }
                held[word] |= 1 << bit;
            }
        }
        if held == self.held { Ok(()) } else { Err("a slot is held by nobody".to_owned()) }
    }
}
