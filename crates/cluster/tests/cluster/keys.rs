//! The keys of a cluster and their values.

use signalbox_cluster::keys::{
    Heartbeat, Incarnation, Leadership, Marker, Node, decode, encode, end_of_prefix, random_digits,
};

#[test]
fn the_end_of_a_prefix_is_the_first_key_after_it() {
    assert_eq!(end_of_prefix(b"/a/"), b"/a0");
    assert_eq!(end_of_prefix(b"a\xff"), b"b");
    assert_eq!(end_of_prefix(b"\xff"), b"\0");
}

/// The required fields of a node.
fn stated(incarnation: &Incarnation) -> String {
    format!(
        r#"{{"incarnation":"{incarnation}","version":"","record_format":1,"addresses":[],"is_eligible":true}}"#
    )
}

#[test]
fn fields_that_a_node_does_not_state_have_safe_defaults() {
    let unstated = br#"{"incarnation":"1","version":"0.1.0","record_format":1,"addresses":[]}"#;
    assert!(decode::<Node>(b"n", unstated).is_err(), "a node states whether it may lead");
    let node: Node = decode(b"n", stated(&Incarnation("1".to_owned())).as_bytes()).unwrap();
    assert!(!node.relays && !node.drains && node.relay_endpoint.is_none() && node.advertised.is_empty());
    assert_eq!(node.invocation, "");
    let heartbeat: Heartbeat = decode(b"b", br#"{"incarnation":"1","count":1}"#).unwrap();
    assert_eq!((heartbeat.relays_closed_below, heartbeat.relays), (0, 0), "its relays may be open");
    let leadership = br#"{"epoch":1,"node":"a","incarnation":"1","state":"held"}"#;
    assert_eq!(decode::<Leadership>(b"o", leadership).unwrap().successor, None);
}

#[test]
fn a_heartbeat_belongs_to_one_run_of_a_node() {
    let [first, second] = ["1", "2"].map(|run| Incarnation(run.to_owned()));
    let heartbeat = Heartbeat { incarnation: first.clone(), count: 1, relays_closed_below: 0, relays: 0 };
    let node = |incarnation: &Incarnation| -> Node { decode(b"n", stated(incarnation).as_bytes()).unwrap() };
    assert!(heartbeat.is_of(&node(&first)));
    assert!(!heartbeat.is_of(&node(&second)));
}

#[test]
fn no_two_runs_and_no_two_secrets_are_the_same() {
    let digits = [(); 4].map(|()| random_digits().unwrap());
    for (index, one) in digits.iter().enumerate() {
        assert!(one.len() == 32 && one.bytes().all(|byte| byte.is_ascii_hexdigit()), "{one}");
        assert!(!digits[..index].contains(one), "{one}");
    }
}

#[test]
fn a_value_can_be_read_with_etcdctl() {
    let marker = Marker { epoch: 3, commit: 7 };
    let bytes = encode(&marker);
    assert_eq!(bytes.escape_ascii().to_string(), r#"{\"epoch\":3,\"commit\":7}"#);
    assert_eq!(decode(b"m", &bytes), Ok(marker));
    let error = decode::<Marker>(b"/signalbox/x/m", b"7").unwrap_err().to_string();
    assert!(error.contains("\"/signalbox/x/m\""), "{error}");
}
