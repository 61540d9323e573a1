//! Requests to the ledger and their outcomes, at once or later.

use signalbox_model::{ConnectionId, DeclaredState, GrantId, Refusal, RequestIds, SessionId, SessionKey};

/// The number by which a connection identifies one of its requests or watches. The core returns it with the late
/// answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// The origin of a request for a grant or a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The connection of the request.
    pub connection: ConnectionId,
    /// The request's ids within the session that it is for.
    pub ids: RequestIds,
    /// The token of the request, for a late answer.
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

impl From<Result<Answer, Refusal>> for Outcome {
    fn from(result: Result<Answer, Refusal>) -> Self {
        result.map_or_else(Self::Refused, Self::Answered)
    }
}

/// The outcome of an administrator's operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executed {
    /// The outcome of the request.
    pub outcome: Outcome,
    /// Whether this request has changed something, or will. `false` if it is repeated, or if it asks for the present
    /// state.
    pub is_change: bool,
}

impl Executed {
    /// The outcome of an operation that is executed at once.
    pub(super) fn at_once(result: Result<Answer, Refusal>) -> Self {
        Self { is_change: result.is_ok(), outcome: result.into() }
    }
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
        /// The number of sessions.
        sessions: u64,
    },
    /// Waiting requests were canceled.
    Canceled {
        /// The number of requests.
        requests: u64,
    },
    /// The usage has dropped to what the request waited for.
    Idle {
        /// Resources in use.
        in_use: u32,
    },
}

/// The answer to a request that was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The grant's id, which is its fencing token.
    pub grant: GrantId,
    /// The resources of all names together.
    pub resources: u64,
    /// For each name in the order of the request: the semaphore's capacity, or the maximum that the request gave.
    pub capacities: Box<[u32]>,
    /// For each name in the order of the request: the slots that were taken, in ascending order; none if its resources
    /// are not numbered. The whole list is empty if no semaphore of the request has numbered slots.
    pub slots: Box<[Box<[u16]>]>,
    /// The rest of the session's lease, in milliseconds from the receipt of the request; `None`: the grant lasts as
    /// long as the connection.
    pub ttl_left_ms: Option<u32>,
}

/// A leased session that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its number.
    pub session: SessionId,
    /// Its secret.
    pub key: SessionKey,
    /// Its time to live in milliseconds.
    pub ttl_ms: u32,
}
