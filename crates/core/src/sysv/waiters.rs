//! The calls that wait for a set, in the order in which they came.
//!
//! Linux keeps a waiting call with one operation in a list of its semaphore, and one with several in lists of the set.
//! Which lists a change looks through decides which calls it completes, so the same lists are indexes here.
//!
//! Invariants: each call is in exactly one index; an index has no other calls.

use std::collections::{BTreeMap, BTreeSet};

use super::answers::WaiterId;
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
    all: BTreeMap<WaiterId, Waiter>,
    last: u64,
    /// By semaphore, and how much each call takes.
    take: BTreeMap<u16, BTreeMap<WaiterId, u16>>,
    zero: BTreeMap<u16, BTreeSet<WaiterId>>,
    many_alter: BTreeSet<WaiterId>,
    many_zero: BTreeSet<WaiterId>,
    /// The calls that take from each semaphore.
    takers: BTreeMap<u16, BTreeSet<WaiterId>>,
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

    pub(super) fn push(&mut self, waiter: Waiter) -> WaiterId {
        self.last += 1;
        let waiter_id = WaiterId(self.last);
        match waiter.list() {
            List::Take(number) => {
                let amount = waiter.operations[0].change.unsigned_abs();
                self.take.entry(number).or_default().insert(waiter_id, amount);
            }
            List::Zero(number) => {
                self.zero.entry(number).or_default().insert(waiter_id);
            }
            List::ManyAlter => {
                self.many_alter.insert(waiter_id);
            }
            List::ManyZero => {
                self.many_zero.insert(waiter_id);
            }
        }
        for number in waiter.takes_from() {
            self.takers.entry(number).or_default().insert(waiter_id);
        }
        self.many_operations += waiter.many_operations();
        self.all.insert(waiter_id, waiter);
        waiter_id
    }

    pub(super) fn remove(&mut self, waiter_id: WaiterId) -> Option<Waiter> {
        let waiter = self.all.remove(&waiter_id)?;
        for number in waiter.takes_from() {
            if let Some(takers) = self.takers.get_mut(&number) {
                takers.remove(&waiter_id);
                if takers.is_empty() {
                    self.takers.remove(&number);
                }
            }
        }
        self.many_operations -= waiter.many_operations();
        match waiter.list() {
            List::Take(number) => {
                if let Some(calls) = self.take.get_mut(&number) {
                    calls.remove(&waiter_id);
                    if calls.is_empty() {
                        self.take.remove(&number);
                    }
                }
            }
            List::Zero(number) => {
                if let Some(calls) = self.zero.get_mut(&number) {
                    calls.remove(&waiter_id);
                    if calls.is_empty() {
                        self.zero.remove(&number);
                    }
                }
            }
            List::ManyAlter => {
                self.many_alter.remove(&waiter_id);
            }
            List::ManyZero => {
                self.many_zero.remove(&waiter_id);
            }
        }
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
        self.takers.contains_key(&number)
    }

    /// Whether a call that takes from a semaphore waits before this waiter.
    pub(super) fn has_taker_before(&self, number: u16, waiter_id: WaiterId) -> bool {
        self.takers.get(&number).and_then(BTreeSet::first).is_some_and(|first| *first < waiter_id)
    }

    /// Whether a call with several operations waits that alters values.
    pub(super) fn has_many_alter(&self) -> bool {
        !self.many_alter.is_empty()
    }

    /// The calls with several operations that alter values.
    pub(super) fn many_alter(&self) -> impl Iterator<Item = WaiterId> {
        self.many_alter.iter().copied()
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
        self.take.keys().copied()
    }

    /// The first call after a waiter that takes no more than this from a semaphore, with one operation.
    pub(super) fn next_take(&self, number: u16, after: WaiterId, at_most: u16) -> Option<WaiterId> {
        let later = self.take.get(&number)?.range(WaiterId(after.0 + 1)..);
        later.into_iter().find(|(_, amount)| **amount <= at_most).map(|(waiter_id, _)| *waiter_id)
    }

    /// The calls that wait, with one operation, until a semaphore is 0.
    pub(super) fn zero(&self, number: u16) -> Vec<WaiterId> {
        self.zero.get(&number).into_iter().flatten().copied().collect()
    }

    /// The semaphores that calls with one operation wait for until they are 0.
    pub(super) fn zero_numbers(&self) -> Vec<u16> {
        self.zero.keys().copied().collect()
    }

    /// The calls with several operations that all wait for 0.
    pub(super) fn many_zero(&self) -> Vec<WaiterId> {
        self.many_zero.iter().copied().collect()
    }

    /// How many calls wait for a semaphore to grow. A call with several operations counts for that which it waits for
    /// (GETNCNT).
    pub(super) fn count_for_growth(&self, number: u16) -> usize {
        let single = self.take.get(&number).map_or(0, BTreeMap::len);
        single + self.count_many(&self.many_alter, |by| by.number == number && by.change < 0)
    }

    /// How many calls wait for a semaphore to become 0 (GETZCNT).
    pub(super) fn count_for_zero(&self, number: u16) -> usize {
        let single = self.zero.get(&number).map_or(0, BTreeSet::len);
        let counts = |by: &Operation| by.number == number && by.change == 0;
        single + self.count_many(&self.many_alter, counts) + self.count_many(&self.many_zero, counts)
    }

    fn count_many(&self, waiter_ids: &BTreeSet<WaiterId>, counts: impl Fn(&Operation) -> bool) -> usize {
        let waiters = waiter_ids.iter().filter_map(|waiter_id| self.get(*waiter_id));
        waiters.filter(|waiter| counts(waiter.blocked_by())).count()
    }

    /// Describes the invariant that does not hold, if there is one.
    pub(super) fn check(&self) -> Result<(), String> {
        for (waiter_id, waiter) in &self.all {
            let is_listed = match waiter.list() {
                List::Take(number) => {
                    self.take.get(&number).is_some_and(|calls| calls.contains_key(waiter_id))
                }
                List::Zero(number) => self.zero.get(&number).is_some_and(|calls| calls.contains(waiter_id)),
                List::ManyAlter => self.many_alter.contains(waiter_id),
                List::ManyZero => self.many_zero.contains(waiter_id),
            };
            if !is_listed {
                return Err(format!("waiting call {waiter_id:?} is in no list"));
            }
        }
        let listed: usize = self.take.values().map(BTreeMap::len).sum::<usize>()
            + self.zero.values().map(BTreeSet::len).sum::<usize>()
            + self.many_alter.len()
            + self.many_zero.len();
        let mut takers = BTreeMap::<u16, BTreeSet<WaiterId>>::new();
        for (waiter_id, waiter) in &self.all {
            for number in waiter.takes_from() {
                takers.entry(number).or_default().insert(*waiter_id);
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
