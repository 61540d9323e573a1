//! What happens when a change is committed, or is rolled back.

use super::declarations::{Before, Declaration};
use crate::core::durable::Service;
use crate::core::ids::{RequestId, SessionId};
use crate::core::mailbox::ReplyTo;
use crate::core::object::ObjectRef;

#[derive(Debug)]
pub(super) enum OnCommit {
    /// The pending reply to a request is sent.
    Reply(SessionId, RequestId),
    /// A session was closed. Its releases stand, stored or not; the client is answered.
    Closed(ReplyTo),
    /// The sessions of clients were revoked, so many of them. That stands, stored or not; the client is answered.
    ClientsRevoked(u64, ReplyTo),
    /// A session was opened; the client is answered, or the session ends.
    Opened(SessionId, ReplyTo),
    /// A declared semaphore becomes `after`, or `before` again.
    Declared { object: ObjectRef, before: Before, after: Box<Declaration>, evicts: bool },
    /// A semaphore was removed, and the configuration has declared it since. Only its holders and waiters are affected.
    Dismissed { object: ObjectRef, before: Before, removal: Box<Declaration>, evicts: bool },
    /// A semaphore was paused, resumed, or its slots were taken out of service or put back, and the configuration has
    /// declared it since. It is in service as before if that is rolled back.
    Superseded { object: ObjectRef, service: Service },
    /// Ids up to this one are reserved.
    Reserved(u64),
}
