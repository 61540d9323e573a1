//! The ids that clients and the server use for connections, sessions, grants and requests.
//!
//! Each is a type of its own, so that one cannot be passed where another is expected.

use std::fmt;
use std::num::NonZeroU64;

/// A connection, by the number of its session. No other connection or session of the server has the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(NonZeroU64);

/// A session: that of a connection, which ends with it, or a leased one, which outlives connections. Shown in listings
/// and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(NonZeroU64);

impl ConnectionId {
    pub(super) fn new(number: u64) -> Self {
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
    pub(super) const MIN: Self = Self(NonZeroU64::MIN);

    pub(super) fn new(number: u64) -> Self {
        ConnectionId::new(number).session()
    }

    /// The session with this number, as a client names it. `None`: no session has the number 0.
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

/// A grant, and the waiter that it comes from. Ids are never reused and grow within a name, so a grant id is a fencing
/// token (`docs/semantics.md`, "Fencing tokens").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantId(pub u64);

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a request within its session: a repeated request has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// The number of a request, and the lowest request of the session that the client has no answer to yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestIds {
    /// The request's own number.
    pub own: RequestId,
    /// The lowest unanswered request; the server forgets the answers to lower ones.
    pub lowest_unanswered: RequestId,
}

/// The name that a connection chose for one of its requests or watches. The core returns it with the late answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// The secret of a leased session. `Debug` does not show it.
#[derive(Clone, Copy)]
pub struct SessionKey(pub [u8; 16]);

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey")
    }
}

impl SessionKey {
    /// A part of the key, by which sessions are found. A search may reveal it by the time that it takes, so the rest has
    /// to be as hard to guess.
    pub(super) fn first_half(&self) -> u64 {
        let [first, ..] = self.0.as_chunks().0 else { return 0 };
        u64::from_be_bytes(*first)
    }

    /// Compares in a time that does not depend on where the keys differ.
    pub(super) fn is(&self, other: &Self) -> bool {
        is_same_secret(&self.0, &other.0)
    }
}

/// The secret with which the proofs of places are made. One key serves all servers of a store, one after the other.
/// `Debug` does not show it.
#[derive(Clone, Copy)]
pub struct PlaceKey(pub [u8; 16]);

impl fmt::Debug for PlaceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PlaceKey")
    }
}

/// Compares all bytes, for tests and for checks of a store. Clients present no keys.
impl PartialEq for PlaceKey {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for PlaceKey {}

/// The place of a waiting request in its queues, and the proof that the server gave it to this request
/// (`docs/semantics.md`, "Places after a restart").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The id by which queues order the request.
    pub id: GrantId,
    /// The proof.
    pub proof: PlaceProof,
}

/// A proof that a place belongs to a request. `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PlaceProof(pub [u8; 16]);

impl fmt::Debug for PlaceProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PlaceProof")
    }
}

impl PlaceProof {
    /// Compares in a time that does not depend on where the proofs differ.
    pub(super) fn is(&self, other: &Self) -> bool {
        is_same_secret(&self.0, &other.0)
    }
}

fn is_same_secret(one: &[u8; 16], other: &[u8; 16]) -> bool {
    let differences = one.iter().zip(other).fold(0, |sum, (one, other)| sum | (one ^ other));
    std::hint::black_box(differences) == 0
}
