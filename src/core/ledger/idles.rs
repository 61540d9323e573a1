//! The books of who waits until less of a name is in use.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::grant::Reply;
use super::idle::Until;
use super::{Namespace, ObjectRef, SessionId, remove_from};
use crate::core::mailbox::Token;

/// Who asked, and what his connection calls the request.
pub(super) type Asker = (SessionId, Token);

/// Requests that wait for the same, each behind its number and so in the order in which they came.
type Askers = BTreeSet<(u64, Asker)>;

/// Requests of connections that wait so.
#[derive(Debug, Default)]
pub(super) struct Idles {
    /// Each with the number that no other ever has.
    waits: BTreeMap<SessionId, BTreeMap<Token, (u64, Idle)>>,
    by_name: BTreeMap<(Namespace, usize), Awaited>,
    ends: BTreeSet<(u64, Asker)>,
    /// Those that are over and not told so yet. A number that is not among those that wait was answered otherwise.
    over: VecDeque<Over>,
    last_number: u64,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Idle {
    pub(super) namespace: Namespace,
    pub(super) object: ObjectRef,
    pub(super) until: Until,
    pub(super) until_ms: u64,
    pub(super) reply: Reply,
}

/// What is waited for of one name.
#[derive(Debug, Default)]
struct Awaited {
    requests: usize,
    levels: BTreeMap<u32, Askers>,
    slots: BTreeMap<u16, Askers>,
}

/// Requests for one name that came to be over at one moment.
#[derive(Debug)]
struct Over {
    in_use: u32,
    levels: BTreeMap<u32, Askers>,
    slots: Vec<Askers>,
}

impl Awaited {
    fn insert(&mut self, until: Until, number: u64, asker: Asker) {
        let askers = match until {
            Until::Level(level) => self.levels.entry(level).or_default(),
            Until::Slot(slot) => self.slots.entry(slot).or_default(),
        };
        askers.insert((number, asker));
        self.requests += 1;
    }

    /// Takes out a request, if it is not over.
    fn remove(&mut self, until: Until, request: (u64, Asker)) {
        let was_there = match until {
            Until::Level(level) => remove_from(&mut self.levels, &level, &request),
            Until::Slot(slot) => remove_from(&mut self.slots, &slot, &request),
        };
        self.requests -= usize::from(was_there);
    }

    /// Takes out what is over with so much in use, and with the slots that are free. It looks at what is waited
    /// for, and not at each request.
    fn take_over(&mut self, in_use: u32, is_free: impl Fn(u16) -> bool) -> Option<Over> {
        let levels = self.levels.split_off(&in_use);
        let free: Vec<_> = self.slots.keys().copied().filter(|slot| is_free(*slot)).collect();
        let slots: Vec<_> = free.iter().filter_map(|slot| self.slots.remove(slot)).collect();
        self.requests -= levels.values().chain(&slots).map(Askers::len).sum::<usize>();
        let is_some = !levels.is_empty() || !slots.is_empty();
        is_some.then_some(Over { in_use, levels, slots })
    }
}

impl Over {
    /// Takes out the next.
    fn next(&mut self) -> Option<(u64, Asker)> {
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
}

impl Idles {
    pub(super) fn insert(&mut self, asker: Asker, idle: Idle) {
        let (connection, token) = asker;
        let name = (idle.namespace, idle.object.address());
        self.last_number += 1;
        self.by_name.entry(name).or_default().insert(idle.until, self.last_number, asker);
        self.ends.insert((idle.until_ms, asker));
        self.waits.entry(connection).or_default().insert(token, (self.last_number, idle));
    }

    pub(super) fn remove(&mut self, asker: Asker) -> Option<Idle> {
        let (connection, token) = asker;
        let others = self.waits.get_mut(&connection)?;
        let (number, idle) = others.remove(&token)?;
        if others.is_empty() {
            self.waits.remove(&connection);
        }
        self.ends.remove(&(idle.until_ms, asker));
        let name = (idle.namespace, idle.object.address());
        if let Some(awaited) = self.by_name.get_mut(&name) {
            awaited.remove(idle.until, (number, asker));
        }
        self.forget_unawaited(name);
        Some(idle)
    }

    fn forget_unawaited(&mut self, name: (Namespace, usize)) {
        if self.by_name.get(&name).is_some_and(|awaited| awaited.requests == 0) {
            self.by_name.remove(&name);
        }
    }

    /// Takes what is over of a name out of what waits, to be told by [`Self::next_over`]: whoever waits for a level of so
    /// much in use or more, and for slots that are free. Tells whether there is any.
    pub(super) fn take_over(
        &mut self,
        (namespace, object): (Namespace, &ObjectRef),
        in_use: u32,
        is_free: impl Fn(u16) -> bool,
    ) -> bool {
        let name = (namespace, object.address());
        let Some(over) = self.by_name.get_mut(&name).and_then(|awaited| awaited.take_over(in_use, is_free))
        else {
            return false;
        };
        self.over.push_back(over);
        self.forget_unawaited(name);
        true
    }

    /// Takes out the next request that is over, with how much was in use then. A request that was answered otherwise
    /// gives no asker.
    pub(super) fn next_over(&mut self) -> Option<(Option<Asker>, u32)> {
        let over = self.over.front_mut()?;
        let in_use = over.in_use;
        let (number, asker) = over.next()?;
        if over.is_empty() {
            self.over.pop_front();
        }
        let still_waits = self.number_of(asker) == Some(number);
        Some((still_waits.then_some(asker), in_use))
    }

    /// Whether there is something for [`Self::next_over`].
    pub(super) fn is_any_over(&self) -> bool {
        !self.over.is_empty()
    }

    /// The first whose time is up.
    pub(super) fn first_due(&self, now_ms: u64) -> Option<Asker> {
        self.ends.first().filter(|(at_ms, _)| *at_ms <= now_ms).map(|(_, asker)| *asker)
    }

    fn number_of(&self, (connection, token): Asker) -> Option<u64> {
        self.waits.get(&connection)?.get(&token).map(|(number, _)| *number)
    }

    pub(super) fn contains(&self, asker: Asker) -> bool {
        self.number_of(asker).is_some()
    }

    /// How many requests of a connection wait.
    pub(super) fn count_of(&self, connection: SessionId) -> usize {
        self.waits.get(&connection).map_or(0, BTreeMap::len)
    }

    /// Some request, if any waits.
    pub(super) fn first(&self) -> Option<Asker> {
        self.first_of(*self.waits.first_key_value()?.0)
    }

    /// The first of a connection's requests.
    pub(super) fn first_of(&self, connection: SessionId) -> Option<Asker> {
        let (token, _) = self.waits.get(&connection)?.first_key_value()?;
        Some((connection, *token))
    }

    /// How many requests wait for a name.
    pub(super) fn count_for(&self, namespace: Namespace, object: &ObjectRef) -> usize {
        self.by_name.get(&(namespace, object.address())).map_or(0, |awaited| awaited.requests)
    }

    /// When there is something to tell next.
    pub(super) fn next_end_ms(&self) -> Option<u64> {
        if self.over.is_empty() { self.ends.first().map(|(at_ms, _)| *at_ms) } else { Some(0) }
    }

    /// Says what is wrong, if anything: each request waits in one place and has an end, and its object says so.
    pub(super) fn check(&self, is_there: impl Fn(SessionId) -> bool) -> Result<(), String> {
        let waits = self.waits.iter();
        let waits = waits
            .flat_map(|(connection, waits)| waits.iter().map(|(token, idle)| ((*connection, *token), idle)));
        let (mut requests, mut awaiting) = (0, 0);
        for (asker, (number, idle)) in waits {
            requests += 1;
            let is_here = |askers: &Askers| askers.contains(&(*number, asker));
            let awaited = self.by_name.get(&(idle.namespace, idle.object.address()));
            let awaits = awaited.is_some_and(|awaited| {
                awaited.levels.values().any(is_here) || awaited.slots.values().any(is_here)
            });
            let is_in = |over: &&Over| over.levels.values().any(is_here) || over.slots.iter().any(is_here);
            let overs = self.over.iter().filter(is_in).count();
            awaiting += usize::from(awaits);
            if usize::from(awaits) + overs != 1 || !self.ends.contains(&(idle.until_ms, asker)) {
                return Err(format!("{asker:?} waits in {overs} places, or has no end"));
            }
            if !is_there(asker.0) || (awaits && !idle.object.is_awaited()) {
                return Err(format!("{asker:?} waits for what nobody tells him"));
            }
        }
        let counts = self.by_name.values().map(|awaited| awaited.requests);
        if self.ends.len() != requests
            || counts.clone().any(|count| count == 0)
            || counts.sum::<usize>() != awaiting
        {
            return Err(format!(
                "{requests} requests wait until a name is idle, and {awaiting} are waited with"
            ));
        }
        Ok(())
    }
}
