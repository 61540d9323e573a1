//! The calls that wait for a set, in the order in which they came.
//!
//! Linux keeps a waiting call with one operation in a list of its semaphore, and one with several in lists of the set.
//! Which lists a change looks through decides which calls it completes, so the same lists are here.
//!
//! Invariant: each call is in its lists, and a list has no other calls.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::iter;

use super::values::alters;
use crate::mailbox::ReplyTo;
use crate::time::MonotonicMs;
use signalbox_model::RequestId;
use signalbox_model::sysv::{Operation, ProcessId};

/// The most operations of all calls with several operations that wait for one set. Each change of the set looks at them,
/// and each of them that it completes may make others possible: the limit bounds what one call costs the server.
pub(super) const WAITING_OPERATIONS_MAX: usize = 16_384;

/// A waiting call with its entries in the tables, rounded up, in bytes.
const WAITER_BYTES: usize = 512;

/// The number of a waiting call among those of its set, in the order of their arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WaiterId(pub(super) u64);

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

/// A list of waiting calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum List {
    /// One operation, which takes from a semaphore.
    Take(u16),
    /// One operation, which waits until a semaphore is 0.
    Zero(u16),
    /// Several operations, some of which alter a value.
    ManyAlter,
    /// Several operations, which all wait for 0.
    ManyZero,
    /// All calls that take from a semaphore. Each of them is in one of the lists above too, as every call is.
    Takers(u16),
}

#[derive(Debug, Default)]
pub(super) struct Waiters {
    all: BTreeMap<WaiterId, Waiter>,
    last: u64,
    /// The calls of each list that has some, and how much their first operation takes.
    lists: BTreeMap<List, BTreeMap<WaiterId, u16>>,
    /// The operations of all calls with several.
    many_operations: usize,
}

impl Waiter {
    /// The list that it is in as the kernel has it.
    pub(super) fn list(&self) -> List {
        match &self.operations[..] {
            [Operation { number, change: 0, .. }] => List::Zero(*number),
            [Operation { number, .. }] => List::Take(*number),
            several if alters(several) => List::ManyAlter,
            _ => List::ManyZero,
        }
    }

    /// The lists that it is in; some may occur twice.
    fn lists(&self) -> impl Iterator<Item = List> {
        let taking = self.operations.iter().filter(|operation| operation.change < 0);
        iter::once(self.list()).chain(taking.map(|operation| List::Takers(operation.number)))
    }

    /// How much its first operation takes.
    fn amount(&self) -> u16 {
        self.operations[0].change.unsigned_abs()
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

    pub(super) fn push(&mut self, waiter: Waiter) -> WaiterId {
        self.last += 1;
        let waiter_id = WaiterId(self.last);
        for list in waiter.lists() {
            self.lists.entry(list).or_default().insert(waiter_id, waiter.amount());
        }
        self.many_operations += waiter.many_operations();
        self.all.insert(waiter_id, waiter);
        waiter_id
    }

    pub(super) fn remove(&mut self, waiter_id: WaiterId) -> Option<Waiter> {
        let waiter = self.all.remove(&waiter_id)?;
        for list in waiter.lists() {
            if let Entry::Occupied(mut calls) = self.lists.entry(list) {
                calls.get_mut().remove(&waiter_id);
                if calls.get().is_empty() {
                    calls.remove();
                }
            }
        }
        self.many_operations -= waiter.many_operations();
        Some(waiter)
    }

    pub(super) fn get(&self, waiter_id: WaiterId) -> Option<&Waiter> {
        self.all.get(&waiter_id)
    }

    pub(super) fn get_mut(&mut self, waiter_id: WaiterId) -> Option<&mut Waiter> {
        self.all.get_mut(&waiter_id)
    }

    pub(super) fn first(&self) -> Option<WaiterId> {
        self.all.first_key_value().map(|(waiter_id, _)| *waiter_id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        self.all.iter().map(|(waiter_id, waiter)| (*waiter_id, waiter))
    }

    /// The calls after a waiter, in their order.
    pub(super) fn after(&self, after: WaiterId) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        self.all.range(WaiterId(after.0 + 1)..).map(|(waiter_id, waiter)| (*waiter_id, waiter))
    }

    /// Notes for which operation a call waits.
    pub(super) fn set_blocking(&mut self, waiter_id: WaiterId, blocking: usize) {
        if let Some(waiter) = self.all.get_mut(&waiter_id) {
            waiter.blocking = blocking;
        }
    }

    /// The operations of all waiting calls with several.
    pub(super) fn many_operations(&self) -> usize {
        self.many_operations
    }

    /// Whether a call waits that takes from a semaphore.
    pub(super) fn has_taker(&self, number: u16) -> bool {
        self.lists.contains_key(&List::Takers(number))
    }

    /// Whether a call that takes from a semaphore waits before this waiter.
    pub(super) fn has_taker_before(&self, number: u16, waiter_id: WaiterId) -> bool {
        self.in_list(List::Takers(number)).next().is_some_and(|first| first < waiter_id)
    }

    /// Whether a call with several operations waits that alters values.
    pub(super) fn has_many_alter(&self) -> bool {
        self.lists.contains_key(&List::ManyAlter)
    }

    /// The calls with several operations that alter values.
    pub(super) fn many_alter(&self) -> impl Iterator<Item = WaiterId> {
        self.in_list(List::ManyAlter)
    }

    /// Those of them that wait for a semaphore, and for no more than its value.
    pub(super) fn many_alter_possible(&self, number: u16, value: u16) -> impl Iterator<Item = WaiterId> {
        self.many_alter().filter(move |waiter_id| {
            let waiter = self.get(*waiter_id);
            waiter
                .is_some_and(|waiter| waiter.blocked_by().number == number && waiter.is_possible_with(value))
        })
    }

    /// The semaphores that calls with one operation take from.
    pub(super) fn taken_from(&self) -> impl Iterator<Item = u16> {
        self.lists.range(List::Take(0)..=List::Take(u16::MAX)).filter_map(|(list, _)| match list {
            List::Take(number) => Some(*number),
            _ => None,
        })
    }

    /// The first call after a waiter that takes no more than this from a semaphore, with one operation.
    pub(super) fn next_take(&self, number: u16, after: WaiterId, at_most: u16) -> Option<WaiterId> {
        let later = self.lists.get(&List::Take(number))?.range(WaiterId(after.0 + 1)..);
        later.into_iter().find(|(_, amount)| **amount <= at_most).map(|(waiter_id, _)| *waiter_id)
    }

    /// The calls that wait, with one operation, until a semaphore is 0.
    pub(super) fn zero(&self, number: u16) -> Vec<WaiterId> {
        self.in_list(List::Zero(number)).collect()
    }

    /// The semaphores that calls with one operation wait for until they are 0.
    pub(super) fn zero_numbers(&self) -> Vec<u16> {
        let lists = self.lists.range(List::Zero(0)..=List::Zero(u16::MAX)).map(|(list, _)| list);
        lists.filter_map(|list| if let List::Zero(number) = list { Some(*number) } else { None }).collect()
    }

    /// The calls with several operations that all wait for 0.
    pub(super) fn many_zero(&self) -> Vec<WaiterId> {
        self.in_list(List::ManyZero).collect()
    }

    /// How many calls wait for a semaphore to grow. A call with several operations counts for that which it waits for
    /// (GETNCNT).
    pub(super) fn count_for_growth(&self, number: u16) -> usize {
        let single = self.lists.get(&List::Take(number)).map_or(0, BTreeMap::len);
        single + self.count_many(List::ManyAlter, |by| by.number == number && by.change < 0)
    }

    /// How many calls wait for a semaphore to become 0 (GETZCNT).
    pub(super) fn count_for_zero(&self, number: u16) -> usize {
        let single = self.lists.get(&List::Zero(number)).map_or(0, BTreeMap::len);
        let counts = |by: &Operation| by.number == number && by.change == 0;
        single + self.count_many(List::ManyAlter, counts) + self.count_many(List::ManyZero, counts)
    }

    fn in_list(&self, list: List) -> impl Iterator<Item = WaiterId> {
        self.lists.get(&list).into_iter().flat_map(BTreeMap::keys).copied()
    }

    fn count_many(&self, list: List, counts: impl Fn(&Operation) -> bool) -> usize {
        let waiters = self.in_list(list).filter_map(|waiter_id| self.get(waiter_id));
        waiters.filter(|waiter| counts(waiter.blocked_by())).count()
    }

    /// Describes the invariant that does not hold, if there is one.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut lists = BTreeMap::<List, BTreeMap<WaiterId, u16>>::new();
        for (waiter_id, waiter) in &self.all {
            for list in waiter.lists() {
                lists.entry(list).or_default().insert(*waiter_id, waiter.amount());
            }
        }
        if lists != self.lists {
            return Err("a waiting call is in another list than its own".to_owned());
        }
        if self.many_operations != self.all.values().map(Waiter::many_operations).sum::<usize>() {
            return Err("the operations of calls with several are counted wrongly".to_owned());
        }
        Ok(())
    }
}
