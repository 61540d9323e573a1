//! The types of the fields of extended requests and responses.

use std::fmt;
use std::time::Duration;

use bytes::BufMut;

use super::NO_NUMBER;
use crate::fields::Fields;
use signalbox_model::codes;

codes! {
    /// The kind of a name. Extended requests carry it, because they work over both ports (`docs/protocol.md`, "Extended
    /// operations").
    #[derive(PartialOrd, Ord)]
    pub enum Namespace: u8 {
        /// Counters: each request gives the maximum.
        Counters = 0,
        /// Semaphores: the request or declaration that creates a semaphore gives its capacity.
        Semaphores = 1,
    }
}

/// A time span in milliseconds, as on the wire: up to 49 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Milliseconds(pub u32);

impl Milliseconds {
    /// The whole milliseconds of a span; the longest value if the span is longer.
    pub fn saturating_from(span: Duration) -> Self {
        Self(u32::try_from(span.as_millis()).unwrap_or(u32::MAX))
    }
}

impl From<Milliseconds> for Duration {
    fn from(span: Milliseconds) -> Self {
        Self::from_millis(span.0.into())
    }
}

/// The number of a request that makes a change, at least 1. Numbers increase within a session. Requests with the same
/// number are one request, which is executed once (`docs/protocol.md`, "Request ids").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// The numbers in a request that makes a change (`docs/protocol.md`, "Request ids").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestIds {
    /// The request's own number.
    pub own: RequestId,
    /// The lowest number that the client has no answer to: at least 1, at most its own. The server discards the cached
    /// answers below it.
    pub lowest_unanswered: RequestId,
}

impl RequestIds {
    /// Decodes both numbers; `None` if they break a rule.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let (own, lowest_unanswered) = (RequestId(fields.u64()?), RequestId(fields.u64()?));
        let in_order = (RequestId(1)..=own).contains(&lowest_unanswered);
        in_order.then_some(Self { own, lowest_unanswered })
    }
}

/// The id of a grant. It increases with each grant of a name and is never reused, so it can be used as a fencing token
/// (`docs/semantics.md`, "Fencing tokens"). It is never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantId(pub u64);

impl GrantId {
    /// Decodes an id of which 0 stands for "no grant".
    pub(super) fn from_wire(number: u64) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    pub(super) fn to_wire(grant: Option<Self>) -> u64 {
        grant.map_or(0, |grant| grant.0)
    }
}

/// The generation of a declared semaphore: the number of its last change. It increases with each change and is never 0
/// (`docs/protocol.md`, "Declare").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u64);

impl Generation {
    /// Decodes the generation that a request expects; 0 stands for any.
    pub(super) fn from_wire(number: u64) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    pub(super) fn to_wire(expected: Option<Self>) -> u64 {
        expected.map_or(0, |generation| generation.0)
    }
}

/// The place of a waiting request in its queues, with a proof that the server gave it to this request. A client that
/// repeats the request after a restart presents both (`docs/protocol.md`, "Places"). `Debug` does not show the proof.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The id by which queues order the request.
    pub id: GrantId,
    /// The proof.
    pub proof: [u8; 16],
}

/// The bytes of a place.
pub(super) const PLACE_BYTES: usize = 24;

impl Place {
    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        Some(Self { id: GrantId(fields.u64()?), proof: fields.array()? })
    }

    pub(super) fn compose(&self, out: &mut Vec<u8>) {
        out.put_u64(self.id.0);
        out.put_slice(&self.proof);
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("id", &self.id).finish_non_exhaustive()
    }
}

/// How long a request waits at most (`docs/protocol.md`, "AcquireGrant").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It is granted at once or refused.
    NotAtAll,
    /// This long. The server decodes 0 as [`Self::NotAtAll`]; the longest span is encoded as one millisecond less.
    UpTo(Milliseconds),
    /// As long as the server's default.
    ServerDefault,
}

impl Wait {
    pub(super) fn from_wire(number: u32) -> Self {
        match number {
            0 => Self::NotAtAll,
            NO_NUMBER => Self::ServerDefault,
            span => Self::UpTo(Milliseconds(span)),
        }
    }

    pub(super) fn to_wire(self) -> u32 {
        match self {
            Self::NotAtAll => 0,
            Self::UpTo(span) => span.0.min(NO_NUMBER - 1),
            Self::ServerDefault => NO_NUMBER,
        }
    }
}

/// How long a grant is held without a renewal, counted from when the server received the request (`docs/protocol.md`,
/// "AcquireGrant" and "VerifyGrant").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TtlLeft {
    /// As long as the connection: the grant belongs to the connection's session.
    Connection,
    /// This long, unless the lease is renewed. The longest span is encoded as one millisecond less.
    For(Milliseconds),
}

impl TtlLeft {
    pub(super) fn from_wire(number: u32) -> Self {
        match number {
            NO_NUMBER => Self::Connection,
            span => Self::For(Milliseconds(span)),
        }
    }

    pub(super) fn to_wire(self) -> u32 {
        match self {
            Self::Connection => NO_NUMBER,
            Self::For(span) => span.0.min(NO_NUMBER - 1),
        }
    }
}

/// How long a grant is held although it is being revoked, counted from when the server received the request
/// (`docs/protocol.md`, "VerifyGrant").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraceLeft {
    /// Neither the grant nor its session is being revoked.
    NotRevoked,
    /// The rest of the grace period. The longest span is encoded as one millisecond less.
    For(Milliseconds),
}

impl GraceLeft {
    pub(super) fn from_wire(number: u32) -> Self {
        match number {
            NO_NUMBER => Self::NotRevoked,
            span => Self::For(Milliseconds(span)),
        }
    }

    pub(super) fn to_wire(self) -> u32 {
        match self {
            Self::NotRevoked => NO_NUMBER,
            Self::For(span) => span.0.min(NO_NUMBER - 1),
        }
    }
}

codes! {
    /// The state of a grant that is held (`docs/protocol.md`, "VerifyGrant").
    pub enum GrantState: u8 {
        /// It is held until it is released or its lease expires.
        Held = 0,
        /// It is still held, but should be released: it is being revoked, its slot was taken out of service, or its semaphore
        /// was shrunk below its slot, is being removed, or was removed and declared again.
        Retiring = 1,
    }
}

/// The secret that permits a connection to attach a leased session (`docs/protocol.md`, "OpenSession"). It is not
/// displayed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SessionKey(pub [u8; 16]);

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(secret)")
    }
}

/// The features of a server, as a set of bits (`docs/protocol.md`, "Hello"). Unknown bits are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u32);

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
    /// A slot in AcquireGrant and AcquireAll, Pause, SetSlot. A server without it ignores the slot of a request, and grants
    /// any.
    pub const SLOTS: Self = Self(1 << 6);
    /// System V semaphore sets: OpenProcess to ListUsers.
    pub const SYSV: Self = Self(1 << 7);
    /// Places of waiting requests, which survive a restart. In a Hello, the client asks to be told them.
    pub const PLACES: Self = Self(1 << 8);
    /// The server leads a cluster: what it says of sessions is true of all nodes.
    pub const CLUSTER: Self = Self(1 << 9);
    /// Sessions and RevokeClient.
    pub const SESSIONS: Self = Self(1 << 10);
    /// Export. A server without a store does not have it.
    pub const EXPORT: Self = Self(1 << 11);
    /// Where, and the notice Moved.
    pub const WHERE: Self = Self(1 << 12);

    /// The features of both sets.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the set contains all of the others.
    pub const fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}

pub(super) fn put_slots(slots: &[u16], out: &mut Vec<u8>) {
    slots.iter().for_each(|slot| out.put_u16(*slot));
}

pub(super) fn read_slots(count: usize, fields: &mut Fields<'_>) -> Option<Vec<u16>> {
    let (slots, _) = fields.bytes(count.checked_mul(2)?)?.as_chunks();
    Some(slots.iter().map(|slot| u16::from_be_bytes(*slot)).collect())
}
