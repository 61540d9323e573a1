//! Holders, waiters and events on the command line.

use serde_json::Value;

use super::{assert_fails, finished, line, program_at, ran, stdout, stdout_of};
use crate::support::daemon::Daemon;

fn parsed(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

#[tokio::test]
async fn holders_and_waiters_are_lines_of_columns_or_objects() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let mut plain = daemon.counter();
    assert_eq!(plain.acquire(b"job", 2, 3).status, 0);
    let held = program_at(server, &["acquire", "job", "--max", "3", "--lease", "1h"]).spawn().unwrap();
    stdout(&finished(held).await);
    let arguments = ["run", "job", "--max", "3", "--wait", "max", "--", "true"];
    let _waiter = program_at(server, &arguments).spawn().unwrap();

    let output = ran(server, &["status", "--holders", "job", "--no-header"]).await;
    let mut rows: Vec<Vec<_>> = stdout(&output).lines().map(|row| row.split('\t').collect()).collect();
    rows.sort_by_key(|row| row[2].to_owned());
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(rows.iter().all(|row| row.len() == 9 && row[8] == "-"), "a counter has no flags: {rows:?}");
    assert!(rows[0][7].contains("acquire for process"), "{rows:?}");
    assert_eq!((rows[0][2], rows[0][6]), ("1", "-"), "a session that was handed over is not connected");
    assert!((3000..=3600).contains(&rows[0][5].parse::<u32>().unwrap()), "the lease that is left: {rows:?}");
    assert_eq!((rows[1][0], rows[1][2], rows[1][5]), ("-", "2", "-"), "a plain Acquire has no grant");
    assert!(rows.iter().all(|row| row[3] == "-"), "a counter has no slots: {rows:?}");

    let waiter = loop {
        let output = ran(server, &["status", "--waiters", "job", "--json"]).await;
        if let Some(line) = stdout(&output).lines().next() {
            break parsed(line);
        }
    };
    assert_eq!((&waiter["position"], &waiter["resources"]), (&Value::from(1), &Value::from(1)));
    assert!(waiter["label"].as_str().unwrap().contains("run["), "{waiter}");
    assert!(waiter["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{waiter}");
    assert_eq!((&waiter["paused"], &waiter["slots_out"]), (&Value::from(false), &Value::Array(Vec::new())));
    let output = ran(server, &["status", "--waiters", "job", "--no-header"]).await;
    assert_eq!(stdout(&output).trim_end().split('\t').count(), 8);
}

#[tokio::test]
async fn a_watch_reports_a_prefix_or_one_name() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let mut plain = daemon.counter();
    for name in [&b"a/1"[..], b"a/*", b"b"] {
        assert_eq!(plain.acquire(name, 1, 9).status, 0);
    }
    for (arguments, present, changed) in [
        (&["watch", "a/*", "--json"][..], &["a/*", "a/1"][..], &["a/1", "a/*"][..]),
        (&["watch", "a/*", "--json", "--exact"], &["a/*"], &["a/*"]),
        (&["watch", "b", "--json"], &["b"], &["b"]),
        (&["watch", "*", "--json"], &["a/*", "a/1", "b"], &["a/1", "a/*", "b"]),
    ] {
        let mut child = program_at(server, arguments).spawn().unwrap();
        let mut events = stdout_of(&mut child);
        let mut names = Vec::new();
        loop {
            let event = parsed(&line(&mut events).await);
            if event["event"] == "live" {
                assert!(event.get("name").is_none(), "{event}");
                break;
            }
            assert_eq!((&event["event"], &event["grant"]), (&Value::from("present"), &Value::Null));
            names.push(event["name"].as_str().unwrap().to_owned());
        }
        names.sort();
        assert_eq!(names, present);
        for name in [&b"a/1"[..], b"a/*", b"b"] {
            assert_eq!(plain.acquire(name, 1, 9).status, 0);
        }
        for name in changed {
            let event = parsed(&line(&mut events).await);
            assert_eq!((&event["event"], &event["name"]), (&Value::from("granted"), &Value::from(*name)));
        }
    }
}

#[tokio::test]
async fn what_a_session_or_a_client_holds_and_waits_for_is_listed() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let ran = async |arguments: &[&str]| ran(server, arguments).await;
    let held = ran(&["acquire", "job:1", "other:2", "--lease", "1h", "--json"]).await;
    let session = parsed(stdout(&held))["session"].as_str().unwrap().to_owned();
    let waits = ["run", "job", "--max", "1", "--wait", "max", "--", "true"];
    let mut waiter = program_at(server, &waits).spawn().unwrap();
    while stdout(&ran(&["list", "job", "--waiting", "--no-header"]).await).is_empty() {}
    let states = async |arguments: &[&str]| {
        let listed = ran(&[&["status", "--json"], arguments].concat()).await;
        let text = |line: &str, key: &str| parsed(line)[key].as_str().unwrap().to_owned();
        let rows = stdout(&listed).lines().map(|line| [text(line, "name"), text(line, "state")]);
        rows.collect::<Vec<_>>()
    };
    assert_eq!(states(&["--session", &session]).await, [["job", "holds"], ["other", "holds"]]);
    let mut plain = daemon.counter();
    assert_eq!(plain.acquire(b"plain", 1, 9).status, 0);
    // Session by session; what connections hold by plain Acquires comes last.
    let all = [["job", "holds"], ["other", "holds"], ["job", "waits"], ["plain", "holds"]];
    assert_eq!(states(&["--client", "127.0.0.0/8"]).await, all);
    let unknown = ran(&["status", "--session", "999999999"]).await;
    assert_fails(&unknown, 1, "has the id 999999999");
    assert_eq!(states(&["--client", "192.0.2.7"]).await, [] as [[&str; 2]; 0]);
    waiter.start_kill().unwrap();
}

#[tokio::test]
async fn a_watch_prints_columns_and_fails_when_the_server_ends() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    assert_eq!(daemon.counter().acquire(b"x\ty", 2, 9).status, 0);
    let mut child = program_at(server, &["watch", "*", "--no-header"]).spawn().unwrap();
    let mut events = stdout_of(&mut child);
    let mut first = line(&mut events).await;
    if first.contains("\tpresent\t") {
        assert!(first.ends_with("\tx\\ty\t-"), "{first}");
        first = line(&mut events).await;
    }
    assert!(first.ends_with("Z\tlive\t-\t-\t0\t0\t0\t-\t-"), "{first}");
    drop(daemon);
    assert_fails(&finished(child).await, 69, "the connection was lost");
}

#[tokio::test]
async fn characters_that_are_not_seen_are_escaped_in_lists_and_messages() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let name = "tru\u{200b}c\u{3164}k\u{a0}s\u{e0041}";
    let shown = r"tru\xe2\x80\x8bc\xe3\x85\xa4k\xc2\xa0s\xf3\xa0\x81\x81";
    assert_eq!(daemon.counter().acquire(name.as_bytes(), 1, 1).status, 0);
    let ran = async |arguments: &[&str]| ran(server, arguments).await;
    assert_eq!(stdout(&ran(&["dump", "--no-header"]).await), format!("0\t1\t{shown}\n"));
    let listed = ran(&["dump", "--json"]).await;
    assert!(stdout(&listed).contains(r"tru\u200bc\u3164k\u00a0s\udb40\udc41"), "{listed:?}");
    assert_fails(&ran(&["run", name, "--", "true"]).await, 1, &format!("limit \"{shown}\" is not declared"));
    // A message of the client library, and one of the parser.
    let slot = ran(&["declare", name, name, "--capacity", "1"]).await;
    assert!(slot.stderr.is_ascii() && !slot.status.success(), "{slot:?}");
    let option = ran(&["verify", name]).await;
    assert_fails(&option, 64, &format!("invalid value '{shown}'"));
}
