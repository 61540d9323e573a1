//! The start of a connection from one node of a cluster to the node that leads, which relays a client or forwards requests of
//! HTTP: who has begun it, and for whom.
//!
//! ```text
//!  leader -> relay   Challenge   magic, nonce
//!  relay  -> leader  Opening     version, flags, port, epoch, client's address and port, proof
//!  leader -> relay   Verdict     outcome, proof
//! ```
//!
//! Both sides prove with the nonce that they know the leader's secret, which is not sent. Behind the verdict are the bytes
//! of the client and those for it, as they are. A relay that encrypts them proves, first over its TLS, that it has begun it:
//! otherwise an attacker between the nodes could continue in its place. All numbers are big-endian.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use signalbox_model::{Namespace, codes};

/// The first bytes of a challenge: what this port speaks, and its version.
const MAGIC: [u8; 4] = *b"SBR\x01";

/// Bytes of the number that a leader uses once.
pub const NONCE_BYTES: usize = 16;

/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;

/// Bytes of a [`Challenge`].
pub const CHALLENGE_BYTES: usize = MAGIC.len() + NONCE_BYTES;

/// Bytes of what an [`Opening`] states.
pub const STATEMENT_BYTES: usize = 24;

/// Bytes of an [`Opening`]: the statement and its proof.
pub const OPENING_BYTES: usize = STATEMENT_BYTES + PROOF_BYTES;

/// Bytes of a [`Verdict`].
pub const VERDICT_BYTES: usize = 1 + PROOF_BYTES;

/// What a leader sends first: a number that it has never used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The number.
    pub nonce: [u8; NONCE_BYTES],
}

/// A port at which a relay has clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayedPort {
    /// A service port, with one connection to the leader for each of a client.
    Service(Namespace),
    /// That of HTTP. One connection to the leader has the requests of many clients, each of which states its own.
    Http,
}

/// What a relay states of a connection. Its proof covers all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The port of the client's connection.
    pub port: RelayedPort,
    /// Whether the relay has encrypted what the client has sent without encryption.
    pub is_encrypted_by_relay: bool,
    /// The epoch of the leader that the relay means.
    pub epoch: u32,
    /// The peer of the client's connection to the relay; of no meaning for HTTP.
    pub client: SocketAddr,
}

/// The message of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The statement.
    pub statement: Statement,
    /// The proof of that, with the leader's nonce.
    pub proof: [u8; PROOF_BYTES],
}

codes! {
    /// The leader's decision about an opening. Its code is proven.
    pub enum Outcome: u8 {
        /// The client is served.
        Accepted = 0,
        /// The client is served if it uses TLS itself: the relay does not encrypt what it sends.
        AcceptedPlain = 1,
        /// The node does not lead in this epoch.
        OtherEpoch = 2,
        /// The port of the client's connection is not enabled there.
        Disabled = 3,
    }
}

/// The answer to an opening whose proof is right. A wrong one is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The decision.
    pub outcome: Outcome,
    /// The proof that this is the leader.
    pub proof: [u8; PROOF_BYTES],
}

impl Challenge {
    /// Its bytes.
    pub fn encode(&self) -> [u8; CHALLENGE_BYTES] {
        let mut bytes = [0; CHALLENGE_BYTES];
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        bytes[MAGIC.len()..].copy_from_slice(&self.nonce);
        bytes
    }

    /// The challenge in these bytes; `None`: something else listens there, or another version.
    pub fn decode(bytes: &[u8; CHALLENGE_BYTES]) -> Option<Self> {
        let nonce = bytes.strip_prefix(&MAGIC)?.try_into().ok()?;
        Some(Self { nonce })
    }
}

const ENCRYPTED_BY_RELAY: u8 = 1;

/// The code of HTTP, which is not a namespace.
const HTTP: u8 = 2;

impl RelayedPort {
    fn code(self) -> u8 {
        match self {
            Self::Service(namespace) => namespace.code(),
            Self::Http => HTTP,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        if code == HTTP { Some(Self::Http) } else { Namespace::from_code(code).map(Self::Service) }
    }
}

impl Statement {
    /// Its bytes, which are proven.
    pub fn encode(&self) -> [u8; STATEMENT_BYTES] {
        let ip = match self.client.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let mut bytes = [0; STATEMENT_BYTES];
        bytes[0] = if self.is_encrypted_by_relay { ENCRYPTED_BY_RELAY } else { 0 };
        bytes[1] = self.port.code();
        bytes[2..6].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[6..22].copy_from_slice(&ip.octets());
        bytes[22..].copy_from_slice(&self.client.port().to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8; STATEMENT_BYTES]) -> Option<Self> {
        let [flags, port, rest @ ..] = bytes;
        let (epoch, rest) = rest.split_first_chunk()?;
        let (ip, number) = rest.split_first_chunk::<16>()?;
        Some(Self {
            port: RelayedPort::from_code(*port)?,
            is_encrypted_by_relay: match *flags {
                0 => false,
                ENCRYPTED_BY_RELAY => true,
                _ => return None,
            },
            epoch: u32::from_be_bytes(*epoch),
            client: SocketAddr::new(
                Ipv6Addr::from(*ip).to_canonical(),
                u16::from_be_bytes(number.try_into().ok()?),
            ),
        })
    }
}

impl Opening {
    /// Its bytes.
    pub fn encode(&self) -> [u8; OPENING_BYTES] {
        let mut bytes = [0; OPENING_BYTES];
        bytes[..STATEMENT_BYTES].copy_from_slice(&self.statement.encode());
        bytes[STATEMENT_BYTES..].copy_from_slice(&self.proof);
        bytes
    }

    /// The opening in these bytes; `None`: they are not one.
    pub fn decode(bytes: &[u8; OPENING_BYTES]) -> Option<Self> {
        let (statement, proof) = bytes.split_first_chunk()?;
        Some(Self { statement: Statement::decode(statement)?, proof: proof.try_into().ok()? })
    }
}

impl Verdict {
    /// Its bytes.
    pub fn encode(&self) -> [u8; VERDICT_BYTES] {
        let mut bytes = [self.outcome.code(); VERDICT_BYTES];
        bytes[1..].copy_from_slice(&self.proof);
        bytes
    }

    /// The verdict in these bytes; `None`: they are not one.
    pub fn decode(bytes: &[u8; VERDICT_BYTES]) -> Option<Self> {
        let (byte, proof) = bytes.split_first()?;
        Some(Self { outcome: Outcome::from_code(*byte)?, proof: proof.try_into().ok()? })
    }
}
