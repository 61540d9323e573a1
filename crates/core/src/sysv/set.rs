//! One set: its owner, and which waiting calls a change completes.
//!
//! Waiting calls are looked at in the kernel's order: first those that wait for 0, then those that alter, each in the
//! order in which they came. A call that cannot be performed yet holds back no other, unless the set is in the order of
//! arrival: there, a call takes nothing from a semaphore that a call before it waits to take from.

use std::collections::{BTreeSet, VecDeque};
use std::mem;

use super::durable::SetRecord;
use super::values::{Values, Verdict, alters};
use super::waiters::{Waiter, WaiterId, Waiters};
use signalbox_model::UnixSeconds;
use signalbox_model::sysv::{Caller, Errno, Operation, Order, Ownership, ProcessId, SetId, SetStat};

/// The most semaphores of a set (SEMMSL).
pub(super) const SEMAPHORES_MAX: u32 = 32000;

/// The bit of a mode that permits reading.
pub(super) const READ: u32 = 0o4;

/// The bit of a mode that permits altering.
pub(super) const ALTER: u32 = 0o2;

/// The bits of a mode.
const MODE: u32 = 0o777;

/// The user who may do everything.
const ROOT: u32 = 0;

/// No user or group.
const NOBODY: u32 = u32::MAX;

/// A waiting call that is over.
#[derive(Debug)]
pub(super) struct Completed {
    pub(super) waiter: Waiter,
    pub(super) waiter_id: WaiterId,
    pub(super) result: Result<(), Errno>,
}

#[derive(Debug)]
pub(super) struct Set {
    /// Its key, owner, mode and times.
    pub(super) stat: SetStat,
    /// In which order waiting calls are performed.
    pub(super) order: Order,
    /// Whether it outlives the process.
    pub(super) is_durable: bool,
    pub(super) values: Values,
    pub(super) waiters: Waiters,
}

impl Set {
    pub(super) fn new(
        key: i32,
        (order, is_durable): (Order, bool),
        Caller { uid, gid }: Caller,
        mode: u32,
        count: u32,
        now: UnixSeconds,
    ) -> Self {
        let stat = SetStat {
            key,
            ownership: Ownership { uid, gid, mode: mode & MODE },
            creator_uid: uid,
            creator_gid: gid,
            operated_at: None,
            changed_at: now,
            count,
        };
        Self { stat, order, is_durable, values: Values::new(count), waiters: Waiters::default() }
    }

    /// The durable set of a record.
    pub(super) fn restore(record: &SetRecord) -> Self {
        let SetRecord { key, order, ownership, creator_uid, creator_gid, operated_at, changed_at, .. } =
            *record;
        let count = record.semaphores.len() as u32;
        let stat = SetStat { key, ownership, creator_uid, creator_gid, operated_at, changed_at, count };
        let values = Values::restore(&record.semaphores);
        Self { stat, order, is_durable: true, values, waiters: Waiters::default() }
    }

    pub(super) fn record(&self, set: SetId) -> SetRecord {
        let SetStat { key, ownership, creator_uid, creator_gid, operated_at, changed_at, .. } = self.stat;
        let (order, semaphores) = (self.order, self.values.records().into());
        SetRecord {
            set,
            key,
            order,
            ownership,
            creator_uid,
            creator_gid,
            operated_at,
            changed_at,
            semaphores,
        }
    }

    /// Whether the mode permits everything that these bits ask for (`ipcperms`). The bits for user, group and others are
    /// taken together.
    pub(super) fn check_access(&self, caller: Caller, groups: &[u32], asked: u32) -> Result<(), Errno> {
        let asked = (asked >> 6) | (asked >> 3) | asked;
        let Ownership { uid, gid, mode } = self.stat.ownership;
        let is_in = |group| caller.gid == group || groups.contains(&group);
        let granted = if [uid, self.stat.creator_uid].contains(&caller.uid) {
            mode >> 6
        } else if is_in(gid) || is_in(self.stat.creator_gid) {
            mode >> 3
        } else {
            mode
        };
        let is_permitted = asked & !granted & 0o7 == 0 || caller.uid == ROOT;
        if is_permitted { Ok(()) } else { Err(Errno::Access) }
    }

    /// Whether the caller may remove the set or change its owner.
    pub(super) fn check_owner(&self, caller: Caller) -> Result<(), Errno> {
        let is_owner = [self.stat.ownership.uid, self.stat.creator_uid, ROOT].contains(&caller.uid);
        if is_owner { Ok(()) } else { Err(Errno::Perm) }
    }

    pub(super) fn set_ownership(&mut self, ownership: Ownership, now: UnixSeconds) -> Result<(), Errno> {
        if ownership.uid == NOBODY || ownership.gid == NOBODY {
            return Err(Errno::Inval);
        }
        self.stat.ownership = Ownership { mode: ownership.mode & MODE, ..ownership };
        self.stat.changed_at = now;
        Ok(())
    }

    /// Performs the operations of a call at once if that is possible. [`Self::completion`] of them comes next.
    pub(super) fn operate(
        &mut self,
        process: ProcessId,
        pid: u32,
        operations: &[Operation],
        now: UnixSeconds,
    ) -> Verdict {
        let (waiters, is_fifo) = (&self.waiters, self.order == Order::Fifo);
        let reserved = |number| is_fifo && waiters.has_taker(number);
        let verdict = self.values.perform(process, pid, operations, reserved);
        if verdict == Verdict::Performed {
            self.stat.operated_at = Some(now);
        }
        verdict
    }

    /// Sets a value (SETVAL).
    pub(super) fn set_value(&mut self, number: usize, value: u16, pid: u32, now: UnixSeconds) {
        self.values.set(number, value, pid);
        self.stat.changed_at = now;
    }

    /// Sets the values of all semaphores (SETALL).
    pub(super) fn set_all(&mut self, values: &[u16], pid: u32, now: UnixSeconds) {
        self.values.set_all(values, pid);
        self.stat.changed_at = now;
    }

    /// Applies the adjustments of a process that ends.
    pub(super) fn undo(&mut self, process: ProcessId, pid: u32, now: UnixSeconds) {
        self.values.undo(process, pid);
        self.stat.operated_at = Some(now);
    }

    /// Begins to complete the waiting calls that a change made possible, and those that fail now: `do_smart_update` of the
    /// kernel. `changed` are the operations of the change; without them, any value may have changed.
    pub(super) fn completion(&self, changed: Option<&[Operation]>) -> Completion {
        let mut completion = Completion::default();
        if self.waiters.len() == 0 || changed.is_some_and(|operations| !alters(operations)) {
            return completion;
        }
        completion.zero = self.made_zero(changed);
        match changed {
            Some(operations) => {
                let taken = operations.iter().filter_map(|by| self.next_take(by.number, WaiterId(0)));
                completion.next.extend(taken);
            }
            None => {
                let taken =
                    self.waiters.taken_from().filter_map(|number| self.next_take(number, WaiterId(0)));
                completion.next.extend(taken);
            }
        }
        completion.look_at_many(&self.waiters);
        completion
    }

    /// Begins to complete the calls for which a waiting call was in the way that has left, in the order of arrival.
    pub(super) fn completion_after_leaving(&self, left: &[Operation]) -> Completion {
        if self.order == Order::Fifo { self.completion(Some(left)) } else { Completion::default() }
    }

    /// The calls that wait for 0 and may no longer have to. Those with several operations are looked at only if a changed
    /// semaphore is 0.
    fn made_zero(&self, changed: Option<&[Operation]>) -> VecDeque<WaiterId> {
        let numbers: Vec<u16> = match changed {
            Some(operations) => operations.iter().map(|operation| operation.number).collect(),
            None => self.waiters.zero_numbers(),
        };
        let mut has_zero = changed.is_none() && self.values.iter().any(|value| value == 0);
        let mut waiter_ids = VecDeque::new();
        for number in numbers {
            if self.values.value(number) == 0 {
                has_zero = true;
                waiter_ids.extend(self.waiters.zero(number));
            }
        }
        if has_zero {
            waiter_ids.extend(self.waiters.many_zero());
        }
        waiter_ids
    }

    /// The first call after a waiter that takes from a semaphore with one operation, and no more than there is.
    fn next_take(&self, number: u16, after: WaiterId) -> Option<(WaiterId, Option<u16>)> {
        let value = self.values.value(number);
        self.waiters.next_take(number, after, value).map(|waiter_id| (waiter_id, Some(number)))
    }

    /// Performs a waiting call if that is possible now. `None`: it waits on.
    fn look_at(&mut self, waiter_id: WaiterId, now: UnixSeconds) -> Option<Completed> {
        let (waiters, is_fifo) = (&self.waiters, self.order == Order::Fifo);
        let waiter = waiters.get(waiter_id)?;
        let reserved = |number| is_fifo && waiters.has_taker_before(number, waiter_id);
        let verdict = self.values.perform(waiter.process, waiter.pid, &waiter.operations, reserved);
        let result = match verdict {
            Verdict::Blocked(blocking) => {
                self.waiters.set_blocking(waiter_id, blocking);
                return None;
            }
            Verdict::Performed => Ok(()),
            Verdict::Failed(errno) => Err(errno),
        };
        if result.is_ok() {
            self.stat.operated_at = Some(now);
        }
        let waiter = self.waiters.remove(waiter_id)?;
        Some(Completed { waiter, waiter_id, result })
    }
}

/// Which waiting calls are looked at after a change: first those that wait for 0, then those that alter values, in their
/// order. A completed call can make earlier ones possible: those with one operation that take from a semaphore that it
/// changed, and those with several that wait for one of them. Only these are looked at again, so that the work does not
/// grow with the square of the waiting calls.
#[derive(Debug, Default)]
pub(super) struct Completion {
    zero: VecDeque<WaiterId>,
    /// Calls with one operation are followed through the calls of their semaphore.
    next: BTreeSet<(WaiterId, Option<u16>)>,
    /// Whether calls with several operations are looked at once more.
    looks_again: bool,
}

impl Completion {
    /// The next call that is completed, of the set that this is of. Nothing else may change the set in between.
    pub(super) fn next(&mut self, set: &mut Set, now: UnixSeconds) -> Option<Completed> {
        loop {
            if let Some(waiter_id) = self.zero.pop_front() {
                if let Some(completed) = set.look_at(waiter_id, now) {
                    return Some(completed);
                }
            } else if let Some((waiter_id, of)) = self.next.pop_first() {
                if let Some(completed) = set.look_at(waiter_id, now) {
                    self.follow(set, &completed);
                    return Some(completed);
                }
                // In the order of arrival, the others of the semaphore wait for this call.
                let others =
                    of.filter(|_| set.order == Order::Kernel && set.waiters.get(waiter_id).is_some());
                self.next.extend(others.and_then(|number| set.next_take(number, waiter_id)));
            } else if mem::take(&mut self.looks_again) && set.waiters.has_many_alter() {
                self.look_at_many(&set.waiters);
            } else {
                return None;
            }
        }
    }

    /// What waits for several semaphores may wait for another one of them now, or fail.
    fn look_at_many(&mut self, waiters: &Waiters) {
        self.next.extend(waiters.many_alter().map(|waiter_id| (waiter_id, None)));
    }

    /// Looks at the calls that a completed one may have made possible.
    fn follow(&mut self, set: &Set, completed: &Completed) {
        let operations = &completed.waiter.operations;
        if completed.result.is_ok() {
            self.zero = set.made_zero(Some(operations));
        }
        self.looks_again |= completed.result.is_ok() || set.order == Order::Fifo;
        // A call that failed has changed nothing, but others may have waited for it.
        for Operation { number, .. } in operations {
            let value = set.values.value(*number);
            self.next.extend(set.next_take(*number, WaiterId(0)));
            self.next
                .extend(set.waiters.many_alter_possible(*number, value).map(|waiter_id| (waiter_id, None)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;
    use signalbox_model::RequestId;

    const LONG: usize = 300;
    const SHORT: usize = 300;

    fn operation(number: u16, change: i16) -> Operation {
        Operation { number, change, flags: 0 }
    }

    /// A set where calls wait that have many operations, and after them calls with two, which take from semaphore 0.
    fn set(order: Order, last_of_long: Operation) -> Set {
        let caller = Caller { uid: 0, gid: 0 };
        let mut set = Set::new(1, (order, false), caller, 0o600, 4, UnixSeconds(1));
        let mut push = |operations: Vec<Operation>, blocking| {
            set.waiters.push(Waiter {
                process: ProcessId(1),
                request: RequestId(1),
                pid: 1,
                operations: operations.into(),
                blocking,
                deadline: None,
                reply_to: None,
            });
        };
        for _ in 0..LONG {
            let mut operations = vec![operation(3, 1); 50];
            operations.push(last_of_long);
            push(operations, 50);
        }
        for _ in 0..SHORT {
            push(vec![operation(0, -1), operation(1, 1)], 0);
        }
        set
    }

    #[test]
    fn the_work_grows_with_the_waiting_calls_and_not_with_their_square() {
        for order in [Order::Kernel, Order::Fifo] {
            for last_of_long in [operation(2, -1), operation(2, 0), operation(1, -30_000)] {
                let mut set = set(order, last_of_long);
                set.values.set(2, u16::from(last_of_long.change == 0), 1);
                set.set_value(0, SHORT as u16, 1, UnixSeconds(2));
                let mut completion = set.completion(None);
                let completed = iter::from_fn(|| completion.next(&mut set, UnixSeconds(2))).count();
                assert_eq!(completed, SHORT, "{order:?}, {last_of_long:?}");
                let performed = set.values.performed;
                assert!(performed <= 4 * (LONG + SHORT), "{performed} for {order:?}, {last_of_long:?}");
            }
        }
    }
}
