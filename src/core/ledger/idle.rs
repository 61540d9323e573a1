//! Who waits until less of a name is in use: not to have it, but to know that others have left it.

use super::grant::Reply;
use super::idles::{Asker, Idle};
use super::{Answer, Ledger, Namespace, ObjectRef, Outcome, Refusal, STEP_GRANTS, SessionId, World};
use crate::core::mailbox::Token;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// That at most so many resources are in use.
    Level(u32),
    /// That nobody has the slot with this number.
    Slot(u16),
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
    ) -> Outcome {
        if let Err(refusal) = self.check_staying(connection).and_then(|()| self.check_open()) {
            return Outcome::Refused(refusal);
        }
        let found = world.registries[namespace as usize].find(name, |object| {
            // Said before it is looked at, so that nothing is given back unseen in between.
            object.supervise(|supervision| supervision.awaited = true);
            object.clone()
        });
        let Some(object) = found else { return Outcome::Refused(Refusal::NotFound) };
        let in_use = object.consumption();
        let outcome = if self.is_idle(&object, until) {
            Outcome::Answered(Answer::Idle { in_use })
        } else if wait_ms == 0 {
            Outcome::Refused(Refusal::NotAvailable)
        } else if self.idles.count_of(connection) >= self.limits.grants_max
            || self.idles.count_for(namespace, &object) >= self.limits.waiters_max
        {
            self.stats.limited += 1;
            Outcome::Refused(Refusal::LimitReached)
        } else {
            Outcome::Waiting
        };
        let mailbox = self.mailbox_of(connection).cloned();
        if let (Outcome::Waiting, Some(mailbox)) = (&outcome, mailbox) {
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

    /// Looks whether somebody waited for what was given back of a name. Who did is told by [`Self::tell_idles`].
    pub(super) fn note_less(&mut self, namespace: Namespace, object: &ObjectRef, world: World<'_>) {
        let slots = self.slots.get(&object.address());
        let is_free = |number| !slots.is_some_and(|slots| slots.is_held(number));
        if self.idles.take_over((namespace, object), object.consumption(), is_free) {
            self.let_go_unawaited(namespace, object);
        }
        if namespace == Namespace::Semaphores {
            self.finish_removal(object, world);
        }
    }

    /// Tells those who waited for what has come to be, some a step. Tells whether there are more.
    pub(super) fn tell_idles(&mut self) -> bool {
        for _ in 0..STEP_GRANTS {
            let Some((asker, in_use)) = self.idles.next_over() else { return false };
            if let Some(asker) = asker {
                self.end_idle(asker, Ok(Answer::Idle { in_use }));
            }
        }
        self.idles.is_any_over()
    }

    fn is_idle(&self, object: &ObjectRef, until: Until) -> bool {
        match until {
            Until::Level(level) => object.consumption() <= level,
            Until::Slot(number) => !self.is_slot_held(object, number),
        }
    }

    fn end_idle(&mut self, asker: Asker, outcome: Result<Answer, Refusal>) {
        let Some(idle) = self.idles.remove(asker) else { return };
        idle.reply.answer(outcome);
        self.let_go_unawaited(idle.namespace, &idle.object);
    }

    /// Lets plain operations on a name by again where nothing is to happen when less is in use.
    fn let_go_unawaited(&self, namespace: Namespace, object: &ObjectRef) {
        let is_removed = self.declarations.get(object.name()).is_some_and(|declaration| declaration.removing);
        let is_awaited =
            self.idles.count_for(namespace, object) > 0 || (namespace == Namespace::Semaphores && is_removed);
        object.supervise(|supervision| supervision.awaited = is_awaited);
    }

    /// Ends the waiting of a request of a connection. Tells whether there was one.
    pub(super) fn cancel_idle(&mut self, connection: SessionId, token: Token) -> bool {
        let is_there = self.idles.contains((connection, token));
        self.end_idle((connection, token), Err(Refusal::Canceled));
        is_there
    }

    /// Forgets what a connection waited for that has ended, some a step. Tells whether there is more.
    pub(super) fn forget_idles_of(&mut self, connection: SessionId) -> bool {
        for _ in 0..STEP_GRANTS {
            let Some(asker) = self.idles.first_of(connection) else { return false };
            if let Some(idle) = self.idles.remove(asker) {
                self.let_go_unawaited(idle.namespace, &idle.object);
            }
        }
        true
    }

    /// Answers those that have waited for long enough, some a step.
    pub(super) fn end_idles(&mut self, now_ms: u64) {
        // Who has what he waited for, and is yet to be told so, did not wait in vain.
        if self.idles.is_any_over() {
            return;
        }
        for _ in 0..STEP_GRANTS {
            let Some(asker) = self.idles.first_due(now_ms) else { return };
            self.stats.timed_out += 1;
            self.end_idle(asker, Err(Refusal::TimedOut));
        }
    }

    /// Answers those that still wait when the server stops, some a step. Tells whether there are more.
    pub(super) fn shut_idles_down(&mut self) -> bool {
        if self.tell_idles() {
            return true;
        }
        for _ in 0..STEP_GRANTS {
            let Some(asker) = self.idles.first() else { return false };
            self.end_idle(asker, Err(Refusal::ShuttingDown));
        }
        true
    }
}
