//! Bodies of requests for leases: random ones, many of which are nearly right. Whatever is sent is answered, at once and without a
//! fault of the program; and a request for a lease that was understood means the same when it is written again.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::super::connections::Connections;
use super::super::query::Parameters;
use super::claims::Wanted;
use super::histories::{connect, post, start};
use super::view::place_text;
use signalbox_model::hex;

const PATHS: [&str; 4] = ["lease/acquire", "lease/renew", "lease/release", "grant"];

/// How long an answer may take on the clock of the test, which stands still while anything can be computed.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Objects with some of these fields, most of which have values that could be right.
fn objects(fields: &'static [&'static str], value: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    let fields = proptest::collection::vec((select(fields).prop_map(str::to_owned), value), 0..6);
    fields.prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())).boxed()
}

fn scalars() -> BoxedStrategy<Value> {
    let place = "00".repeat(24);
    prop_oneof![
        8 => select(vec![json!("a"), json!("61"), json!(1), json!(2), json!(true), json!(place)]),
        2 => select(vec![json!(null), json!("2"), json!(2.0), json!(0), json!(u32::MAX), json!(u64::MAX)]),
        1 => select(vec![json!(-1), json!(1e300), json!(0.5), json!("7s"), json!([]), json!({}), json!(["a"])]),
        1 => any::<String>().prop_map(Value::String),
    ]
    .boxed()
}

/// A few keys, so that requests meet.
fn keys() -> BoxedStrategy<Value> {
    prop_oneof![
        9 => (0..4_u8).prop_map(|key| json!(format!("{key:032x}"))),
        1 => scalars(),
    ]
    .boxed()
}

fn acquires() -> BoxedStrategy<Value> {
    let claim = objects(&["name", "name", "name_hex", "resources", "maximum", "maximum", "slot"], scalars());
    let claims = proptest::collection::vec(claim, 1..4).prop_map(Value::Array);
    let others = objects(
        &["ttl_ms", "wait_ms", "queue_max", "label", "label_hex", "place", "share", "keys"],
        scalars(),
    );
    (claims, others)
        .prop_map(|(claims, mut body)| {
            body["claims"] = claims;
            body
        })
        .boxed()
}

/// A body of a request of any kind.
fn bodies() -> BoxedStrategy<Value> {
    let with_key = |body: BoxedStrategy<Value>| {
        (body, keys()).prop_map(|(mut body, key)| {
            body["key"] = key;
            body
        })
    };
    let renew = (objects(&["poll_ms", "key"], scalars()), proptest::collection::vec(keys(), 0..5));
    let renew = renew.prop_map(|(mut body, keys)| {
        body["keys"] = Value::Array(keys);
        body
    });
    prop_oneof![
        4 => with_key(acquires()),
        2 => renew,
        2 => with_key(objects(&["done", "poll_ms"], scalars())),
        1 => objects(&["grant"], scalars()),
    ]
    .boxed()
}

/// The request, if it can be understood.
fn understood(body: &[u8]) -> Option<Wanted> {
    Wanted::of(&mut Parameters::of_json(body).ok()?).ok()
}

/// Returns the contents of a request as text, without its place, which may differ when it is repeated.
fn meaning(wanted: &Wanted) -> String {
    format!("{:?}", Wanted { place: None, ..wanted.clone() })
}

/// A request as another program might write it.
fn written(wanted: &Wanted) -> Vec<u8> {
    let claim = |claim: &super::claims::OneClaim| {
        json!({
            "slot": claim.slot, "maximum": claim.maximum.map(|maximum| maximum.to_string()),
            "resources": f64::from(claim.resources), "name_hex": hex(&claim.name)
        })
    };
    let place = wanted.place.map(place_text);
    let body = json!({
        "place": place, "label_hex": hex(&wanted.label), "share": wanted.is_shared, "queue_max": wanted.queue_max,
        "wait_ms": wanted.wait_ms, "ttl_ms": wanted.ttl_ms, "claims": wanted.claims.iter().map(claim).collect::<Vec<_>>()
    });
    body.to_string().into_bytes()
}

/// The status of the answer to a request.
async fn status(connections: &Arc<Connections>, path: &str, body: &[u8]) -> u16 {
    let (mut connection, mut answer) = (connect(connections), Vec::new());
    connection.write_all(&post(path, body)).await.unwrap();
    timeout(ANSWER_MAX, connection.read_to_end(&mut answer)).await.expect("it is answered at once").unwrap();
    let status = answer.get(9..12).and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
    status.unwrap_or_else(|| panic!("no status: {:?}", String::from_utf8_lossy(&answer)))
}

proptest! {
    #[test]
    fn two_requests_have_the_same_text_if_they_mean_the_same(one in acquires(), other in acquires()) {
        let [one, other] = [one, other].map(|body| understood(body.to_string().as_bytes()));
        if let Some(one) = &one {
            let again = understood(&written(one)).expect("it was understood before");
            prop_assert_eq!((meaning(&again), again.place, again.text()), (meaning(one), one.place, one.text()));
        }
        if let (Some(one), Some(other)) = (one, other) {
            prop_assert_eq!(meaning(&one) == meaning(&other), one.text() == other.text());
        }
    }

    #[test]
    fn whatever_is_sent_is_answered(
        requests in proptest::collection::vec((bodies(), select(&PATHS[..]), any::<Index>(), any::<Option<u8>>()), 1..12)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (server, connections) = start(1);
            for (mut body, path, at, byte) in requests {
                // Parked requests are the matter of `histories`.
                if let Some(poll_ms) = body.get_mut("poll_ms") {
                    *poll_ms = json!(0);
                }
                let mut bytes = body.to_string().into_bytes();
                if let Some(byte) = byte {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
                let status = status(&connections, path, &bytes).await;
                assert!([200, 202, 400, 404, 409, 410].contains(&status), "{status}: {path} {body}");
                server.core.check_ledger().unwrap();
            }
            assert!(server.core.ledger_stats().sessions <= 4, "there are four keys");
        });
    }
}
