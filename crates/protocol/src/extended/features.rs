//! Fields of Hello, and of requests that wait.

use std::fmt;

use bytes::BufMut;

use crate::layout::{Fields, NO_NUMBER, Part, parts_in_order};
use signalbox_model::Milliseconds;

/// The token in a Hello (`docs/protocol.md`, "Hello"); empty if there is none. `Debug` does not show it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Credentials<'a>(pub &'a [u8]);

impl fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "Credentials(none)" } else { "Credentials(hidden)" })
    }
}

/// The features of a server, as a set of bits (`docs/protocol.md`, "Hello"). Unknown bits are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u32);

parts_in_order! { Features { 0 } }

impl Features {
    /// Leased sessions and grants: OpenSession to CloseSession, AcquireGrant, ReleaseGrant, Cancel, VerifyGrant.
    pub const GRANTS: Self = Self(1 << 0);
    /// AcquireAll.
    pub const ACQUIRE_ALL: Self = Self(1 << 1);
    /// Watch and Unwatch.
    pub const WATCH: Self = Self(1 << 2);
    /// Revoke.
    pub const REVOKE: Self = Self(1 << 3);
    /// Declared semaphores: Declare, Resize, Remove, AwaitIdle, List.
    pub const DECLARE: Self = Self(1 << 4);
    /// Leased sessions, their grants, and declared semaphores survive a restart of the server.
    pub const DURABLE: Self = Self(1 << 5);
    /// A slot in AcquireGrant and AcquireAll, Pause, SetSlot. A server without it ignores the slot of a request, and
    /// grants any resource.
    pub const SLOTS: Self = Self(1 << 6);
    /// System V semaphore sets: OpenProcess to ListUsers.
    pub const SYSV: Self = Self(1 << 7);
    /// Places of waiting requests, which survive a restart. In a Hello, the client asks the server to send them.
    pub const PLACES: Self = Self(1 << 8);
    /// The server leads a cluster. Its sessions are those of all nodes.
    pub const CLUSTER: Self = Self(1 << 9);
    /// Sessions and RevokeClient.
    pub const SESSIONS: Self = Self(1 << 10);
    /// Export. A server without a store does not have it.
    pub const EXPORT: Self = Self(1 << 11);
    /// The operation Where, and the notice Moved.
    pub const WHERE: Self = Self(1 << 12);

    /// Returns the features of both sets.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether the set contains all of the others.
    pub const fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}

/// How long a request waits at most (`docs/protocol.md`, "AcquireGrant").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It is granted at once or refused.
    NotAtAll,
    /// It waits up to this long. The server decodes 0 as [`Self::NotAtAll`]; the longest span is encoded as one
    /// millisecond less.
    UpTo(Milliseconds),
    /// It waits up to the server's default.
    ServerDefault,
}

impl Part<'_> for Wait {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        Some(match fields.u32()? {
            0 => Self::NotAtAll,
            NO_NUMBER => Self::ServerDefault,
            span => Self::UpTo(Milliseconds(span)),
        })
    }

    fn compose(&self, out: &mut Vec<u8>) {
        out.put_u32(match self {
            Self::NotAtAll => 0,
            Self::UpTo(span) => span.0.min(NO_NUMBER - 1),
            Self::ServerDefault => NO_NUMBER,
        });
    }
}

/// How a request waits if it cannot be granted at once (`docs/protocol.md`, "AcquireGrant").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queueing {
    /// How long it waits.
    pub wait: Wait,
    /// The request joins a queue only if fewer than this many requests wait in it; `None`: no limit.
    pub queue_max: Option<u32>,
}

impl Part<'_> for Queueing {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let (wait, queue_max) = (Part::read(fields)?, fields.u32()?);
        Some(Self { wait, queue_max: (queue_max != NO_NUMBER).then_some(queue_max) })
    }

    fn compose(&self, out: &mut Vec<u8>) {
        self.wait.compose(out);
        out.put_u32(self.queue_max.unwrap_or(NO_NUMBER));
    }
}
