//! Leases over HTTP (`docs/http.md`, "Leases").

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::changes::create;
use crate::client::{HttpDaemon, Reply, read_reply};
use crate::support::daemon::{Daemon, open_directory, serve_file};
use crate::support::{OK, eventually, skipped};

/// A key that no other lease of this process has.
fn key() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("{:032x}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The claims of a lease of one of a counter.
fn one(key: &str, name: &str, more: Value) -> Value {
    let mut body = json!({"key": key, "claims": [{"name": name, "maximum": 1}], "ttl_ms": 30_000});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

impl HttpDaemon {
    #[track_caller]
    fn lease(&self, request: &str, body: &Value) -> Reply {
        self.post(&format!("/api/v1/lease/{request}"), &[], &body.to_string())
    }

    /// Acquires one of a counter, which has to be free.
    #[track_caller]
    fn hold(&self, name: &str) -> (String, Value) {
        let key = key();
        let held = self.lease("acquire", &one(&key, name, json!({})));
        assert_eq!(held.status, 200, "{}", held.text());
        (key, held.json())
    }

    #[track_caller]
    fn renewed(&self, key: &str, poll_ms: u32) -> Value {
        let reply = self.lease("renew", &json!({"keys": [key], "poll_ms": poll_ms}));
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()["leases"][0].clone()
    }

    #[track_caller]
    fn give_back(&self, key: &str) {
        let reply = self.lease("release", &json!({ "key": key }));
        assert_eq!((reply.status, reply.text()), (200, "{}".to_owned()));
    }

    /// Begins a request, which may wait.
    fn begin(&self, request: &str, body: &Value, headers: &str) -> TcpStream {
        let mut stream = self.connect();
        self.send_on(&mut stream, request, body, headers);
        stream
    }

    fn send_on(&self, stream: &mut TcpStream, request: &str, body: &Value, headers: &str) {
        let (host, body) = (self.address, body.to_string());
        let length = body.len();
        let head = format!(
            "POST /api/v1/lease/{request} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{headers}"
        );
        write!(stream, "{head}Content-Length: {length}\r\n\r\n{body}").unwrap();
    }

    fn metric(&self, line: &str) -> Option<u64> {
        let text = self.get("/metrics").text();
        let found = text.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '))?;
        Some(found.parse().unwrap())
    }

    /// Waits until this number of requests wait for a change.
    #[track_caller]
    fn wait_for_parked(&self, count: u64) {
        eventually("requests wait", || self.metric("signalbox_http_parked_requests") == Some(count));
    }

    fn in_use(&self, name: &str) -> u64 {
        let reply = self.get(&format!("/api/v1/name?name={name}&kind=counter"));
        reply.json()["items"][0]["in_use"].as_u64().unwrap_or(0)
    }
}

fn millis(view: &Value, field: &str) -> u64 {
    view[field].as_u64().unwrap_or_else(|| panic!("no {field}: {view}"))
}

fn grant(view: &Value) -> u64 {
    view["grant"].as_str().unwrap_or_else(|| panic!("no grant: {view}")).parse().unwrap()
}

#[test]
fn a_lease_is_acquired_renewed_and_released() {
    let http = HttpDaemon::start();
    let (key, held) = http.hold("a");
    assert_eq!(
        (held["state"].as_str(), millis(&held, "valid_ms"), millis(&held, "ttl_ms"), &held["slots"]),
        (Some("held"), 28_800, 30_000, &json!([]))
    );
    let verified = http.get(&format!("/api/v1/grant?grant={}", grant(&held))).json();
    assert_eq!((&verified["state"], &verified["grant"]), (&json!("held"), &held["grant"]));
    assert_eq!(verified["grace_left_ms"], Value::Null);
    let renewed = http.renewed(&key, 0);
    assert_eq!(
        (&renewed["state"], &renewed["grant"], &renewed["key"]),
        (&json!("held"), &held["grant"], &json!(key))
    );
    assert_eq!(http.lease("acquire", &one(&self::key(), "a", json!({}))).code(), "busy");
    http.give_back(&key);
    assert_eq!(http.get(&format!("/api/v1/grant?grant={}", grant(&held))).code(), "no_such_grant");
    let (_, next) = http.hold("a");
    assert!(grant(&next) > grant(&held));
}

#[test]
fn the_same_request_again_is_the_same_lease_and_another_one_is_refused() {
    let http = HttpDaemon::start();
    let (key, held) = http.hold("a");
    let again = http.lease("acquire", &one(&key, "a", json!({"poll_ms": 7, "place": null})));
    assert_eq!((again.status, &again.json()["grant"]), (200, &held["grant"]));
    for different in [
        one(&key, "b", json!({})),
        one(&key, "a", json!({"ttl_ms": 30_001})),
        one(&key, "a", json!({"wait_ms": 1})),
        one(&key, "a", json!({"queue_max": 1})),
        one(&key, "a", json!({"label": "a"})),
        one(&key, "a", json!({"claims": [{"name": "a", "maximum": 2}]})),
        one(&key, "a", json!({"claims": [{"name": "a", "maximum": 1}, {"name": "b", "maximum": 1}]})),
    ] {
        let reply = http.lease("acquire", &different);
        assert_eq!((reply.status, reply.code()), (409, "different_request".to_owned()), "{different}");
    }
    assert_eq!(http.in_use("a"), 1);
    assert_eq!(http.renewed(&key, 0)["state"], "held");
}

/// A retried acquire may arrive after its release, and a release before its acquire.
#[test]
fn a_released_key_begins_no_lease() {
    let http = HttpDaemon::start();
    let (key, _) = http.hold("a");
    for _ in 0..2 {
        http.give_back(&key);
    }
    let unknown = self::key();
    http.give_back(&unknown);
    for key in [&key, &unknown] {
        let reply = http.lease("acquire", &one(key, "a", json!({"wait_ms": 1000})));
        assert_eq!((reply.status, reply.code()), (410, "released".to_owned()));
        assert_eq!(http.renewed(key, 1000)["state"], "lost");
    }
    assert_eq!(http.in_use("a"), 0);
}

#[test]
fn a_request_that_waits_is_answered_when_it_is_granted() {
    let http = HttpDaemon::start();
    let (first, held) = http.hold("a");
    let (second, third) = (key(), key());
    let queued = http.lease("acquire", &one(&second, "a", json!({"wait_ms": 60_000})));
    assert_eq!(
        (queued.status, &queued.json()["state"], &queued.json()["position"]),
        (202, &json!("queued"), &json!(1))
    );
    assert_eq!(millis(&queued.json(), "valid_ms"), 28_800);
    let queued = http.lease("acquire", &one(&third, "a", json!({"wait_ms": 60_000})));
    assert_eq!(queued.json()["position"], 2);
    assert!(queued.json()["place"].is_null(), "no place survives without a store");
    let acquiring =
        http.begin("acquire", &one(&second, "a", json!({"wait_ms": 60_000, "poll_ms": 10_000})), "");
    let renewing = http.begin("renew", &json!({"keys": [third], "poll_ms": 10_000}), "");
    http.wait_for_parked(2);
    http.give_back(&first);
    let [mut acquiring, mut renewing] = [acquiring, renewing];
    let granted = read_reply(&mut acquiring);
    assert_eq!((granted.status, &granted.json()["state"]), (200, &json!("held")));
    assert!(grant(&granted.json()) > grant(&held));
    http.give_back(&second);
    let granted = read_reply(&mut renewing).json()["leases"][0].clone();
    assert_eq!(granted["state"], "held");
    assert_eq!(
        http.lease("acquire", &one(&third, "a", json!({"wait_ms": 60_000}))).json()["grant"],
        granted["grant"]
    );
}

#[test]
fn of_a_single_flight_one_works_and_those_that_wait_are_done() {
    let http = HttpDaemon::start();
    let (worker, second, third) = (key(), key(), key());
    let share = |key: &str, more: Value| {
        let mut body = one(key, "page", json!({"share": true, "wait_ms": 60_000}));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    assert_eq!(http.lease("acquire", &share(&worker, json!({}))).json()["state"], "held");
    let mut acquiring = http.begin("acquire", &share(&second, json!({"poll_ms": 10_000})), "");
    http.wait_for_parked(1);
    assert_eq!(http.lease("acquire", &share(&third, json!({}))).status, 202);
    let mut renewing = http.begin("renew", &json!({"keys": [third], "poll_ms": 10_000}), "");
    http.wait_for_parked(2);
    let release = json!({"key": worker, "done": true});
    for _ in 0..2 {
        assert_eq!(http.lease("release", &release).status, 200, "it may be repeated");
    }
    let done = read_reply(&mut acquiring);
    assert_eq!((done.status, &done.json()["state"]), (200, &json!("done")));
    assert_eq!(read_reply(&mut renewing).json()["leases"][0]["state"], "done");
    let again = http.lease("acquire", &share(&second, json!({})));
    assert_eq!((again.status, &again.json()["state"]), (200, &json!("done")), "a repetition is told it too");
    http.give_back(&second);
    assert_eq!(http.lease("acquire", &share(&key(), json!({}))).json()["state"], "held", "a new flight");
    let server = http.get("/api/v1/status").json()["server"].clone();
    assert_eq!((&server["single_flights"], &server["told_done"]), (&json!(1), &json!(2)));
}

#[test]
fn a_lease_without_share_is_not_released_with_done() {
    let http = HttpDaemon::start();
    let (held, granted) = http.hold("page");
    let refused = http.lease("release", &json!({"key": held, "done": true}));
    assert_eq!((refused.status, refused.code()), (409, "not_shared".to_owned()));
    let again = http.lease("acquire", &one(&held, "page", json!({})));
    assert_eq!((again.status, &again.json()["grant"]), (200, &granted["grant"]), "its key can be used");
    assert_eq!(http.in_use("page"), 1);
    http.give_back(&held);
    assert_eq!(http.in_use("page"), 0);
    // The maximum of a shared request is 1, and may be omitted.
    let shared = key();
    let one_of_page = json!({"share": true, "claims": [{"name": "page"}]});
    assert_eq!(http.lease("acquire", &one(&shared, "page", one_of_page)).json()["state"], "held");
    assert_eq!(http.in_use("page"), 1);
    http.give_back(&shared);
    let two = json!({"share": true, "claims": [{"name": "page", "maximum": 2}]});
    let refused = http.lease("acquire", &one(&key(), "page", two));
    assert_eq!((refused.status, refused.code()), (400, "bad_request".to_owned()));
}

#[test]
fn a_wait_has_an_end_and_so_has_each_request_of_it() {
    let http = HttpDaemon::start();
    let (_, _) = http.hold("a");
    // A third of the time to live is the longest that one request waits.
    let key = key();
    let begun = Instant::now();
    let body = one(&key, "a", json!({"wait_ms": 60_000, "poll_ms": 60_000, "ttl_ms": 3_000}));
    let queued = http.lease("acquire", &body);
    assert_eq!(queued.status, 202);
    assert!(begun.elapsed() >= Duration::from_millis(1000));
    assert_eq!(millis(&queued.json(), "valid_ms"), 2_880, "it counts from when the request came");
    let refused = http.lease("acquire", &one(&self::key(), "a", json!({"wait_ms": 50, "poll_ms": 10_000})));
    assert_eq!((refused.status, refused.code()), (409, "timed_out".to_owned()));
    let refused = http.lease("acquire", &one(&self::key(), "a", json!({"wait_ms": 50, "queue_max": 1})));
    assert_eq!((refused.status, refused.code()), (409, "queue_full".to_owned()));
    // Its client is gone.
    eventually("it leaves the queue", || {
        http.get("/api/v1/waiters?name=a&kind=counter").json()["total"] == 0
    });
    assert_eq!(http.renewed(&key, 0)["state"], "lost");
}

/// A lease keeps its time to live when the default becomes longer, so its requests wait no longer than before.
#[test]
fn a_request_waits_no_longer_than_its_lease_lasts_after_the_limits_have_changed() {
    let ttl = |seconds: u32| format!("[session]\ndefault_ttl = {seconds}\n");
    let (mut http, file) = HttpDaemon::configured(&ttl(6), "");
    let (_, _) = http.hold("a");
    let body = |poll_ms| {
        let claims = json!([{"name": "a", "maximum": 1}]);
        json!({"key": "0123456789abcdef0123456789abcdef", "claims": claims, "wait_ms": 60_000, "poll_ms": poll_ms})
    };
    assert_eq!(millis(&http.lease("acquire", &body(0)).json(), "ttl_ms"), 6_000);
    file.write(&ttl(60));
    http.daemon.reload("the configuration was read again");
    let queued = http.lease("acquire", &body(20_000));
    assert_eq!(queued.status, 202, "{}", queued.text());
}

#[test]
fn holders_and_waiters_have_addresses_while_a_request_of_their_lease_waits() {
    let mut http = HttpDaemon::start();
    let (held, _) = http.hold("a");
    let address = |list: &str| {
        http.get(&format!("/api/v1/{list}?name=a&kind=counter")).json()["items"][0]["address"].clone()
    };
    assert_eq!(address("holders"), json!(null), "no request of it is being answered");
    let renewing = http.begin("renew", &json!({"keys": [held], "poll_ms": 10_000}), "");
    let waiting = http.begin("acquire", &one(&key(), "a", json!({"wait_ms": 60_000, "poll_ms": 10_000})), "");
    http.wait_for_parked(2);
    assert_eq!(address("holders"), json!(renewing.local_addr().unwrap().to_string()));
    assert_eq!(address("waiters"), json!(waiting.local_addr().unwrap().to_string()));
    // Lists of the ports have them too.
    for (list, stream) in [("--holders", renewing), ("--waiters", waiting)] {
        let listed = http.command(&["status", list, "--counter", "a"]);
        assert!(listed.contains(&stream.local_addr().unwrap().to_string()), "{listed}");
    }
}

#[test]
fn a_newer_request_with_a_key_answers_the_one_before() {
    let http = HttpDaemon::start();
    let (held, _) = http.hold("a");
    let mut before = http.begin("renew", &json!({"keys": [held, key()], "poll_ms": 10_000}), "");
    assert_eq!(read_reply(&mut before).json()["leases"][1]["state"], "lost", "the key is unknown");
    let mut before = http.begin("renew", &json!({"keys": [held], "poll_ms": 10_000}), "");
    http.wait_for_parked(1);
    assert_eq!(http.renewed(&held, 0)["state"], "held");
    let answered = read_reply(&mut before).json()["leases"][0].clone();
    assert_eq!((&answered["state"], millis(&answered, "valid_ms")), (&json!("held"), 28_800));
    let queued = key();
    let body = one(&queued, "a", json!({"wait_ms": 60_000, "poll_ms": 10_000}));
    let mut before = http.begin("acquire", &body, "");
    http.wait_for_parked(1);
    let mut after = http.begin("acquire", &body, "");
    assert_eq!(read_reply(&mut before).status, 202);
    http.give_back(&held);
    assert_eq!(read_reply(&mut after).status, 200);
    let mut before = http.begin("renew", &json!({"keys": [queued], "poll_ms": 10_000}), "");
    http.wait_for_parked(1);
    http.give_back(&queued);
    assert_eq!(read_reply(&mut before).json()["leases"][0]["state"], "lost");
    // The same holds for a request that waits for its grant.
    let (_, _) = http.hold("a");
    let given_up = key();
    let mut waiting =
        http.begin("acquire", &one(&given_up, "a", json!({"wait_ms": 60_000, "poll_ms": 10_000})), "");
    http.wait_for_parked(1);
    http.give_back(&given_up);
    assert_eq!(read_reply(&mut waiting).code(), "released");
}

/// The server counts from the receipt of the request, and the client from its sending.
#[test]
fn a_revocation_answers_at_once_and_counts_from_the_request() {
    let mut http = HttpDaemon::start();
    let (key, held) = http.hold("a");
    let (mut other, begun) =
        (http.begin("renew", &json!({"keys": [key], "poll_ms": 10_000}), ""), Instant::now());
    http.wait_for_parked(1);
    let parked_at_least = begun.elapsed();
    std::thread::sleep(Duration::from_millis(300));
    http.command(&["revoke", "--grant", &grant(&held).to_string(), "--grace", "4s"]);
    let revoking = read_reply(&mut other).json()["leases"][0].clone();
    let parked_at_most = begun.elapsed();
    assert_eq!(revoking["state"], "revoking");
    let verified = http.get(&format!("/api/v1/grant?grant={}", grant(&held))).json();
    assert_eq!(verified["state"], "retiring");
    assert!((1..=4_000).contains(&millis(&verified, "grace_left_ms")), "{verified}");
    let grace = millis(&revoking, "grace_ms");
    let of = |parked: Duration| (4_000 + parked.as_millis() as u64) * 96 / 100;
    assert!(grace <= of(parked_at_most), "{grace} {parked_at_most:?}");
    assert!(grace >= of(Duration::from_millis(300)) && parked_at_least < parked_at_most, "{grace}");
    assert_eq!(millis(&revoking, "valid_ms"), grace);
    // It is renewed, and still ends with the grace period.
    let later = http.renewed(&key, 0);
    assert!(later["state"] == "revoking" && millis(&later, "valid_ms") <= 3_840, "{later}");
    http.command(&["revoke", "--grant", &grant(&held).to_string(), "--grace", "0"]);
    let lost = http.renewed(&key, 0);
    assert_eq!(
        (&lost["state"], millis(&lost, "valid_ms"), &lost["reason"]),
        (&json!("lost"), 0, &json!("revoked"))
    );
    assert_eq!(http.in_use("a"), 0);
}

#[test]
fn a_lease_that_is_not_renewed_expires_and_the_next_acquire_is_another_lease() {
    let http = HttpDaemon::start();
    let key = key();
    let body = one(&key, "a", json!({"ttl_ms": 1_000}));
    let held = http.lease("acquire", &body).json();
    eventually("it expires", || http.in_use("a") == 0);
    assert_eq!(http.renewed(&key, 0)["state"], "lost");
    assert!(grant(&http.lease("acquire", &body).json()) > grant(&held));
}

#[test]
fn several_names_and_slots_are_one_lease() {
    let mut http = HttpDaemon::start();
    http.command(&["declare", "gpu", "--capacity", "2", "--slots"]);
    let key = key();
    let claims = json!([{"name": "gpu", "slot": 1}, {"name_hex": "ff", "resources": 2, "maximum": 3}, {"name": "gpu", "maximum": 9}]);
    let body = json!({"key": key, "claims": claims, "label_hex": "ff"});
    assert_eq!(http.lease("acquire", &body).code(), "bad_request", "a name twice");
    let claims = json!([{"name": "gpu", "slot": 1}, {"name_hex": "ff", "resources": 2, "maximum": 3}]);
    let body = json!({"key": key, "claims": claims, "label_hex": "ff", "ttl_ms": 30_000});
    let held = http.lease("acquire", &body).json();
    assert_eq!(held["slots"], json!([[1], []]));
    let sessions = http.get("/api/v1/sessions").json();
    let session =
        sessions["items"].as_array().unwrap().iter().find(|item| item["label_hex"] == "ff").unwrap();
    assert!(session["address"].as_str().unwrap().starts_with("127.0.0.1"), "{session}");
    // A declared semaphore needs no maximum.
    let any = http.lease("acquire", &json!({"key": self::key(), "claims": [{"name": "gpu"}]})).json();
    assert_eq!(any["slots"], json!([[0]]));
    let refused = |http: &HttpDaemon, claim: Value| {
        let reply = http.lease("acquire", &json!({"key": self::key(), "claims": [claim]}));
        (reply.status, reply.code())
    };
    assert_eq!(refused(&http, json!({"name": "gpu", "slot": 1})), (409, "busy".to_owned()));
    assert_eq!(refused(&http, json!({"name": "gpu", "slot": 7})), (404, "no_such_slot".to_owned()));
    assert_eq!(refused(&http, json!({"name": "gpu", "resources": 2})), (409, "busy".to_owned()));
    assert_eq!(refused(&http, json!({"name": "gpu", "resources": 3})), (409, "too_much".to_owned()));
    assert_eq!(refused(&http, json!({"name": "none"})), (404, "not_found".to_owned()));
    http.command(&["pause", "gpu"]);
    assert_eq!(refused(&http, json!({"name": "gpu"})), (409, "paused".to_owned()));
    http.command(&["declare", "licence", "--capacity", "1"]);
    for names in [["gpu", "licence"], ["licence", "gpu"]] {
        let claims = names.map(|name| json!({"name": name}));
        let reply = http.lease("acquire", &json!({"key": self::key(), "claims": claims}));
        assert_eq!((reply.status, reply.code()), (409, "paused".to_owned()), "{names:?}");
    }
}

#[test]
fn what_is_not_a_request_is_refused() {
    let http = HttpDaemon::start();
    let key = key();
    let names = |count: u32| {
        (0..count).map(|number| json!({"name": format!("many/{number}"), "maximum": 1})).collect::<Vec<_>>()
    };
    let most = http.lease("acquire", &json!({"key": self::key(), "claims": names(64)}));
    assert_eq!(most.status, 200, "{}", most.text());
    for body in [
        json!({}),
        json!({"key": key}),
        json!({"key": "0", "claims": [{"name": "a", "maximum": 1}]}),
        json!({"key": key, "claims": []}),
        json!({"key": key, "claims": ["a"]}),
        json!({"key": key, "claims": [{"name": "a", "maximum": 1, "more": 1}]}),
        json!({"key": key, "claims": [{"name": "", "maximum": 1}]}),
        json!({"key": key, "claims": [{"name": "a", "name_hex": "61", "maximum": 1}]}),
        json!({"key": key, "claims": [{"name": "a", "maximum": 1, "resources": 2}]}),
        json!({"key": key, "claims": [{"name": "a", "maximum": 1, "resources": 0}]}),
        json!({"key": key, "claims": names(65)}),
        json!({"key": key, "claims": [{"name": "a", "maximum": 2, "slot": 0, "resources": 2}]}),
        json!({"key": key, "claims": [{"name": "a", "maximum": 1}], "place": "7"}),
        json!({"key": key, "claims": [{"name": "a", "maximum": 1}], "ttl": 1}),
        json!({"key": key, "claims": [{"name": "a", "maximum": 1}], "ttl_ms": -1}),
        json!({"key": key, "claims": [{"name": "a", "maximum": 1}], "ttl_ms": 0}),
        json!({"key": key, "claims": [{"name": "a", "maximum": 0}]}),
        json!({"key": key, "claims": [{"name": "a", "maximum": 1}], "label": "x".repeat(256)}),
    ] {
        let reply = http.lease("acquire", &body);
        assert_eq!((reply.status, reply.code()), (400, "bad_request".to_owned()), "{body}");
    }
    for body in [
        json!({}),
        json!({"keys": []}),
        json!({"keys": "x"}),
        json!({"keys": [key, key]}),
        json!({"keys": [key, self::key(), key]}),
        json!({"keys": (0..65).map(|_| self::key()).collect::<Vec<_>>()}),
    ] {
        assert_eq!(http.lease("renew", &body).code(), "bad_request", "{body}");
    }
    let slot = json!({"key": key, "claims": [{"name": "a", "maximum": 1, "slot": 0}]});
    let refused = http.lease("acquire", &slot);
    assert_eq!(refused.code(), "not_found", "a counter has no slots");
    assert!(refused.text().contains("slot"), "it says what is wrong: {}", refused.text());
    for body in [json!({}), json!({"key": key, "x": 1}), json!({"key": key, "done": 1})] {
        assert_eq!(http.lease("release", &body).code(), "bad_request", "{body}");
    }
    assert_eq!(http.get("/api/v1/lease/acquire").status, 405);
    assert_eq!(http.get("/api/v1/grant").code(), "bad_request");
    assert_eq!(http.get("/api/v1/name?name=a").status, 404);
}

#[test]
fn a_client_that_goes_away_changes_nothing() {
    let http = HttpDaemon::start();
    let (held, _) = http.hold("a");
    let queued = key();
    let body = one(&queued, "a", json!({"wait_ms": 60_000, "poll_ms": 10_000}));
    drop([
        http.begin("renew", &json!({"keys": [held], "poll_ms": 10_000}), ""),
        http.begin("acquire", &body, ""),
    ]);
    eventually("the server notices", || {
        http.get("/api/v1/waiters?name=a&kind=counter").json()["total"] == 1
            && http.metric("signalbox_http_parked_requests") == Some(0)
    });
    assert_eq!(http.renewed(&held, 0)["state"], "held");
    http.give_back(&held);
    assert_eq!(http.renewed(&queued, 0)["state"], "held");
}

/// Each request needs the right for every name, and a parked one is answered when that ends.
#[test]
fn rights_are_those_of_the_service_ports() {
    let directory = open_directory();
    let place = directory.path();
    let file = place.join("tokens.toml");
    let [web, all] =
        [create(&file, "web", &["acquire", "--area", "counter:web/"]), create(&file, "all", &["all"])];
    let config = format!("[access]\ntokens = '{}'\nnetworks = ['127.0.0.0/8 none']\n", file.display());
    let (http, _config) = HttpDaemon::with(&config);
    let bearer = |token: &str| format!("Bearer {token}");
    let post = |http: &HttpDaemon, request: &str, token: &str, body: &Value| {
        let (path, bearer) = (format!("/api/v1/lease/{request}"), bearer(token));
        http.post(&path, &[("Authorization", &bearer)], &body.to_string())
    };
    let [own, foreign] = [key(), key()];
    assert_eq!(post(&http, "acquire", &web, &one(&own, "web/a", json!({}))).status, 200);
    assert_eq!(post(&http, "acquire", &all, &one(&foreign, "db", json!({}))).status, 200);
    let refused = post(&http, "acquire", &web, &one(&key(), "db", json!({"wait_ms": 1000})));
    assert_eq!((refused.status, refused.code()), (403, "not_permitted".to_owned()));
    let both = json!({"claims": [{"name": "web/b", "maximum": 1}, {"name": "db", "maximum": 2}]});
    assert_eq!(post(&http, "acquire", &web, &one(&key(), "x", both)).status, 403);
    let wrong = web.replace(&web[web.len() - 4..], "0000");
    assert_eq!(post(&http, "renew", &wrong, &json!({"keys": [own]})).code(), "unauthorized");
    let renewed = post(&http, "renew", &web, &json!({"keys": [own, foreign]})).json();
    let states: Vec<_> = renewed["leases"].as_array().unwrap().iter().map(|lease| &lease["state"]).collect();
    assert_eq!(states, ["held", "not_permitted"]);
    let sessions =
        http.post("/api/v1/sessions", &[("Authorization", &bearer(&all))], r#"{"search": "token:web"}"#);
    assert_eq!(sessions.json()["total"], 1, "its client is known: {}", sessions.text());
    // A release needs the key, but no right, so a token does not matter.
    let body = json!({"key": foreign});
    assert_eq!(post(&http, "release", &wrong, &body).status, 200);
    http.give_back(&foreign);
    let queued = key();
    let header = format!("Authorization: {}\r\n", bearer(&web));
    let waiting = one(&queued, "web/a", json!({"wait_ms": 60_000, "poll_ms": 10_000}));
    let mut acquiring = http.begin("acquire", &waiting, &header);
    let mut renewing = http.begin("renew", &json!({"keys": [own], "poll_ms": 10_000}), &header);
    let parked = || {
        let metrics =
            http.request("GET", "/metrics", &[("Host", "localhost"), ("Authorization", &bearer(&all))], "");
        metrics.text().contains("signalbox_http_parked_requests 2")
    };
    eventually("both wait", parked);
    let mut command = std::process::Command::new(crate::support::daemon::SIGNALBOX);
    command.args(["token", "revoke", "web", "--file"]).arg(&file);
    assert!(crate::support::daemon::outcome(command).status.success());
    http.daemon.signal(nix::sys::signal::Signal::SIGHUP);
    for stream in [&mut acquiring, &mut renewing] {
        let reply = read_reply(stream);
        assert_eq!((reply.status, reply.code()), (403, "not_permitted".to_owned()));
    }
    let names = http.request(
        "GET",
        "/api/v1/name?name=web/a&kind=counter",
        &[("Host", "localhost"), ("Authorization", &bearer(&all))],
        "",
    );
    let counter = &names.json()["items"][0];
    assert_eq!(
        (&counter["in_use"], &counter["waiting"]),
        (&json!(1), &json!(0)),
        "it holds until its lease ends"
    );
}

/// With a store, a lease outlives the server, and a queue keeps its order.
#[test]
fn leases_survive_a_restart() {
    let directory = open_directory();
    let first = format!("data_dir = '{}/data'", directory.path().display());
    let (mut http, file) = HttpDaemon::configured(&first, "");
    let (held, view) = http.hold("a");
    let queued: Vec<_> = (0..5)
        .map(|_| {
            let key = key();
            let place =
                http.lease("acquire", &one(&key, "a", json!({"wait_ms": 60_000}))).json()["place"].clone();
            assert!(place.is_string(), "{place}");
            (key, place)
        })
        .collect();
    http.daemon.signal(nix::sys::signal::Signal::SIGKILL);
    http.daemon.exit_status();
    let mut command = serve_file(&file.path());
    command.args(crate::support::daemon::ANY_PORTS).args(["--http-port", "0"]);
    let mut daemon = Daemon::spawn(command);
    let address = daemon.address("http");
    let http = HttpDaemon { daemon, address };
    for (key, place) in queued.iter().rev() {
        assert_eq!(http.renewed(key, 0)["state"], "lost", "its request has to be repeated");
        let again = http.lease("acquire", &one(key, "a", json!({"wait_ms": 60_000, "place": place})));
        assert_eq!(again.status, 202, "{}", again.text());
    }
    let renewed = http.renewed(&held, 0);
    assert_eq!((&renewed["state"], &renewed["grant"]), (&json!("held"), &view["grant"]));
    let again = http.lease("acquire", &one(&held, "a", json!({})));
    assert_eq!(again.json()["grant"], view["grant"]);
    assert_eq!(http.lease("acquire", &one(&held, "b", json!({}))).code(), "different_request");
    let mut last = grant(&view);
    http.give_back(&held);
    for (key, _) in &queued {
        let granted = http.renewed(key, 10_000);
        assert_eq!(granted["state"], "held");
        assert!(grant(&granted) > last);
        last = grant(&granted);
        http.give_back(key);
    }
}

/// A request that is refused at once leaves nothing in the store.
#[test]
fn a_refused_request_stores_nothing() {
    let directory = open_directory();
    let first = format!("data_dir = '{}/data'", directory.path().display());
    let (http, _file) = HttpDaemon::configured(&first, "");
    let (_, _) = http.hold("a");
    let commits = || http.get("/api/v1/store").json()["changes"].as_u64().unwrap();
    let before = commits();
    for _ in 0..10 {
        assert_eq!(http.lease("acquire", &one(&key(), "a", json!({}))).code(), "busy");
    }
    assert_eq!(commits(), before);
}

#[test]
fn a_server_that_is_being_stopped_sends_its_clients_elsewhere() {
    let mut http = HttpDaemon::start();
    let (held, _) = http.hold("a");
    let mut renewing = http.begin("renew", &json!({"keys": [held], "poll_ms": 10_000}), "");
    let mut acquiring =
        http.begin("acquire", &one(&key(), "a", json!({"wait_ms": 60_000, "poll_ms": 10_000})), "");
    http.wait_for_parked(2);
    http.daemon.signal(nix::sys::signal::Signal::SIGTERM);
    for stream in [&mut renewing, &mut acquiring] {
        // The process may end before an answer is sent; then, too, the client repeats the request.
        if stream.peek(&mut [0]).is_ok_and(|bytes| bytes > 0) {
            let reply = read_reply(stream);
            assert_eq!((reply.status, reply.code()), (503, "not_serving".to_owned()));
            assert_eq!(reply.header("retry-after"), Some("1"));
        }
    }
    http.daemon.exit_status();
}

#[test]
fn metrics_count_leases_and_refusals() {
    let http = HttpDaemon::start();
    let (_, _) = http.hold("a");
    http.lease("acquire", &one(&key(), "a", json!({"wait_ms": 60_000})));
    http.lease("acquire", &one(&key(), "a", json!({})));
    assert_eq!(http.metric("signalbox_http_leases{state=\"held\"}"), Some(1));
    assert_eq!(http.metric("signalbox_http_leases{state=\"queued\"}"), Some(1));
    assert_eq!(http.metric("signalbox_http_lease_requests_refused_total{reason=\"busy\"}"), Some(1));
}

/// Requests that wait have a limit of their own, of which one client has its share.
#[test]
fn health_and_the_status_page_have_room_beside_all_that_wait() {
    let (http, _config) = HttpDaemon::with("lease_connections_max = 40\n");
    let (held, _) = http.hold("a");
    let wait = |key: &str| one(key, "a", json!({"wait_ms": 60_000, "poll_ms": 10_000}));
    let keys: Vec<_> = (0..20).map(|_| key()).collect();
    let mut waiting: Vec<_> = keys.iter().map(|key| http.begin("acquire", &wait(key), "")).collect();
    http.wait_for_parked(20);
    let refused = http.lease("acquire", &wait(&key()));
    assert_eq!(
        (refused.status, refused.code(), refused.header("retry-after")),
        (503, "busy".to_owned(), Some("1"))
    );
    assert_eq!(http.renewed(&held, 0)["state"], "held", "what does not wait is answered");
    let waiters = || http.get("/api/v1/waiters?name=a&kind=counter").json()["total"].as_u64();
    assert_eq!(waiters(), Some(20), "a refused request has changed nothing");
    for path in ["/healthz", "/", "/metrics"] {
        assert_eq!(http.get(path).status, 200, "{path}");
    }
    // Another client has room.
    let mut other = http.connect_from("127.0.0.2");
    let body = json!({"keys": [held], "poll_ms": 500}).to_string();
    let head = "POST /api/v1/lease/renew HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    write!(other, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    assert_eq!(read_reply(&mut other).status, 200);
    // A connection that has waited may be used for everything.
    let mut first = waiting.remove(0);
    http.give_back(&held);
    assert_eq!(read_reply(&mut first).status, 200);
    write!(first, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert!(read_reply(&mut first).text().contains("signalbox_http_lease_connections 20"));
}

/// A small limit is not divided.
#[test]
fn as_many_requests_wait_as_are_configured_and_a_place_is_free_again() {
    for most in [0, 2] {
        let (http, _config) = HttpDaemon::with(&format!("lease_connections_max = {most}\n"));
        let (_, _) = http.hold("a");
        let wait = |key: &str| one(key, "a", json!({"wait_ms": 60_000, "poll_ms": 10_000}));
        let mut waiting: Vec<_> = (0..most).map(|_| http.begin("acquire", &wait(&key()), "")).collect();
        http.wait_for_parked(most);
        assert_eq!(http.lease("acquire", &wait(&key())).code(), "busy");
        if waiting.pop().is_some() {
            http.wait_for_parked(most - 1);
            let again = http.begin("acquire", &wait(&key()), "");
            http.wait_for_parked(most);
            eventually("what has gone is not counted", || {
                http.metric("signalbox_http_lease_connections") == Some(most)
            });
            drop(again);
        }
    }
}

/// Its share of a limit that is twice as high.
#[test]
fn thousands_of_requests_of_a_client_wait_and_everything_else_is_answered() {
    const WAITING: usize = 2_000;
    /// The most that one of them takes, in KiB, with its queued request.
    const EACH_KIB: u64 = 32;
    let (_, files_max) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if files_max < 2 * WAITING as u64 {
        return skipped("a process may not open so many connections");
    }
    setrlimit(Resource::RLIMIT_NOFILE, files_max, files_max).unwrap();
    let (mut http, _config) =
        HttpDaemon::configured("memory_max = '512M'", &format!("lease_connections_max = {}\n", 2 * WAITING));
    let (held, _) = http.hold("a");
    let before_kib = http.daemon.memory_kib("VmRSS");
    let wait = |key: &str, poll_ms: u32| {
        one(key, "a", json!({"wait_ms": 3_600_000, "poll_ms": poll_ms, "ttl_ms": 3_600_000}))
    };
    let mut waiting: Vec<_> = (0..WAITING)
        .map(|_| {
            let key = key();
            let mut stream = http.begin("acquire", &wait(&key, 0), "");
            assert_eq!(read_reply(&mut stream).status, 202);
            // The next ones wait as soon as those before are answered: the machine may be slow.
            (0..12).for_each(|_| http.send_on(&mut stream, "acquire", &wait(&key, 25_000), ""));
            stream
        })
        .collect();
    eventually("all are queued, and many wait for a change at the same time", || {
        http.metric("signalbox_http_leases{state=\"queued\"}") == Some(WAITING as u64)
            && http.metric("signalbox_http_parked_requests") > Some(WAITING as u64 / 10)
    });
    let grown_kib = http.daemon.memory_kib("VmHWM").saturating_sub(before_kib);
    assert!(grown_kib <= WAITING as u64 * EACH_KIB, "{grown_kib} KiB");
    let refused = http.lease("acquire", &wait(&key(), 25_000));
    assert_eq!((refused.status, refused.code()), (503, "busy".to_owned()));
    for path in ["/healthz", "/readyz", "/", "/page.js", "/metrics", "/api/v1/names?list=waiting"] {
        assert_eq!(http.get(path).status, 200, "{path}");
    }
    let status = http.get("/api/v1/status").json();
    let memory = &status["server"]["memory"];
    assert!(memory["used"].as_u64() < memory["max"].as_u64(), "{memory}");
    assert_eq!(http.daemon.semaphore().acquire(b"another", 1, 1).status, OK);
    http.give_back(&held);
    eventually("one of them is granted", || http.metric("signalbox_http_leases{state=\"held\"}") == Some(1));
    // On a slow machine, answers to earlier requests, which say that it still waits, come first.
    let mut answers = String::new();
    while !answers.contains("\"held\"") {
        let mut some = [0; 4096];
        let read = waiting[0].read(&mut some).unwrap();
        assert!(read > 0, "{answers}");
        answers += str::from_utf8(&some[..read]).unwrap();
    }
}

#[test]
fn long_and_slow_bodies_and_guessed_keys_gain_nothing() {
    let http = HttpDaemon::start();
    let (held, _) = http.hold("a");
    let mut slow = http.connect();
    let head = "POST /api/v1/lease/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    write!(slow, "{head}Content-Length: 100\r\n\r\n{{").unwrap();
    let claims = vec![json!({"name": "b", "maximum": 1}); 20_000];
    let long = json!({"key": key(), "claims": claims});
    assert!((400_000..512 * 1024).contains(&long.to_string().len()));
    assert_eq!(http.lease("acquire", &long).code(), "bad_request");
    let nested = format!("{{\"claims\": {}", "[".repeat(10_000));
    assert_eq!(http.post("/api/v1/lease/acquire", &[], &nested).code(), "bad_request");
    for round in 0..50_u128 {
        let guessed: Vec<_> =
            (0..64).map(|number| format!("{:032x}", u128::MAX - round * 64 - number)).collect();
        let renewed = http.lease("renew", &json!({"keys": guessed, "poll_ms": 10_000})).json();
        assert!(renewed["leases"].as_array().unwrap().iter().all(|lease| lease["state"] == "lost"));
    }
    assert_eq!(read_reply(&mut slow).code(), "timeout");
    assert_eq!(http.renewed(&held, 0)["state"], "held");
}

#[test]
fn a_lease_is_renewed_when_a_request_arrives_and_not_when_it_is_answered() {
    let http = HttpDaemon::start();
    let (key, held) = http.hold("a");
    let left = || {
        let verified = http.get(&format!("/api/v1/grant?grant={}", grant(&held))).json();
        millis(&verified, "ttl_left_ms")
    };
    std::thread::sleep(Duration::from_millis(300));
    let before = left();
    assert!(before <= 29_700, "{before}");
    eventually("a renewal lengthens it", || http.renewed(&key, 0)["state"] == "held" && left() > before);
    assert_eq!(millis(&http.renewed(&key, 500), "valid_ms"), 28_800, "it counts from the request");
    assert!(left() <= 29_500, "{}", left());
}
