//! Declarations as code, against the real server: `apply` and `export-declarations`.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::process::Output;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::{assert_fails, finished, objects, program_at, ran, stderr, stdout};
use crate::support::daemon::{ConfigFile, Daemon, serve_file_on_any_ports};

const LIMITS: &str = "\
prefix = 'ci/'
[[semaphore.declare]]
name = 'ci/gpu'
capacity = 4
slots = true
label = 'team render'
[[semaphore.declare]]
name = 'ci/deploys'
capacity = 2
";

/// Applies a file from standard input.
async fn applied(server: SocketAddr, file: &str, options: &[&str]) -> Output {
    let mut child = program_at(server, &[&["apply", "-f", "-"], options].concat()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // The program may end without reading it.
    let _ = input.write_all(file.as_bytes()).await;
    drop(input);
    finished(child).await
}

/// The objects of the output, whatever the exit status.
fn printed(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Name, capacity and generation of what is declared.
async fn declared(server: SocketAddr) -> Vec<(Value, Value, Value)> {
    let listed = objects(server, &["list"]).await.into_iter();
    listed.map(|of| (of["name"].clone(), of["capacity"].clone(), of["generation"].clone())).collect()
}

/// Takes all of a semaphore until the server ends.
async fn hold(server: SocketAddr, name: &str, resources: &str) {
    let arguments = ["acquire", "--semaphore", "--lease", "1h", "--resources", resources, name];
    objects(server, &arguments).await;
}

#[tokio::test]
async fn a_file_is_applied_and_the_same_file_again_changes_nothing() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let words = |output: &Output| -> Vec<String> {
        stdout(output)
            .lines()
            .map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
            .collect()
    };
    let dry = applied(server, LIMITS, &["--dry-run"]).await;
    assert_eq!(words(&dry), ["declare ci/gpu", "declare ci/deploys"]);
    assert_eq!(declared(server).await, []);
    let first = applied(server, LIMITS, &[]).await;
    assert_eq!(first.stdout, dry.stdout);
    let before = declared(server).await;
    assert_eq!(before.len(), 2);
    let again = applied(server, LIMITS, &["--prune"]).await;
    assert_eq!(words(&again), ["unchanged ci/gpu", "unchanged ci/deploys"]);
    assert_eq!(declared(server).await, before, "with the same generations");
    assert_eq!(daemon.lines_with("declare semaphore").len(), 2, "nothing else was requested");

    let changed = applied(server, &LIMITS.replace("= 4", "= 8").replace("render", "film"), &["--json"]).await;
    assert_eq!(
        printed(&changed),
        [
            json!({"name": "ci/gpu", "change": "change",
                "from": {"capacity": 4, "slots": true, "label": "team render"},
                "to": {"capacity": 8, "slots": true, "label": "team film"}}),
            json!({"name": "ci/deploys", "change": "unchanged",
                "from": {"capacity": 2, "slots": false, "label": ""},
                "to": {"capacity": 2, "slots": false, "label": ""}}),
        ]
    );
    let exported = stdout(&ran(server, &["export-declarations", "--prefix", "ci/"]).await).to_owned();
    let again = applied(server, &exported, &["--prune"]).await;
    assert!(words(&again).iter().all(|words| words.starts_with("unchanged")), "{exported}{again:?}");
}

#[tokio::test]
async fn prune_removes_what_is_idle_below_the_prefix_or_more_if_it_is_told_to() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    objects(server, &["declare", "--capacity", "3", "ci/idle", "ci/held", "cicero"]).await;
    let mut declare = program_at(server, &["declare", "--capacity", "1"]);
    stdout(&finished(declare.arg(OsStr::from_bytes(b"ci/\xff")).spawn().unwrap()).await);
    hold(server, "ci/held", "1").await;
    let output = applied(server, LIMITS, &["--prune", "--json"]).await;
    assert_fails(&output, 1, "1 of 4 names");
    let changes: Vec<_> =
        printed(&output).into_iter().map(|line| (line["name"].clone(), line["error"].clone())).collect();
    assert_eq!(changes[2].0, "ci/held");
    assert_eq!(changes[2].1["code"], "in_use");
    assert_eq!(changes[3], (json!("ci/idle"), Value::Null));
    let names = async || declared(server).await.into_iter().map(|of| of.0).collect::<Vec<_>>();
    assert_eq!(
        names().await,
        [json!("ci/deploys"), json!("ci/gpu"), json!("ci/held"), Value::Null, json!("cicero")]
    );
    let output = applied(server, LIMITS, &["--prune", "--when", "now", "--grace", "0"]).await;
    assert!(stdout(&output).contains("remove     ci/held"), "{output:?}");
    while names().await.len() > 4 {}
    let exported = ran(server, &["export-declarations"]).await;
    assert!(stderr(&exported).contains(": 1 declared semaphore"), "{exported:?}");
    let output = applied(server, "prefix = ''", &["--prune"]).await;
    assert_eq!(stdout(&output).lines().count(), 3);
    assert_eq!(names().await, [Value::Null], "a name that no file can have");
}

#[tokio::test]
async fn a_dry_run_refuses_what_the_client_may_not_administer() {
    let file = ConfigFile::toml("[access]\nnetworks = ['127.0.0.0/8 read']\n");
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    let server = daemon.address("counter");
    for options in [&["--json", "--dry-run"][..], &["--json"]] {
        let output = applied(server, LIMITS, options).await;
        assert_fails(&output, 1, "changes of 2 of 2 names");
        let codes: Vec<_> = printed(&output).iter().map(|line| line["error"]["code"].clone()).collect();
        assert_eq!(codes, ["not_permitted", "not_permitted"], "{options:?}");
    }
    let empty = applied(server, "prefix = 'ci/'", &["--dry-run", "--prune"]).await;
    assert_eq!(stdout(&empty), "", "nothing would change");
}

#[tokio::test]
async fn a_file_with_a_mistake_changes_nothing() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let table = |name: &str| format!("[[semaphore.declare]]\nname = '{name}'\ncapacity = 1\n");
    for (file, message) in [
        (table("ci/a"), "-:1: prefix is not set"),
        (
            format!("prefix = 'ci/'\n{}{}", table("ci/a"), table("other")),
            "-:6: \"other\" does not begin with",
        ),
        (format!("prefix = 'ci/'\n{}{}", table("ci/a"), table("ci/a")), "-:6: semaphore.declare.name"),
        (format!("prefix = 'ci/'\n{}slots = 1", table("ci/a")), "-:5: semaphore.declare.slots = 1: must be"),
        (format!("prefix = 'ci/'\n{}[semaphore", table("ci/a")), "-:5: "),
        (format!("{}prefix = 'ci/'", table("ci/a")), "prefix"),
    ] {
        for options in [&["--prune"][..], &["--dry-run"]] {
            let output = applied(server, &file, options).await;
            assert_fails(&output, 78, message);
            assert_eq!(output.stdout, b"");
        }
    }
    assert_fails(
        &ran(server, &["apply", "-f", "/nonexistent"]).await,
        78,
        "/nonexistent: the file cannot be read",
    );
    assert_fails(&ran(server, &["apply", "-f", "/", "--when", "now"]).await, 64, "--prune");
    assert_fails(&ran(server, &["apply", "-f", "/", "--prune", "--grace", "1"]).await, 64, "--when now");
    assert_eq!(declared(server).await, []);
}

#[tokio::test]
async fn a_semaphore_in_use_is_changed_as_far_as_its_holders_allow() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    stdout(&applied(server, LIMITS, &[]).await);
    hold(server, "ci/gpu", "3").await;
    hold(server, "ci/deploys", "2").await;
    stdout(&ran(server, &["pause", "ci/gpu"]).await);
    // One capacity is less than what is in use, and the other semaphore loses its numbered slots, of which some are held.
    let file = LIMITS.replace("capacity = 2", "capacity = 1").replace("slots = true\n", "");
    for options in [&["--dry-run", "--json"][..], &["--json"]] {
        let output = applied(server, &file, options).await;
        assert_fails(&output, 1, "1 of 2 names");
        let lines = printed(&output);
        assert_eq!((&lines[0]["error"]["code"], &lines[1]["error"]), (&json!("in_use"), &Value::Null));
    }
    let listed = objects(server, &["list"]).await;
    assert_eq!((&listed[0]["capacity"], &listed[0]["in_use"]), (&json!(1), &json!(2)));
    assert_eq!((&listed[1]["slots"], &listed[1]["paused"]), (&json!(true), &json!(true)));
    stdout(&applied(server, &LIMITS.replace("= 4", "= 9"), &[]).await);
    let gpu = objects(server, &["list", "ci/gpu"]).await.remove(0);
    assert_eq!((&gpu["capacity"], &gpu["paused"]), (&json!(9), &json!(true)), "a pause stays");
}

#[tokio::test]
async fn a_lower_capacity_refuses_waiting_requests_only_if_it_is_told_to() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    stdout(&applied(server, LIMITS, &[]).await);
    hold(server, "ci/gpu", "4").await;
    let waits = |resources: &'static str| {
        let arguments = ["run", "ci/gpu", "--resources", resources, "--wait", "max", "--", "true"];
        program_at(server, &arguments).spawn().unwrap()
    };
    let (refused, _waits) = (waits("3"), waits("1"));
    while objects(server, &["status", "--waiters", "ci/gpu"]).await.len() < 2 {}
    let file = LIMITS.replace("= 4", "= 2");
    let output = applied(server, &file, &[]).await;
    assert_fails(&output, 1, "1 of 2 names");
    assert!(
        std::str::from_utf8(&output.stdout).unwrap().contains("1 waiting request needs more"),
        "{output:?}"
    );
    stdout(&applied(server, &file, &["--refuse-waiters"]).await);
    assert_eq!(finished(refused).await.status.code(), Some(1));
    assert_eq!(objects(server, &["status", "--waiters", "ci/gpu"]).await.len(), 1);
}

#[tokio::test]
async fn what_the_client_may_not_change_is_refused_and_the_rest_is_applied() {
    let declares = "[[semaphore.declare]]\nname = 'ci/gpu'\ncapacity = 7\n";
    let file = ConfigFile::toml(&format!("access.networks = ['127.0.0.0/8 all semaphore:ci/']\n{declares}"));
    let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
    let server = daemon.address("counter");
    for options in [&["--dry-run", "--json", "--prune"][..], &["--json", "--prune"]] {
        let output = applied(server, LIMITS, options).await;
        assert_fails(&output, 1, "1 of 2 names");
        let lines = printed(&output);
        assert_eq!((&lines[0]["error"]["code"], &lines[1]["error"]), (&json!("configured"), &Value::Null));
    }
    let list = ["list", "ci/*"];
    assert_eq!(objects(server, &list).await.len(), 2);
    assert_fails(&applied(server, "prefix = ''", &["--prune"]).await, 1, "the prefix \"\"");
    let output = applied(server, "prefix = 'ci/'", &["--prune"]).await;
    assert_eq!(stdout(&output).lines().count(), 1, "what the configuration declares stays");
    assert_eq!(objects(server, &list).await.len(), 1);

    file.write(&format!("access.networks = ['127.0.0.0/8 read']\n{declares}"));
    daemon.reload("the configuration was read again");
    let output = applied(server, LIMITS, &["--json"]).await;
    assert_fails(&output, 1, "2 of 2 names");
    assert_eq!(printed(&output)[1]["error"]["code"], "not_permitted");
    assert_eq!(objects(server, &list).await.len(), 1);
}
