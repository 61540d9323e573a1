//! Commits: batches of changes go to the store, and the requests that wait for them are answered.
//!
//! A change is made in the ledger at once, and added to the journal. The request is answered when the change is committed.
//! The semaphore sets have a journal of their own, because they have a lock of their own. A batch has changes of one of the
//! two, in turn. This is safe, because neither refers to records of the other.
//!
//! If the store fails, nothing is rolled back: every request that waits for it is answered. A grant or a session whose
//! client was not told of it ends like any other, and its end is stored after its beginning. Releases, closes and
//! revocations are final, and a changed declaration takes effect when the store works again. Until then, new grants and
//! changes that would have to be stored are refused.

use std::sync::Arc;
use std::task::Waker;

use super::sessions::{Attachment, CachedReply};
use super::state::{Ledger, LedgerContext, OnCommit};
use crate::durable::{Change, Record};
use crate::journal::{BatchLimit, Journaled};
use crate::mailbox::{Mailbox, ReplyTo};
use crate::outcome::Answer;
use crate::state::Core;
use crate::sync::Ordering;
use crate::time::{Moment, MonotonicMs};
use signalbox_model::{ConnectionId, EventKind, PlaceKey, Refusal, RequestId, SessionId};

/// Changes that belong together: a store commits all of them or none.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The changes, in order.
    pub changes: Arc<Vec<Change>>,
    is_of_sets: bool,
}

/// The outcome of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// The store has it.
    Stored,
    /// The store could not commit it, and may or may not have it. It must get the same batch again before any other.
    Failed,
}

impl Core {
    /// Keeps a journal of changes for a store from now on; `taker` is woken when there are some. The server calls
    /// this when everything is restored, and [`Self::begin_serving`] when the first batch is stored. Places of waiting
    /// requests are proven with `key`, which is stored, unless a key was restored. Without a key, clients are not told
    /// their places.
    pub fn keep_journal(&self, taker: Waker, key: Option<PlaceKey>) {
        self.sysv().keep_journal(taker.clone());
        let ledger = &mut *self.ledger();
        ledger.journal.keep_for(taker);
        if let Some(key) = key
            && ledger.places.set_key_once(key)
        {
            ledger.journal.add(Change::Put(Record::PlaceKey(key)));
        }
        ledger.ids.require_reservations();
        ledger.extend_reservation();
    }

    /// Takes the batch that failed last, or else the oldest changes of the ledger or of the semaphore sets, in turn,
    /// within a limit. `None`: there are no changes, or the previous batch is not complete.
    pub fn take_batch(&self, limit: BatchLimit) -> Option<Batch> {
        let take = |is_of_sets| {
            let taken = match is_of_sets {
                true => self.sysv().journal.take_batch(limit),
                false => self.ledger().journal.take_batch(limit),
            };
            taken.map(|changes| Batch { changes, is_of_sets })
        };
        let first = self.sets_are_next.load(Ordering::Relaxed);
        let batch = take(first).or_else(|| take(!first))?;
        // The journal of a batch keeps its turn until the batch is stored.
        self.sets_are_next.store(batch.is_of_sets, Ordering::Relaxed);
        Some(batch)
    }

    /// Processes the outcome of a batch: answers at most `step` requests. If the batch is stored, these are the
    /// requests that waited for that. If it failed, these are all requests of the ledger that wait for the store:
    /// grants and sessions that were not stored end. Results of calls on semaphore sets are still held. Returns whether there
    /// is more to do.
    pub fn complete(&self, batch: &Batch, outcome: CommitOutcome, step: usize, now: Moment) -> bool {
        let context = self.context(now.unix);
        let is_of_sets = batch.is_of_sets;
        match outcome {
            CommitOutcome::Failed => {
                self.sysv().journal.set_failing(true);
                self.ledger().store_failed(step, now.monotonic, context)
            }
            CommitOutcome::Stored => {
                self.sets_are_next.store(!is_of_sets, Ordering::Relaxed);
                if is_of_sets {
                    self.ledger().journal.set_failing(false);
                    self.sysv().stored(step)
                } else {
                    self.sysv().journal.set_failing(false);
                    self.ledger().stored(step, now.monotonic, context)
                }
            }
        }
    }

    /// Returns whether every change is stored.
    pub fn is_stored(&self) -> bool {
        self.ledger().journal.is_idle() && self.sysv().journal.is_idle()
    }

    /// Returns whether a reply to a connection waits only for the store. It may be a reply to a request of the
    /// connection's own session, or of the session that it is attached to.
    pub fn is_storing_for(&self, connection: ConnectionId, mailbox: &Arc<Mailbox>) -> bool {
        let ledger = &*self.ledger();
        let attached = match ledger.sessions.attachment(connection) {
            Attachment::To(session) => Some(session),
            Attachment::None | Attachment::Lost => None,
        };
        let is_for_mailbox = |reply_to: &ReplyTo| Arc::ptr_eq(&reply_to.mailbox, mailbox);
        let mut sessions = attached.into_iter().chain([connection.session()]);
        sessions.any(|session| {
            ledger.pending_replies_of(session).filter_map(|pending| pending.to.as_ref()).any(is_for_mailbox)
        })
    }
}

impl Ledger {
    /// Carries out at most `step` consequences of a committed batch. Returns whether there is more to do.
    fn stored(&mut self, step: usize, now: MonotonicMs, context: LedgerContext<'_>) -> bool {
        let has_more = self.complete_batch(step, |ledger, then| ledger.committed(then, now, context));
        if !has_more {
            self.run_backlog(context);
        }
        has_more
    }

    /// Answers at most `step` of the requests that wait for the store, which fails. Returns whether there may be more.
    fn store_failed(&mut self, step: usize, now: MonotonicMs, context: LedgerContext<'_>) -> bool {
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
        // If no reply is pending, the grant of the request or its session ended before the commit, and the request was
        // answered then.
        let Some(pending) = self.pending_replies.remove(&(session, request)) else { return };
        let granted = match &pending.reply {
            CachedReply::Granted(granted) => Some(granted.grant),
            _ => None,
        };
        self.send_reply(session, request, pending);
        if let Some(granted) = granted {
            self.record_grant(granted);
            // The client may have ignored a notice that arrived before it knew of the grant.
            self.send_revocation(granted);
        }
    }

    fn reply_not_committed(&mut self, session: SessionId, request: RequestId, context: LedgerContext<'_>) {
        // If no reply is pending, the grant of the request or its session has ended since, and the request was answered
        // then.
        let Some(mut pending) = self.pending_replies.remove(&(session, request)) else { return };
        let (grant, refusal) = match &pending.reply {
            CachedReply::Granted(granted) => (Some(granted.grant), Some(Refusal::NotStored)),
            CachedReply::Declared(_) => (None, Some(Refusal::NotStored)),
            // A release or a revocation is final.
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
