//! The calls that wait for a set, in the order in which they came.
//!
//! Linux keeps a waiting call with one operation in a list of its semaphore, and one with several in lists of the set,
//! and begins at the first one again after each call that it performs. Here, calls that wait for the same condition are
//! in one queue, so that a change finds the calls that it may have made possible without visiting the others.
//!
//! Invariant: each call is in its lists and in the queue of what it waits for, and nowhere else.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use super::values::alters;
use crate::mailbox::ReplyTo;
use crate::time::MonotonicMs;
use signalbox_model::RequestId;
use signalbox_model::sysv::{Operation, ProcessId};

/// The most operations of all calls with several operations that wait for one set. Each change of the set retries these
/// calls, and each call that it completes may make others possible: the limit bounds what one call costs the server.
pub(super) const WAITING_OPERATIONS_MAX: usize = 16_384;

/// The size of a waiting call with its entries in the tables, in bytes, rounded up.
const WAITER_BYTES: usize = 512;

/// The number of a waiting call among those of its set, in the order of their arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WaiterId(pub(super) u64);

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) process: ProcessId,
    pub(super) request: RequestId,
    pub(super) pid: u32,
    pub(super) operations: Box<[Operation]>,
    /// The index of the operation that it waited for when it was last tried.
    pub(super) blocking: usize,
    pub(super) deadline: Option<MonotonicMs>,
    /// `None` while the connection of the call is lost.
    pub(super) reply_to: Option<ReplyTo>,
}

/// The queue of a call: the condition that it waited for when it was last tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WaitsFor {
    /// The value of a semaphore, by its number, is as high as the call needs. In a set that keeps the order of arrival,
    /// earlier calls that take from the semaphore must also have left.
    Growth(u16),
    /// A semaphore has this value, which earlier operations of the call change to the 0 that the blocking one needs.
    Value(u16, u16),
    /// The value of a semaphore is 0; the call has only this operation.
    Zero(u16),
    /// The value of a semaphore is 0; the call has several operations and alters nothing.
    ManyZero(u16),
}

/// A list of waiting calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum List {
    /// Several operations, some of which alter a value.
    ManyAlter,
    /// Several operations that wait for 0.
    ManyZero,
    /// All calls that take from a semaphore.
    Takers(u16),
}

/// The number of ids of a block. In a queue, calls that need too much are skipped block by block.
const BLOCK_IDS: u64 = 128;

#[cfg(test)]
thread_local! {
    /// How many calls were looked at to find the next one of a queue.
    pub(super) static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[derive(Debug, Default)]
pub(super) struct Waiters {
    all: BTreeMap<WaiterId, Waiter>,
    last: u64,
    /// The calls of each list.
    lists: BTreeSet<(List, WaiterId)>,
    /// The calls of each queue, with the value of the semaphore that each needs at least.
    queues: BTreeMap<(WaitsFor, WaiterId), u16>,
    /// The lowest of these values of each block of a queue.
    least: BTreeMap<(WaitsFor, u64), u16>,
    /// The number of operations of all calls with several operations.
    many_operations: usize,
}

impl Waiter {
    /// The lists that it is in; some may occur more than once.
    fn lists(&self) -> impl Iterator<Item = List> {
        let several = if alters(&self.operations) { List::ManyAlter } else { List::ManyZero };
        let several = (self.operations.len() > 1).then_some(several);
        let taking = self.operations.iter().filter(|operation| operation.change < 0);
        several.into_iter().chain(taking.map(|operation| List::Takers(operation.number)))
    }

    /// The bytes that it counts against the memory share of its client.
    pub(super) fn bytes(&self) -> usize {
        WAITER_BYTES + size_of_val::<[_]>(&self.operations)
    }

    /// The operation that it waits for.
    fn blocked_by(&self) -> &Operation {
        &self.operations[self.blocking]
    }

    /// The condition that it waits for, and the value that the semaphore must have for it: at least this value for
    /// [`WaitsFor::Growth`], exactly this value otherwise.
    pub(super) fn waits_for(&self) -> (WaitsFor, u16) {
        let Operation { number, change, .. } = *self.blocked_by();
        if !alters(&self.operations) {
            let is_one = self.operations.len() == 1;
            return (if is_one { WaitsFor::Zero(number) } else { WaitsFor::ManyZero(number) }, 0);
        }
        let so_far = self.operations[..=self.blocking].iter().filter(|operation| operation.number == number);
        let lacking = -so_far.map(|operation| i32::from(operation.change)).sum::<i32>();
        // No semaphore has so high a value.
        let never = u16::MAX;
        if change == 0 {
            let need = u16::try_from(lacking).unwrap_or(never);
            return (WaitsFor::Value(number, need), need);
        }
        (WaitsFor::Growth(number), u16::try_from(lacking.max(0)).unwrap_or(never))
    }

    /// The number of its operations if it has several, else 0.
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
            self.lists.insert((list, waiter_id));
        }
        self.many_operations += waiter.many_operations();
        self.join_queue(waiter_id, &waiter);
        self.all.insert(waiter_id, waiter);
        waiter_id
    }

    pub(super) fn remove(&mut self, waiter_id: WaiterId) -> Option<Waiter> {
        let waiter = self.all.remove(&waiter_id)?;
        for list in waiter.lists() {
            self.lists.remove(&(list, waiter_id));
        }
        self.many_operations -= waiter.many_operations();
        self.leave_queue(waiter_id, &waiter);
        Some(waiter)
    }

    fn join_queue(&mut self, waiter_id: WaiterId, waiter: &Waiter) {
        let (waits_for, need) = waiter.waits_for();
        self.queues.insert((waits_for, waiter_id), need);
        let least = self.least.entry((waits_for, waiter_id.0 / BLOCK_IDS)).or_insert(need);
        *least = need.min(*least);
    }

    fn leave_queue(&mut self, waiter_id: WaiterId, waiter: &Waiter) {
        let (waits_for, _) = waiter.waits_for();
        self.queues.remove(&(waits_for, waiter_id));
        let block = waiter_id.0 / BLOCK_IDS;
        match self.block(waits_for, block).map(|(_, need)| need).min() {
            Some(least) => self.least.insert((waits_for, block), least),
            None => self.least.remove(&(waits_for, block)),
        };
    }

    /// The calls of a block of a queue, with what they need.
    fn block(&self, waits_for: WaitsFor, block: u64) -> impl Iterator<Item = (WaiterId, u16)> {
        let start = |block| (waits_for, WaiterId(block * BLOCK_IDS));
        self.queues.range(start(block)..start(block + 1)).map(|((_, waiter_id), need)| (*waiter_id, *need))
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

    /// Sets the operation that a call waits for.
    pub(super) fn set_blocking(&mut self, waiter_id: WaiterId, blocking: usize) {
        if self.get(waiter_id).is_none_or(|waiter| waiter.blocking == blocking) {
            return;
        }
        if let Some(mut waiter) = self.all.remove(&waiter_id) {
            self.leave_queue(waiter_id, &waiter);
            waiter.blocking = blocking;
            self.join_queue(waiter_id, &waiter);
            self.all.insert(waiter_id, waiter);
        }
    }

    /// The number of operations of all calls with several operations.
    pub(super) fn many_operations(&self) -> usize {
        self.many_operations
    }

    /// Returns whether a waiting call takes from a semaphore.
    pub(super) fn has_taker(&self, number: u16) -> bool {
        self.first_taker(number).is_some()
    }

    /// The first call that takes from a semaphore.
    pub(super) fn first_taker(&self, number: u16) -> Option<WaiterId> {
        self.in_list(List::Takers(number)).next()
    }

    /// Returns whether a waiting call with several operations alters values.
    pub(super) fn has_many_alter(&self) -> bool {
        self.many_alter().next().is_some()
    }

    /// The calls with several operations that alter values.
    pub(super) fn many_alter(&self) -> impl Iterator<Item = WaiterId> {
        self.in_list(List::ManyAlter)
    }

    /// The semaphores with calls that wait for a higher value; some may occur more than once.
    pub(super) fn grow(&self) -> impl Iterator<Item = u16> {
        let blocks = self.least.range((WaitsFor::Growth(0), 0)..=(WaitsFor::Growth(u16::MAX), u64::MAX));
        blocks.filter_map(
            |((queue, _), _)| if let WaitsFor::Growth(number) = queue { Some(*number) } else { None },
        )
    }

    /// Returns whether a call with several operations waits for 0.
    pub(super) fn has_many_zero(&self) -> bool {
        self.many_zero().next().is_some()
    }

    /// The calls with several operations that wait for 0.
    pub(super) fn many_zero(&self) -> impl Iterator<Item = WaiterId> {
        self.in_list(List::ManyZero)
    }

    /// All calls with one operation that wait for a semaphore to be 0, with the semaphore.
    pub(super) fn all_zero(&self) -> impl Iterator<Item = (u16, WaiterId)> {
        let calls = self.queues.range((WaitsFor::Zero(0), WaiterId(0))..).map(|(call, _)| *call);
        calls.filter_map(|(queue, waiter_id)| match queue {
            WaitsFor::Zero(number) => Some((number, waiter_id)),
            WaitsFor::Growth(_) | WaitsFor::Value(..) | WaitsFor::ManyZero(_) => None,
        })
    }

    /// The calls with one operation that wait for a semaphore to be 0.
    pub(super) fn zero(&self, number: u16) -> impl Iterator<Item = WaiterId> {
        self.in_queues(WaitsFor::Zero(number)..=WaitsFor::Zero(number))
    }

    /// The first call of a queue after the call `after` that needs no more than `value`.
    pub(super) fn next(&self, waits_for: WaitsFor, after: WaiterId, value: u16) -> Option<WaiterId> {
        let is_next = |(waiter_id, need): &(WaiterId, u16)| {
            #[cfg(test)]
            LOOKED_AT.with(|count| count.set(count.get() + 1));
            *waiter_id > after && *need <= value
        };
        let blocks = self.least.range((waits_for, after.0 / BLOCK_IDS)..=(waits_for, u64::MAX));
        let mut possible = blocks.filter(|(_, least)| **least <= value);
        possible
            .find_map(|((_, block), _)| self.block(waits_for, *block).find(is_next))
            .map(|(waiter_id, _)| waiter_id)
    }

    /// The number of calls that wait for a semaphore to grow (GETNCNT). A call with several operations counts for the
    /// one that it waits for.
    pub(super) fn count_for_growth(&self, number: u16) -> usize {
        self.in_queues(WaitsFor::Growth(number)..=WaitsFor::Growth(number)).count()
    }

    /// The number of calls that wait for a semaphore to become 0 (GETZCNT).
    pub(super) fn count_for_zero(&self, number: u16) -> usize {
        let altering = self.in_queues(WaitsFor::Value(number, 0)..=WaitsFor::Value(number, u16::MAX));
        let several = self.in_queues(WaitsFor::ManyZero(number)..=WaitsFor::ManyZero(number));
        altering.count() + several.count() + self.zero(number).count()
    }

    fn in_queues(&self, queues: RangeInclusive<WaitsFor>) -> impl Iterator<Item = WaiterId> {
        let (first, last) = queues.into_inner();
        self.queues
            .range((first, WaiterId(0))..=(last, WaiterId(u64::MAX)))
            .map(|((_, waiter_id), _)| *waiter_id)
    }

    fn in_list(&self, list: List) -> impl Iterator<Item = WaiterId> {
        self.lists.range((list, WaiterId(0))..=(list, WaiterId(u64::MAX))).map(|(_, waiter_id)| *waiter_id)
    }

    /// Fails with a description of an invariant that does not hold.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut expected = Self::default();
        for (waiter_id, waiter) in &self.all {
            expected.lists.extend(waiter.lists().map(|list| (list, *waiter_id)));
            expected.join_queue(*waiter_id, waiter);
        }
        if (&expected.lists, &expected.queues, &expected.least) != (&self.lists, &self.queues, &self.least) {
            return Err("a waiting call is in another list or queue than its own".to_owned());
        }
        if self.many_operations != self.all.values().map(Waiter::many_operations).sum::<usize>() {
            return Err("the operations of calls with several are counted wrongly".to_owned());
        }
        Ok(())
    }
}
