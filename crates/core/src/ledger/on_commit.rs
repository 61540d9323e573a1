//! What happens when a change is committed.

use super::declarations::Declared;
use crate::mailbox::ReplyTo;
use crate::object::ObjectRef;
use signalbox_model::{RequestId, SessionId};

#[derive(Debug)]
pub(crate) enum OnCommit {
    /// The pending reply to a request is sent.
    Reply(SessionId, RequestId),
    /// A session was closed; the client is answered.
    Closed(ReplyTo),
    /// The sessions of clients were revoked, so many of them; the client is answered.
    ClientsRevoked(u64, ReplyTo),
    /// A session was opened; its client is answered.
    Opened(SessionId),
    /// A declared semaphore becomes `after`; `evicts`: its holders lose it.
    Declared { object: ObjectRef, after: Box<Declared>, evicts: bool },
    /// Ids up to this one are reserved.
    Reserved(u64),
}

impl OnCommit {
    /// Whether it is over when the store fails: a client is answered then. What remains happens when the store works again.
    pub(super) fn is_answer(&self) -> bool {
        !matches!(self, Self::Declared { .. } | Self::Reserved(_))
    }
}
