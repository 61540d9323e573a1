//! Changes by requests of HTTP: their effects, the rights that they need, and the audit log.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use signalbox_protocol::{Credentials, Extended, Features};

use crate::client::{HttpDaemon, read_reply};
use crate::support::caller::Caller;
use crate::support::daemon::{ConfigFile, SIGNALBOX, open_directory, outcome};
use crate::support::{OK, eventually};

/// Creates a token in a file, and returns it.
pub fn create(file: &std::path::Path, name: &str, rights: &[&str]) -> String {
    let mut command = std::process::Command::new(SIGNALBOX);
    command.args(["token", "create", name, "--rights"]).args(rights).arg("--file").arg(file);
    let output = outcome(command);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn start(directory: &std::path::Path) -> (HttpDaemon, ConfigFile) {
    let directory = directory.display();
    HttpDaemon::with(&format!(
        "enable = true\n[access]\ntokens = '{directory}/tokens.toml'\naudit_log = '{directory}/audit.log'\n"
    ))
}

/// The lines of the audit log.
pub fn audited(directory: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(directory.join("audit.log")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_status_says_whether_changes_are_possible() {
    let changes = |http: &HttpDaemon, token: Option<&str>| {
        let bearer = token.map(|token| format!("Bearer {token}"));
        let header: Vec<_> = bearer.iter().map(|bearer| ("Authorization", &**bearer)).collect();
        http.post("/api/v1/status", &header, "{}").json()["changes"].clone()
    };
    assert_eq!(changes(&HttpDaemon::start(), None), false, "there are no tokens");
    let directory = open_directory();
    let file = directory.path().join("tokens.toml");
    let reads = create(&file, "reads", &["read"]);
    let (mut http, _config) = start(directory.path());
    assert_eq!(changes(&http, None), false, "the only token may read");
    let limited = create(&file, "limited", &["administer", "--area", "semaphore:web/"]);
    http.daemon.reload("the configuration was read again");
    assert_eq!(changes(&http, None), true, "some token may change something");
    assert_eq!(changes(&http, Some(&limited)), Value::Null, "it may not read the status");
    let administers = create(&file, "administers", &["read,administer"]);
    http.daemon.reload("the configuration was read again");
    assert_eq!(changes(&http, None), true);
    assert_eq!(changes(&http, Some(&reads)), false);
    assert_eq!(changes(&http, Some(&administers)), true);
}

/// Each answer has to wait until the change is stored, and the client is gone by then.
#[test]
fn a_change_whose_client_closes_at_once_is_in_the_audit_log() {
    const CHANGES: usize = 20;
    let directory = open_directory();
    let path = directory.path().display();
    let bearer = create(&directory.path().join("tokens.toml"), "op", &["all"]);
    let (http, _config) = HttpDaemon::configured(
        &format!("data_dir = '{path}/data'"),
        &format!("[access]\ntokens = '{path}/tokens.toml'\naudit_log = '{path}/audit.log'\n"),
    );
    let mut sent = 0;
    let mut made = Vec::new();
    eventually("enough changes are made", || {
        let body = format!(r#"{{"name": "a{sent}", "capacity": 1}}"#);
        sent += 1;
        let head = "POST /api/v1/declare HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
        let length = body.len();
        let request =
            format!("{head}Authorization: Bearer {bearer}\r\nContent-Length: {length}\r\n\r\n{body}");
        http.connect().write_all(request.as_bytes()).unwrap();
        let page = http.get("/api/v1/declared?limit=1000").json();
        let items = page["items"].as_array().unwrap().iter();
        made = items.map(|item| format!("semaphore \"{}\"", item["name"].as_str().unwrap())).collect();
        made.len() >= CHANGES
    });
    eventually("each of them is in the audit log", || {
        let lines = audited(directory.path());
        made.iter().all(|name| lines.iter().any(|line| line["target"] == **name && line["outcome"] == "done"))
    });
}

#[test]
fn a_token_that_is_revoked_while_the_body_is_sent_changes_nothing() {
    let directory = open_directory();
    let file = directory.path().join("tokens.toml");
    let [late, other] = ["late", "other"].map(|name| create(&file, name, &["all"]));
    let (mut http, _config) = start(directory.path());
    let body = r#"{"name": "gpu", "capacity": 4}"#;
    let (begin, end) = body.split_at(body.len() - 1);
    let mut stream = http.connect();
    let head = "POST /api/v1/declare HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let head = format!("{head}Authorization: Bearer {late}\r\nContent-Length: {}\r\n\r\n{begin}", body.len());
    stream.write_all(head.as_bytes()).unwrap();
    // The head is read before a later request is answered.
    assert_eq!(http.get("/healthz").status, 200);
    let mut revoke = std::process::Command::new(SIGNALBOX);
    revoke.args(["token", "revoke", "late", "--file"]).arg(&file);
    assert!(outcome(revoke).status.success());
    http.daemon.reload("the configuration was read again");
    stream.write_all(end.as_bytes()).unwrap();
    assert_eq!(read_reply(&mut stream).status, 401);
    let bearer = format!("Bearer {other}");
    let listed = http.post("/api/v1/declared", &[("Authorization", &bearer)], "{}");
    assert_eq!(listed.json()["total"], 0, "{}", listed.text());
}

#[test]
fn revoking_the_sessions_of_connections_does_not_end_later_changes() {
    let directory = open_directory();
    let secret = create(&directory.path().join("tokens.toml"), "op", &["all"]);
    let (http, _config) = start(directory.path());
    let bearer = format!("Bearer {secret}");
    let ask = |path: &str, body: &str| {
        http.post(&format!("/api/v1/{path}"), &[("Authorization", &bearer)], body).status
    };
    assert_eq!(ask("declare", r#"{"name": "gpu", "capacity": 4}"#), 200);
    // The numbers of sessions begin at 1.
    for session in 1..=10 {
        ask("revoke", &format!(r#"{{"session": "{session}"}}"#));
    }
    assert_eq!(ask("resize", r#"{"name": "gpu", "capacity": 5}"#), 200);
}

#[test]
fn the_right_to_read_semaphore_sets_is_enough_to_list_them() {
    let directory = open_directory();
    let file = directory.path().join("tokens.toml");
    let [sets, web] = ["sysv", "counter:web/"].map(|area| {
        format!("Bearer {}", create(&file, area.split(':').next().unwrap(), &["read", "--area", area]))
    });
    let (http, _config) = start(directory.path());
    let status = |path: &str, bearer: &str| http.post(path, &[("Authorization", bearer)], "{}").status;
    assert_eq!(status("/api/v1/sysv/sets", &sets), 200);
    assert_eq!(http.post("/api/v1/sysv/users", &[("Authorization", &sets)], r#"{"id": 1}"#).status, 404);
    assert_eq!((status("/api/v1/status", &sets), status("/api/v1/sysv/sets", &web)), (403, 403));
}

#[test]
fn a_client_that_is_limited_to_names_is_shown_no_others() {
    let directory = open_directory();
    let file = directory.path().join("tokens.toml");
    let secret = create(&file, "web", &["read", "--area", "limit:web/", "--area", "counter:db"]);
    let (mut http, _config) = start(directory.path());
    for name in ["web/gpu", "other"] {
        http.command(&["declare", name, "--capacity", "1"]);
    }
    let mut counter = http.daemon.counter();
    for name in [&b"web/1"[..], b"db", b"other/1"] {
        assert_eq!(counter.acquire(name, 1, 1).status, OK);
    }
    let acquired = http.command(&["acquire", "other", "--lease", "1h"]);
    assert!(acquired.contains("SIGNALBOX_SESSION"), "{acquired}");
    let other = http.get("/api/v1/holders?kind=semaphore&name=other").json()["items"][0]["grant"].take();
    let bearer = format!("Bearer {secret}");
    let ask = |path: &str, body: Value| {
        http.post(&format!("/api/v1/{path}"), &[("Authorization", &bearer)], &body.to_string())
    };
    let names = |path: &str| {
        let page = ask(path, json!({})).json();
        let items = page["items"].as_array().unwrap().iter();
        items.map(|item| item["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        (names("names"), names("declared")),
        (["db", "web/1", "web/gpu"].map(str::to_owned).to_vec(), vec!["web/gpu".to_owned()])
    );
    for (path, body, status) in [
        ("name", json!({"name": "web/gpu"}), 200),
        ("name", json!({"name": "other"}), 403),
        ("name", json!({"name": "db", "kind": "counter"}), 200),
        ("name", json!({"name": "db"}), 403),
        ("holders", json!({"name": "web/1", "kind": "counter"}), 200),
        ("holders", json!({"name": "db", "kind": "semaphore"}), 403),
        ("declarations", json!({"prefix": "web/"}), 200),
        ("declarations", json!({}), 403),
        ("names", json!({"holder": 1}), 403),
        ("held", json!({"client": "127.0.0.1"}), 403),
        ("sessions", json!({}), 403),
        ("stats", json!({}), 403),
        ("refusals", json!({}), 403),
        ("store", json!({}), 403),
        ("cluster", json!({}), 403),
        ("tokens", json!({}), 403),
        ("grant", json!({"grant": other}), 404),
    ] {
        let reply = ask(path, body.clone());
        assert_eq!(reply.status, status, "{path} {body}: {}", reply.text());
    }
    assert_eq!(http.post("/api/v1/grant", &[], &json!({"grant": other}).to_string()).status, 200);
    // The header has one token, with any number of spaces around it.
    let spaced = format!("bearer  {secret} ");
    assert_eq!(http.post("/api/v1/names", &[("Authorization", &spaced)], "{}").status, 200);
    let twice = [("Authorization", &*bearer); 2];
    assert_eq!(http.post("/api/v1/names", &twice, "{}").status, 401);
}

#[test]
fn metrics_have_the_last_use_of_each_secret_of_a_token() {
    let directory = open_directory();
    let file = directory.path().join("tokens.toml");
    let old = create(&file, "op", &["read"]);
    let (mut http, _config) = start(directory.path());
    let mut rotate = std::process::Command::new(SIGNALBOX);
    rotate.args(["token", "rotate", "op", "--file"]).arg(&file);
    let new = String::from_utf8(outcome(rotate).stdout).unwrap();
    http.daemon.reload("the configuration was read again");
    let used = |http: &HttpDaemon| {
        let text = http.get("/metrics").text();
        let lines =
            text.lines().filter(|line| line.starts_with("signalbox_token_last_use_timestamp_seconds{"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(used(&http), [""; 0]);
    for (number, secret) in [old.trim(), new.trim()].into_iter().enumerate() {
        let bearer = format!("Bearer {secret}");
        let own = http.address.to_string();
        let headers = [("Host", &*own), ("Authorization", &*bearer)];
        assert_eq!(http.request("GET", "/api/v1/status", &headers, "").status, 200);
        let lines = used(&http);
        assert_eq!(lines.len(), number + 1, "{lines:?}");
        let id = format!("id=\"{}\"", &secret[4..20]);
        let line = lines.iter().find(|line| line.contains(&id) && line.contains("token=\"op\"")).unwrap();
        let last: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        assert!((now.as_secs_f64() - last).abs() < 3600.0, "{line}");
    }
    // Administrators see the same in a list, without the secrets.
    let listed = http.get("/api/v1/tokens");
    for (item, secret) in listed.json()["items"].as_array().unwrap().iter().zip([&old, &new]) {
        assert_eq!(
            (&item["name"], &item["id"], &item["rights"]),
            (&json!("op"), &json!(secret[4..20]), &json!("read"))
        );
        assert!(item["last_use"].is_u64() && item["expires_at"].is_u64(), "{item}");
        assert!(!listed.text().contains(&secret.trim()[20..]), "no secret is shown");
    }
    assert_eq!(listed.json()["total"], 2);
    let bearer = format!("Bearer {}", new.trim());
    assert_eq!(http.post("/api/v1/tokens", &[("Authorization", &bearer)], "{}").status, 403);
    // The two secrets are one token, which ends with the later one.
    let text = http.get("/metrics").text();
    assert_eq!(text.matches("signalbox_token_expiry_timestamp_seconds{token=\"op\"}").count(), 1, "{text}");
}

/// Until then, an open connection that has shown it uses it.
#[test]
fn the_last_use_of_a_secret_is_at_its_expiry_at_the_latest() {
    let directory = open_directory();
    let file = directory.path().join("tokens.toml");
    create(&file, "other", &["read"]);
    let (mut http, _config) = start(directory.path());
    let secret = create(&file, "short", &["read", "--expires-in", "5"]);
    http.daemon.reload("the configuration was read again");
    let mut caller = Caller::new(http.daemon.counter());
    let (label, credentials) = (&b""[..], Credentials(secret.as_bytes()));
    let hello = Extended::Hello { version: 1, label, credentials, features: Features::default() };
    assert_eq!(caller.ask(&hello).status, OK);
    eventually("its last use is in the past", || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let listed = http.get("/api/v1/tokens").json();
        let short = listed["items"].as_array().unwrap().iter().find(|item| item["name"] == "short").unwrap();
        short["last_use"].as_u64().unwrap() + 1 < now
    });
}

#[test]
fn a_client_with_too_many_wrong_tokens_is_told_when_to_try_again() {
    let http = HttpDaemon::start();
    let host = http.address.to_string();
    let headers = [("Host", &*host), ("Authorization", "Bearer sbx_unknown")];
    let mut last = http.request("GET", "/api/v1/status", &headers, "");
    for _ in 0..10 {
        last = http.request("GET", "/api/v1/status", &headers, "");
    }
    assert_eq!((last.status, last.header("retry-after")), (429, Some("60")));
}

#[test]
fn a_request_without_a_right_token_is_counted_and_logged_and_a_change_is_audited() {
    let directory = open_directory();
    create(&directory.path().join("tokens.toml"), "op", &["all"]);
    let (mut http, _config) = start(directory.path());
    let body = r#"{"name": "gpu", "capacity": 4}"#;
    let wrong = [("Authorization", "Bearer sbx_unknown")];
    assert_eq!(http.post("/api/v1/declare", &[], body).status, 401);
    assert_eq!(http.post("/api/v1/resize", &wrong, body).status, 401);
    assert_eq!(http.post("/api/v1/pause", &[("Authorization", "Basic cm9vdDpyb290")], body).status, 401);
    assert_eq!(http.post("/api/v1/name", &wrong, r#"{"name": "gpu"}"#).status, 401);
    let stats = http.get("/api/v1/stats?kind=counter").json();
    assert_eq!((&stats["refused_rights"], &stats["failed_authentications"]), (&4.into(), &2.into()));
    let refusals = http.get("/api/v1/refusals").json();
    assert_eq!((&refusals["rights"], &refusals["failed_authentications"]), (&4.into(), &2.into()));
    let metrics = http.get("/metrics").text();
    for line in
        ["signalbox_refused_requests_total{reason=\"rights\"} 4", "signalbox_failed_authentications_total 2"]
    {
        assert!(metrics.lines().any(|found| found == line), "{line} in:\n{metrics}");
    }

    let lines = audited(directory.path());
    assert_eq!(lines.len(), 1, "the first of the client: {lines:?}");
    let [operation, outcome, reason] = ["operation", "outcome", "reason"].map(|key| &lines[0][key]);
    assert_eq!([operation, outcome, reason], ["/api/v1/declare", "refused", "unauthorized"]);
    for path in ["/api/v1/declare", "/api/v1/resize", "/api/v1/pause"] {
        let operation = format!("HTTP {path}");
        http.daemon.logged(&operation, |line| line.to_string().contains(&operation));
    }
    assert!(!http.daemon.said().contains("Hello"), "{}", http.daemon.said());
}

#[test]
fn the_first_change_without_the_right_is_in_the_audit_log() {
    let directory = open_directory();
    let file = directory.path().join("tokens.toml");
    let secret = create(&file, "web", &["administer", "--area", "semaphore:web/"]);
    let (http, _config) = start(directory.path());
    let bearer = format!("Bearer {secret}");
    let ask = |path: &str, body: &str| {
        http.post(&format!("/api/v1/{path}"), &[("Authorization", &bearer)], body).status
    };
    let cases = [
        (
            "declare",
            r#"{"name": "web/a", "capacity": 4}"#,
            200,
            "declare semaphore \"web/a\" with capacity 4",
            "semaphore \"web/a\"",
        ),
        (
            "resize",
            r#"{"name": "gpu", "capacity": 9}"#,
            403,
            "resize semaphore \"gpu\" to 9",
            "semaphore \"gpu\"",
        ),
        (
            "slot",
            r#"{"name": "gpu", "slot": 3, "service": "out"}"#,
            403,
            "take slot 3 of semaphore \"gpu\" out of service",
            "semaphore \"gpu\"",
        ),
        ("remove", r#"{"name": "gpu"}"#, 403, "remove semaphore \"gpu\"", "semaphore \"gpu\""),
        ("revoke", r#"{"grant": 7}"#, 403, "revoke grant 7", "server"),
        ("cancel", r#"{"request": 7}"#, 403, "cancel waiting request 7", "server"),
        ("delete-counter", r#"{"name": "web/a"}"#, 403, "delete counter \"web/a\"", "counter \"web/a\""),
    ];
    for (path, body, status, ..) in cases {
        assert_eq!(ask(path, body), status, "{path}");
    }
    // Requests that change nothing are not in it, and malformed ones are not either.
    assert_eq!(
        http.post("/api/v1/name", &[("Authorization", &bearer)], r#"{"kind": "semaphore", "name": "gpu"}"#)
            .status,
        403
    );
    assert_eq!(ask("resize", r#"{"name": "gpu"}"#), 400);
    // Six changes and the request that reads.
    assert_eq!(http.get("/api/v1/refusals").json()["rights"], 7);
    let tokens = http.post("/api/v1/tokens", &[("Authorization", &bearer)], "{}");
    assert_eq!(tokens.status, 403, "only a client that may administer everything sees them");
    let lines = audited(directory.path());
    let found: Vec<_> =
        lines.iter().map(|line| [&line["operation"], &line["target"], &line["outcome"]]).collect();
    let expected = cases.map(|(_, _, status, operation, target)| {
        [operation, target, if status == 200 { "done" } else { "refused" }].map(Value::from)
    });
    assert_eq!(found, expected[..2].iter().map(|line| line.each_ref()).collect::<Vec<_>>());
    for line in &lines[1..] {
        assert_eq!(
            (&line["identity"], &line["reason"]),
            (&"token:web".into(), &"not_permitted".into()),
            "{line}"
        );
        assert!(line["client"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    }
}

/// A server, and a token that may do everything.
struct Administered {
    http: HttpDaemon,
    bearer: String,
    _config: ConfigFile,
    directory: tempfile::TempDir,
}

impl Administered {
    fn new() -> Self {
        let directory = open_directory();
        let bearer = format!("bearer {}", create(&directory.path().join("tokens.toml"), "op", &["all"]));
        let (http, config) = start(directory.path());
        Self { http, bearer, _config: config, directory }
    }

    /// The answer to a change: the status, and the code or the body.
    fn ask(&self, path: &str, body: &Value) -> (u16, Value) {
        let headers = [("Authorization", &*self.bearer)];
        let reply = self.http.post(&format!("/api/v1/{path}"), &headers, &body.to_string());
        let answer = if reply.status == 200 { reply.json() } else { reply.json()["error"]["code"].take() };
        (reply.status, answer)
    }
}

#[test]
fn changes_do_what_their_fields_say() {
    let server = Administered::new();
    let http = &server.http;
    let label = |length: usize| json!({"name": "label", "capacity": 1, "label": "x".repeat(length)});
    assert_eq!(server.ask("declare", &label(256)), (400, json!("bad_request")));
    assert_eq!(server.ask("declare", &label(255)).0, 200);
    for (path, fields, expected) in [
        ("declare", json!({}), Err("bad_request")),
        ("declare", json!({"capacity": 4, "slots": true}), Ok(4)),
        ("declare", json!({"capacity": 5, "slots": true, "if_exists": "fail"}), Err("already_exists")),
        ("declare", json!({"capacity": 5, "slots": true, "if_exists": "keep"}), Ok(4)),
        ("declare", json!({"capacity": 5, "slots": true, "if_exists": "set"}), Ok(5)),
        ("declare", json!({"capacity": 5, "if_exists": "other"}), Err("bad_request")),
        ("declare", json!({"capacity": 9, "if_exists": "set", "generation": "1"}), Err("bad_request")),
        ("resize", json!({"grow_by": 3}), Ok(8)),
        ("resize", json!({"shrink_by": 2}), Ok(6)),
        ("resize", json!({"capacity": 3}), Ok(3)),
        ("resize", json!({"capacity": 3, "grow_by": 1}), Err("bad_request")),
        ("slot", json!({"slot": 3, "service": "out"}), Err("no_such_slot")),
        ("slot", json!({"slot": 2, "service": "away"}), Err("bad_request")),
        ("slot", json!({"service": "out"}), Err("bad_request")),
        ("slot", json!({"slot": 2, "service": "out"}), Ok(3)),
        ("pause", json!({}), Ok(3)),
    ] {
        let mut body = fields.clone();
        body["name"] = json!("gpu");
        let (status, answer) = server.ask(path, &body);
        match expected {
            Ok(capacity) => {
                assert_eq!((status, &answer["capacity"]), (200, &json!(capacity)), "{path} {fields}")
            }
            Err(code) => assert_eq!(answer, code, "{path} {fields}"),
        }
    }
    assert_eq!(server.ask("declare", &json!({"name": "none", "capacity": 0})).0, 200);
    assert_eq!(server.ask("resize", &json!({"name": "none", "capacity": 1})).0, 200);
    assert_eq!(server.ask("resize", &json!({"name": "none", "capacity": 0})).0, 200);
    let gpu = || http.get("/api/v1/declared?prefix=gpu").json()["items"].get(0).cloned().unwrap_or_default();
    assert_eq!((&gpu()["paused"], &gpu()["slots_out"]), (&json!(true), &json!([2])));
    // Each of them is made only with the present generation.
    for (path, fields) in [
        ("resize", json!({"capacity": 4})),
        ("resume", json!({})),
        ("pause", json!({})),
        ("slot", json!({"slot": 2, "service": "in"})),
        ("remove", json!({})),
    ] {
        let mut body = fields.clone();
        (body["name"], body["generation"]) = (json!("gpu"), json!("1"));
        assert_eq!(server.ask(path, &body), (409, json!("generation_differs")), "{path}");
        body["generation"] = gpu()["generation"].take();
        assert_eq!(server.ask(path, &body).0, 200, "{path}");
    }
    assert_eq!(gpu(), Value::Null);
    let query = http.post("/api/v1/declare?capacity=1", &[("Authorization", "Bearer x")], "{}");
    assert_eq!(query.status, 401, "the token is checked first");
}

/// Asserts that a line of the audit log is about the holder of a semaphore.
fn assert_of(line: &Value, name: &str) {
    let target = line["target"].as_str().unwrap();
    assert!(target.starts_with(&format!("semaphore \"{name}\" of ")), "{line}");
}

#[test]
fn what_is_revoked_or_removed_ends_now_or_after_its_grace_period() {
    let mut server = Administered::new();
    for name in ["now", "later", "default", "last", "session", "client"] {
        assert_eq!(server.ask("declare", &json!({"name": name, "capacity": 1})).0, 200);
        server.http.command(&["acquire", name, "--lease", "1h"]);
    }
    let http = &server.http;
    let holder = |name: &str| {
        http.get(&format!("/api/v1/holders?kind=semaphore&name={name}")).json()["items"]
            .get(0)
            .cloned()
            .unwrap_or_default()
    };
    assert_eq!(server.ask("remove", &json!({"name": "last", "when": "idle"})), (409, json!("in_use")));
    assert_eq!(server.ask("remove", &json!({"name": "last", "when": "last-holder"})).0, 200);
    let last = &http.get("/api/v1/declared?prefix=last").json()["items"][0];
    assert_eq!((&last["removing"], &last["in_use"]), (&json!(true), &json!(1)));
    let exported = http.get("/api/v1/declarations?prefix=last").json();
    assert_eq!(exported["declare"], json!([]), "who applies it must not declare it again");
    assert_eq!(server.ask("remove", &json!({"name": "last", "when": "now", "grace_ms": 0})).0, 200);
    eventually("it is removed", || http.get("/api/v1/declared?prefix=last").json()["total"] == 0);

    let later = holder("later");
    assert_eq!(
        server.ask("revoke", &json!({"grant": later["grant"], "grace_ms": 3_600_000})),
        (200, json!({}))
    );
    assert_eq!(holder("later")["grant"], later["grant"]);
    assert_eq!(
        server.ask("revoke", &json!({"grant": holder("now")["grant"], "grace_ms": 0})),
        (200, json!({}))
    );
    let default = holder("default")["grant"].take();
    assert_eq!(server.ask("revoke", &json!({"grant": default})), (200, json!({})));
    let recorded = audited(server.directory.path()).pop().unwrap();
    let id = default.as_str().unwrap();
    assert_eq!(recorded["operation"], format!("revoke grant {id} with a grace period of 10 s"));
    assert_of(&recorded, "default");
    let session = holder("session")["session"].take();
    assert_eq!(server.ask("revoke", &json!({"session": session, "grace_ms": 0})), (200, json!({})));
    assert_of(&audited(server.directory.path()).pop().unwrap(), "session");
    for name in ["now", "session"] {
        eventually("it is revoked", || holder(name) == Value::Null);
    }
    assert_eq!(server.ask("revoke", &json!({"client": "192.0.2.0/24"})), (200, json!({"sessions": 0})));
    let (status, revoked) = server.ask("revoke", &json!({"client": "127.0.0.1"}));
    assert!(status == 200 && revoked["sessions"].as_u64() >= Some(1), "{revoked}");
    eventually("it is revoked", || holder("client") == Value::Null);
}

#[test]
fn what_is_revoked_canceled_or_deleted_must_be_there_and_free() {
    let mut server = Administered::new();
    let mut holder = server.http.daemon.counter();
    assert_eq!(holder.acquire(b"a", 1, 1).status, OK);
    for (path, body, status, code) in [
        ("revoke", json!({"grant": "7"}), 404, "no_such_grant"),
        ("revoke", json!({"session": 777}), 404, "no_such_session"),
        ("revoke", json!({}), 400, "bad_request"),
        ("revoke", json!({"grant": 1, "session": 1}), 400, "bad_request"),
        ("revoke", json!({"client": "somewhere"}), 400, "bad_request"),
        ("cancel", json!({"request": "7"}), 404, "not_found"),
        ("cancel", json!({"session": 777}), 404, "no_such_session"),
        ("cancel", json!({"session": 0}), 404, "no_such_session"),
        ("cancel", json!({}), 400, "bad_request"),
        ("cancel", json!({"request": 1, "session": 1}), 400, "bad_request"),
        ("delete-counter", json!({"name": "a"}), 409, "in_use"),
    ] {
        assert_eq!(server.ask(path, &body), (status, json!(code)), "{path} {body}");
    }
    assert_eq!(holder.release(b"a", 1).status, OK);
    assert_eq!(server.ask("delete-counter", &json!({"name": "a"})), (200, json!({})));
    server.http.command(&["acquire", "a", "--max", "1", "--lease", "1h"]);
    let held = server.http.get("/api/v1/holders?kind=counter&name=a").json();
    let idle = json!({"session": held["items"][0]["session"]});
    assert_eq!(server.ask("cancel", &idle), (200, json!({"requests": 0})), "it has no waiting requests");
}
