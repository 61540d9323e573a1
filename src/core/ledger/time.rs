//! Time in the ledger: deadlines, leases and what is due.

use std::task::Waker;

use super::journal::Then;
use super::owner::{Attachment, OwnerKind};
use super::{
    EventKind, GrantId, Ledger, Message, Moment, Phase, Refusal, STEP_GRANTS, SessionId, World, left,
};
use crate::core::durable::{Change, Key};

/// The server looks at what is due at least this often, in milliseconds.
pub const TICK_MS: u64 = 1000;

/// A pause of the server's own ticks from which on it counts as a gap: the machine was suspended.
const GAP_MS: u64 = 3 * TICK_MS;

/// The work that the end of a session is besides, in names given back.
const SESSION_WORK: usize = 2;

/// Remembered answers that are forgotten for as much work as one grant is.
const ANSWERS_OF_WORK: usize = 16;

/// Gaps that are remembered: a lease that was not heard of since the first of them is over in any case.
const GAPS_MAX: usize = 64;

/// The pauses in which the server could hear nobody. They are added to every lease that they fell into.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    last_tick_ms: Option<u64>,
    /// When each ended, and how long it was.
    gaps: Vec<(u64, u64)>,
}

impl Gaps {
    fn tick(&mut self, now_ms: u64) {
        let paused_ms = self.last_tick_ms.map_or(0, |last_ms| now_ms.saturating_sub(last_ms));
        if paused_ms >= GAP_MS {
            self.gaps.push((now_ms, paused_ms));
            if self.gaps.len() > GAPS_MAX {
                self.gaps.remove(0);
            }
        }
        self.last_tick_ms = Some(now_ms);
    }

    /// What is added to a lease that was last heard of then.
    fn since(&self, heard_ms: u64) -> u64 {
        let later = self.gaps.iter().filter(|(end_ms, _)| *end_ms > heard_ms);
        later.map(|(_, paused_ms)| paused_ms).sum()
    }
}

impl Ledger {
    /// Does what is due. In steps; tells whether there is more to do at once.
    pub(in crate::core) fn expire(&mut self, world: World<'_>) -> bool {
        let now_ms = world.now.monotonic_ms;
        self.gaps.tick(now_ms);
        let mut work = 0;
        while work < STEP_GRANTS {
            let Some((at_ms, id)) = self.grant_ends.first().copied().filter(|(at_ms, _)| *at_ms <= now_ms)
            else {
                break;
            };
            self.grant_ends.remove(&(at_ms, id));
            work += self.work_of(id);
            self.end_grant(id, world);
        }
        self.end_idles(now_ms);
        work = 0;
        while work < STEP_GRANTS {
            let due = self.session_ends.first().copied().filter(|(at_ms, _)| *at_ms <= now_ms);
            let Some((at_ms, session)) = due else { break };
            // One that was heard of meanwhile ends in its turn among the others.
            if let Some(later_ms) = self.session_ends_ms(session).filter(|ends_ms| *ends_ms > at_ms) {
                self.end_session_at(later_ms, session);
                work += 1;
                continue;
            }
            work += SESSION_WORK + self.next_of(session).1;
            if self.end_session(session, world) {
                // Much is given back at once: the rest in the next step.
                break;
            }
        }
        self.serve(world);
        // Evictions are not this step's: who waited here for them to be done would wait for ever.
        self.next_end_ms().is_some_and(|due_ms| due_ms <= now_ms)
    }

    /// When something is due next, if ever; `alarm` is woken where that changes to an earlier time.
    pub(in crate::core) fn next_due(&mut self, alarm: &Waker) -> Option<u64> {
        let due_ms = self.next_due_ms();
        self.alarm = Some((due_ms, alarm.clone()));
        due_ms
    }

    fn next_due_ms(&self) -> Option<u64> {
        if !self.evictions.is_empty() {
            return Some(0);
        }
        self.next_end_ms().into_iter().chain(self.disconnections.next_ms()).min()
    }

    /// When [`Self::expire`] has something to do next.
    fn next_end_ms(&self) -> Option<u64> {
        if !self.unserved.is_empty() || !self.prunings.is_empty() || !self.lessened.is_empty() {
            return Some(0);
        }
        let grant = self.grant_ends.first().map(|(at_ms, _)| *at_ms);
        let session = self.session_ends.first().map(|(at_ms, _)| *at_ms);
        grant.into_iter().chain(session).chain(self.idles.next_end_ms()).min()
    }

    pub(super) fn end_grant_at(&mut self, at_ms: u64, id: GrantId) {
        self.grant_ends.insert((at_ms, id));
        self.sound_alarm(at_ms);
    }

    /// Sets when a session may end, in place of what was set before.
    pub(super) fn end_session_at(&mut self, at_ms: u64, session: SessionId) {
        let Some(owner) = self.owners.get_mut(&session) else { return };
        if let Some(before_ms) = owner.due_ms.replace(at_ms) {
            self.session_ends.remove(&(before_ms, session));
        }
        self.session_ends.insert((at_ms, session));
        self.sound_alarm(at_ms);
    }

    /// Wakes who sleeps until something later than this.
    pub(super) fn sound_alarm(&mut self, at_ms: u64) {
        if let Some((due_ms, waker)) = &self.alarm
            && due_ms.is_none_or(|due_ms| at_ms < due_ms)
        {
            waker.wake_by_ref();
            self.alarm = None;
        }
    }

    /// The time of a waiter or of a revoked grant is up.
    fn end_grant(&mut self, id: GrantId, world: World<'_>) {
        match self.grants.get(&id).map(|grant| &grant.phase) {
            Some(Phase::Waiting { .. }) => {
                self.stats.timed_out += 1;
                self.fail(id, Refusal::TimedOut, world);
            }
            Some(Phase::Held { .. }) => self.give_back(id, EventKind::Revoked, world),
            None => {}
        }
    }

    /// When a session is due to end; `None`: it is not there, or ends already, or only with its connection.
    pub(super) fn session_ends_ms(&self, session: SessionId) -> Option<u64> {
        let owner = self.owners.get(&session).filter(|owner| owner.ending.is_none())?;
        self.lease_ends_ms(session).into_iter().chain(owner.revoked_ms).min()
    }

    /// Ends a session that was not heard of in its time, or was revoked. Tells whether there is more of it to give back.
    fn end_session(&mut self, session: SessionId, world: World<'_>) -> bool {
        let now_ms = world.now.monotonic_ms;
        let Some(owner) = self.owners.get(&session) else { return false };
        let (is_ending, is_revoked) =
            (owner.ending.is_some(), owner.revoked_ms.is_some_and(|at_ms| at_ms <= now_ms));
        let (why, refusal) = if is_revoked {
            (EventKind::Revoked, Refusal::Revoked)
        } else {
            (EventKind::Expired, Refusal::NoSuchSession)
        };
        if !is_ending && !is_revoked {
            self.stats.expired_sessions += 1;
        }
        self.end(session, why, refusal, world)
    }

    /// Ends a session: what waits is answered, what is held given back. In steps; tells whether there is more to do.
    pub(super) fn end(
        &mut self,
        session: SessionId,
        why: EventKind,
        refusal: Refusal,
        world: World<'_>,
    ) -> bool {
        let Some(owner) = self.owners.get_mut(&session) else { return false };
        let (why, refusal) = *owner.ending.get_or_insert((why, refusal));
        for id in self.next_of(session).0 {
            if self.grants.get(&id).is_some_and(|grant| grant.is_waiting()) {
                self.fail(id, refusal, world);
            } else {
                self.give_back(id, why, world);
            }
        }
        let Some(owner) = self.owners.get(&session) else { return false };
        if !owner.grants.is_empty() {
            return true;
        }
        if self.forget_replies_to(session) || self.forget_idles_of(session) {
            return true;
        }
        let Some(owner) = self.owners.get(&session) else { return false };
        match &owner.kind {
            OwnerKind::Own { mailbox, .. } => {
                if refusal == Refusal::Revoked {
                    mailbox.put(Message::Close);
                }
                self.detach(session, None);
                self.watches.end_all_of(session, world);
                self.fail_all_storing(session, refusal);
            }
            OwnerKind::Leased { connection, .. } => {
                let connection = *connection;
                self.stats.sessions -= 1;
                self.forget_stored(session, refusal);
                if let Some(connection) = connection {
                    // What its client means for this session must not go to another.
                    self.set_attachment(connection, Attachment::Lost);
                }
            }
        }
        if let Some(due_ms) = self.owners.remove(&session).and_then(|owner| owner.due_ms) {
            self.session_ends.remove(&(due_ms, session));
        }
        false
    }

    /// Has the store forget a leased session that gave back all that it held, and tells who closed it when it has.
    fn forget_stored(&mut self, session: SessionId, refusal: Refusal) {
        if !self.is_durable(session) {
            return;
        }
        let Some(owner) = self.owners.get_mut(&session) else { return };
        let told = owner.told_at_end.take();
        let answers: Vec<_> = owner.requests.stored().collect();
        for request in answers {
            self.note(Change::Delete(Key::Answer(session, request)));
        }
        self.note(Change::Delete(Key::Session(session)));
        self.fail_all_storing(session, refusal);
        if let Some(reply) = told {
            self.then(Then::Told(reply));
        }
    }

    /// The grants of a session that a step of its end gives back, and the work that the step is, with what it forgets.
    fn next_of(&self, session: SessionId) -> (Vec<GrantId>, usize) {
        let Some(owner) = self.owners.get(&session) else { return (Vec::new(), 0) };
        let (mut some, mut work) = (Vec::new(), 0);
        for (id, ()) in owner.grants.iter().rev() {
            if work >= STEP_GRANTS {
                return (some, work);
            }
            work += self.work_of(id);
            some.push(id);
        }
        let replies = match owner.kind {
            OwnerKind::Own { attachment: Attachment::To(leased), .. } => {
                self.owners.get(&leased).map_or(0, |leased| leased.tokens.len())
            }
            _ => 0,
        };
        let forgotten = replies + self.idles.count_of(session) + owner.requests.len() / ANSWERS_OF_WORK;
        (some, work + forgotten.min(STEP_GRANTS))
    }

    /// When a session's lease ends, gaps included; `None`: it has none.
    fn lease_ends_ms(&self, session: SessionId) -> Option<u64> {
        let lease = self.lease_of(session)?;
        let heard_ms = lease.heard_ms();
        Some(heard_ms + u64::from(lease.ttl_ms()) + self.gaps.since(heard_ms))
    }

    /// How long a session's lease lasts, counted from a moment; `None`: as long as its connection.
    pub(super) fn ttl_left_ms(&self, session: SessionId, from_ms: u64) -> Option<u32> {
        let ends_ms = self.lease_ends_ms(session)?;
        let revoked_ms = self.owners.get(&session).and_then(|owner| owner.revoked_ms);
        Some(left(revoked_ms.map_or(ends_ms, |at_ms| at_ms.min(ends_ms)), from_ms))
    }

    /// How long the lease of the session that a connection is attached to lasts.
    pub(in crate::core) fn keep_alive(&self, connection: SessionId, now: Moment) -> Result<u32, Refusal> {
        self.lease(connection)?.renew(now.monotonic_ms);
        let session = self.acting(connection)?;
        self.ttl_left_ms(session, now.monotonic_ms).ok_or(Refusal::NoSuchSession)
    }
}
