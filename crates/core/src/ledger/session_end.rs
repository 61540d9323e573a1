//! The end of a session: its waiting requests are refused, and its grants are released, newest first, in steps.

use super::backlog::STEP_GRANTS;
use super::sessions::Attachment;
use super::state::{Ledger, LedgerContext, OnCommit};
use crate::durable::{Change, Key};
use crate::mailbox::Message;
use crate::time::{Due, MonotonicMs};
use signalbox_model::{ConnectionId, EventKind, GrantId, Refusal, SessionId};

/// The work of ending a session, besides its grants. Work is counted in names: releasing a grant of one name is 1.
const SESSION_WORK: usize = 2;

/// Dropping this many cached replies is 1 of work.
const REPLIES_OF_WORK: usize = 16;

impl Ledger {
    /// Runs a step of the end of a session: `why` is the kind of the events, `refusal` the answer to waiting requests.
    /// Later steps use those of the first step. Returns whether there is more to do. Does nothing for a session that has ended.
    pub(super) fn end_session(
        &mut self,
        session: SessionId,
        why: EventKind,
        refusal: Refusal,
        context: LedgerContext<'_>,
    ) -> bool {
        let Some(state) = self.sessions.get_mut(session) else { return false };
        let (why, refusal) = state.begin_end(why, refusal);
        for id in self.next_end_step(session).0 {
            if self.grants.existing(id).is_waiting() {
                self.refuse_waiter(id, refusal, context);
            } else {
                self.end_grant(id, why, context);
            }
        }
        if self.sessions.existing(session).grant_count() > 0 {
            return true;
        }
        if self.sessions.is_leased(session) {
            self.forget_leased(session, refusal);
        } else {
            let connection = session.connection();
            if self.drop_replies_to(connection) || self.drop_idle_waits_of(connection) {
                return true;
            }
            if refusal == Refusal::Revoked
                && let Some(mailbox) = self.sessions.mailbox(connection)
            {
                mailbox.put(Message::Close);
            }
            self.detach(connection, None);
            self.unwatch_all(connection, context);
            self.refuse_pending_replies(session, refusal);
        }
        self.uncount_session(session);
        self.sessions.remove(session);
        self.places.ended(session);
        self.end_window_if_complete();
        false
    }

    /// The next step of the end of a session: its newest grants and waiters, and the work of the step. In the last step, the
    /// work includes what is dropped with the session.
    pub(super) fn next_end_step(&self, session: SessionId) -> (Vec<GrantId>, usize) {
        let state = self.sessions.existing(session);
        let (mut grants, mut work) = (Vec::new(), SESSION_WORK);
        for id in state.grants_newest_first() {
            if work >= STEP_GRANTS + SESSION_WORK {
                return (grants, work);
            }
            work += self.work_of(id);
            grants.push(id);
        }
        let connection = session.connection();
        let replies = match self.sessions.attachment(connection) {
            Attachment::To(leased) => self.sessions.existing(leased).token_count(),
            Attachment::None | Attachment::Lost => 0,
        };
        let dropped = replies + self.idle_waiters.count_of(connection) + state.log().len() / REPLIES_OF_WORK;
        (grants, work + dropped.min(STEP_GRANTS))
    }

    /// Deletes the record of a leased session that has nothing left, and those of its answers. Refuses requests whose answers
    /// wait for the store. The client that closed the session is answered when the deletion is committed.
    fn forget_leased(&mut self, session: SessionId, refusal: Refusal) {
        if !self.is_durable(session) || !self.sessions.existing(session).is_stored() {
            return;
        }
        let state = self.sessions.existing_mut(session);
        let closer = state.take_closer();
        let stored: Vec<_> = state.log().stored().collect();
        for request in stored {
            self.journal.add(Change::Delete(Key::Answer(session, request)));
        }
        self.journal.add(Change::Delete(Key::Session(session)));
        self.refuse_pending_replies(session, refusal);
        if let Some(opener) = self.sessions.opener_mut(session).and_then(Option::take) {
            opener.send(Err(Refusal::NoSuchSession));
        }
        if let Some(closer) = closer {
            self.journal.on_commit(OnCommit::Closed(closer));
        }
        self.journal.end_unit();
    }

    /// Runs the first step of the end of a session. If there is more to do, it is due now.
    pub(super) fn end_now(
        &mut self,
        session: SessionId,
        why: EventKind,
        refusal: Refusal,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) {
        if self.end_session(session, why, refusal, context) {
            self.sessions.set_deadline(session, now);
            self.alarm.ring(Due::At(now));
        }
    }

    /// Detaches a connection from its leased session, if it is attached. The session's waiting requests keep their
    /// places, but the connection gets the refusal for each of them now, and will not get their answers. `None`: the
    /// connection has ended, and gets nothing.
    pub(super) fn detach(&mut self, connection: ConnectionId, refusal: Option<Refusal>) {
        let Some(session) = self.sessions.detach(connection) else { return };
        self.disconnect_pending_replies(session, refusal);
        for waiter in self.sessions.existing_mut(session).take_tokens() {
            let reply_to =
                self.grants.existing_mut(waiter).waiter_mut().and_then(|waiter| waiter.reply_to.take());
            if let Some((reply_to, refusal)) = reply_to.zip(refusal) {
                reply_to.send(Err(refusal));
            }
        }
        self.note_if_unused(session);
    }

    /// Runs a step that drops the reply addresses of a connection that has ended from the waiting requests of its
    /// leased session. Returns whether there may be more.
    pub(super) fn drop_replies_to(&mut self, connection: ConnectionId) -> bool {
        let Attachment::To(session) = self.sessions.attachment(connection) else { return false };
        for _ in 0..STEP_GRANTS {
            let Some(waiter) = self.sessions.existing_mut(session).pop_token() else { return false };
            if let Some(waiter) = self.grants.existing_mut(waiter).waiter_mut() {
                waiter.reply_to = None;
            }
        }
        true
    }
}
