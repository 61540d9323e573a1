//! The ids that clients and the server use for connections, sessions, grants and requests, and the secrets that prove them.
//!
//! Each is a type of its own, so that one cannot be passed where another is expected.

use std::fmt;
use std::hint::black_box;
use std::num::NonZeroU64;

/// A connection, by the number of its session. No other connection or session of the server has the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(NonZeroU64);

/// A session: that of a connection, which ends with it, or a leased one, which outlives connections. Shown in listings
/// and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "views", derive(serde::Serialize, serde::Deserialize))]
pub struct SessionId(NonZeroU64);

impl ConnectionId {
    /// The connection whose session has this number.
    ///
    /// # Panics
    /// If the number is 0.
    pub fn new(number: u64) -> Self {
        Self(NonZeroU64::new(number).expect("numbers start at one, and 2^64 of them are never used"))
    }

    /// The session that ends with this connection.
    pub fn session(self) -> SessionId {
        SessionId(self.0)
    }

    /// The number, as it is shown.
    pub fn number(self) -> u64 {
        self.0.get()
    }
}

impl SessionId {
    /// No session has a lower number.
    pub const MIN: Self = Self(NonZeroU64::MIN);

    /// The session with this number.
    ///
    /// # Panics
    /// If the number is 0.
    pub fn new(number: u64) -> Self {
        ConnectionId::new(number).session()
    }

    /// The session with this number, as a client names it; `None` if the number is 0, which no session has.
    pub fn from_number(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// The number, as it is shown.
    pub fn number(self) -> u64 {
        self.0.get()
    }

    /// The connection with this session, for a session that is known to be a connection's.
    pub fn connection(self) -> ConnectionId {
        ConnectionId(self.0)
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of a grant, and before that of the waiter that becomes the grant. Ids are never reused and increase within a
/// name, so a grant id is a fencing token (`docs/semantics.md`, "Fencing tokens"). No grant has the id 0, which is the
/// default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantId(pub u64);

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The generation of a declared semaphore: the number of its last change. It increases with each change and is never 0
/// (`docs/protocol.md`, "Declare").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u64);

/// The number of a request that makes a change, at least 1. Numbers increase within a session. Requests with the same
/// number are one request, which is executed once (`docs/protocol.md`, "Request ids").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// The numbers in a request that makes a change (`docs/protocol.md`, "Request ids").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestIds {
    /// The request's own number.
    pub own: RequestId,
    /// The lowest number that the client has no answer to: at least 1, at most `own`. The server discards the cached
    /// replies to requests with lower numbers.
    pub lowest_unanswered: RequestId,
}

impl RequestIds {
    /// The numbers of the first request of a session.
    pub const FIRST: Self = Self { own: RequestId(1), lowest_unanswered: RequestId(1) };
}

/// Defines a type of 16 secret bytes. They are compared in a time that does not depend on where they differ.
macro_rules! secret {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        /// `Debug` does not show it.
        #[derive(Clone, Copy)]
        pub struct $name(pub [u8; 16]);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(secret)"))
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                let differences = self.0.iter().zip(other.0).fold(0, |sum, (one, other)| sum | (one ^ other));
                black_box(differences) == 0
            }
        }

        impl Eq for $name {}
    };
}

secret! {
    /// The secret that permits a connection to attach to a leased session (`docs/protocol.md`, "OpenSession").
    SessionKey
}

impl SessionKey {
    /// The part of the key by which sessions are found. The time that a search takes may reveal it, so the rest must be
    /// hard to guess by itself.
    pub fn first_half(&self) -> u64 {
        let [first, ..] = self.0.as_chunks().0 else { return 0 };
        u64::from_be_bytes(*first)
    }
}

secret! {
    /// The secret that a client has chosen for one lease (`docs/http.md`, "Leases"). The session of the
    /// lease has a key of its own, which no client of the binary protocol knows.
    LeaseKey
}

secret! {
    /// The secret from which the server makes the proofs of places, and the keys of the sessions of keyed leases. All
    /// servers that open the same store one after another use the same secret.
    PlaceKey
}

secret! {
    /// A proof that a place belongs to a request.
    PlaceProof
}

/// The place of a waiting request in its queues, with a proof that the server gave it to this request. A client that
/// repeats the request after a restart presents both (`docs/protocol.md`, "Places").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The id by which queues order the request.
    pub id: GrantId,
    /// The proof.
    pub proof: PlaceProof,
}
