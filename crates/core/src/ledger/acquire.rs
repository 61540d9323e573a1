//! AcquireGrant and AcquireAll, and what a client does with a grant or a waiter: release, cancel, verify.

use super::backlog::{NameRef, Task};
use super::grants::{Grant, Part, Queueing, Want};
use super::listing::ttl_left;
use super::replies::{Changed, RequestKind};
use super::sessions::CachedReply;
use super::state::PendingReply;
use super::state::{Ledger, LedgerContext};
use crate::limit::limit_reached;
use crate::outcome::{Call, Outcome, Token};
use crate::state::Core;
use crate::time::{Due, Moment, MonotonicMs};
use signalbox_model::{
    ConnectionId, EventKind, GraceLeft, GrantId, GrantState, Limit, Milliseconds, Namespace, Place, Refusal,
    RequestId, SessionId, VerifiedGrant,
};

/// The request that a Cancel names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The request with this number within its session.
    Request(RequestId),
    /// The request of the connection with this token.
    Token(Token),
}

impl Core {
    /// Requests a grant of one name or of several, all or nothing. No name may be wanted twice.
    pub fn acquire_grant(&self, call: Call, wants: &[Want<'_>], queueing: Queueing, now: Moment) -> Outcome {
        self.ledger().acquire(call, wants, queueing, None, now.monotonic, self.context(now.unix))
    }

    /// Like [`Self::acquire_grant`], but also returns the place of a request that waits, if the place survives a
    /// restart. A request that is repeated after a restart presents this place, and waits there again; with a wrong
    /// proof, it waits like a request without a place.
    pub fn acquire_grant_at(
        &self,
        call: Call,
        wants: &[Want<'_>],
        queueing: Queueing,
        presented: Option<Place>,
        now: Moment,
    ) -> (Outcome, Option<Place>) {
        let (mut ledger, context) = (self.ledger(), self.context(now.unix));
        let outcome = ledger.acquire(call, wants, queueing, presented, now.monotonic, context);
        let place = if outcome == Outcome::Waiting { ledger.place(call) } else { None };
        if presented.is_some() {
            ledger.count_repetition(call.connection, context);
        }
        (outcome, place)
    }

    /// Releases a grant of the connection's session (`docs/protocol.md`, "ReleaseGrant"). With `is_done`, the
    /// work of the grant's single flight is done, and its present waiters are answered [`Refusal::Done`].
    pub fn release_grant(&self, call: Call, grant: GrantId, is_done: bool, now: Moment) -> Outcome {
        let (ledger, context) = (&mut *self.ledger(), self.context(now.unix));
        ledger
            .change(call, now.monotonic, |ledger, session| {
                let held = ledger.grants.get(grant);
                if !held.is_some_and(|held| held.session == session && !held.is_waiting()) {
                    return Err(Refusal::NotAcquired);
                }
                if is_done {
                    ledger.set_done(grant)?;
                }
                ledger.end_grant(grant, EventKind::Released, context);
                ledger.run_backlog(context);
                Ok(Changed::done(ledger.is_durable(session)))
            })
            .outcome
    }

    /// Ends the wait of a request of the connection's session (`docs/protocol.md`, "Cancel").
    pub fn cancel(&self, connection: ConnectionId, waiting: Waiting, now: Moment) -> Result<(), Refusal> {
        let (ledger, context) = (&mut *self.ledger(), self.context(now.unix));
        if let Waiting::Token(token) = waiting
            && ledger.cancel_idle_wait(connection, token)
        {
            return Ok(());
        }
        let session = ledger.sessions.acting(connection)?;
        let state = ledger.sessions.get(session).ok_or(Refusal::NotFound)?;
        let waiter = match waiting {
            Waiting::Request(request) => state.log().waiting(request),
            Waiting::Token(token) => state.waiter_of(token),
        };
        ledger.refuse_waiter(waiter.ok_or(Refusal::NotFound)?, Refusal::Canceled, context);
        ledger.run_backlog(context);
        Ok(())
    }

    /// Returns the session and the state of a held grant, and how long it lasts (`docs/protocol.md`, "VerifyGrant").
    pub fn verify(&self, id: GrantId, now: Moment) -> Result<VerifiedGrant, Refusal> {
        self.ledger().verify(id, now)
    }

    /// Like [`Self::verify`], for a client. Unless its own session has the grant, or it may read one of the grant's
    /// names, the refusal is the same as for a grant that does not exist.
    pub fn verify_for(
        &self,
        connection: ConnectionId,
        may_read: impl Fn(Namespace, &[u8]) -> bool,
        id: GrantId,
        now: Moment,
    ) -> Result<VerifiedGrant, Refusal> {
        let ledger = &*self.ledger();
        let grant = ledger.grants.get(id).ok_or(Refusal::NotAcquired)?;
        if ledger.sessions.acting(connection) == Ok(grant.session)
            || grant.parts().iter().any(|part| may_read(ledger.namespace_of(part), part.name()))
        {
            return ledger.verify(id, now);
        }
        Err(Refusal::NotAcquired)
    }
}

impl Ledger {
    /// Marks the work of a grant's single flight as done, so that the present waiters for its names are refused with
    /// [`Refusal::Done`]. Fails with [`Refusal::NotShared`] if the grant does not belong to a single flight.
    pub(super) fn set_done(&mut self, id: GrantId) -> Result<(), Refusal> {
        let Self { grants, queues, backlog, counts, .. } = self;
        let parts = grants.existing(id).parts();
        if !parts.iter().all(|part| part.is_shared) {
            return Err(Refusal::NotShared);
        }
        counts.flights += 1;
        for (namespace, object) in parts.iter().filter_map(Part::object) {
            queues.set_done(namespace, object);
            backlog.push(Task::TellDone(NameRef::new(namespace, object)));
        }
        Ok(())
    }

    fn verify(&self, id: GrantId, now: Moment) -> Result<VerifiedGrant, Refusal> {
        let is_held = |grant: &&Grant| !grant.is_waiting() && self.sessions.ending(grant.session).is_none();
        let grant = self.grants.get(id).filter(is_held).ok_or(Refusal::NotAcquired)?;
        let lease_left = self.sessions.ttl_left_ms(grant.session, now.monotonic);
        let revoked =
            grant.revoked().into_iter().chain(self.sessions.existing(grant.session).revoked()).min();
        let grace_left_ms = revoked.map(|at| now.monotonic.until(at));
        let is_retiring = grace_left_ms.is_some() || self.is_retiring(id, grant);
        Ok(VerifiedGrant {
            session: grant.session.number(),
            ttl_left: ttl_left(lease_left.into_iter().chain(grace_left_ms).min()),
            state: if is_retiring { GrantState::Retiring } else { GrantState::Held },
            grace_left: grace_left_ms
                .map_or(GraceLeft::NotRevoked, |left| GraceLeft::For(Milliseconds(left))),
        })
    }

    /// Requests a grant (`docs/protocol.md`, "AcquireGrant" and "AcquireAll"). No name may be wanted twice. A request
    /// that has to wait gets its `presented` place of an earlier run, if the proof is right.
    pub(super) fn acquire(
        &mut self,
        call: Call,
        wants: &[Want<'_>],
        mut queueing: Queueing,
        presented: Option<Place>,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) -> Outcome {
        let request = call.ids.own;
        let (session, repeated) = match self.find_reply(call.connection, call.ids) {
            Ok(begun) => begun,
            Err(refusal) => return Outcome::Refused(refusal),
        };
        if let Some(repeated) = repeated {
            return self.answer_again(session, repeated, RequestKind::Grant, call, now);
        }
        // These refusals are not cached, because memory is scarce or the store fails. A repeated request may be granted.
        if let Err(refusal) = self.check_store_for(session).and_then(|()| self.check_memory(call.connection))
        {
            return Outcome::Refused(refusal);
        }
        let until = now.after(queueing.wait_ms);
        let grant = Grant::waiting(session, request, wants, now, until, self.now_ms(context));
        // A request that does not wait has no place.
        let place = self.proven_place(presented.filter(|_| queueing.wait_ms > 0), &grant);
        if place.is_some() {
            // The request was in the queue before the restart, so it is not refused because the queue is long.
            queueing.queue_max = u32::MAX;
        }
        let id = match self.allocate_id(session, place) {
            Ok(id) => id,
            Err(refusal) => {
                self.cache(session, request, CachedReply::Done(Err(refusal)));
                return Outcome::Refused(refusal);
            }
        };
        self.add_bytes(session, grant.bytes());
        self.grants.insert(id, grant);
        self.sessions.existing_mut(session).add_waiter(id);
        self.count_waiter(session);
        let outcome = match self.advance(id, Some(queueing), context) {
            Some(PendingReply { reply, .. }) => {
                let is_durable = matches!(reply, CachedReply::Granted(_)) && self.is_durable(session);
                self.answer(session, reply, is_durable, call, now)
            }
            None => {
                self.cache(session, request, CachedReply::Waiting(id));
                self.redirect_waiter(id, call, now);
                self.grants.set_wait_deadline(id);
                self.alarm.ring(Due::At(until));
                Outcome::Waiting
            }
        };
        self.run_backlog(context);
        outcome
    }

    /// Returns the id of a new waiter: its proven place, or a new id. Refuses a waiter beyond the session's limit of
    /// grants.
    fn allocate_id(&mut self, session: SessionId, place: Option<GrantId>) -> Result<GrantId, Refusal> {
        self.check_open()?;
        if self.sessions.existing(session).grant_count() >= self.limits.grants_max {
            self.counts.limited += 1;
            return Err(limit_reached(Limit::Grants, self.limits.grants_max));
        }
        place.map_or_else(|| self.next_id().map(GrantId), Ok)
    }

    /// Counts a request that a connection has repeated with a place, valid or not. Ends the reconnect window if it waits
    /// for no other session and no other repetition.
    pub(super) fn count_repetition(&mut self, connection: ConnectionId, context: LedgerContext<'_>) {
        // A connection that has no session has no place either.
        let Ok(session) = self.sessions.acting(connection) else { return };
        self.places.repeated(session);
        if self.end_window_if_complete() {
            self.run_backlog(context);
        }
    }

    /// Returns whether a grant is retiring because of a change of a semaphore: one of its slots is above the capacity
    /// or out of service, or the semaphore is being removed, or was removed and declared again.
    fn is_retiring(&self, id: GrantId, grant: &Grant) -> bool {
        grant.parts().iter().any(|part| {
            let Some((super::removal::SEMAPHORES, object)) = part.object() else { return false };
            // A semaphore that is not declared has no slots, and is not removed.
            let Some(declaration) = self.declarations.get(object.name()) else { return false };
            declaration.removing
                || id.0 < declaration.created
                || self
                    .slots
                    .of(object, id)
                    .iter()
                    .any(|slot| u32::from(*slot) >= declaration.capacity || declaration.is_out(*slot))
        })
    }
}
