//! Commits: batches of changes go to the store, and when their outcome is known they are completed or rolled back.
//!
//! A change is made in the ledger at once, and added to the journal. The request is answered when the change is committed.
//! If a batch cannot be committed, it is rolled back with everything after it, newest first: grants, opened sessions,
//! changes of declared semaphores. Releases stand, and are stored with the next batch: a restart before that finds the
//! resources held, which is safe.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::Waker;

use super::cached_reply::CachedReply;
use super::on_commit::OnCommit;
use super::{Ledger, LedgerContext};
use crate::core::durable::{Change, Key, Record};
use crate::core::ids::{PlaceKey, RequestId, SessionId};
use crate::core::journal::{Failed, Journal, JournalBatch};
use crate::core::mailbox::{EventKind, Mailbox, ReplyTo};
use crate::core::outcome::Answer;
use crate::core::store::BatchLimit;
use crate::core::time::MonotonicMs;
use crate::core::{Core, Refusal};

/// The outcome of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// The store has it.
    Stored,
    /// The store could not commit it, so it is rolled back. The store may have it nevertheless until the next commit.
    RolledBack,
    /// The store belongs to another server, which may have changed it since. Nothing is completed or rolled back, and no
    /// request of the batch is answered: the process has to end.
    OwnershipLost,
}

impl Core {
    /// Whether answers to a connection wait for the store and for nothing else. Calls on semaphore sets do not count: a
    /// process whose connection ends has no use for their results.
    pub fn is_storing_for(&self, mailbox: &Arc<Mailbox>) -> bool {
        let ledger = &*self.ledger();
        let is_its = |reply_to: &ReplyTo| Arc::ptr_eq(&reply_to.mailbox, mailbox);
        let waits = |then: &OnCommit| match then {
            OnCommit::Reply(session, request) => {
                let pending = ledger.pending_replies.get(*session, *request);
                pending.and_then(|pending| pending.to.as_ref()).is_some_and(is_its)
            }
            OnCommit::Closed(reply_to)
            | OnCommit::ClientsRevoked(_, reply_to)
            | OnCommit::Opened(_, reply_to) => is_its(reply_to),
            OnCommit::Declared { .. }
            | OnCommit::Dismissed { .. }
            | OnCommit::Superseded { .. }
            | OnCommit::Reserved(_) => false,
        };
        ledger.journal.as_ref().is_some_and(|journal| journal.all_on_commit().any(waits))
    }
}

impl Ledger {
    /// From now on, changes of durable facts go to a store; `taker` is woken when there are some. The key is for places, and
    /// is stored unless one was restored.
    pub(in crate::core) fn keep_journal(&mut self, taker: Waker, place_key: Option<PlaceKey>) {
        self.journal = Some(Journal::new(taker));
        if let Some(key) = place_key
            && self.places.set_key_once(key)
        {
            self.store(Change::Put(Record::PlaceKey(key)));
        }
        self.ids.require_reservations();
        self.extend_reservation();
    }

    /// Takes changes to commit, at most `changes_max` unless the first step alone has more. `None`: there are none, or the
    /// batch before is not complete.
    pub(in crate::core) fn take_batch(&mut self, limit: BatchLimit) -> Option<JournalBatch> {
        self.journal.as_mut()?.take_batch(limit)
    }

    /// Whether every change is committed.
    pub(in crate::core) fn is_stored(&self) -> bool {
        self.journal.as_ref().is_none_or(Journal::is_idle)
    }

    /// Completes a batch, `step` of its consequences at most, or rolls it back at once. Returns whether there is more to
    /// do. Does nothing for a batch that is not in flight.
    pub(in crate::core) fn complete(
        &mut self,
        number: u64,
        outcome: CommitOutcome,
        step: usize,
        now: MonotonicMs,
        context: LedgerContext<'_>,
    ) -> bool {
        let Some(journal) = self.journal.as_mut().filter(|journal| journal.is_in_flight(number)) else {
            return false;
        };
        match outcome {
            CommitOutcome::Stored => {
                for _ in 0..step {
                    let next = self.journal.as_mut().and_then(Journal::next_committed);
                    let Some(then) = next else { break };
                    self.committed(then, now, context);
                }
                if self.journal.as_mut().is_some_and(|journal| !journal.finish_batch()) {
                    return true;
                }
            }
            CommitOutcome::RolledBack => {
                let failed = journal.fail();
                self.roll_back(failed, now, context);
            }
            CommitOutcome::OwnershipLost => return false,
        }
        self.run_backlog(context);
        if let Some(journal) = &self.journal {
            journal.wake_taker();
        }
        false
    }

    fn committed(&mut self, then: OnCommit, now: MonotonicMs, context: LedgerContext<'_>) {
        match then {
            OnCommit::Reply(session, request) => self.reply_committed(session, request, now),
            OnCommit::Closed(closer) => closer.send(Ok(Answer::Done)),
            OnCommit::ClientsRevoked(sessions, reply_to) => reply_to.send(Ok(Answer::Revoked { sessions })),
            OnCommit::Opened(session, reply_to) => reply_to.send(self.opened(session)),
            OnCommit::Declared { object, before, after, evicts } => {
                self.apply(&object, &before, &after, evicts, now, context);
            }
            OnCommit::Dismissed { object, removal, evicts, .. } => {
                self.dismiss(&object, &removal, evicts, now);
            }
            OnCommit::Superseded { .. } => {}
            OnCommit::Reserved(up_to) => self.ids.reserve_up_to(up_to),
        }
    }

    fn reply_committed(&mut self, session: SessionId, request: RequestId, now: MonotonicMs) {
        let pending = self.pending_replies.get(session, request);
        let granted = pending.and_then(|pending| match &pending.reply {
            CachedReply::Granted(granted) => Some(granted.grant),
            _ => None,
        });
        self.send_pending_reply(session, request, None);
        // A notice that came before the client knew of the grant may have meant nothing to it.
        if let Some(granted) = granted {
            self.send_revocation(granted, now);
        }
    }

    /// Rolls back everything that was in the failed batch and after it, newest first.
    fn roll_back(&mut self, failed: Failed<OnCommit>, now: MonotonicMs, context: LedgerContext<'_>) {
        // The store may have the state before the batch or the state after it, so the next batch says of every touched key
        // what is true then.
        let touched: BTreeSet<Key> = failed.changes.iter().map(key_of).collect();
        // A store promises that a failed batch is gone when the next one is committed. So new records that are rolled back
        // need no change. If they had one, the next batch would grow with every request for as long as the store fails.
        let mut vanished = BTreeSet::new();
        let mut reservation = None;
        for then in failed.on_commit.into_iter().rev() {
            match then {
                OnCommit::Reply(session, request) => {
                    vanished.extend(self.roll_back_reply(session, request, context));
                }
                // What the session released stays released.
                OnCommit::Closed(closer) => closer.send(Ok(Answer::Done)),
                OnCommit::ClientsRevoked(sessions, reply_to) => {
                    reply_to.send(Ok(Answer::Revoked { sessions }));
                }
                OnCommit::Opened(session, reply_to) => {
                    vanished.insert(Key::Session(session));
                    self.counts.not_stored += 1;
                    reply_to.send(Err(Refusal::NotStored));
                    let (why, refusal) = (EventKind::Released, Refusal::NoSuchSession);
                    self.end_now(session, why, refusal, now, context);
                }
                OnCommit::Declared { object, before, after, .. } => {
                    self.roll_back_declaration(&object, before, &after, context);
                }
                OnCommit::Dismissed { object, before, .. } => self.roll_back_dismissal(&object, &before),
                OnCommit::Superseded { object, service } => self.roll_back_service(&object, service),
                OnCommit::Reserved(up_to) => reservation = reservation.max(Some(up_to)),
            }
        }
        if let Some(journal) = &mut self.journal {
            // The changes of the roll back concern touched keys only.
            journal.drop_pending_changes();
        }
        for key in touched.difference(&vanished) {
            self.store(self.current(key.clone(), now));
        }
        if let Some(up_to) = reservation {
            self.store(Change::Put(Record::Mark(up_to)));
            self.on_commit(OnCommit::Reserved(up_to));
        }
    }

    /// Rolls back a request whose reply was pending. Returns the key of the record that the request would have created.
    fn roll_back_reply(
        &mut self,
        session: SessionId,
        request: RequestId,
        context: LedgerContext<'_>,
    ) -> Option<Key> {
        // The grant of the request, or its session, ended before the commit, and it was answered then.
        let pending = self.pending_replies.remove(session, request)?;
        let key = match &pending.reply {
            CachedReply::Granted(granted) => {
                self.end_grant(granted.grant, EventKind::Released, context);
                Some(Key::Grant(granted.grant))
            }
            CachedReply::Declared(_) => Some(Key::Answer(session, request)),
            // A release or a revocation stands.
            CachedReply::Done(_) | CachedReply::Waiting(_) | CachedReply::Committing => None,
        };
        let refusal = key.is_some().then_some(Refusal::NotStored);
        self.counts.not_stored += u64::from(refusal.is_some());
        self.send_reply(session, request, pending, refusal);
        key
    }
}

fn key_of(change: &Change) -> Key {
    match change {
        Change::Put(record) => record.key(),
        Change::Delete(key) => key.clone(),
    }
}
