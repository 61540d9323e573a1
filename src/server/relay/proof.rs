//! Proofs that a leader and a relay know the leader's secret, which is in etcd.
//!
//! A proof is an HMAC-SHA-256 with the secret, which is never sent. It covers the leader's nonce, so it cannot be replayed.

use std::fmt;

use ring::hmac;

use signalbox_cluster::keys::RelaySecret;
use signalbox_protocol::relay::{Challenge, Opening, Outcome, PROOF_BYTES, Statement, Verdict};

/// The first bytes that a proof covers, so that a proof of one kind cannot be used as one of another kind.
const OPENING: &[u8] = b"signalbox relay opening";
const VERDICT: &[u8] = b"signalbox relay verdict";
const CHANNEL: &[u8] = b"signalbox relay channel";

/// The secret of a leader.
pub(super) struct Secret(hmac::Key);

/// The handshake of a connection between a relay and a leader.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handshake<'a> {
    pub(super) secret: &'a Secret,
    pub(super) challenge: Challenge,
    pub(super) statement: Statement,
}

/// The first bytes that a relay sends within TLS if it encrypts a connection. They prove that the relay itself has begun
/// TLS.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::server) struct ChannelProof(pub(in crate::server) [u8; PROOF_BYTES]);

/// Without the bytes, which are secret.
impl fmt::Debug for ChannelProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChannelProof")
    }
}

impl Secret {
    pub(super) fn new(secret: &RelaySecret) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret.0.as_bytes()))
    }
}

/// Without the secret.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Handshake<'_> {
    /// Returns the message of the relay.
    pub(super) fn opening(&self) -> Opening {
        Opening { statement: self.statement, proof: self.prove(OPENING, &[]) }
    }

    /// Returns whether the opening proves that the relay knows the secret.
    pub(super) fn is_proven_by(&self, opening: &Opening) -> bool {
        self.is_proof(OPENING, &[], &opening.proof)
    }

    /// Returns the message of the leader.
    pub(super) fn verdict(&self, outcome: Outcome) -> Verdict {
        Verdict { outcome, proof: self.prove(VERDICT, &[outcome.code()]) }
    }

    /// Returns whether the verdict proves that the leader knows the secret.
    pub(super) fn is_answered_by(&self, verdict: &Verdict) -> bool {
        self.is_proof(VERDICT, &[verdict.outcome.code()], &verdict.proof)
    }

    /// Returns the first bytes that the relay sends within the TLS that it has begun. They are never sent without TLS,
    /// so no attacker in the network can begin TLS in place of the relay.
    pub(super) fn channel(&self) -> ChannelProof {
        ChannelProof(self.prove(CHANNEL, &[]))
    }

    fn prove(&self, kind: &[u8], rest: &[u8]) -> [u8; PROOF_BYTES] {
        let tag = hmac::sign(&self.secret.0, &self.proven(kind, rest));
        tag.as_ref().try_into().expect("an HMAC-SHA-256 has 32 bytes")
    }

    /// Returns whether this is the proof. Compares in constant time.
    fn is_proof(&self, kind: &[u8], rest: &[u8], proof: &[u8; PROOF_BYTES]) -> bool {
        hmac::verify(&self.secret.0, &self.proven(kind, rest), proof).is_ok()
    }

    fn proven(&self, kind: &[u8], rest: &[u8]) -> Vec<u8> {
        [kind, &self.challenge.nonce, &self.statement.encode(), rest].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use signalbox_model::Namespace;
    use signalbox_protocol::relay::RelayedPort;

    #[test]
    fn a_proof_holds_for_one_secret_one_nonce_and_one_statement() {
        let [secret, other] = ["01", "02"].map(|digits| Secret::new(&RelaySecret(digits.to_owned())));
        let client = "192.0.2.7:80".parse().unwrap();
        let statement = Statement {
            port: RelayedPort::Service(Namespace::Counters),
            is_encrypted_by_relay: false,
            epoch: 3,
            client,
        };
        let handshake = Handshake { secret: &secret, challenge: Challenge { nonce: [1; 16] }, statement };
        let (opening, expected) = (handshake.opening(), handshake.channel());
        assert!(handshake.is_proven_by(&opening));
        let verdict = handshake.verdict(Outcome::Accepted);
        assert!(handshake.is_answered_by(&verdict));
        assert!(!handshake.is_answered_by(&Verdict { outcome: Outcome::OtherEpoch, ..verdict }));
        assert!(
            !handshake.is_answered_by(&Verdict { outcome: Outcome::Accepted, proof: opening.proof }),
            "the copy of a proof of another kind"
        );
        assert_ne!(handshake.channel(), ChannelProof(opening.proof));
        assert_ne!(handshake.channel(), ChannelProof(verdict.proof));
        let faked = "127.0.0.1:80".parse().unwrap();
        for handshake in [
            Handshake { secret: &other, ..handshake },
            Handshake { challenge: Challenge { nonce: [2; 16] }, ..handshake },
            Handshake { statement: Statement { client: faked, ..statement }, ..handshake },
            Handshake { statement: Statement { epoch: 4, ..statement }, ..handshake },
        ] {
            assert!(!handshake.is_proven_by(&opening), "{handshake:?}");
            assert!(!handshake.is_answered_by(&verdict), "{handshake:?}");
            assert_ne!(handshake.channel(), expected, "{handshake:?}");
        }
    }
}
