//! Declarations as code: `/api/v1/apply` and `/api/v1/declarations`.

use serde_json::{Value, json};

use crate::changes::{audited, create};
use crate::client::HttpDaemon;
use crate::support::daemon::{ConfigFile, open_directory};

/// A server, and a token that may do everything and one that may read.
struct Applying {
    http: HttpDaemon,
    all: String,
    reads: String,
    directory: tempfile::TempDir,
    _config: ConfigFile,
}

impl Applying {
    /// Starts a server with further lines at the end of the configuration.
    fn start(lines: &str) -> Self {
        let directory = open_directory();
        let path = directory.path().display();
        let file = directory.path().join("tokens.toml");
        let [all, reads] = ["all", "read"].map(|rights| create(&file, rights, &[rights]));
        let (http, config) = HttpDaemon::with(&format!(
            "enable = true\n[access]\ntokens = '{path}/tokens.toml'\naudit_log = '{path}/audit.log'\n{lines}"
        ));
        Self { http, all, reads, directory, _config: config }
    }

    fn ask(&self, token: &str, path: &str, body: &Value) -> (u16, Value) {
        let bearer = format!("Bearer {token}");
        let reply =
            self.http.post(&format!("/api/v1/{path}"), &[("Authorization", &bearer)], &body.to_string());
        (reply.status, reply.json())
    }

    /// Applies a document.
    fn apply(&self, document: &Value) -> (u16, Value) {
        self.ask(&self.all, "apply", document)
    }

    /// The document of all declarations.
    fn export(&self) -> Value {
        let (status, document) = self.ask(&self.all, "declarations", &json!({}));
        assert_eq!(status, 200, "{document}");
        document["declare"].clone()
    }
}

fn limits() -> Value {
    json!({"prefix": "ci/", "declare": [
        {"name": "ci/gpu", "capacity": 4, "slots": true, "label": "team render"},
        {"name_hex": "63692fff", "capacity": 2, "label_hex": "ff"},
    ]})
}

/// The document with further fields.
fn with(mut document: Value, fields: &[(&str, Value)]) -> Value {
    for (field, value) in fields {
        document[field] = value.clone();
    }
    document
}

fn changes(answer: &Value) -> Vec<&str> {
    answer["results"].as_array().unwrap().iter().map(|result| result["change"].as_str().unwrap()).collect()
}

#[test]
fn a_document_is_applied_and_the_same_document_again_changes_nothing() {
    let server = Applying::start("");
    let (status, dry) = server.apply(&with(limits(), &[("dry_run", json!(true))]));
    assert_eq!((status, changes(&dry)), (200, vec!["declare", "declare"]));
    assert_eq!(server.export(), json!([]));
    assert_eq!(server.apply(&limits()), (200, dry));
    let exported = json!([
        {"name": "ci/gpu", "capacity": 4, "slots": true, "label": "team render"},
        {"name_hex": "63692fff", "capacity": 2, "slots": false, "label_hex": "ff"},
    ]);
    assert_eq!(server.export(), exported);
    let (_, document) = server.ask(&server.reads, "declarations", &json!({"prefix": "ci/"}));
    let (status, again) = server.apply(&with(document, &[("prune", json!(true))]));
    assert_eq!((status, changes(&again)), (200, vec!["unchanged", "unchanged"]));
    let lines = audited(server.directory.path());
    let done: Vec<_> = lines.iter().filter(|line| line["outcome"] == "done").collect();
    assert_eq!(done.len(), 2, "each change once, and nothing else: {lines:?}");
    assert_eq!(done[0]["target"], "semaphore \"ci/gpu\"");
}

#[test]
fn a_document_with_a_mistake_changes_nothing() {
    let server = Applying::start("");
    let gpu = json!({"name": "ci/gpu", "capacity": 1});
    for document in [
        json!({"declare": [gpu]}),
        json!({"declare": [gpu], "prune": true}),
        json!({"prefix": null, "declare": [gpu]}),
        json!({"prefix": "ci/", "prefix_hex": "63", "declare": [gpu]}),
        json!({"prefix": "ci/", "declare": [gpu, {"name": "other", "capacity": 1}]}),
        json!({"prefix": "ci/", "declare": [gpu, gpu]}),
        json!({"prefix": "ci/", "declare": [gpu, {"name_hex": "63692f677075", "capacity": 2}]}),
        json!({"prefix": "ci/", "declare": [gpu, {"name": "ci/a"}]}),
        json!({"prefix": "ci/", "declare": [gpu, {"name": "ci/a", "capacity": -1}]}),
        json!({"prefix": "ci/", "declare": [gpu, {"name": "ci/a", "capacity": 1, "if_exists": "set"}]}),
        json!({"prefix": "ci/", "declare": [gpu, {"name": "ci/a", "capacity": 1, "label": "x".repeat(256)}]}),
        json!({"prefix": "ci/", "declare": gpu}),
        json!({"prefix": "ci/", "declare": ["ci/gpu"]}),
        json!({"prefix": "ci/", "declare": [gpu], "when": "never"}),
        json!({"prefix": "ci/", "declares": [gpu]}),
    ] {
        let (status, answer) = server.apply(&document);
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("bad_request")), "{document}");
    }
    assert_eq!(server.export(), json!([]));
    assert_eq!(server.http.post("/api/v1/apply", &[], &limits().to_string()).code(), "unauthorized");
}

#[test]
fn what_is_refused_is_in_the_answer_and_the_rest_is_applied() {
    let mut server = Applying::start("[[semaphore.declare]]\nname = 'ci/own'\ncapacity = 1");
    let declare = |name: &str, capacity: u32| json!({"name": name, "capacity": capacity});
    for name in ["ci/held", "ci/idle", "other"] {
        assert_eq!(server.ask(&server.all, "declare", &declare(name, 3)).0, 200);
    }
    server.http.command(&["acquire", "--semaphore", "--lease", "1h", "ci/held"]);
    let own = with(declare("ci/own", 9), &[("label", json!("x"))]);
    let document = json!({"prefix": "ci/", "prune": true, "declare": [own, declare("ci/new", 1)]});
    for dry_run in [true, false] {
        let (status, answer) = server.apply(&with(document.clone(), &[("dry_run", json!(dry_run))]));
        assert_eq!((status, &answer["error"]["code"]), (409, &json!("partly_refused")));
        assert_eq!(changes(&answer), ["change", "declare", "remove", "remove"]);
        let codes: Vec<_> = answer["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|result| result["error"]["code"].clone())
            .collect();
        assert_eq!(codes, [json!("configured"), Value::Null, json!("in_use"), Value::Null]);
    }
    let names = |server: &Applying| -> Vec<Value> {
        server.export().as_array().unwrap().iter().map(|of| of["name"].clone()).collect()
    };
    assert_eq!(names(&server), ["ci/held", "ci/new", "ci/own", "other"]);
    let now = [("when", json!("now")), ("grace_ms", json!(0)), ("declare", json!([]))];
    assert_eq!(server.apply(&with(document, &now)).0, 200);
    assert_eq!(names(&server), ["ci/own", "other"], "what the configuration declares stays");
}

#[test]
fn a_token_that_may_only_read_changes_nothing() {
    let server = Applying::start("");
    let (status, answer) = server.ask(&server.reads, "apply", &limits());
    assert_eq!((status, &answer["results"][1]["error"]["code"]), (409, &json!("not_permitted")));
    assert_eq!(server.export(), json!([]));
    let lines = audited(server.directory.path());
    assert!(
        lines
            .iter()
            .any(|line| line["target"] == "semaphore \"ci/gpu\"" && line["reason"] == "not_permitted"),
        "{lines:?}"
    );
}

#[test]
fn declarations_that_do_not_fit_one_answer_are_not_exported_in_part() {
    let server = Applying::start("");
    let long = "n".repeat(60_000);
    let declare: Vec<_> =
        (0..3).map(|number| json!({"name": format!("{number}{long}"), "capacity": 1})).collect();
    assert_eq!(server.apply(&json!({"prefix": "", "declare": declare})).0, 200);
    let (status, answer) = server.ask(&server.all, "declarations", &json!({}));
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("bad_request")));
    let (status, answer) = server.ask(&server.all, "declarations", &json!({"prefix": "1"}));
    assert_eq!((status, answer["declare"].as_array().unwrap().len()), (200, 1));
}

#[test]
fn a_lower_capacity_refuses_waiting_requests_only_if_it_is_told_to() {
    let server = Applying::start("");
    assert_eq!(server.apply(&limits()).0, 200);
    let acquire = |key: &str, resources: u32| {
        let claims = json!([{"name": "ci/gpu", "resources": resources}]);
        let request = json!({"key": key.repeat(32), "claims": claims, "ttl_ms": 60_000, "wait_ms": 60_000});
        server.ask(&server.all, "lease/acquire", &request).0
    };
    assert_eq!([acquire("a", 4), acquire("b", 3), acquire("c", 1)], [200, 202, 202]);
    let lower = json!({"prefix": "ci/", "declare": [{"name": "ci/gpu", "capacity": 2, "slots": true}]});
    for dry_run in [true, false] {
        let (status, answer) = server.apply(&with(lower.clone(), &[("dry_run", json!(dry_run))]));
        assert_eq!((status, &answer["results"][0]["error"]["code"]), (409, &json!("refuses_waiters")));
    }
    assert_eq!(server.export()[0]["capacity"], 4);
    let (status, answer) = server.apply(&with(lower, &[("refuse_waiters", json!(true))]));
    assert_eq!((status, changes(&answer)), (200, vec!["change"]), "without \"prune\", the other one stays");
    assert_eq!([acquire("b", 3), acquire("c", 1)], [409, 202]);
}
