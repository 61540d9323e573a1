//! One set: its owner, and which waiting calls a change completes.
//!
//! Waiting calls are retried in the kernel's order: first those that wait for 0, then those that alter values, each in
//! the order in which they came. A call that cannot be performed yet delays no other, unless the set keeps the order of
//! arrival (FIFO): there, a call takes nothing from a semaphore that an earlier call waits to take from.

use std::collections::{BTreeSet, VecDeque};
use std::mem;

use super::durable::SetRecord;
use super::values::{Values, Verdict, alters};
use super::waiters::{Waiter, WaiterId, Waiters, WaitsFor};
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

/// An id before those of all waiting calls.
const FIRST: WaiterId = WaiterId(0);

/// The id that no user and no group has.
const NOBODY: u32 = u32::MAX;

/// A call that no longer waits, and its result.
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
    /// The order in which waiting calls are performed.
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

    /// Restores a durable set from its record.
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

    /// Checks that the mode permits everything that these bits ask for (`ipcperms`). The bits for user, group and
    /// others are combined.
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

    /// Checks that the caller may remove the set or change its owner.
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

    /// Performs the operations of a call at once if that is possible. The caller then completes the calls that they made
    /// possible ([`Self::completion`]).
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
        completion.add_zero(self, changed);
        match changed {
            Some(operations) => {
                let taking =
                    operations.iter().filter_map(|by| self.next_of(WaitsFor::Growth(by.number), FIRST));
                completion.next.extend(taking);
            }
            None => {
                let taking =
                    self.waiters.grow().filter_map(|number| self.next_of(WaitsFor::Growth(number), FIRST));
                completion.next.extend(taking);
            }
        }
        completion.add_many_alter(&self.waiters);
        completion
    }

    /// Begins to complete the calls that waited for a call that has left. Calls wait for others only in a set that keeps
    /// the order of arrival.
    pub(super) fn completion_after_leaving(&self, left: &[Operation]) -> Completion {
        let mut completion = Completion::default();
        if self.order == Order::Fifo {
            completion.add_first_takers(self, left);
        }
        completion
    }

    /// The calls with one operation that wait for 0 at a semaphore that is 0 after this change.
    fn made_zero(&self, changed: Option<&[Operation]>) -> Vec<WaiterId> {
        let is_zero = |number: &u16| self.values.value(*number) == 0;
        match changed {
            Some(operations) => {
                let numbers: BTreeSet<_> = operations.iter().map(|operation| operation.number).collect();
                numbers.into_iter().filter(is_zero).flat_map(|number| self.waiters.zero(number)).collect()
            }
            None => {
                let all = self.waiters.all_zero().filter(|(number, _)| is_zero(number));
                all.map(|(_, waiter_id)| waiter_id).collect()
            }
        }
    }

    /// Returns whether a semaphore that this change may have altered is 0.
    fn has_zero(&self, changed: Option<&[Operation]>) -> bool {
        match changed {
            Some(operations) => operations.iter().any(|operation| self.values.value(operation.number) == 0),
            None => self.values.iter().any(|value| value == 0),
        }
    }

    /// The first call of a queue after the call `after` that may be possible now, with the queue.
    fn next_of(&self, waits_for: WaitsFor, after: WaiterId) -> Option<(WaiterId, Option<WaitsFor>)> {
        let value = match waits_for {
            WaitsFor::Growth(number) | WaitsFor::Zero(number) | WaitsFor::ManyZero(number) => {
                self.values.value(number)
            }
            WaitsFor::Value(number, value) => Some(self.values.value(number)).filter(|is| *is == value)?,
        };
        self.waiters.next(waits_for, after, value).map(|waiter_id| (waiter_id, Some(waits_for)))
    }

    /// Returns whether a waiting call raises a value.
    fn may_raise(&self, waiter_id: WaiterId) -> bool {
        self.waiters
            .get(waiter_id)
            .is_some_and(|waiter| waiter.operations.iter().any(|operation| operation.change > 0))
    }

    /// Tries to perform a waiting call. `None`: it still waits.
    fn retry(&mut self, waiter_id: WaiterId, now: UnixSeconds) -> Option<Completed> {
        let (waiters, is_fifo) = (&self.waiters, self.order == Order::Fifo);
        let waiter = waiters.get(waiter_id)?;
        let is_before = |first| first < waiter_id;
        let reserved = |number| is_fifo && waiters.first_taker(number).is_some_and(is_before);
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

/// The waiting calls to retry after a change: first those that wait for 0, then those that alter values, in their
/// order. The calls with several operations that wait for 0 are all retried after a change that left a 0, as in the
/// kernel, but only when the next call may raise a value, or no call is left. A completed call can make earlier ones
/// possible: those that wait for a value that it raised, or for a 0 that it made. Each of these queues is followed as
/// long as there is enough for its next call, so that the work does not grow with the square of the number of waiting
/// calls.
#[derive(Debug, Default)]
pub(super) struct Completion {
    zero: VecDeque<WaiterId>,
    /// Whether the calls with several operations that wait for 0 must still be retried.
    retries_many_zero: bool,
    /// The calls that alter values, each with the queue that is followed after it.
    next: BTreeSet<(WaiterId, Option<WaitsFor>)>,
    /// Whether the calls with several operations that alter values are retried once more.
    retries_many_alter: bool,
}

impl Completion {
    /// Completes the next call. `set` is the set of this completion, which nothing else may change in between.
    pub(super) fn next(&mut self, set: &mut Set, now: UnixSeconds) -> Option<Completed> {
        loop {
            if let Some(waiter_id) = self.zero.pop_front() {
                if let Some(completed) = set.retry(waiter_id, now) {
                    return Some(completed);
                }
            } else if self.retries_many_zero && self.next.first().is_none_or(|(next, _)| set.may_raise(*next))
            {
                self.retries_many_zero = false;
                self.zero.extend(set.waiters.many_zero());
            } else if let Some((waiter_id, queue)) = self.next.pop_first() {
                let completed = set.retry(waiter_id, now);
                // In a set that keeps the order of arrival, the others that take from the semaphore wait for this call.
                let is_over =
                    |queue: &WaitsFor| set.order == Order::Fifo && matches!(queue, WaitsFor::Growth(_));
                self.next.extend(
                    queue.filter(|queue| !is_over(queue)).and_then(|queue| set.next_of(queue, waiter_id)),
                );
                if let Some(completed) = completed {
                    self.follow(set, &completed);
                    return Some(completed);
                }
            } else if mem::take(&mut self.retries_many_alter) && set.waiters.has_many_alter() {
                self.add_many_alter(&set.waiters);
            } else {
                return None;
            }
        }
    }

    /// Adds the calls that wait for 0 and that this change may have made possible.
    fn add_zero(&mut self, set: &Set, changed: Option<&[Operation]>) {
        self.zero.extend(set.made_zero(changed));
        self.retries_many_zero |= set.waiters.has_many_zero() && set.has_zero(changed);
    }

    /// Adds the calls with several operations that alter values: they may wait for another semaphore now, or fail.
    fn add_many_alter(&mut self, waiters: &Waiters) {
        self.next.extend(waiters.many_alter().map(|waiter_id| (waiter_id, None)));
    }

    /// Adds the first call that takes from each semaphore of these operations, which belong to a call that has left: the
    /// set keeps the order of arrival, so they may have waited for that call.
    fn add_first_takers(&mut self, set: &Set, left: &[Operation]) {
        let first = left.iter().filter_map(|operation| set.waiters.first_taker(operation.number));
        self.next.extend(first.map(|waiter_id| (waiter_id, None)));
    }

    /// Adds the calls that a completed one may have made possible.
    fn follow(&mut self, set: &Set, completed: &Completed) {
        let is_changed = completed.result.is_ok();
        self.retries_many_alter |= is_changed;
        if set.order == Order::Fifo {
            // Others have waited for the call, even if it has failed.
            self.add_first_takers(set, &completed.waiter.operations);
        }
        for Operation { number, change, .. } in &completed.waiter.operations {
            if !is_changed || *change == 0 {
                continue;
            }
            if *change > 0 {
                self.next.extend(set.next_of(WaitsFor::Growth(*number), FIRST));
            }
            let has_value = WaitsFor::Value(*number, set.values.value(*number));
            self.next.extend(set.next_of(has_value, FIRST));
        }
        if is_changed {
            self.add_zero(set, Some(&completed.waiter.operations));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use proptest::prelude::*;

    use super::super::waiters::LOOKED_AT;
    use super::*;
    use signalbox_model::RequestId;

    const NOW: UnixSeconds = UnixSeconds(1);

    fn operation(number: u16, change: i16) -> Operation {
        Operation { number, change, flags: 0 }
    }

    fn empty_set(order: Order, count: u32) -> Set {
        Set::new(1, (order, false), Caller { uid: 0, gid: 0 }, 0o600, count, NOW)
    }

    /// Adds a waiter for a call that is not possible now.
    fn wait(set: &mut Set, operations: &[Operation]) -> WaiterId {
        let Verdict::Blocked(blocking) = set.operate(ProcessId(1), 1, operations, NOW) else {
            panic!("{operations:?} has to wait")
        };
        set.waiters.push(Waiter {
            process: ProcessId(1),
            request: RequestId(1),
            pid: 1,
            operations: operations.into(),
            blocking,
            deadline: None,
            reply_to: None,
        })
    }

    /// Completes what a change made possible. Returns the completed calls: those that alter values in the order in which they
    /// were completed, and then the others in the order of their ids.
    fn complete(set: &mut Set, mut completion: Completion) -> Vec<WaiterId> {
        let completed: Vec<_> = iter::from_fn(|| completion.next(set, NOW)).collect();
        assert!(completed.iter().all(|completed| completed.result.is_ok()));
        in_order(completed.iter().map(|completed| (completed.waiter_id, &completed.waiter.operations[..])))
    }

    fn in_order<'a>(completed: impl Iterator<Item = (WaiterId, &'a [Operation])>) -> Vec<WaiterId> {
        let mut completed: Vec<_> = completed.collect();
        completed.sort_by_key(|(waiter_id, operations)| (!alters(operations)).then_some(*waiter_id));
        completed.into_iter().map(|(waiter_id, _)| waiter_id).collect()
    }

    /// Calls that wait in a set whose values are then these. As many of them are completed as are expected.
    struct Case {
        name: &'static str,
        count: u16,
        before: fn(u16) -> u16,
        waiting: Vec<Vec<Operation>>,
        after: fn(u16) -> u16,
        completed: usize,
    }

    /// Calls with several operations and calls with one, of each kind that has to be looked at again after others.
    fn cases() -> Vec<Case> {
        const LONG: usize = 1000;
        const SHORT: usize = 1000;
        let calls = |count: usize, operations: &dyn Fn(u16) -> Vec<Operation>| {
            (0..count as u16).map(operations).collect::<Vec<_>>()
        };
        let mut cases = Vec::new();
        for last_of_long in [operation(2, -1), operation(2, 0), operation(1, -30_000)] {
            let long = calls(LONG, &|_| [vec![operation(3, 1); 50], vec![last_of_long]].concat());
            cases.push(Case {
                name: "long calls, and short ones that take from one semaphore and raise another",
                count: 4,
                before: |number| u16::from(number == 2),
                waiting: [long, calls(SHORT, &|_| vec![operation(0, -1), operation(1, 1)])].concat(),
                after: |number| [SHORT as u16, 0, 1, 0][usize::from(number)],
                completed: SHORT,
            });
        }
        // The last long call of the first case takes from semaphore 2, which has to be 0 for that.
        cases[0].before = |_| 0;
        cases[0].after = |number| if number == 0 { SHORT as u16 } else { 0 };
        cases.push(Case {
            name: "calls that take from a semaphore each, beside others that wait to take from two",
            count: SHORT as u16 + 2,
            before: |_| 0,
            waiting: [
                calls(LONG, &|_| vec![operation(SHORT as u16, -1), operation(SHORT as u16 + 1, -1)]),
                calls(SHORT, &|number| vec![operation(number, -1)]),
            ]
            .concat(),
            after: |number| u16::from(number < SHORT as u16),
            completed: SHORT,
        });
        cases.push(Case {
            name: "calls that make a semaphore 0 each, beside others that wait for two to be 0",
            count: SHORT as u16 + 2,
            before: |number| u16::from(number == SHORT as u16 + 1),
            waiting: [
                calls(LONG, &|_| vec![operation(SHORT as u16, 0), operation(SHORT as u16 + 1, 0)]),
                calls(SHORT, &|number| vec![operation(number, -1)]),
            ]
            .concat(),
            after: |number| u16::from(number != SHORT as u16),
            completed: SHORT,
        });
        cases.push(Case {
            name: "calls that take little behind others that take too much",
            count: 1,
            before: |_| 0,
            waiting: [
                calls(LONG, &|_| vec![operation(0, -20_000)]),
                calls(SHORT, &|_| vec![operation(0, -1)]),
            ]
            .concat(),
            after: |_| SHORT as u16,
            completed: SHORT,
        });
        cases.push(Case {
            name: "calls that raise the semaphore that others take too much from",
            count: 2,
            before: |_| 0,
            waiting: [
                calls(LONG, &|_| vec![operation(1, -20_000)]),
                calls(SHORT, &|_| vec![operation(0, -1), operation(1, 1)]),
            ]
            .concat(),
            after: |number| if number == 0 { SHORT as u16 } else { 0 },
            completed: SHORT,
        });
        cases.push(Case {
            name: "calls of which each uses up what others wait for with several operations",
            count: 3,
            before: |_| 0,
            waiting: [
                calls(LONG, &|_| vec![operation(1, -1), operation(2, 1)]),
                calls(LONG, &|_| vec![operation(0, -1), operation(1, 1)]),
            ]
            .concat(),
            after: |number| if number == 0 { LONG as u16 } else { 0 },
            completed: 2 * LONG,
        });
        cases
    }

    #[test]
    fn the_work_grows_with_the_waiting_calls_and_not_with_their_square() {
        for order in [Order::Kernel, Order::Fifo] {
            for Case { name, count, before, waiting, after, completed } in cases() {
                let is_starved = order == Order::Fifo && name.contains("too much") && !name.contains("raise");
                let mut set = empty_set(order, count.into());
                set.set_all(&(0..count).map(before).collect::<Vec<_>>(), 1, NOW);
                for operations in &waiting {
                    wait(&mut set, operations);
                }
                set.values.performed = 0;
                LOOKED_AT.set(0);
                set.set_all(&(0..count).map(after).collect::<Vec<_>>(), 1, NOW);
                let completion = set.completion(None);
                let completed = if is_starved { 0 } else { completed };
                assert_eq!(complete(&mut set, completion).len(), completed, "{order:?}: {name}");
                let (performed, looked_at) = (set.values.performed, LOOKED_AT.get());
                assert!(performed <= 4 * waiting.len(), "{performed} were tried: {order:?}: {name}");
                assert!(looked_at <= 200 * waiting.len(), "{looked_at} were looked at: {order:?}: {name}");
            }
        }
    }

    #[test]
    fn calls_that_leave_cost_little_beside_others_with_many_operations() {
        const CALLS: usize = 1_000;
        let mut set = empty_set(Order::Fifo, 2);
        for _ in 0..CALLS {
            wait(&mut set, &[operation(1, -1), operation(1, 1)]);
        }
        let leaving: Vec<_> = (0..CALLS).map(|_| wait(&mut set, &[operation(0, -1)])).collect();
        set.values.performed = 0;
        for waiter_id in leaving {
            let left = set.waiters.remove(waiter_id).unwrap();
            let completion = set.completion_after_leaving(&left.operations);
            assert_eq!(complete(&mut set, completion), []);
        }
        assert!(set.values.performed <= 2 * CALLS, "{} were tried", set.values.performed);
    }

    /// What happens to a set.
    #[derive(Clone, Debug)]
    enum Step {
        Operate(Vec<Operation>),
        SetAll(Vec<u16>),
        Leave(prop::sample::Index),
    }

    const SEMAPHORES: u16 = 3;

    fn step() -> impl Strategy<Value = Step> {
        let one = (0..SEMAPHORES, -2_i16..=2).prop_map(|(number, change)| operation(number, change));
        prop_oneof![
            8 => prop::collection::vec(one, 1..=3).prop_map(Step::Operate),
            1 => prop::collection::vec(0_u16..4, usize::from(SEMAPHORES)).prop_map(Step::SetAll),
            1 => any::<prop::sample::Index>().prop_map(Step::Leave),
        ]
    }

    /// The same set, which begins at the first waiting call again after each that it has performed.
    struct Reference {
        order: Order,
        values: Vec<i32>,
        waiting: Vec<(WaiterId, Vec<Operation>)>,
    }

    impl Reference {
        fn perform(&mut self, index: usize, operations: &[Operation]) -> bool {
            let mut values = self.values.clone();
            for Operation { number, change, .. } in operations {
                let takes = |by: &Operation| by.number == *number && by.change < 0;
                let is_reserved = self.order == Order::Fifo
                    && *change < 0
                    && self.waiting[..index].iter().any(|(_, before)| before.iter().any(takes));
                let value = &mut values[usize::from(*number)];
                if is_reserved || (*change == 0 && *value != 0) || *value + i32::from(*change) < 0 {
                    return false;
                }
                *value += i32::from(*change);
            }
            self.values = values;
            true
        }

        fn complete(&mut self) -> Vec<WaiterId> {
            let mut completed = Vec::new();
            loop {
                let waiting = self.waiting.clone();
                let calls = waiting.iter().enumerate();
                let zero = calls.clone().filter(|(_, (_, operations))| !alters(operations));
                let alter = calls.filter(|(_, (_, operations))| alters(operations));
                let mut in_order = zero.chain(alter);
                let performed = in_order.find(|(index, (_, operations))| self.perform(*index, operations));
                let Some((index, (waiter_id, operations))) = performed else { break };
                self.waiting.remove(index);
                completed.push((*waiter_id, operations.clone()));
            }
            in_order(completed.iter().map(|(waiter_id, operations)| (*waiter_id, &operations[..])))
        }
    }

    proptest! {
        #[test]
        fn waiting_calls_are_performed_as_if_each_change_began_at_the_first(
            is_fifo: bool,
            steps in prop::collection::vec(step(), 1..60),
        ) {
            let order = if is_fifo { Order::Fifo } else { Order::Kernel };
            let mut set = empty_set(order, SEMAPHORES.into());
            let values = vec![0; usize::from(SEMAPHORES)];
            let mut reference = Reference { order, values, waiting: Vec::new() };
            for step in steps {
                let completion = match step {
                    Step::Operate(operations) => {
                        if !reference.perform(reference.waiting.len(), &operations) {
                            reference.waiting.push((wait(&mut set, &operations), operations));
                            continue;
                        }
                        prop_assert_eq!(set.operate(ProcessId(1), 1, &operations, NOW), Verdict::Performed);
                        set.completion(Some(&operations))
                    }
                    Step::SetAll(values) => {
                        set.set_all(&values, 1, NOW);
                        reference.values = values.into_iter().map(i32::from).collect();
                        set.completion(None)
                    }
                    Step::Leave(_) if reference.waiting.is_empty() => continue,
                    Step::Leave(which) => {
                        let (waiter_id, operations) =
                            reference.waiting.remove(which.index(reference.waiting.len()));
                        set.waiters.remove(waiter_id);
                        set.completion_after_leaving(&operations)
                    }
                };
                prop_assert_eq!(complete(&mut set, completion), reference.complete());
                prop_assert_eq!(set.values.iter().map(i32::from).collect::<Vec<_>>(), &reference.values[..]);
                prop_assert_eq!(set.waiters.check(), Ok(()));
            }
        }
    }
}
