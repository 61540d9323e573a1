//! Replies: each request makes one change, however often it is sent (invariant 7), and is answered when that change is
//! committed where it has to be.

use super::backlog::STEP_GRANTS;
use super::cached_reply::{CachedReply, RequestKind};
use super::on_commit::OnCommit;
use super::pending_replies::PendingReply;
use super::sessions::Attachment;
use super::state::Ledger;
use crate::durable::{Change, Key, Record};
use crate::journal::Journaled;
use crate::outcome::{Answer, Call, Executed, Opened, Outcome};
use crate::time::MonotonicMs;
use signalbox_model::{ConnectionId, GrantId, Notice, Refusal, RequestId, RequestIds, SessionId};

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
        let (session, repeated) = match self.begin(call.connection, call.ids) {
            Ok(begun) => begun,
            Err(refusal) => return Executed::at_once(Err(refusal)),
        };
        let request = call.ids.own;
        let (reply, is_change) = match repeated {
            Some(repeated) => (repeated, false),
            None => match change(self, session) {
                Ok(Changed { reply, is_durable: true, is_change }) if self.journal.is_some() => {
                    self.reply_on_commit(session, request, PendingReply { reply, received: now, to: None });
                    (CachedReply::Committing, is_change)
                }
                // A refusal has changed nothing, so a repeated request may be made anew: where memory is scarce, and where
                // the store would have to forget the refusal.
                Err(refusal)
                    if refusal == Refusal::NotStored
                        || self.check_memory_uncounted(call.connection).is_err() =>
                {
                    return Executed::at_once(Err(refusal));
                }
                changed => {
                    let is_change = changed.as_ref().is_ok_and(|changed| changed.is_change);
                    let done = changed.map(|changed| changed.reply);
                    let reply = done.unwrap_or_else(|refusal| CachedReply::Done(Err(refusal)));
                    self.cache(session, request, reply.clone());
                    (reply, is_change)
                }
            },
        };
        Executed { outcome: self.answer(session, reply, RequestKind::Change, call, now), is_change }
    }

    /// The session that a request is for, and the reply if the request was made before.
    pub(super) fn begin(
        &mut self,
        connection: ConnectionId,
        ids: RequestIds,
    ) -> Result<(SessionId, Option<CachedReply>), Refusal> {
        let session = self.sessions.acting(connection)?;
        // A connection that has ended, or never joined, acts for no session.
        let mut forgotten = Vec::new();
        let forget = |request, reply: CachedReply| {
            if reply.may_be_stored() {
                forgotten.push(request);
            }
        };
        let found = self
            .change_log(session, |log| log.find(ids, |_| false, forget).map(|found| found.cloned()))
            .ok_or(Refusal::NoSuchSession)?;
        if let Err(Refusal::LimitReached(_)) = found {
            self.counts.limited += 1;
        }
        if self.is_durable(session) {
            for request in forgotten {
                self.store(Change::Delete(Key::Answer(session, request)));
            }
            self.end_unit();
        }
        Ok((session, found?))
    }

    /// The outcome of a request that has this reply, whether it was made just now or is repeated. If it waits, the answer
    /// goes to this connection from now on.
    pub(super) fn answer(
        &mut self,
        session: SessionId,
        reply: CachedReply,
        kind: RequestKind,
        call: Call,
        now: MonotonicMs,
    ) -> Outcome {
        if let CachedReply::Committing = reply {
            return self.await_commit(session, kind, call, now);
        }
        // The request with this number was another one.
        if !kind.fits(&reply) {
            return Outcome::Refused(Refusal::StaleRequest);
        }
        if let CachedReply::Waiting(id) = reply {
            self.redirect_waiter(id, call, now);
            return Outcome::Waiting;
        }
        match reply.answer(self.sessions.ttl_left_ms(session, now)) {
            Ok(answer) => Outcome::Answered(answer),
            Err(refusal) => Outcome::Refused(refusal),
        }
    }

    /// The answer of a request that waits for a commit goes to this connection from now on.
    fn await_commit(
        &mut self,
        session: SessionId,
        kind: RequestKind,
        call: Call,
        now: MonotonicMs,
    ) -> Outcome {
        let to = self.sessions.reply_to(call.connection, call.token);
        let pending = self.pending_replies.get_mut(session, call.ids.own);
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

    /// The answer of a waiter goes to this connection from now on; the request that was answered before is canceled.
    fn redirect_waiter(&mut self, id: GrantId, call: Call, now: MonotonicMs) {
        // The connection joined before its first request, so it has a mailbox until it ends.
        let Some(to) = self.sessions.reply_to(call.connection, call.token) else { return };
        let grant = self.grants.known_mut(id);
        let session = grant.session;
        // A request that waits has a waiter as long as its cached reply says so.
        let Some(waiter) = grant.waiter_mut() else { return };
        // The client counts its lease from when it sent the request that is answered.
        waiter.received = now;
        let before = waiter.reply_to.replace(to);
        let state = self.sessions.known_mut(session);
        if let Some(before) = &before {
            state.remove_token(before.token, id);
        }
        state.add_token(call.token, id);
        if let Some(before) = before {
            before.send(Err(Refusal::Canceled));
        }
    }

    /// Has the reply to a request wait for a commit of everything so far. There is a store.
    pub(super) fn reply_on_commit(&mut self, session: SessionId, request: RequestId, pending: PendingReply) {
        if self.is_durable(session)
            && let Some(record) = pending.reply.record(session, request)
        {
            self.store(Change::Put(Record::Answer(record)));
        }
        self.pending_replies.insert(session, request, pending);
        self.on_commit(OnCommit::Reply(session, request));
        self.end_unit();
        self.cache(session, request, CachedReply::Committing);
    }

    /// Sends the reply to a request, and caches it: that which was pending, or a refusal in its place.
    pub(super) fn send_pending_reply(
        &mut self,
        session: SessionId,
        request: RequestId,
        refusal: Option<Refusal>,
    ) {
        // The grant of the request, or its session, ended before the commit, and it was answered then.
        let Some(pending) = self.pending_replies.remove(session, request) else { return };
        self.send_reply(session, request, pending, refusal);
    }

    /// Sends a reply that is not pending any more, and caches it, or a refusal in its place.
    pub(super) fn send_reply(
        &mut self,
        session: SessionId,
        request: RequestId,
        pending: PendingReply,
        refusal: Option<Refusal>,
    ) {
        let reply = refusal.map_or(pending.reply, |refusal| CachedReply::Done(Err(refusal)));
        self.cache(session, request, reply.clone());
        if let Some(to) = pending.to {
            to.send(reply.answer(self.sessions.ttl_left_ms(session, pending.received)));
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
        let pending = self.pending_replies.get(session, request);
        let is_its = pending.is_some_and(
            |pending| matches!(&pending.reply, CachedReply::Granted(granted) if granted.grant == grant),
        );
        if is_its {
            self.send_pending_reply(session, request, Some(refusal));
        }
    }

    /// Detaches a connection from its leased session. Its waiting requests keep their places and are not answered here any
    /// more; if the connection still reads, each is refused so.
    pub(super) fn detach(&mut self, connection: ConnectionId, refusal: Option<Refusal>) {
        // It is not attached.
        let Some(session) = self.sessions.detach(connection) else { return };
        self.pending_replies.disconnect(session, refusal);
        for waiter in self.sessions.known_mut(session).take_tokens() {
            let reply_to =
                self.grants.known_mut(waiter).waiter_mut().and_then(|waiter| waiter.reply_to.take());
            if let Some((reply_to, refusal)) = reply_to.zip(refusal) {
                reply_to.send(Err(refusal));
            }
        }
        self.note_if_unused(session);
    }

    /// Drops the reply addresses of waiting requests that a connection, which has ended, made for its leased session: some
    /// a step. Returns whether there are more.
    pub(super) fn drop_replies_to(&mut self, connection: ConnectionId) -> bool {
        let Attachment::To(session) = self.sessions.attachment(connection) else { return false };
        for _ in 0..STEP_GRANTS {
            let Some(waiter) = self.sessions.known_mut(session).pop_token() else { return false };
            if let Some(waiter) = self.grants.known_mut(waiter).waiter_mut() {
                waiter.reply_to = None;
            }
        }
        true
    }

    /// Tells the holder of a grant that was revoked when the grant ends.
    pub(super) fn send_revocation(&self, id: GrantId) {
        // A grant that is gone, or was not revoked, needs no notice.
        let Some(grant) = self.grants.get(id) else { return };
        if let Some(at) = grant.revoked() {
            self.sessions.send_to_session(grant.session, Notice::GrantRevoked { grant: id, end: at });
        }
    }

    /// The answer to the opening of a session.
    pub(super) fn opened(&self, session: SessionId) -> Result<Answer, Refusal> {
        let (key, lease) =
            self.sessions.get(session).and_then(|state| state.lease()).ok_or(Refusal::NoSuchSession)?;
        let opened = Opened { session, key: *key, ttl_ms: lease.ttl_ms() };
        Ok(Answer::Opened(opened))
    }
}
