//! What the fields of extended bodies stand for.

use std::fmt;
use std::time::Duration;

use super::NO_NUMBER;
use crate::protocol::fields::Fields;

/// The kind of a name: extended requests that carry a name say it, since the port does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Namespace {
    /// A consumption; the maximum comes with each request.
    Counters = 0,
    /// A capacity, fixed by the request that makes the semaphore.
    Semaphores = 1,
}

impl Namespace {
    /// The namespace with this byte, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Counters),
            1 => Some(Self::Semaphores),
            _ => None,
        }
    }

    /// The byte that stands for the namespace on the wire.
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// A span of time in milliseconds, as the wire has it: up to 49 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Milliseconds(pub u32);

impl Milliseconds {
    /// The whole milliseconds of a span, or the longest there is where it is longer.
    pub fn saturating_from(span: Duration) -> Self {
        Self(u32::try_from(span.as_millis()).unwrap_or(u32::MAX))
    }
}

impl From<Milliseconds> for Duration {
    fn from(span: Milliseconds) -> Self {
        Self::from_millis(span.0.into())
    }
}

/// The number of a request that changes something, at least 1. It grows within a session, and the same number is the
/// same request, however often it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// What a request that changes something says of its place among the others of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestIds {
    /// The request's own number.
    pub own: RequestId,
    /// The lowest number of which the client has no answer yet: at least 1, at most its own. The server forgets the
    /// answers below it.
    pub lowest_unanswered: RequestId,
}

impl RequestIds {
    /// Two numbers, where they keep the rules.
    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let (own, lowest_unanswered) = (RequestId(fields.u64()?), RequestId(fields.u64()?));
        let in_order = (RequestId(1)..=own).contains(&lowest_unanswered);
        in_order.then_some(Self { own, lowest_unanswered })
    }
}

/// The number of a grant. It is never reused, and never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantId(pub u64);

impl GrantId {
    /// What a listing or an event says with a number of which 0 stands for no grant.
    pub(super) fn from_wire(number: u64) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    pub(super) fn to_wire(grant: Option<Self>) -> u64 {
        grant.map_or(0, |grant| grant.0)
    }
}

/// The number of a declared semaphore's last change. It grows with each, and is never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u64);

impl Generation {
    /// The one that a request expects; 0 stands for any.
    pub(super) fn from_wire(number: u64) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    pub(super) fn to_wire(expected: Option<Self>) -> u64 {
        expected.map_or(0, |generation| generation.0)
    }
}

/// How long a request waits until it is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: it is granted at once or refused.
    NotAtAll,
    /// For as long; a span of 0 is [`Self::NotAtAll`] to the server, and the longest span a millisecond less.
    UpTo(Milliseconds),
    /// As long as the server lets requests wait that do not say.
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

/// How long what is held stays held without renewal, counted from when the server received the request that it
/// answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TtlLeft {
    /// As long as the connection lasts: the session is the connection's own.
    Connection,
    /// For as long, unless the lease is renewed; the longest span goes out as a millisecond less.
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

/// Whether a grant that is held is to stay so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum GrantState {
    /// Nobody took it away.
    Held = 0,
    /// It is held still, but that will end: its revocation is under way, or its semaphore was shrunk below its slot, is
    /// being removed, or was removed and declared anew.
    Retiring = 1,
}

impl GrantState {
    pub(super) fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Held),
            1 => Some(Self::Retiring),
            _ => None,
        }
    }

    pub(super) fn code(self) -> u8 {
        self as u8
    }
}

/// The secret that lets a connection attach to a leased session. It is shown nowhere.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SessionKey(pub [u8; 16]);

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(secret)")
    }
}

/// What a server can do beyond Hello, as a set of bits; those that nobody knows yet are kept.
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
    /// What leased sessions hold, and what is declared, survives a restart of the server.
    pub const DURABLE: Self = Self(1 << 5);

    /// What either has.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of the others are among these.
    pub const fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}
