//! What the ledger keeps in the request log of a session.

use crate::durable::AnswerRecord;
use crate::outcome::{Answer, Granted};
use crate::request_log::{Reply, RequestLog};
use signalbox_model::{DeclaredState, GrantId, Refusal, RequestId, SessionId};

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

    /// Whether a store may have a reply to this request, now or soon. Of a changed declaration it has one although the client
    /// was answered that it is not stored.
    pub(super) fn may_be_stored(&self) -> bool {
        matches!(self, Self::Declared(_) | Self::Committing | Self::Done(Err(Refusal::NotStored)))
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

/// What an allocation takes beside its content, in bytes.
const ALLOCATION_BYTES: usize = 16;

impl Reply for CachedReply {
    fn bytes(&self) -> usize {
        match self {
            Self::Waiting(_) | Self::Committing | Self::Done(_) => 0,
            Self::Granted(granted) => granted.bytes(),
            Self::Declared(states) => {
                2 * ALLOCATION_BYTES + size_of::<Box<[DeclaredState]>>() + size_of_val::<[_]>(states)
            }
        }
    }
}

impl CachedGrant {
    fn bytes(&self) -> usize {
        let slots: usize = self.slots.iter().map(|slots| ALLOCATION_BYTES + size_of_val::<[_]>(slots)).sum();
        3 * ALLOCATION_BYTES
            + size_of::<Self>()
            + size_of_val::<[_]>(&self.capacities)
            + size_of_val::<[_]>(&self.slots)
            + slots
    }

    pub(super) fn answer(self, ttl_left_ms: Option<u32>) -> Granted {
        let Self { grant, resources, capacities, slots } = self;
        Granted { grant, resources, capacities, slots, ttl_left_ms }
    }
}

impl RequestLog<CachedReply> {
    /// The requests whose replies a store may have.
    pub(super) fn stored(&self) -> impl Iterator<Item = RequestId> {
        self.iter().filter(|(_, reply)| reply.may_be_stored()).map(|(request, _)| request)
    }

    /// The waiter of a request that waits.
    pub(super) fn waiting(&self, request: RequestId) -> Option<GrantId> {
        match self.get(request)? {
            CachedReply::Waiting(grant) => Some(*grant),
            _ => None,
        }
    }
}
