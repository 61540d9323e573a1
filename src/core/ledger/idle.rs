//! Who waits until less of a name is in use: not to have it, but to know that others have left it.

use std::collections::{BTreeMap, BTreeSet};

use super::grant::Reply;
use super::{Answer, Asked, Ledger, Namespace, ObjectRef, Refusal, STEP_GRANTS, SessionId, World};
use crate::core::mailbox::Token;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// That at most so many resources are in use.
    Level(u32),
    /// That nobody has the slot with this number.
    Slot(u16),
}

/// Requests of connections that wait so.
#[derive(Debug, Default)]
pub(super) struct Idles {
    waits: BTreeMap<(SessionId, Token), Idle>,
    by_name: BTreeMap<(Namespace, usize), BTreeSet<(SessionId, Token)>>,
    ends: BTreeSet<(u64, (SessionId, Token))>,
}

#[derive(Debug)]
struct Idle {
    namespace: Namespace,
    object: ObjectRef,
    until: Until,
    until_ms: u64,
    reply: Reply,
}

impl Idles {
    fn insert(&mut self, key: (SessionId, Token), idle: Idle) {
        self.by_name.entry((idle.namespace, idle.object.address())).or_default().insert(key);
        self.ends.insert((idle.until_ms, key));
        self.waits.insert(key, idle);
    }

    fn remove(&mut self, key: (SessionId, Token)) -> Option<Idle> {
        let idle = self.waits.remove(&key)?;
        self.ends.remove(&(idle.until_ms, key));
        let name = (idle.namespace, idle.object.address());
        if let Some(others) = self.by_name.get_mut(&name) {
            others.remove(&key);
            if others.is_empty() {
                self.by_name.remove(&name);
            }
        }
        Some(idle)
    }

    fn of(&self, connection: SessionId) -> impl Iterator<Item = (SessionId, Token)> {
        let all = (connection, Token(0))..=(connection, Token(u64::MAX));
        self.waits.range(all).map(|(key, _)| *key)
    }

    fn is_awaited(&self, namespace: Namespace, object: &ObjectRef) -> bool {
        self.by_name.contains_key(&(namespace, object.address()))
    }

    /// When the next of them has waited for long enough.
    pub(super) fn next_end_ms(&self) -> Option<u64> {
        self.ends.first().map(|(at_ms, _)| *at_ms)
    }
}

impl Ledger {
    /// Waits until less of a name is in use (`docs/protocol.md`, "AwaitIdle").
    pub(in crate::core) fn await_idle(
        &mut self,
        (connection, token): (SessionId, Token),
        (namespace, name): (Namespace, &[u8]),
        until: Until,
        wait_ms: u32,
        world: World<'_>,
    ) -> Asked {
        if let Err(refusal) = self.check_open() {
            return Asked::Refused(refusal);
        }
        let found = world.registries[namespace as usize].find(name, |object| {
            // Said before it is looked at, so that nothing is given back unseen in between.
            object.supervise(|supervision| supervision.awaited = true);
            object.clone()
        });
        let Some(object) = found else { return Asked::Refused(Refusal::NotFound) };
        let in_use = object.consumption();
        let outcome = if self.is_idle(&object, until) {
            Asked::Answered(Answer::Idle { in_use })
        } else if wait_ms == 0 {
            Asked::Refused(Refusal::NotAvailable)
        } else if self.idles.of(connection).count() >= self.limits.grants_max {
            self.stats.limited += 1;
            Asked::Refused(Refusal::LimitReached)
        } else {
            Asked::Waiting
        };
        let mailbox = self.mailbox_of(connection).cloned();
        if let (Asked::Waiting, Some(mailbox)) = (&outcome, mailbox) {
            let until_ms = world.now.monotonic_ms + u64::from(wait_ms);
            let reply = Reply { mailbox, token };
            let idle = Idle { namespace, object, until, until_ms, reply };
            self.idles.insert((connection, token), idle);
            self.sound_alarm(until_ms);
        } else {
            self.let_go_unawaited(namespace, &object);
        }
        outcome
    }

    /// Looks whether somebody waited for what was given back of a name.
    pub(super) fn note_less(&mut self, namespace: Namespace, object: &ObjectRef, world: World<'_>) {
        if let Some(waiting) = self.idles.by_name.get(&(namespace, object.address())) {
            let is_over = |key: &&(SessionId, Token)| {
                self.idles.waits.get(key).is_some_and(|idle| self.is_idle(object, idle.until))
            };
            let over: Vec<_> = waiting.iter().filter(is_over).copied().collect();
            for key in over {
                self.end_idle(key, Ok(Answer::Idle { in_use: object.consumption() }));
            }
        }
        if namespace == Namespace::Semaphores {
            self.finish_removal(object, world);
        }
    }

    fn is_idle(&self, object: &ObjectRef, until: Until) -> bool {
        match until {
            Until::Level(level) => object.consumption() <= level,
            Until::Slot(number) => !self.is_slot_held(object, number),
        }
    }

    fn end_idle(&mut self, key: (SessionId, Token), outcome: Result<Answer, Refusal>) {
        let Some(idle) = self.idles.remove(key) else { return };
        idle.reply.answer(outcome);
        self.let_go_unawaited(idle.namespace, &idle.object);
    }

    /// Lets plain operations on a name by again where nothing is to happen when less is in use.
    fn let_go_unawaited(&self, namespace: Namespace, object: &ObjectRef) {
        let is_removed = self.declarations.get(object.name()).is_some_and(|declaration| declaration.removing);
        let is_awaited =
            self.idles.is_awaited(namespace, object) || (namespace == Namespace::Semaphores && is_removed);
        object.supervise(|supervision| supervision.awaited = is_awaited);
    }

    /// Ends the waiting of a request of a connection. Tells whether there was one.
    pub(super) fn cancel_idle(&mut self, connection: SessionId, token: Token) -> bool {
        let is_there = self.idles.waits.contains_key(&(connection, token));
        self.end_idle((connection, token), Err(Refusal::Canceled));
        is_there
    }

    /// Forgets what a connection waited for that has ended.
    pub(super) fn forget_idles_of(&mut self, connection: SessionId) {
        let keys: Vec<_> = self.idles.of(connection).collect();
        for key in keys {
            if let Some(idle) = self.idles.remove(key) {
                self.let_go_unawaited(idle.namespace, &idle.object);
            }
        }
    }

    /// Answers those that have waited for long enough, some a step.
    pub(super) fn end_idles(&mut self, now_ms: u64) {
        let due: Vec<_> = self.idles.ends.iter().take(STEP_GRANTS).copied().collect();
        for (_, key) in due.into_iter().filter(|(at_ms, _)| *at_ms <= now_ms) {
            self.stats.timed_out += 1;
            self.end_idle(key, Err(Refusal::TimedOut));
        }
    }

    /// Answers those that still wait when the server stops, some a step. Tells whether there are more.
    pub(super) fn shut_idles_down(&mut self) -> bool {
        let some: Vec<_> = self.idles.waits.keys().take(STEP_GRANTS).copied().collect();
        for key in &some {
            self.end_idle(*key, Err(Refusal::ShuttingDown));
        }
        some.len() == STEP_GRANTS
    }
}
