//! The calls that wait for a set, in the order in which they came.
//!
//! Linux keeps a waiting call with one operation in a list of its semaphore, and one with several in lists of the set.
//! Which lists a change looks through decides which calls it completes, so the same lists are indexes here.
//!
//! Invariants: each call is in exactly one index; an index has no other calls.

use super::reply::Place;
use super::values::alters;
use crate::mailbox::ReplyTo;
use crate::time::MonotonicMs;
use signalbox_model::RequestId;
use signalbox_model::sysv::{Operation, ProcessId};
use std::collections::{BTreeMap, BTreeSet};

/// The most operations of all calls with several operations that wait for one set. Each change of the set looks at them,
/// and each of them that it completes may make others possible: the limit bounds what one call costs the server.
pub(super) const WAITING_OPERATIONS_MAX: usize = 16_384;

/// A waiting call with its entries in the tables, rounded up, in bytes.
const WAITER_BYTES: usize = 512;

/// A call that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) process: ProcessId,
    pub(super) request: RequestId,
    pub(super) pid: u32,
    pub(super) operations: Box<[Operation]>,
    /// The operation that it waited for when it was last looked at.
    pub(super) blocking: usize,
    pub(super) deadline: Option<MonotonicMs>,
    /// `None` while the connection of the call is lost.
    pub(super) reply_to: Option<ReplyTo>,
}

/// Which list a waiting call is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// One operation, which takes from a semaphore.
    Take(u16),
    /// One operation, which waits until a semaphore is 0.
    Zero(u16),
    /// Several operations, some of which alter a value.
    ManyAlter,
    /// Several operations, which all wait for 0.
    ManyZero,
}

#[derive(Debug, Default)]
pub(super) struct Waiters {
    all: BTreeMap<Place, Waiter>,
    last: u64,
    /// By semaphore, and how much each call takes.
    take: BTreeMap<u16, BTreeMap<Place, u16>>,
    zero: BTreeMap<u16, BTreeSet<Place>>,
    many_alter: BTreeSet<Place>,
    many_zero: BTreeSet<Place>,
    /// The calls that take from each semaphore.
    takers: BTreeMap<u16, BTreeSet<Place>>,
    /// The operations of all calls with several.
    many_operations: usize,
}

impl Waiter {
    pub(super) fn list(&self) -> List {
        match &self.operations[..] {
            [Operation { number, change: 0, .. }] => List::Zero(*number),
            [Operation { number, .. }] => List::Take(*number),
            several if alters(several) => List::ManyAlter,
            _ => List::ManyZero,
        }
    }

    /// The semaphores that it takes from, once for each operation.
    fn takes_from(&self) -> impl Iterator<Item = u16> {
        let taking = self.operations.iter().filter(|operation| operation.change < 0);
        taking.map(|operation| operation.number)
    }

    /// What it counts for in the memory of its client, in bytes.
    pub(super) fn bytes(&self) -> usize {
        WAITER_BYTES + size_of_val::<[_]>(&self.operations)
    }

    /// The operation that it waits for.
    fn blocked_by(&self) -> &Operation {
        &self.operations[self.blocking]
    }

    /// Whether the operation that it waits for is possible with this value of its semaphore.
    fn is_possible_with(&self, value: u16) -> bool {
        let number = self.blocked_by().number;
        let so_far = self.operations[..=self.blocking].iter().filter(|operation| operation.number == number);
        let result = i32::from(value) + so_far.map(|operation| i32::from(operation.change)).sum::<i32>();
        if self.blocked_by().change == 0 { result == 0 } else { result >= 0 }
    }

    /// How many operations it has, if it has several.
    fn many_operations(&self) -> usize {
        Some(self.operations.len()).filter(|count| *count > 1).unwrap_or(0)
    }
}

impl Waiters {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn push(&mut self, waiter: Waiter) -> Place {
        self.last += 1;
        let place = Place(self.last);
        match waiter.list() {
            List::Take(number) => {
                let amount = waiter.operations[0].change.unsigned_abs();
                self.take.entry(number).or_default().insert(place, amount);
            }
            List::Zero(number) => {
                self.zero.entry(number).or_default().insert(place);
            }
            List::ManyAlter => {
                self.many_alter.insert(place);
            }
            List::ManyZero => {
                self.many_zero.insert(place);
            }
        }
        for number in waiter.takes_from() {
            self.takers.entry(number).or_default().insert(place);
        }
        self.many_operations += waiter.many_operations();
        self.all.insert(place, waiter);
        place
    }

    pub(super) fn remove(&mut self, place: Place) -> Option<Waiter> {
        let waiter = self.all.remove(&place)?;
        for number in waiter.takes_from() {
            if let Some(takers) = self.takers.get_mut(&number) {
                takers.remove(&place);
                if takers.is_empty() {
                    self.takers.remove(&number);
                }
            }
        }
        self.many_operations -= waiter.many_operations();
        match waiter.list() {
            List::Take(number) => {
                if let Some(calls) = self.take.get_mut(&number) {
                    calls.remove(&place);
                    if calls.is_empty() {
                        self.take.remove(&number);
                    }
                }
            }
            List::Zero(number) => {
                if let Some(calls) = self.zero.get_mut(&number) {
                    calls.remove(&place);
                    if calls.is_empty() {
                        self.zero.remove(&number);
                    }
                }
            }
            List::ManyAlter => {
                self.many_alter.remove(&place);
            }
            List::ManyZero => {
                self.many_zero.remove(&place);
            }
        }
        Some(waiter)
    }

    pub(super) fn get(&self, place: Place) -> Option<&Waiter> {
        self.all.get(&place)
    }

    pub(super) fn get_mut(&mut self, place: Place) -> Option<&mut Waiter> {
        self.all.get_mut(&place)
    }

    pub(super) fn first(&self) -> Option<Place> {
        self.all.first_key_value().map(|(place, _)| *place)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Place, &Waiter)> {
        self.all.iter().map(|(place, waiter)| (*place, waiter))
    }

    /// The calls behind a place, in their order.
    pub(super) fn after(&self, after: Place) -> impl Iterator<Item = (Place, &Waiter)> {
        self.all.range(Place(after.0 + 1)..).map(|(place, waiter)| (*place, waiter))
    }

    /// Notes for which operation a call waits.
    pub(super) fn set_blocking(&mut self, place: Place, blocking: usize) {
        if let Some(waiter) = self.all.get_mut(&place) {
            waiter.blocking = blocking;
        }
    }

    /// The operations of all waiting calls with several.
    pub(super) fn many_operations(&self) -> usize {
        self.many_operations
    }

    /// Whether a call waits that takes from a semaphore.
    pub(super) fn has_taker(&self, number: u16) -> bool {
        self.takers.contains_key(&number)
    }

    /// Whether a call before a place waits that takes from a semaphore.
    pub(super) fn has_taker_before(&self, number: u16, place: Place) -> bool {
        self.takers.get(&number).and_then(BTreeSet::first).is_some_and(|first| *first < place)
    }

    /// Whether a call with several operations waits that alters values.
    pub(super) fn has_many_alter(&self) -> bool {
        !self.many_alter.is_empty()
    }

    /// The calls with several operations that alter values.
    pub(super) fn many_alter(&self) -> impl Iterator<Item = Place> {
        self.many_alter.iter().copied()
    }

    /// Those of them that wait for a semaphore, and for no more than its value.
    pub(super) fn many_alter_possible(&self, number: u16, value: u16) -> impl Iterator<Item = Place> {
        self.many_alter().filter(move |place| {
            let waiter = self.get(*place);
            waiter
                .is_some_and(|waiter| waiter.blocked_by().number == number && waiter.is_possible_with(value))
        })
    }

    /// The semaphores that calls with one operation take from.
    pub(super) fn taken_from(&self) -> impl Iterator<Item = u16> {
        self.take.keys().copied()
    }

    /// The first call behind a place that takes no more than this from a semaphore, with one operation.
    pub(super) fn next_take(&self, number: u16, after: Place, at_most: u16) -> Option<Place> {
        let behind = self.take.get(&number)?.range(Place(after.0 + 1)..);
        behind.into_iter().find(|(_, amount)| **amount <= at_most).map(|(place, _)| *place)
    }

    /// The calls that wait, with one operation, until a semaphore is 0.
    pub(super) fn zero(&self, number: u16) -> Vec<Place> {
        self.zero.get(&number).into_iter().flatten().copied().collect()
    }

    /// The semaphores that calls with one operation wait for until they are 0.
    pub(super) fn zero_numbers(&self) -> Vec<u16> {
        self.zero.keys().copied().collect()
    }

    /// The calls with several operations that all wait for 0.
    pub(super) fn many_zero(&self) -> Vec<Place> {
        self.many_zero.iter().copied().collect()
    }

    /// How many calls wait for a semaphore to grow. A call with several operations counts for that which it waits for
    /// (GETNCNT).
    pub(super) fn count_for_growth(&self, number: u16) -> usize {
        let single = self.take.get(&number).map_or(0, BTreeMap::len);
        single + self.count_many(&self.many_alter, |by| by.number == number && by.change < 0)
    }

    /// How many calls wait for a semaphore to become 0, likewise (GETZCNT).
    pub(super) fn count_for_zero(&self, number: u16) -> usize {
        let single = self.zero.get(&number).map_or(0, BTreeSet::len);
        let counts = |by: &Operation| by.number == number && by.change == 0;
        single + self.count_many(&self.many_alter, counts) + self.count_many(&self.many_zero, counts)
    }

    fn count_many(&self, places: &BTreeSet<Place>, counts: impl Fn(&Operation) -> bool) -> usize {
        let waiters = places.iter().filter_map(|place| self.get(*place));
        waiters.filter(|waiter| counts(waiter.blocked_by())).count()
    }

    /// Describes the invariant that does not hold, if there is one.
    pub(super) fn check(&self) -> Result<(), String> {
        for (place, waiter) in &self.all {
            let is_listed = match waiter.list() {
                List::Take(number) => self.take.get(&number).is_some_and(|calls| calls.contains_key(place)),
                List::Zero(number) => self.zero.get(&number).is_some_and(|calls| calls.contains(place)),
                List::ManyAlter => self.many_alter.contains(place),
                List::ManyZero => self.many_zero.contains(place),
            };
            if !is_listed {
                return Err(format!("waiting call {place:?} is in no list"));
            }
        }
        let listed: usize = self.take.values().map(BTreeMap::len).sum::<usize>()
            + self.zero.values().map(BTreeSet::len).sum::<usize>()
            + self.many_alter.len()
            + self.many_zero.len();
        let mut takers = BTreeMap::<u16, BTreeSet<Place>>::new();
        for (place, waiter) in &self.all {
            for number in waiter.takes_from() {
                takers.entry(number).or_default().insert(*place);
            }
        }
        if takers != self.takers {
            return Err("the calls that take from a semaphore are counted wrongly".to_owned());
        }
        if self.many_operations != self.all.values().map(Waiter::many_operations).sum::<usize>() {
            return Err("the operations of calls with several are counted wrongly".to_owned());
        }
        if listed != self.all.len() {
            return Err(format!("{listed} calls are listed, and {} wait", self.all.len()));
        }
        Ok(())
    }
}
