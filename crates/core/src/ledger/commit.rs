//! Commits: batches of changes go to the store, and the requests that wait for them are answered.
//!
//! A change is made in the ledger at once, and added to the journal. The request is answered when the change is committed.
//!
//! If the store fails, nothing is taken back: every request that waits for it is answered. A grant or a session whose client
//! was not told of it ends as any other does, and its end is stored after its beginning. Releases, closes and revocations
//! stand, and a changed declaration takes effect when the store works again. Until then, nothing new is granted or changed
//! that would have to be stored.

use std::sync::Arc;
use std::task::Waker;

use super::sessions::{Attachment, CachedReply};
use super::state::{Ledger, LedgerContext, OnCommit};
use crate::durable::{Change, Record};
use crate::journal::Journaled;
use crate::mailbox::{Mailbox, ReplyTo};
use crate::outcome::Answer;
use crate::state::Core;
use crate::time::MonotonicMs;
use signalbox_model::{ConnectionId, EventKind, PlaceKey, Refusal, RequestId, SessionId};

impl Core {
    /// Whether replies to requests of a connection, for its own session or the one that it is attached to, wait for the store and
    /// for nothing else.
    pub fn is_storing_for(&self, connection: ConnectionId, mailbox: &Arc<Mailbox>) -> bool {
        let ledger = &*self.ledger();
        let attached = match ledger.sessions.attachment(connection) {
            Attachment::To(session) => Some(session),
            Attachment::None | Attachment::Lost => None,
        };
        let is_its = |reply_to: &ReplyTo| Arc::ptr_eq(&reply_to.mailbox, mailbox);
        let mut sessions = attached.into_iter().chain([connection.session()]);
        sessions.any(|session| {
            ledger.pending_replies_of(session).filter_map(|pending| pending.to.as_ref()).any(is_its)
        })
    }
}

impl Ledger {
    /// From now on, changes of durable facts go to a store; `taker` is woken when there are some. The key is for places, and
    /// is stored unless one was restored.
    pub(crate) fn keep_journal(&mut self, taker: Waker, place_key: Option<PlaceKey>) {
        self.journal.keep_for(taker);
        if let Some(key) = place_key
            && self.places.set_key_once(key)
        {
            self.journal.add(Change::Put(Record::PlaceKey(key)));
        }
        self.ids.require_reservations();
        self.extend_reservation();
    }

    /// Refuses what would have to be stored while the store fails.
    pub(super) fn check_store(&mut self) -> Result<(), Refusal> {
        let is_failing = self.journal.is_failing();
        self.counts.not_stored += u64::from(is_failing);
        if is_failing { Err(Refusal::NotStored) } else { Ok(()) }
    }

    /// As [`Self::check_store`], for what is stored only if the session is durable.
    pub(super) fn check_store_for(&mut self, session: SessionId) -> Result<(), Refusal> {
        if self.is_durable(session) { self.check_store() } else { Ok(()) }
    }

    /// The store has committed a batch: makes `step` of its consequences at most. Returns whether there is more to do.
    pub(crate) fn stored(&mut self, step: usize, now: MonotonicMs, context: LedgerContext<'_>) -> bool {
        let has_more = self.complete_batch(step, |ledger, then| ledger.committed(then, now, context));
        if !has_more {
            self.run_backlog(context);
        }
        has_more
    }

    /// The store fails: answers `step` of the requests at most that wait for it. Returns whether there are more.
    pub(crate) fn store_failed(&mut self, step: usize, now: MonotonicMs, context: LedgerContext<'_>) -> bool {
        self.journal.set_failing(true);
        let answers = self.journal.take_out(step, OnCommit::is_answer);
        let has_more = answers.len() == step;
        for answer in answers {
            self.not_committed(answer, now, context);
        }
        self.run_backlog(context);
        has_more
    }

    fn committed(&mut self, then: OnCommit, now: MonotonicMs, context: LedgerContext<'_>) {
        match then {
            OnCommit::Reply(session, request) => self.reply_committed(session, request),
            OnCommit::Closed(closer) => closer.send(Ok(Answer::Done)),
            OnCommit::ClientsRevoked(sessions, reply_to) => reply_to.send(Ok(Answer::Revoked { sessions })),
            OnCommit::Opened(session) => {
                if let Some(opener) = self.sessions.opener_mut(session).and_then(Option::take) {
                    opener.send(self.opened(session));
                }
            }
            OnCommit::Declared { object, after, evicts } => {
                self.declaration_committed(&object, &after, evicts, now, context);
            }
            OnCommit::Reserved(up_to) => self.ids.reserve_up_to(up_to),
        }
    }

    /// Answers a request that waits for the store, which fails.
    fn not_committed(&mut self, then: OnCommit, now: MonotonicMs, context: LedgerContext<'_>) {
        match then {
            OnCommit::Reply(session, request) => self.reply_not_committed(session, request, context),
            OnCommit::Opened(session) => {
                let Some(opener) = self.sessions.opener_mut(session).and_then(Option::take) else { return };
                self.counts.not_stored += 1;
                opener.send(Err(Refusal::NotStored));
                self.end_now(session, EventKind::Released, Refusal::NoSuchSession, now, context);
            }
            then @ (OnCommit::Closed(_)
            | OnCommit::ClientsRevoked(..)
            | OnCommit::Declared { .. }
            | OnCommit::Reserved(_)) => self.committed(then, now, context),
        }
    }

    fn reply_committed(&mut self, session: SessionId, request: RequestId) {
        // The grant of the request, or its session, ended before the commit, and it was answered then.
        let Some(pending) = self.pending_replies.remove(&(session, request)) else { return };
        let granted = match &pending.reply {
            CachedReply::Granted(granted) => Some(granted.grant),
            _ => None,
        };
        self.send_reply(session, request, pending);
        if let Some(granted) = granted {
            self.record_grant(granted);
        }
        // A notice that came before the client knew of the grant may have meant nothing to it.
        if let Some(granted) = granted {
            self.send_revocation(granted);
        }
    }

    fn reply_not_committed(&mut self, session: SessionId, request: RequestId, context: LedgerContext<'_>) {
        // The grant of the request, or its session, has ended since, and it was answered then.
        let Some(mut pending) = self.pending_replies.remove(&(session, request)) else { return };
        let (grant, refusal) = match &pending.reply {
            CachedReply::Granted(granted) => (Some(granted.grant), Some(Refusal::NotStored)),
            CachedReply::Declared(_) => (None, Some(Refusal::NotStored)),
            // A release or a revocation stands.
            CachedReply::Done(_) | CachedReply::Waiting(_) | CachedReply::Committing => (None, None),
        };
        if let Some(refusal) = refusal {
            self.counts.not_stored += 1;
            pending.reply = CachedReply::Done(Err(refusal));
        }
        self.send_reply(session, request, pending);
        if let Some(grant) = grant {
            self.end_grant(grant, EventKind::Released, context);
        }
    }
}
