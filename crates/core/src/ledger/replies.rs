//! Replies: each request makes one change, however often it is sent (invariant 7), and is answered when that change is
//! committed, if it has to be stored.
//!
//! The reply to a request of a session is cached in the session's log. A reply that waits for a commit is pending: the
//! log has [`CachedReply::Committing`] in its place, and a request has at most one pending reply.

use std::collections::btree_map::Entry;
use std::ops::RangeInclusive;

use super::sessions::CachedReply;
use super::state::{Ledger, OnCommit, PendingReply};
use crate::clients::Counted;
use crate::durable::{Change, Key, Record};
use crate::outcome::{Call, Executed, Outcome};
use crate::request_log::RequestLog;
use crate::time::MonotonicMs;
use signalbox_model::{ConnectionId, GrantId, Refusal, RequestId, RequestIds, SessionId};

/// The kinds of requests. A reply of another kind belongs to another request with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    Grant,
    Change,
}

impl RequestKind {
    /// Returns whether a reply may belong to a request of this kind.
    pub(super) fn fits(self, reply: &CachedReply) -> bool {
        let is_grant = matches!(reply, CachedReply::Waiting(_) | CachedReply::Granted(_));
        matches!(reply, CachedReply::Done(Err(_))) || is_grant == (self == Self::Grant)
    }
}

/// The result of a change.
pub(super) struct Changed {
    pub(super) reply: CachedReply,
    /// Whether the reply waits for a commit, if there is a store.
    pub(super) is_durable: bool,
    /// Whether something has changed.
    pub(super) is_change: bool,
}

impl Changed {
    /// A change with no result of its own.
    pub(super) fn done(is_durable: bool) -> Self {
        Self { reply: CachedReply::Done(Ok(())), is_durable, is_change: true }
    }
}

impl Ledger {
    /// Makes a change for the session that a request is for: once for all requests with these ids.
    pub(super) fn change(
        &mut self,
        call: Call,
        now: MonotonicMs,
        change: impl FnOnce(&mut Self, SessionId) -> Result<Changed, Refusal>,
    ) -> Executed {
        let (session, repeated) = match self.find_reply(call.connection, call.ids) {
            Ok(begun) => begun,
            Err(refusal) => return Executed::at_once(Err(refusal)),
        };
        if let Some(repeated) = repeated {
            let outcome = self.answer_again(session, repeated, RequestKind::Change, call, now);
            return Executed { outcome, is_change: false };
        }
        let changed = match change(self, session) {
            // A refusal has changed nothing, so a repeated request may be executed again. The refusal is not cached
            // if memory is scarce. Nor is `NotStored`: forgetting it would delete an answer that the store does not have.
            Err(refusal)
                if refusal == Refusal::NotStored || self.check_memory_uncounted(call.connection).is_err() =>
            {
                return Executed::at_once(Err(refusal));
            }
            changed => changed,
        };
        let refused =
            |refusal| Changed { reply: CachedReply::Done(Err(refusal)), is_durable: false, is_change: false };
        let Changed { reply, is_durable, is_change } = changed.unwrap_or_else(refused);
        Executed { outcome: self.answer(session, reply, is_durable, call, now), is_change }
    }

    /// Returns the session that a request is for, and the reply if the request was made before. Forgets the replies that
    /// the client no longer needs.
    pub(super) fn find_reply(
        &mut self,
        connection: ConnectionId,
        ids: RequestIds,
    ) -> Result<(SessionId, Option<CachedReply>), Refusal> {
        // A connection that has ended, or never joined, acts for no session.
        let session = self.sessions.acting(connection)?;
        let mut forgotten = Vec::new();
        let forget = |request, reply: CachedReply| {
            if reply.may_be_stored() {
                forgotten.push(request);
            }
        };
        let found = self
            .change_log(session, |log| log.find(ids, forget).map(|found| found.cloned()))
            .ok_or(Refusal::NoSuchSession)?;
        if let Err(Refusal::LimitReached(_)) = found {
            self.counts.limited += 1;
        }
        if self.is_durable(session) {
            for request in forgotten {
                self.journal.add(Change::Delete(Key::Answer(session, request)));
            }
            self.journal.end_unit();
        }
        Ok((session, found?))
    }

    /// Caches the reply to a request, and returns the outcome; `is_durable`: the reply waits for a commit, if there is a
    /// store.
    pub(super) fn answer(
        &mut self,
        session: SessionId,
        reply: CachedReply,
        is_durable: bool,
        call: Call,
        now: MonotonicMs,
    ) -> Outcome {
        let request = call.ids.own;
        if is_durable && self.journal.has_store() {
            let to = self.sessions.reply_to(call.connection, call.token);
            // Without a mailbox: the request has revoked its own connection.
            let outcome =
                if to.is_some() { Outcome::Waiting } else { Outcome::Refused(Refusal::NoSuchSession) };
            self.reply_on_commit(session, request, PendingReply { reply, received: now, to });
            return outcome;
        }
        self.cache(session, request, reply.clone());
        self.outcome_of(session, reply, now)
    }

    /// Returns the outcome of a repeated request that has this reply. If it waits, its answer goes to this
    /// connection from now on.
    pub(super) fn answer_again(
        &mut self,
        session: SessionId,
        reply: CachedReply,
        kind: RequestKind,
        call: Call,
        now: MonotonicMs,
    ) -> Outcome {
        if let CachedReply::Committing = reply {
            return self.redirect_pending_reply(session, kind, call, now);
        }
        // This number belongs to a request of the other kind.
        if !kind.fits(&reply) {
            return Outcome::Refused(Refusal::StaleRequest);
        }
        if let CachedReply::Waiting(id) = reply {
            self.redirect_waiter(id, call, now);
            return Outcome::Waiting;
        }
        self.outcome_of(session, reply, now)
    }

    fn outcome_of(&self, session: SessionId, reply: CachedReply, now: MonotonicMs) -> Outcome {
        reply.answer(self.sessions.ttl_left_ms(session, now)).into()
    }

    /// Directs the answer to a request that waits for a commit to this connection from now on.
    fn redirect_pending_reply(
        &mut self,
        session: SessionId,
        kind: RequestKind,
        call: Call,
        now: MonotonicMs,
    ) -> Outcome {
        let to = self.sessions.reply_to(call.connection, call.token);
        let pending = self.pending_replies.get_mut(&(session, call.ids.own));
        // Without a connection nothing can be answered; without a pending reply the session is ending.
        let (Some(to), Some(pending)) = (to, pending) else {
            return Outcome::Refused(Refusal::NoSuchSession);
        };
        if !kind.fits(&pending.reply) {
            return Outcome::Refused(Refusal::StaleRequest);
        }
        pending.received = now;
        if let Some(before) = pending.to.replace(to) {
            before.send(Err(Refusal::Canceled));
        }
        Outcome::Waiting
    }

    /// Directs the answer to a waiter to this connection from now on. The request that would have been answered is canceled.
    pub(super) fn redirect_waiter(&mut self, id: GrantId, call: Call, now: MonotonicMs) {
        // The connection joined before its first request, so it has a mailbox until it ends.
        let Some(to) = self.sessions.reply_to(call.connection, call.token) else { return };
        let grant = self.grants.existing_mut(id);
        let session = grant.session;
        // A request that waits has a waiter as long as its cached reply says so.
        let Some(waiter) = grant.waiter_mut() else { return };
        // The client counts its lease from when it sent the request that is answered.
        waiter.received = now;
        let before = waiter.reply_to.replace(to);
        let state = self.sessions.existing_mut(session);
        if let Some(before) = &before {
            state.remove_token(before.token, id);
        }
        state.add_token(call.token, id);
        if let Some(before) = before {
            before.send(Err(Refusal::Canceled));
        }
    }

    /// Delays the reply to a request until everything so far is committed. Requires a store.
    pub(super) fn reply_on_commit(&mut self, session: SessionId, request: RequestId, pending: PendingReply) {
        if self.is_durable(session)
            && let Some(record) = pending.reply.record(session, request)
        {
            self.journal.add(Change::Put(Record::Answer(record)));
        }
        self.pending_replies.insert((session, request), pending);
        self.journal.on_commit(OnCommit::Reply(session, request));
        self.journal.end_unit();
        self.cache(session, request, CachedReply::Committing);
    }

    /// Answers a request that waited for a grant; if the grant is durable, when it is committed.
    pub(super) fn reply_to_waiter(&mut self, session: SessionId, request: RequestId, pending: PendingReply) {
        if matches!(pending.reply, CachedReply::Granted(_)) && self.is_durable(session) {
            self.reply_on_commit(session, request, pending);
        } else {
            self.send_reply(session, request, pending);
        }
    }

    /// Caches a reply, and sends it to the client that waits for it.
    pub(super) fn send_reply(&mut self, session: SessionId, request: RequestId, pending: PendingReply) {
        let PendingReply { reply, received, to } = pending;
        self.cache(session, request, reply.clone());
        if let Some(to) = to {
            to.send(reply.answer(self.sessions.ttl_left_ms(session, received)));
        }
    }

    /// Refuses a request whose grant ended before it was committed.
    pub(super) fn refuse_pending_grant(
        &mut self,
        session: SessionId,
        request: RequestId,
        grant: GrantId,
        refusal: Refusal,
    ) {
        if let Entry::Occupied(pending) = self.pending_replies.entry((session, request))
            && let CachedReply::Granted(granted) = &pending.get().reply
            && granted.grant == grant
        {
            let refused = PendingReply { reply: CachedReply::Done(Err(refusal)), ..pending.remove() };
            self.send_reply(session, request, refused);
        }
    }

    /// Detaches the pending replies of a session from the connection that has left it: they are not sent. If there is a
    /// refusal, the connection gets it instead.
    pub(super) fn disconnect_pending_replies(&mut self, session: SessionId, refusal: Option<Refusal>) {
        for (_, pending) in self.pending_replies.range_mut(all_of(session)) {
            if let Some((to, refusal)) = pending.to.take().zip(refusal) {
                to.send(Err(refusal));
            }
        }
    }

    /// The replies to requests of a session that wait for a commit.
    pub(super) fn pending_replies_of(&self, session: SessionId) -> impl Iterator<Item = &PendingReply> {
        self.pending_replies.range(all_of(session)).map(|(_, pending)| pending)
    }

    /// Refuses all requests with pending replies of a session that has ended.
    pub(super) fn refuse_pending_replies(&mut self, session: SessionId, refusal: Refusal) {
        let requests: Vec<_> = self.pending_replies.range(all_of(session)).map(|(key, _)| *key).collect();
        for key in requests {
            if let Some(PendingReply { to: Some(to), .. }) = self.pending_replies.remove(&key) {
                to.send(Err(refusal));
            }
        }
    }

    /// Caches the reply to a request of a session, if the session still exists.
    pub(super) fn cache(&mut self, session: SessionId, request: RequestId, reply: CachedReply) {
        self.change_log(session, |log| log.insert(request, reply));
    }

    /// Changes the cached replies of a session, if it exists, and counts their memory for its client.
    fn change_log<T>(
        &mut self,
        session: SessionId,
        change: impl FnOnce(&mut RequestLog<CachedReply>) -> T,
    ) -> Option<T> {
        let state = self.sessions.get_mut(session)?;
        let before = state.bytes();
        let result = change(state.log_mut());
        let (after, owner) = (state.bytes(), state.owner());
        self.clients.add(owner, Counted::Bytes, after.saturating_sub(before));
        self.clients.subtract(owner, Counted::Bytes, before.saturating_sub(after));
        Some(result)
    }
}

fn all_of(session: SessionId) -> RangeInclusive<(SessionId, RequestId)> {
    (session, RequestId(0))..=(session, RequestId(u64::MAX))
}
