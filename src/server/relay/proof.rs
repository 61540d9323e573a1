//! Proofs that a leader and a relay know the leader's secret, which is in etcd.
//!
//! A proof is an HMAC-SHA-256 with the secret, which is never sent. It covers the leader's nonce, so none can be used again.

use std::fmt;

use ring::hmac;

use signalbox_cluster::keys::RelaySecret;
use signalbox_protocol::relay::{Challenge, Opening, Outcome, PROOF_BYTES, Statement, Verdict};

/// What begins the bytes that are proven, so that a proof of one kind is none of the other.
const OPENING: &[u8] = b"signalbox relay opening";
const VERDICT: &[u8] = b"signalbox relay verdict";
const CHANNEL: &[u8] = b"signalbox relay channel";

/// The secret of a leader.
pub(super) struct Secret(hmac::Key);

/// A connection between a relay and a leader, which the proofs are about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link<'a> {
    pub(super) secret: &'a Secret,
    pub(super) challenge: Challenge,
    pub(super) statement: Statement,
}

/// What a relay that encrypts a connection sends first over TLS: it proves that the relay itself has begun TLS.
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

impl Link<'_> {
    /// The relay's part.
    pub(super) fn opening(&self) -> Opening {
        Opening { statement: self.statement, proof: self.prove(OPENING, &[]) }
    }

    /// Whether the relay knows the secret.
    pub(super) fn is_proven_by(&self, opening: &Opening) -> bool {
        self.is_proof(OPENING, &[], &opening.proof)
    }

    /// The leader's part.
    pub(super) fn verdict(&self, outcome: Outcome) -> Verdict {
        Verdict { outcome, proof: self.prove(VERDICT, &[outcome.encode()]) }
    }

    /// Whether the leader knows the secret.
    pub(super) fn is_answered_by(&self, verdict: &Verdict) -> bool {
        self.is_proof(VERDICT, &[verdict.outcome.encode()], &verdict.proof)
    }

    /// What the relay sends first over the TLS that it has begun. It is never sent in clear, so nobody on the way can begin TLS in
    /// the relay's place.
    pub(super) fn channel(&self) -> ChannelProof {
        ChannelProof(self.prove(CHANNEL, &[]))
    }

    fn prove(&self, kind: &[u8], rest: &[u8]) -> [u8; PROOF_BYTES] {
        let tag = hmac::sign(&self.secret.0, &self.proven(kind, rest));
        tag.as_ref().try_into().expect("SHA-256 has so many bytes")
    }

    /// The comparison takes the same time wherever the proofs differ.
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

    #[test]
    fn a_proof_holds_for_one_secret_one_nonce_and_one_statement() {
        let [secret, other] = ["01", "02"].map(|digits| Secret::new(&RelaySecret(digits.to_owned())));
        let client = "192.0.2.7:80".parse().unwrap();
        let statement =
            Statement { namespace: Namespace::Counters, is_encrypted_by_relay: false, epoch: 3, client };
        let link = Link { secret: &secret, challenge: Challenge { nonce: [1; 16] }, statement };
        let (opening, expected) = (link.opening(), link.channel());
        assert!(link.is_proven_by(&opening));
        let verdict = link.verdict(Outcome::Accepted);
        assert!(link.is_answered_by(&verdict));
        assert!(!link.is_answered_by(&Verdict { outcome: Outcome::OtherEpoch, ..verdict }));
        assert!(
            !link.is_answered_by(&Verdict { outcome: Outcome::Accepted, proof: opening.proof }),
            "a copy"
        );
        assert_ne!(link.channel(), ChannelProof(opening.proof));
        assert_ne!(link.channel(), ChannelProof(verdict.proof));
        let faked = "127.0.0.1:80".parse().unwrap();
        for link in [
            Link { secret: &other, ..link },
            Link { challenge: Challenge { nonce: [2; 16] }, ..link },
            Link { statement: Statement { client: faked, ..statement }, ..link },
            Link { statement: Statement { epoch: 4, ..statement }, ..link },
        ] {
            assert!(!link.is_proven_by(&opening), "{link:?}");
            assert!(!link.is_answered_by(&verdict), "{link:?}");
            assert_ne!(link.channel(), expected, "{link:?}");
        }
    }
}
