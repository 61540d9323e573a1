//! The replies to the last requests of a session, so that a repeated request changes nothing (invariant 7).

use crate::core::durable::{AnswerRecord, DeclaredState};
use crate::core::ids::{GrantId, RequestId, RequestIds, SessionId};
use crate::core::outcome::{Answer, Granted};
use crate::core::ring_map::RingMap;
use crate::core::{Limit, LimitKind, Refusal};

/// How far the requests of a session may be above the lowest unanswered one; their replies are cached.
pub const REQUESTS_MAX: u64 = 1024;

/// The cached replies of one session.
#[derive(Debug, Default)]
pub(super) struct RequestLog {
    /// The client has the answers to all lower requests.
    floor: u64,
    replies: RingMap<RequestId, CachedReply>,
}

/// The reply to a request, or what it waits for.
#[derive(Clone, Debug)]
pub(super) enum CachedReply {
    /// The request waits, under this id.
    Waiting(GrantId),
    Granted(Box<CachedGrant>),
    /// The request is done, and its reply waits for a commit.
    Committing,
    Done(Result<(), Refusal>),
    /// The states of declared semaphores. Boxed twice, since a box of a slice would make all other replies larger by a
    /// half.
    Declared(Box<Box<[DeclaredState]>>),
}

const _: () = assert!(size_of::<CachedReply>() <= 16);

/// The reply to a request that was granted.
#[derive(Clone, Debug)]
pub(super) struct CachedGrant {
    pub(super) grant: GrantId,
    pub(super) resources: u64,
    pub(super) capacities: Box<[u32]>,
    pub(super) slots: Box<[Box<[u16]>]>,
}

/// The kinds of requests. A reply of another kind belongs to another request with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    Grant,
    Change,
}

impl RequestKind {
    pub(super) fn fits(self, reply: &CachedReply) -> bool {
        let is_grant = matches!(reply, CachedReply::Waiting(_) | CachedReply::Granted(_));
        matches!(reply, CachedReply::Done(Err(_))) || is_grant == (self == Self::Grant)
    }
}

impl CachedReply {
    pub(super) fn declared(states: impl Into<Box<[DeclaredState]>>) -> Self {
        Self::Declared(Box::new(states.into()))
    }

    /// The record of this reply; `None`: it is not stored.
    pub(super) fn record(&self, session: SessionId, request: RequestId) -> Option<AnswerRecord> {
        let Self::Declared(states) = self else { return None };
        Some(AnswerRecord { session, request, answer: states.as_ref().clone() })
    }

    /// Whether a store may have this reply, now or soon.
    fn may_be_stored(&self) -> bool {
        matches!(self, Self::Declared(_) | Self::Committing)
    }

    /// The reply as the client is answered; `ttl_left_ms` is the rest of the session's lease.
    pub(super) fn answer(self, ttl_left_ms: Option<u32>) -> Result<Answer, Refusal> {
        match self {
            Self::Granted(granted) => Ok(Answer::Granted(granted.answer(ttl_left_ms))),
            Self::Declared(states) => Ok(Answer::Declared(*states)),
            Self::Done(result) => result.map(|()| Answer::Done),
            Self::Waiting(_) | Self::Committing => Err(Refusal::StaleRequest),
        }
    }
}

impl CachedGrant {
    pub(super) fn answer(self, ttl_left_ms: Option<u32>) -> Granted {
        let Self { grant, resources, capacities, slots } = self;
        Granted { grant, resources, capacities, slots, ttl_left_ms }
    }
}

impl RequestLog {
    /// Looks a request up; `None`: it was never seen. Adds requests whose stored replies the client does not need any
    /// more to `forgotten`.
    pub(super) fn find(
        &mut self,
        ids: RequestIds,
        forgotten: &mut Vec<RequestId>,
    ) -> Result<Option<&CachedReply>, Refusal> {
        let (own, lowest) = (ids.own.0, ids.lowest_unanswered.0);
        if own < self.floor.max(lowest) || lowest == 0 {
            return Err(Refusal::StaleRequest);
        }
        self.floor = self.floor.max(lowest);
        while let Some((id, reply)) = self.replies.pop_first_below(RequestId(self.floor)) {
            if reply.may_be_stored() {
                forgotten.push(id);
            }
        }
        if own - self.floor > REQUESTS_MAX {
            return Err(Limit::reached(LimitKind::Requests, REQUESTS_MAX as usize));
        }
        Ok(self.get(ids.own))
    }

    pub(super) fn get(&self, request: RequestId) -> Option<&CachedReply> {
        self.replies.get(request)
    }

    /// Caches a reply, unless the client has it already.
    pub(super) fn insert(&mut self, request: RequestId, reply: CachedReply) {
        if request.0 >= self.floor {
            self.replies.insert(request, reply);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.replies.len()
    }

    /// The requests whose replies a store may have.
    pub(super) fn stored(&self) -> impl Iterator<Item = RequestId> {
        self.replies.iter().filter(|(_, reply)| reply.may_be_stored()).map(|(request, _)| request)
    }

    /// The waiter of a request that waits.
    pub(super) fn waiting(&self, request: RequestId) -> Option<GrantId> {
        match self.get(request)? {
            CachedReply::Waiting(grant) => Some(*grant),
            _ => None,
        }
    }
}
