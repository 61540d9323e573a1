//! Answers that wait for a commit.
//!
//! Invariant: a request of a session has at most one, and then its cached reply is
//! [`CachedReply::Committing`](super::cached_reply::CachedReply::Committing).

use std::collections::BTreeMap;

use super::cached_reply::CachedReply;
use crate::mailbox::ReplyTo;
use crate::time::MonotonicMs;
use signalbox_model::{Refusal, RequestId, SessionId};

/// An answer that waits for a commit.
#[derive(Debug)]
pub(super) struct PendingReply {
    pub(super) reply: CachedReply,
    /// When the request or its last repetition was received.
    pub(super) received: MonotonicMs,
    /// `None` while the session has no connection.
    pub(super) to: Option<ReplyTo>,
}

#[derive(Debug, Default)]
pub(super) struct PendingReplies(BTreeMap<(SessionId, RequestId), PendingReply>);

impl PendingReplies {
    pub(super) fn insert(&mut self, session: SessionId, request: RequestId, reply: PendingReply) {
        self.0.insert((session, request), reply);
    }

    pub(super) fn get(&self, session: SessionId, request: RequestId) -> Option<&PendingReply> {
        self.0.get(&(session, request))
    }

    pub(super) fn get_mut(&mut self, session: SessionId, request: RequestId) -> Option<&mut PendingReply> {
        self.0.get_mut(&(session, request))
    }

    pub(super) fn remove(&mut self, session: SessionId, request: RequestId) -> Option<PendingReply> {
        self.0.remove(&(session, request))
    }

    /// Sends no answers of this session any more, as its connection has left it; each waiting client request is refused
    /// if there is a refusal.
    pub(super) fn disconnect(&mut self, session: SessionId, refusal: Option<Refusal>) {
        for (_, pending) in self.0.range_mut(all_of(session)) {
            if let Some((to, refusal)) = pending.to.take().zip(refusal) {
                to.send(Err(refusal));
            }
        }
    }

    /// Refuses all of a session that has ended.
    pub(super) fn refuse_all(&mut self, session: SessionId, refusal: Refusal) {
        let requests: Vec<_> = self.0.range(all_of(session)).map(|(key, _)| *key).collect();
        for key in requests {
            if let Some(PendingReply { to: Some(to), .. }) = self.0.remove(&key) {
                to.send(Err(refusal));
            }
        }
    }
}

fn all_of(session: SessionId) -> std::ops::RangeInclusive<(SessionId, RequestId)> {
    (session, RequestId(0))..=(session, RequestId(u64::MAX))
}
