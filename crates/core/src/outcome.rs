//! Requests to the ledger and their outcomes, at once or later.

use crate::durable::DeclaredState;
use crate::ids::{ConnectionId, GrantId, RequestIds, SessionId, SessionKey, Token};
use crate::refusal::Refusal;

/// Which request of which connection asks for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The connection that the request came in by.
    pub connection: ConnectionId,
    /// The request's number within the session that it is for.
    pub ids: RequestIds,
    /// The connection's name for the request; a late answer carries it.
    pub token: Token,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Answered(Answer),
    /// It waits; the answer comes as a [`Message`](crate::Message).
    Waiting,
    /// It is refused, and nothing has changed.
    Refused(Refusal),
}

/// The answer to a request that was not refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request is done.
    Done,
    /// The resources are granted.
    Granted(Granted),
    /// A session was opened.
    Opened(Opened),
    /// The declared semaphores of the request, in its order; none for a removal.
    Declared(Box<[DeclaredState]>),
    /// The sessions of clients are revoked.
    Revoked {
        /// How many.
        sessions: u64,
    },
    /// The usage has dropped to the level of the request.
    Idle {
        /// Resources in use.
        in_use: u32,
    },
}

/// A grant, as its client is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The grant's id, which is its fencing token.
    pub grant: GrantId,
    /// The resources of all names together.
    pub resources: u64,
    /// For each name in the order of the request: the semaphore's capacity, or the maximum that the request gave.
    pub capacities: Box<[u32]>,
    /// For each name in the order of the request: the slots that were taken, in ascending order. Empty where no
    /// semaphore has numbered slots.
    pub slots: Box<[Box<[u16]>]>,
    /// The rest of the session's lease, in milliseconds from the receipt of the request; `None`: the grant lasts as
    /// long as the connection.
    pub ttl_left_ms: Option<u32>,
}

/// A leased session that was opened.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// Its number.
    pub session: SessionId,
    /// Its secret.
    pub key: SessionKey,
    /// Its time to live in milliseconds.
    pub ttl_ms: u32,
}

impl PartialEq for Opened {
    fn eq(&self, other: &Self) -> bool {
        (self.session, self.key.0, self.ttl_ms) == (other.session, other.key.0, other.ttl_ms)
    }
}

impl Eq for Opened {}

/// A grant that is held, as VerifyGrant reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The session that holds it.
    pub session: SessionId,
    /// The rest of its lease in milliseconds; `None`: it lasts as long as the connection.
    pub ttl_left_ms: Option<u32>,
    /// Whether it should end soon: it is being revoked, its slot is above the capacity since a shrink or out of service, or
    /// its semaphore is being removed or was removed and declared again.
    pub is_retiring: bool,
    /// The rest of the grace period in milliseconds if the grant or its session is being revoked.
    pub grace_left_ms: Option<u32>,
}
