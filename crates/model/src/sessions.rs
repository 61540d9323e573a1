//! Sessions in listings, and the clients whose sessions are revoked.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use crate::{Milliseconds, codes};

codes! {
    /// The kind of a session (`docs/protocol.md`, "Sessions").
    pub enum SessionKind: u8 {
        /// A leased session, which outlives connections.
        Leased = 0,
        /// The session of a connection.
        Connection = 1,
        /// A process of System V semaphores.
        Process = 2,
    }
}

/// A session in the response to Sessions (`docs/protocol.md`, "Sessions").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionEntry<T> {
    /// Its kind.
    pub kind: SessionKind,
    /// The number of the session, or of the process.
    pub session: u64,
    /// Whether a client is connected to it.
    pub attached: bool,
    /// Its age in seconds; `None`: it existed before the server was started.
    pub age_s: Option<u32>,
    /// The number of grants that it holds; for a process, the number of sets that it has adjustments of.
    pub grants: u32,
    /// The number of its requests that wait.
    pub waiting: u32,
    /// How long it lives without a renewal.
    pub ttl_left: TtlLeft,
    /// The label; arbitrary bytes, may be empty.
    pub label: T,
    /// The address of the client that is connected, or was connected last, as text; empty if it is not known.
    pub address: T,
    /// The identity that this client has proven, such as `token:web`; empty if it has proven none.
    pub identity: T,
}

impl<T: AsRef<[u8]>> SessionEntry<T> {
    /// The same entry with borrowed texts.
    pub fn borrowed(&self) -> SessionEntry<&[u8]> {
        let Self { kind, session, attached, age_s, grants, waiting, ttl_left, .. } = *self;
        let (label, address) = (self.label.as_ref(), self.address.as_ref());
        let identity = self.identity.as_ref();
        SessionEntry { kind, session, attached, age_s, grants, waiting, ttl_left, label, address, identity }
    }
}

/// How long a grant is held without a renewal, counted from when the server received the request (`docs/protocol.md`,
/// "AcquireGrant" and "VerifyGrant").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TtlLeft {
    /// As long as the connection: the grant belongs to the connection's session.
    Connection,
    /// This long, unless the lease is renewed. The longest span is encoded as one millisecond less, because its code
    /// means [`Self::Connection`].
    For(Milliseconds),
}

/// How long a grant that is being revoked is still held, counted from when the server received the request
/// (`docs/protocol.md`, "VerifyGrant").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraceLeft {
    /// Neither the grant nor its session is being revoked.
    NotRevoked,
    /// The rest of the grace period. The longest span is encoded as one millisecond less, because its code means
    /// [`Self::NotRevoked`].
    For(Milliseconds),
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

/// A grant that is held (`docs/protocol.md`, "VerifyGrant").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifiedGrant {
    /// The number of the session that holds it.
    pub session: u64,
    /// How long the grant is held without a renewal.
    pub ttl_left: TtlLeft,
    /// Whether it should be released soon.
    pub state: GrantState,
    /// How long it is held if it is being revoked.
    pub grace_left: GraceLeft,
}

/// A range of IP addresses (`docs/protocol.md`, "RevokeClient"). IPv4 addresses are mapped to IPv6, such as
/// `::ffff:192.0.2.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressRange {
    /// The first address.
    pub first: Ipv6Addr,
    /// The last address; not below the first one.
    pub last: Ipv6Addr,
}

impl AddressRange {
    /// Returns whether an address is in the range.
    pub fn contains(&self, address: IpAddr) -> bool {
        (self.first..=self.last).contains(&mapped(address))
    }
}

impl From<IpAddr> for AddressRange {
    /// The range of one address.
    fn from(address: IpAddr) -> Self {
        let address = mapped(address);
        Self { first: address, last: address }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, last] = [self.first, self.last].map(|address| address.to_canonical());
        if first == last { first.fmt(f) } else { write!(f, "{first} to {last}") }
    }
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}
