//! The messages at the start of a relayed connection.

use signalbox_model::Namespace;
use signalbox_protocol::relay::{
    Challenge, NONCE_BYTES, Opening, Outcome, PROOF_BYTES, RelayedPort, Statement, VERDICT_BYTES, Verdict,
};

#[test]
fn what_is_encoded_is_decoded() {
    let challenge = Challenge { nonce: [7; NONCE_BYTES] };
    assert_eq!(Challenge::decode(&challenge.encode()), Some(challenge));
    for (client, port, is_encrypted_by_relay) in [
        ("192.0.2.7:80", RelayedPort::Service(Namespace::Counters), true),
        ("[2001:db8::1]:65535", RelayedPort::Service(Namespace::Semaphores), false),
        ("0.0.0.0:0", RelayedPort::Http, true),
    ] {
        let client = client.parse().unwrap();
        let statement = Statement { port, is_encrypted_by_relay, epoch: 0x0102_0304, client };
        let opening = Opening { statement, proof: [9; PROOF_BYTES] };
        assert_eq!(Opening::decode(&opening.encode()), Some(opening));
    }
    for outcome in (0..4).filter_map(Outcome::from_code) {
        let verdict = Verdict { outcome, proof: [3; PROOF_BYTES] };
        assert_eq!(Verdict::decode(&verdict.encode()), Some(verdict));
    }
}

#[test]
fn other_bytes_are_no_frames() {
    let mut challenge = Challenge { nonce: [0; NONCE_BYTES] }.encode();
    challenge[3] = 2;
    assert_eq!(Challenge::decode(&challenge), None, "another version");
    let statement = Statement {
        port: RelayedPort::Service(Namespace::Counters),
        is_encrypted_by_relay: false,
        epoch: 1,
        client: ([127, 0, 0, 1], 1).into(),
    };
    let opening = Opening { statement, proof: [0; PROOF_BYTES] }.encode();
    for (at, byte) in [(0, 2), (1, 3)] {
        let mut other = opening;
        other[at] = byte;
        assert_eq!(Opening::decode(&other), None, "{at}");
    }
    assert_eq!(Verdict::decode(&[4; VERDICT_BYTES]), None);
}
