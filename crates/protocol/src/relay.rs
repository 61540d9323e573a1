//! The start of a connection from a relay to the leader. The relay states its client, and both sides prove who they
//! are.
//!
//! ```text
//!  leader -> relay   Challenge   magic, nonce
//!  relay  -> leader  Opening     flags, port, epoch, client's address and port, proof
//!  leader -> relay   Verdict     outcome, proof
//! ```
//!
//! Both sides prove with the nonce that they know the leader's secret, which is not sent. After the verdict, the bytes
//! from and to the client follow unchanged. A relay that encrypts them begins TLS, and first proves within TLS that it
//! is the relay: otherwise an attacker between the nodes could begin TLS in its place. All numbers are big-endian.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use signalbox_model::{Namespace, codes};

/// The first bytes of a challenge: they identify the protocol between relay and leader, and its version.
const MAGIC: [u8; 4] = *b"SBR\x01";

/// The length of a nonce in bytes.
pub const NONCE_BYTES: usize = 16;

/// The length of a proof in bytes.
pub const PROOF_BYTES: usize = 32;

/// The length of a [`Challenge`] in bytes.
pub const CHALLENGE_BYTES: usize = MAGIC.len() + NONCE_BYTES;

/// The length of a [`Statement`] in bytes.
pub const STATEMENT_BYTES: usize = 24;

/// The length of an [`Opening`] in bytes: the statement and its proof.
pub const OPENING_BYTES: usize = STATEMENT_BYTES + PROOF_BYTES;

/// The length of a [`Verdict`] in bytes.
pub const VERDICT_BYTES: usize = 1 + PROOF_BYTES;

/// The first message, from the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// A number that the leader uses only once.
    pub nonce: [u8; NONCE_BYTES],
}

/// A port of a relay at which clients connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayedPort {
    /// A service port. Each connection of a client has its own connection to the leader.
    Service(Namespace),
    /// The HTTP port. One connection to the leader has the requests of many clients, and each request states its
    /// client.
    Http,
}

/// The statement of a relay about a connection. The proof of the [`Opening`] covers all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The port of the client's connection.
    pub port: RelayedPort,
    /// Whether the relay encrypts what the client sends without encryption.
    pub is_encrypted_by_relay: bool,
    /// The epoch of the leader that the relay connects to.
    pub epoch: u32,
    /// The peer address of the client's connection to the relay; ignored for [`RelayedPort::Http`].
    pub client: SocketAddr,
}

/// The answer of a relay to a [`Challenge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The statement.
    pub statement: Statement,
    /// The proof of the statement, with the leader's nonce.
    pub proof: [u8; PROOF_BYTES],
}

codes! {
    /// The leader's decision about an opening.
    pub enum Outcome: u8 {
        /// The client is served.
        Accepted = 0,
        /// The client is served only if it uses TLS itself, so the relay forwards its bytes without encrypting them.
        AcceptedPlain = 1,
        /// The node does not lead in this epoch.
        OtherEpoch = 2,
        /// The port of the client's connection is not enabled on the leader.
        Disabled = 3,
    }
}

/// The answer of the leader to an [`Opening`] with a correct proof. An opening with a wrong proof is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The decision.
    pub outcome: Outcome,
    /// The proof that the leader sends this outcome.
    pub proof: [u8; PROOF_BYTES],
}

impl Challenge {
    /// Returns the encoded challenge.
    pub fn encode(&self) -> [u8; CHALLENGE_BYTES] {
        let mut bytes = [0; CHALLENGE_BYTES];
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        bytes[MAGIC.len()..].copy_from_slice(&self.nonce);
        bytes
    }

    /// Decodes a challenge; `None` if the peer speaks another protocol or another version of it.
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
    /// Returns the encoded statement, which the proof covers.
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
    /// Returns the encoded opening.
    pub fn encode(&self) -> [u8; OPENING_BYTES] {
        let mut bytes = [0; OPENING_BYTES];
        bytes[..STATEMENT_BYTES].copy_from_slice(&self.statement.encode());
        bytes[STATEMENT_BYTES..].copy_from_slice(&self.proof);
        bytes
    }

    /// Decodes an opening; `None` if it is malformed.
    pub fn decode(bytes: &[u8; OPENING_BYTES]) -> Option<Self> {
        let (statement, proof) = bytes.split_first_chunk()?;
        Some(Self { statement: Statement::decode(statement)?, proof: proof.try_into().ok()? })
    }
}

impl Verdict {
    /// Returns the encoded verdict.
    pub fn encode(&self) -> [u8; VERDICT_BYTES] {
        let mut bytes = [self.outcome.code(); VERDICT_BYTES];
        bytes[1..].copy_from_slice(&self.proof);
        bytes
    }

    /// Decodes a verdict; `None` if the outcome is unknown.
    pub fn decode(bytes: &[u8; VERDICT_BYTES]) -> Option<Self> {
        let (byte, proof) = bytes.split_first()?;
        Some(Self { outcome: Outcome::from_code(*byte)?, proof: proof.try_into().ok()? })
    }
}
