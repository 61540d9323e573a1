//! The requests that wait until the usage of a name has dropped.
//!
//! Invariants: a request waits under its level or slot, or it is satisfied and not answered yet; until it is answered it
//! has one deadline.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::sets::remove_from;
use crate::mailbox::ReplyTo;
use crate::object::ObjectRef;
use crate::outcome::Token;
use crate::time::{Due, MonotonicMs};
use signalbox_model::{ConnectionId, Idle, Namespace};

/// A request, by its connection and the token with which the connection identifies it.
pub(super) type IdleRequest = (ConnectionId, Token);

/// Requests that wait for the same level or slot, in the order of their arrival.
type Requests = BTreeSet<(u64, IdleRequest)>;

#[derive(Debug, Default)]
pub(super) struct IdleWaiters {
    /// All requests, each with a number that is never reused.
    all: BTreeMap<ConnectionId, BTreeMap<Token, (u64, IdleWaiter)>>,
    by_name: BTreeMap<(Namespace, usize), NameWaiters>,
    deadlines: BTreeSet<(MonotonicMs, IdleRequest)>,
    /// Requests that are satisfied and not answered yet. A request whose number is no longer in `all` was answered for
    /// another reason.
    satisfied: VecDeque<Satisfied>,
    last_number: u64,
}

#[derive(Debug)]
pub(super) struct IdleWaiter {
    pub(super) namespace: Namespace,
    pub(super) object: ObjectRef,
    pub(super) until: Idle,
    pub(super) deadline: MonotonicMs,
    pub(super) reply_to: ReplyTo,
}

/// The requests that wait for one name.
#[derive(Debug, Default)]
struct NameWaiters {
    count: usize,
    levels: BTreeMap<u32, Requests>,
    slots: BTreeMap<u16, Requests>,
}

/// The requests for one name that were satisfied at one moment.
#[derive(Debug)]
struct Satisfied {
    in_use: u32,
    levels: BTreeMap<u32, Requests>,
    slots: Vec<Requests>,
}

impl NameWaiters {
    fn insert(&mut self, until: Idle, number: u64, request: IdleRequest) {
        let requests = match until {
            Idle::Level(level) => self.levels.entry(level).or_default(),
            Idle::Slot(slot) => self.slots.entry(slot).or_default(),
        };
        requests.insert((number, request));
        self.count += 1;
    }

    /// Removes a request, unless it was satisfied.
    fn remove(&mut self, until: Idle, request: (u64, IdleRequest)) {
        let was_there = match until {
            Idle::Level(level) => remove_from(&mut self.levels, &level, &request),
            Idle::Slot(slot) => remove_from(&mut self.slots, &slot, &request),
        };
        self.count -= usize::from(was_there);
    }

    /// Removes the requests that are satisfied with this much in use. The work grows with the levels and slots, not
    /// with the requests.
    fn take_satisfied(&mut self, in_use: u32, is_free: impl Fn(u16) -> bool) -> Option<Satisfied> {
        let levels = self.levels.split_off(&in_use);
        let free: Vec<_> = self.slots.keys().copied().filter(|slot| is_free(*slot)).collect();
        let slots: Vec<_> = free.iter().filter_map(|slot| self.slots.remove(slot)).collect();
        self.count -= levels.values().chain(&slots).map(Requests::len).sum::<usize>();
        let is_some = !levels.is_empty() || !slots.is_empty();
        is_some.then_some(Satisfied { in_use, levels, slots })
    }

    fn contains(&self, request: &(u64, IdleRequest)) -> bool {
        self.levels.values().chain(self.slots.values()).any(|requests| requests.contains(request))
    }
}

impl Satisfied {
    fn pop(&mut self) -> Option<(u64, IdleRequest)> {
        if let Some(mut first) = self.levels.first_entry() {
            let next = first.get_mut().pop_first();
            if first.get().is_empty() {
                first.remove();
            }
            return next;
        }
        let last = self.slots.last_mut()?;
        let next = last.pop_first();
        if last.is_empty() {
            self.slots.pop();
        }
        next
    }

    fn is_empty(&self) -> bool {
        self.levels.is_empty() && self.slots.is_empty()
    }

    fn contains(&self, request: &(u64, IdleRequest)) -> bool {
        self.levels.values().chain(&self.slots).any(|requests| requests.contains(request))
    }
}

impl IdleWaiters {
    pub(super) fn insert(&mut self, request: IdleRequest, waiter: IdleWaiter) {
        let (connection, token) = request;
        let name = (waiter.namespace, waiter.object.address());
        self.last_number += 1;
        self.by_name.entry(name).or_default().insert(waiter.until, self.last_number, request);
        self.deadlines.insert((waiter.deadline, request));
        self.all.entry(connection).or_default().insert(token, (self.last_number, waiter));
    }

    pub(super) fn remove(&mut self, request: IdleRequest) -> Option<IdleWaiter> {
        let (connection, token) = request;
        let others = self.all.get_mut(&connection)?;
        let (number, waiter) = others.remove(&token)?;
        if others.is_empty() {
            self.all.remove(&connection);
        }
        self.deadlines.remove(&(waiter.deadline, request));
        let name = (waiter.namespace, waiter.object.address());
        if let Some(waiters) = self.by_name.get_mut(&name) {
            waiters.remove(waiter.until, (number, request));
        }
        self.drop_unused(name);
        Some(waiter)
    }

    fn drop_unused(&mut self, name: (Namespace, usize)) {
        if self.by_name.get(&name).is_some_and(|waiters| waiters.count == 0) {
            self.by_name.remove(&name);
        }
    }

    /// Marks requests for a name as satisfied: those for a level of `in_use` or more, and those for slots that are free.
    /// [`Self::pop_satisfied`] returns them. Returns whether there are any.
    pub(super) fn satisfy(
        &mut self,
        (namespace, object): (Namespace, &ObjectRef),
        in_use: u32,
        is_free: impl Fn(u16) -> bool,
    ) -> bool {
        let name = (namespace, object.address());
        let waiters = self.by_name.get_mut(&name);
        let Some(satisfied) = waiters.and_then(|waiters| waiters.take_satisfied(in_use, is_free)) else {
            return false;
        };
        self.satisfied.push_back(satisfied);
        self.drop_unused(name);
        true
    }

    /// Takes the next satisfied request, with the resources that were in use then. The request is `None` if it was
    /// answered for another reason.
    pub(super) fn pop_satisfied(&mut self) -> Option<(Option<IdleRequest>, u32)> {
        let satisfied = self.satisfied.front_mut()?;
        let in_use = satisfied.in_use;
        let (number, request) = satisfied.pop()?;
        if satisfied.is_empty() {
            self.satisfied.pop_front();
        }
        let is_waiting = self.number_of(request) == Some(number);
        Some((is_waiting.then_some(request), in_use))
    }

    pub(super) fn has_satisfied(&self) -> bool {
        !self.satisfied.is_empty()
    }

    /// The first request whose deadline has passed.
    pub(super) fn first_due(&self, now: MonotonicMs) -> Option<IdleRequest> {
        self.deadlines.first().filter(|(at, _)| *at <= now).map(|(_, request)| *request)
    }

    fn number_of(&self, (connection, token): IdleRequest) -> Option<u64> {
        self.all.get(&connection)?.get(&token).map(|(number, _)| *number)
    }

    /// The number of requests of a connection that wait.
    pub(super) fn count_of(&self, connection: ConnectionId) -> usize {
        self.all.get(&connection).map_or(0, BTreeMap::len)
    }

    /// Any request that waits.
    pub(super) fn first(&self) -> Option<IdleRequest> {
        self.first_of(*self.all.first_key_value()?.0)
    }

    /// The first of a connection's requests.
    pub(super) fn first_of(&self, connection: ConnectionId) -> Option<IdleRequest> {
        let (token, _) = self.all.get(&connection)?.first_key_value()?;
        Some((connection, *token))
    }

    /// The number of requests that wait for a name.
    pub(super) fn count_for(&self, namespace: Namespace, object: &ObjectRef) -> usize {
        self.by_name.get(&(namespace, object.address())).map_or(0, |waiters| waiters.count)
    }

    /// When a request must be answered next.
    pub(super) fn due(&self) -> Option<Due> {
        if self.has_satisfied() {
            return Some(Due::Now);
        }
        self.deadlines.first().map(|(at, _)| Due::At(*at))
    }

    /// Fails with a description of an invariant that does not hold.
    pub(super) fn check(&self, exists: impl Fn(ConnectionId) -> bool) -> Result<(), String> {
        let all = self.all.iter().flat_map(|(connection, waiters)| {
            waiters.iter().map(|(token, waiter)| ((*connection, *token), waiter))
        });
        let (mut requests, mut waiting) = (0, 0);
        for (request, (number, waiter)) in all {
            requests += 1;
            let numbered = (*number, request);
            let waiters = self.by_name.get(&(waiter.namespace, waiter.object.address()));
            let waits = waiters.is_some_and(|waiters| waiters.contains(&numbered));
            let satisfied = self.satisfied.iter().filter(|satisfied| satisfied.contains(&numbered)).count();
            waiting += usize::from(waits);
            if usize::from(waits) + satisfied != 1 {
                return Err(format!("{request:?} is satisfied {satisfied} times and waits: {waits}"));
            }
            if !self.deadlines.contains(&(waiter.deadline, request)) {
                return Err(format!("{request:?} has no deadline"));
            }
            if !exists(request.0) || (waits && !waiter.object.is_awaited()) {
                return Err(format!("{request:?} will never be answered"));
            }
        }
        let counts = self.by_name.values().map(|waiters| waiters.count);
        let is_counted = counts.clone().all(|count| count > 0) && counts.sum::<usize>() == waiting;
        if self.deadlines.len() != requests || !is_counted {
            return Err(format!("the counts of {requests} idle waiters, of which {waiting} wait, are wrong"));
        }
        Ok(())
    }
}

/// The size of a waiting request with its entries in the tables, in bytes, rounded up. The name is not
/// included, because the request does not create it.
pub(super) const IDLE_WAITER_BYTES: usize = 512;
