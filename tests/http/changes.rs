//! Changes by clients that may not make them.

use serde_json::Value;

use crate::client::HttpDaemon;
use crate::support::daemon::{ConfigFile, SIGNALBOX, open_directory, outcome};

/// Creates a token in a file, and returns it.
fn create(file: &std::path::Path, name: &str, rights: &[&str]) -> String {
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

#[test]
fn a_change_without_the_right_is_in_the_audit_log() {
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
            "declared with capacity 4",
            "semaphore \"web/a\"",
        ),
        ("resize", r#"{"name": "gpu", "capacity": 9}"#, 403, "resized (To(9))", "semaphore \"gpu\""),
        (
            "slot",
            r#"{"name": "gpu", "slot": 3, "service": "out"}"#,
            403,
            "slot 3 taken out of service",
            "semaphore \"gpu\"",
        ),
        ("remove", r#"{"name": "gpu"}"#, 403, "removed", "semaphore \"gpu\""),
        (
            "revoke",
            r#"{"grant": 7}"#,
            403,
            "revoked (grant Some(7), session None, client None, grace 0 ms)",
            "server",
        ),
        ("delete-counter", r#"{"name": "web/a"}"#, 403, "counter deleted", "counter \"web/a\""),
    ];
    for (path, body, status, ..) in cases {
        assert_eq!(ask(path, body), status, "{path}");
    }
    // What changes nothing is not in it, and neither is what nobody can understand.
    assert_eq!(
        http.post("/api/v1/name", &[("Authorization", &bearer)], r#"{"kind": "semaphore", "name": "gpu"}"#)
            .status,
        403
    );
    assert_eq!(ask("resize", r#"{"name": "gpu"}"#), 400);
    let text = std::fs::read_to_string(directory.path().join("audit.log")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found: Vec<_> =
        lines.iter().map(|line| [&line["operation"], &line["target"], &line["outcome"]]).collect();
    let expected = cases.map(|(_, _, status, operation, target)| {
        [operation, target, if status == 200 { "done" } else { "refused" }].map(Value::from)
    });
    assert_eq!(found, expected.each_ref().map(|line| line.each_ref()));
    for line in &lines[1..] {
        assert_eq!(
            (&line["identity"], &line["reason"]),
            (&"token:web".into(), &"not_permitted".into()),
            "{line}"
        );
        assert!(line["client"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    }
}
