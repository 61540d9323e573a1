//! The end of declared semaphores: who waits is told, who holds has until the grace is over or as long as he likes, and
//! the semaphore goes with the last of them.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use super::declaration::Declaration;
use super::declared::SEMAPHORES;
use super::{GrantId, Ledger, ObjectRef, Refusal, STEP_GRANTS, SessionId, World};
use crate::core::durable::{Change, Key};
use crate::core::mailbox::{EventKind, Notice};
use crate::core::semaphore::Standing;

/// Who waits for a semaphore that shrank or is removed is told, some a step.
#[derive(Debug)]
pub(super) struct Pruning {
    object: ObjectRef,
    after: Option<GrantId>,
    /// Whose ids are below this one waited for what is removed, whatever is declared under its name since.
    removed: Option<GrantId>,
}

/// Who holds a semaphore that is removed loses it at a given time, whatever is declared under its name since; he is told
/// in steps.
#[derive(Debug)]
pub(super) struct Eviction {
    object: ObjectRef,
    at_ms: u64,
    after: Option<GrantId>,
    /// Grants with lower ids are of what is removed.
    removed: GrantId,
    /// Sessions that held it by plain Acquires, and so without anything that could be taken from them but all.
    plain: std::vec::IntoIter<SessionId>,
}

/// Connections that are closed when a grace is over, if they hold a removed semaphore by plain Acquires still.
#[derive(Debug, Default)]
pub(super) struct Disconnections(BTreeMap<u64, VecDeque<(ObjectRef, SessionId)>>);

impl Disconnections {
    pub(super) fn next_ms(&self) -> Option<u64> {
        self.0.first_key_value().map(|(at_ms, _)| *at_ms)
    }

    /// The next sessions whose time is up, some a step; `None`: there are none.
    fn due(&mut self, now_ms: u64) -> Option<Vec<SessionId>> {
        let mut due = self.0.first_entry().filter(|due| *due.key() <= now_ms)?;
        let some = due.get().len().min(STEP_GRANTS);
        let some = due.get_mut().drain(..some).filter(|(object, session)| object.is_held_by(*session));
        let some = some.map(|(_, session)| session).collect();
        if due.get().is_empty() {
            due.remove();
        }
        Some(some)
    }
}

impl Ledger {
    /// Ends a removal when the last holder has left, and nothing that was asked for since may yet come to be.
    pub(super) fn finish_removal(&mut self, object: &ObjectRef, world: World<'_>) {
        let is_over = object.standing() == Standing::Removing
            && object.consumption() == 0
            && self.waiting(SEMAPHORES, object) == 0;
        if !is_over || self.declarations.get(object.name()).is_none_or(|declaration| !declaration.removing) {
            return;
        }
        if self.journal.as_ref().is_some_and(|journal| journal.is_changing(object)) {
            // Whatever comes of that looks again.
            return;
        }
        self.tell_name(SEMAPHORES, object, EventKind::Removed, None, None, 0);
        self.note(Change::Delete(Key::Declaration(object.name().into())));
        object.declare(Standing::Made, 0);
        self.forget_declaration(object, world);
    }

    /// Ends removals that nobody holds up any more, after everything was brought back.
    pub(super) fn finish_removals(&mut self, world: World<'_>) {
        let is_removed =
            |declaration: &Declaration| declaration.removing || declaration.evicted_grace_ms.is_some();
        let removing = self.declarations.iter().filter(|(_, declaration)| is_removed(declaration));
        let removing: Vec<_> = removing.map(|(object, _)| object.clone()).collect();
        for object in removing {
            self.evict_again(&object, world);
            self.finish_removal(&object, world);
        }
    }

    /// Takes a semaphore that was removed at once from those who hold it still: their grace begins anew.
    fn evict_again(&mut self, object: &ObjectRef, world: World<'_>) {
        let Some(declaration) = self.declarations.get(object.name()) else { return };
        if let Some(grace_ms) = declaration.evicted_grace_ms {
            let removed = if declaration.removing { declaration.generation } else { declaration.created };
            self.evict_later(object, grace_ms, GrantId(removed), world);
        }
    }

    /// Has those told who wait for what is removed, and those who hold it, where it is taken from them.
    pub(super) fn dismiss(
        &mut self,
        object: &ObjectRef,
        removal: &Declaration,
        evicts: bool,
        world: World<'_>,
    ) {
        let removed = GrantId(removal.generation);
        self.prune_later(object, Some(removed));
        if let Some(grace_ms) = removal.evicted_grace_ms.filter(|_| evicts) {
            self.evict_later(object, grace_ms, removed, world);
        }
        self.sound_alarm(world.now.monotonic_ms);
    }

    /// Has grants with ids below `removed`, and the sessions that hold by plain Acquires, lose a semaphore after a grace.
    fn evict_later(&mut self, object: &ObjectRef, grace_ms: u32, removed: GrantId, world: World<'_>) {
        let at_ms = world.now.monotonic_ms + u64::from(grace_ms);
        let plain: Vec<_> = object.holdings().into_iter().map(|(session, _)| session).collect();
        let (object, plain) = (object.clone(), plain.into_iter());
        self.evictions.push_back(Eviction { object, at_ms, after: None, removed, plain });
    }

    /// Has those told who wait in vain; of those with ids below `removed`, all do.
    pub(super) fn prune_later(&mut self, object: &ObjectRef, removed: Option<GrantId>) {
        self.prunings.push_back(Pruning { object: object.clone(), after: None, removed });
    }

    /// Tells those who wait in vain for a semaphore that shrank or is removed, some a step.
    pub(super) fn prune(&mut self, world: World<'_>) {
        let mut work = 0;
        while work < STEP_GRANTS
            && let Some(pruning) = self.prunings.front_mut()
        {
            let object = pruning.object.clone();
            let removed = pruning.removed;
            let from = pruning.after.map_or(Bound::Unbounded, Bound::Excluded);
            let entry = self.names[SEMAPHORES as usize].get(&object.address());
            let some: Vec<_> = entry
                .map(|entry| entry.queue.range((from, Bound::Unbounded)).take(STEP_GRANTS).copied().collect())
                .unwrap_or_default();
            work += some.len().max(1);
            let Some(last) = some.last().copied() else {
                self.prunings.pop_front();
                self.finish_removal(&object, world);
                if self.declarations.get(object.name()).is_none() {
                    world.registries[SEMAPHORES as usize].collect(&object, world.interval);
                }
                continue;
            };
            pruning.after = Some(last);
            for id in some {
                let claim = self.grants.get(&id).and_then(|grant| grant.awaited()).map(|part| part.claim);
                if removed.is_some_and(|removed| id < removed) {
                    self.fail(id, Refusal::Removed, world);
                } else if let Some(refusal) = claim.and_then(|claim| object.refusal(claim)) {
                    self.fail(id, refusal, world);
                }
            }
        }
        if !self.prunings.is_empty() {
            self.sound_alarm(world.now.monotonic_ms);
        }
    }

    /// Whether a waiter is still to be told that what he waited for was removed.
    pub(super) fn waits_for_removed(&self, object: &ObjectRef, id: GrantId) -> bool {
        let is_told = |pruning: &Pruning| {
            pruning.object.address() == object.address()
                && pruning.removed.is_some_and(|removed| id < removed)
        };
        self.prunings.iter().any(is_told)
    }

    /// Takes a semaphore that is removed from its holders, some a step: those of grants are told and have until the
    /// grace is over, and so are those of plain Acquires. Gives the sessions of connections that still hold it by plain
    /// Acquires when theirs is: only to end them takes it from them. `None`: there is nobody left to tell.
    pub(in crate::core) fn evict(&mut self, world: World<'_>) -> Option<Vec<SessionId>> {
        let now_ms = world.now.monotonic_ms;
        if let Some(due) = self.disconnections.due(now_ms) {
            return Some(due);
        }
        let eviction = self.evictions.front_mut()?;
        let (object, at_ms) = (eviction.object.clone(), eviction.at_ms);
        let grace_ms = super::left(at_ms, now_ms);
        let from = eviction.after.map_or(Bound::Unbounded, Bound::Excluded);
        let entry = self.names[SEMAPHORES as usize].get(&object.address());
        let range = (from, Bound::Excluded(eviction.removed));
        let some: Vec<_> = entry
            .map(|entry| entry.held.range(range).take(STEP_GRANTS).copied().collect())
            .unwrap_or_default();
        if let Some(last) = some.last() {
            eviction.after = Some(*last);
            for id in some {
                self.evict_grant(id, grace_ms, world);
            }
            self.serve(world);
            return Some(Vec::new());
        }
        let some: Vec<_> = eviction.plain.by_ref().take(STEP_GRANTS).collect();
        if some.is_empty() {
            self.evictions.pop_front();
        }
        for session in some.into_iter().filter(|session| object.is_held_by(*session)) {
            if grace_ms > 0 {
                self.notify_session(session, Notice::SessionRevoked { session, grace_ms });
            }
            self.disconnections.0.entry(at_ms).or_default().push_back((object.clone(), session));
        }
        Some(Vec::new())
    }

    fn evict_grant(&mut self, id: GrantId, grace_ms: u32, world: World<'_>) {
        if self.grants.get(&id).is_some_and(|grant| grant.is_waiting()) {
            self.fail(id, Refusal::Removed, world);
        } else {
            // One that is gone meanwhile has nothing to lose.
            let _ = self.revoke_grant_now(id, grace_ms, world);
        }
    }
}
