//! Numbered slots: which slots of a semaphore each grant has, and which are out of service.
//!
//! Plain Acquires take resources without a number, from the same capacity. So a grant always finds free slots below the
//! capacity: no more slots are taken than resources are in use, and the slots that are neither held nor in service are
//! withheld from the capacity.
//!
//! Invariants: each slot belongs to one grant at most, whatever the capacity is; a slot that is out of service is not
//! given to a grant.

use std::collections::BTreeMap;

use crate::invariant::invariant;
use crate::object::ObjectRef;
use crate::semaphore::{SLOTS_MAX, Withheld};
use signalbox_model::GrantId;

/// The most slots of one grant.
pub const GRANT_SLOTS_MAX: usize = 1024;

const WORD_BITS: usize = u64::BITS as usize;

/// The slots of all semaphores that have some.
#[derive(Debug, Default)]
pub(super) struct SlotTables(BTreeMap<usize, Slots>);

/// The slots of one semaphore.
#[derive(Debug, Default)]
struct Slots {
    /// A bit for each slot that is taken; as many words as have been needed.
    taken: Vec<u64>,
    /// A bit for each slot that is out of service; as many words as have been needed.
    out: Vec<u64>,
    /// No word before this one has a slot that is free and in service.
    first_free: usize,
    by_grant: BTreeMap<GrantId, Box<[u16]>>,
}

impl SlotTables {
    /// Sets whether the resources of a semaphore are numbered slots. If they were before, taken slots stay taken.
    pub(super) fn set_numbered(&mut self, object: &ObjectRef, is_numbered: bool) {
        if is_numbered {
            self.0.entry(object.address()).or_default();
        } else {
            self.0.remove(&object.address());
        }
    }

    pub(super) fn is_numbered(&self, object: &ObjectRef) -> bool {
        self.0.contains_key(&object.address())
    }

    /// Sets which slots of a semaphore are out of service. Returns those that were.
    pub(super) fn set_out(&mut self, object: &ObjectRef, numbers: &[u16]) -> Vec<u16> {
        let slots = self.0.get_mut(&object.address());
        slots.map_or_else(Vec::new, |slots| slots.set_out(numbers))
    }

    /// The slots of a semaphore that are out of service, in ascending order.
    pub(super) fn out(&self, object: &ObjectRef) -> Vec<u16> {
        self.0.get(&object.address()).map_or_else(Vec::new, Slots::all_out)
    }

    /// The part of a semaphore's capacity that is withheld: all of it while it is paused, else its slots below the capacity that are
    /// out of service and not taken.
    pub(super) fn withheld(&self, object: &ObjectRef, is_paused: bool, capacity: u32) -> Withheld {
        if is_paused {
            return Withheld::ALL;
        }
        Withheld::slots(self.0.get(&object.address()).map_or(0, |slots| slots.withheld(capacity)))
    }

    /// Like [`Self::withheld`], for the present capacity and the present pause.
    pub(super) fn present_withheld(&self, object: &ObjectRef) -> Withheld {
        let is_paused = object.withheld() == Withheld::ALL;
        self.withheld(object, is_paused, object.capacity().unwrap_or(0))
    }

    /// Returns whether a slot of a semaphore is in service and not taken.
    pub(super) fn is_available(&self, object: &ObjectRef, number: u16) -> bool {
        let (word, bit) = position(number);
        self.0.get(&object.address()).is_some_and(|slots| slots.available(word) & bit != 0)
    }

    /// Gives a grant this slot, which is available.
    pub(super) fn take_slot(&mut self, object: &ObjectRef, grant: GrantId, number: u16) {
        let is_given = self.is_available(object, number) && self.restore(object, grant, &[number]).is_some();
        invariant!(is_given, "slot {number} is available when grant {grant} gets it");
    }

    /// Gives a grant the lowest free slots, if the semaphore has slots.
    pub(super) fn take(&mut self, object: &ObjectRef, grant: GrantId, count: usize) {
        if let Some(slots) = self.0.get_mut(&object.address()) {
            slots.take(grant, count);
        }
    }

    /// Gives a grant the slots that it had before the process started. `None`: they are not in ascending order, another
    /// grant has one of them, this grant has some already, or the semaphore has no slots.
    pub(super) fn restore(&mut self, object: &ObjectRef, grant: GrantId, numbers: &[u16]) -> Option<()> {
        self.0.get_mut(&object.address())?.restore(grant, numbers)
    }

    /// Gives a grant another id.
    pub(super) fn renumber(&mut self, object: &ObjectRef, from: GrantId, to: GrantId) {
        if let Some(slots) = self.0.get_mut(&object.address())
            && let Some(numbers) = slots.by_grant.remove(&from)
        {
            slots.by_grant.insert(to, numbers);
        }
    }

    /// Frees the slots that a grant has of a semaphore, if there are any. Returns whether one of them is out of service.
    pub(super) fn free(&mut self, object: &ObjectRef, grant: GrantId) -> bool {
        self.0.get_mut(&object.address()).is_some_and(|slots| slots.free(grant))
    }

    /// The slots that a grant has of a semaphore, in ascending order.
    pub(super) fn of(&self, object: &ObjectRef, grant: GrantId) -> &[u16] {
        let slots = self.0.get(&object.address());
        slots.and_then(|slots| slots.by_grant.get(&grant)).map_or(&[], |numbers| numbers)
    }

    pub(super) fn is_taken(&self, object: &ObjectRef, number: u16) -> bool {
        self.0.get(&object.address()).is_some_and(|slots| slots.is_taken(number))
    }

    /// Fails with a description of an invariant that does not hold.
    pub(super) fn check(&self) -> Result<(), String> {
        self.0.values().try_for_each(Slots::check)
    }
}

impl Slots {
    fn take(&mut self, grant: GrantId, count: usize) {
        let mut numbers = Vec::with_capacity(count);
        let mut word = self.first_free;
        while numbers.len() < count {
            if word == self.taken.len() {
                self.taken.push(0);
            }
            let free = self.available(word);
            if free == 0 {
                word += 1;
                continue;
            }
            let bit = free.trailing_zeros() as usize;
            let number = u16::try_from(word * WORD_BITS + bit);
            invariant!(
                number.is_ok(),
                "grant {grant} takes slots below the capacity, which is {SLOTS_MAX} at most"
            );
            let Ok(number) = number else { break };
            self.taken[word] |= 1 << bit;
            numbers.push(number);
        }
        self.first_free = word;
        self.by_grant.insert(grant, numbers.into());
    }

    fn restore(&mut self, grant: GrantId, numbers: &[u16]) -> Option<()> {
        let is_ascending = numbers.is_sorted_by(|one, next| one < next);
        let is_taken =
            numbers.iter().any(|number| self.is_taken(*number)) || self.by_grant.contains_key(&grant);
        if !is_ascending || is_taken {
            return None;
        }
        for number in numbers {
            let (word, bit) = position(*number);
            if word >= self.taken.len() {
                self.taken.resize(word + 1, 0);
            }
            self.taken[word] |= bit;
        }
        self.by_grant.insert(grant, numbers.into());
        Some(())
    }

    fn free(&mut self, grant: GrantId) -> bool {
        let mut has_out = false;
        for number in self.by_grant.remove(&grant).iter().flatten() {
            let (word, bit) = position(*number);
            self.taken[word] &= !bit;
            has_out |= word_at(&self.out, word) & bit != 0;
            self.first_free = self.first_free.min(word);
        }
        has_out
    }

    fn set_out(&mut self, numbers: &[u16]) -> Vec<u16> {
        let before = self.all_out();
        self.out.clear();
        for number in numbers {
            let (word, bit) = position(*number);
            if word >= self.out.len() {
                self.out.resize(word + 1, 0);
            }
            self.out[word] |= bit;
        }
        if let Some(first) = before.first() {
            self.first_free = self.first_free.min(position(*first).0);
        }
        before
    }

    fn all_out(&self) -> Vec<u16> {
        let bits = |(word, out): (usize, &u64)| {
            let out = *out;
            (0..WORD_BITS)
                .filter(move |bit| out & (1 << bit) != 0)
                .map(move |bit| (word * WORD_BITS + bit) as u16)
        };
        self.out.iter().enumerate().flat_map(bits).collect()
    }

    fn withheld(&self, capacity: u32) -> u32 {
        let capacity = capacity as usize;
        let words = self.out.iter().enumerate().take(capacity.div_ceil(WORD_BITS));
        let withheld = words.map(|(word, out)| {
            let bits = (capacity - word * WORD_BITS).min(WORD_BITS);
            let below = u64::MAX >> (WORD_BITS - bits);
            (out & below & !word_at(&self.taken, word)).count_ones()
        });
        withheld.sum()
    }

    /// The bits of a word's slots that are in service and not taken.
    fn available(&self, word: usize) -> u64 {
        !(word_at(&self.taken, word) | word_at(&self.out, word))
    }

    fn is_taken(&self, number: u16) -> bool {
        let (word, bit) = position(number);
        self.taken.get(word).is_some_and(|taken| taken & bit != 0)
    }

    fn check(&self) -> Result<(), String> {
        let mut taken = vec![0_u64; self.taken.len()];
        for (grant, numbers) in &self.by_grant {
            for number in numbers {
                let (word, bit) = position(*number);
                if taken[word] & bit != 0 {
                    return Err(format!("grant {grant} has slot {number}, and another grant has it too"));
                }
                taken[word] |= bit;
            }
        }
        if taken == self.taken { Ok(()) } else { Err("a slot is taken and belongs to no grant".to_owned()) }
    }
}

fn word_at(words: &[u64], word: usize) -> u64 {
    words.get(word).copied().unwrap_or(0)
}

/// The word and the bit of a slot.
fn position(number: u16) -> (usize, u64) {
    (usize::from(number) / WORD_BITS, 1 << (usize::from(number) % WORD_BITS))
}
