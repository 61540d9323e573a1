//! Declared semaphores on the command line, against the real server: `declare`, `resize`, `remove`, `list`,
//! `await-idle`, `verify`, and the slots of holders.

use std::net::SocketAddr;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::process::Command;

use super::{assert_fails, finished, line, objects, program_at, ran, stderr, stdout, stdout_of};
use crate::support::daemon::Daemon;
use crate::support::fake_server::soon;

/// A grant that lasts for an hour without renewal.
async fn acquired(server: SocketAddr, arguments: &[&str]) -> Value {
    let all = [&["acquire", "--semaphore", "--lease", "1h"], arguments].concat();
    objects(server, &all).await.pop().unwrap()
}

async fn release(server: SocketAddr, acquired: &Value) {
    let mut command = program_at(server, &["release"]);
    command.env("SIGNALBOX_SESSION", acquired["session"].as_str().unwrap());
    command.env("SIGNALBOX_KEY", acquired["key"].as_str().unwrap());
    assert_eq!(stdout(&finished(command.spawn().unwrap()).await), "");
}

fn grant_of(acquired: &Value) -> &str {
    acquired["grant"].as_str().expect("a string, because a double would round it")
}

#[tokio::test]
async fn semaphores_are_declared_all_or_none_and_listed() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let declared = objects(server, &["declare", "--capacity", "8", "b", "a"]).await;
    assert_eq!((&declared[0]["name"], &declared[1]["name"]), (&json!("b"), &json!("a")));
    assert!(declared[0]["generation"].is_string(), "a string, because a double would round it");
    let output = ran(server, &["declare", "--capacity", "1", "c", "a"]).await;
    assert_fails(&output, 1, "cannot declare semaphore \"c\" and semaphore \"a\": already declared: \"a\"");
    let kept = objects(server, &["declare", "a", "--capacity", "1", "--if-exists", "keep"]).await;
    assert_eq!(kept[0]["capacity"], 8);
    let arguments = ["declare", "a", "--capacity", "3", "--slots", "--label", "room 3", "--if-exists", "set"];
    let arguments = [&arguments[..], &["--no-header"]].concat();
    let set = ran(server, &arguments).await;
    let generation = stdout(&set).split('\t').nth(2).unwrap();
    assert_eq!(stdout(&set), format!("3\t0\t{generation}\ta\n"));

    let listed = ran(server, &["list"]).await;
    let listed: Vec<_> = stdout(&listed).lines().collect();
    assert_eq!(listed.len(), 3);
    assert!(listed[0].starts_with("KIND\tIN USE\tCAPACITY\t"), "{listed:?}");
    assert_eq!(listed[1], format!("semaphore\t0\t3\t0\t-\t0\tslots\t{generation}\ta\troom 3"));
    assert!(listed[2].ends_with("\tb\t-"), "{listed:?}");
    let listed = objects(server, &["list", "a"]).await;
    assert_eq!(
        listed,
        [
            json!({"kind": "semaphore", "name": "a", "capacity": 3, "in_use": 0, "waiting": 0, "longest_wait": null,
            "holders": 0, "declared": true, "generation": generation, "slots": true,
            "removing": false, "configured": false, "paused": false, "slots_out": [], "label": "room 3"})
        ]
    );
}

#[tokio::test]
async fn a_capacity_is_set_increased_or_decreased() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    objects(server, &["declare", "a", "--capacity", "4"]).await;
    for (change, capacity) in [("8", 8), ("+2", 10), ("-3", 7)] {
        assert_eq!(objects(server, &["resize", "a", change]).await[0]["capacity"], capacity);
    }
    let output = ran(server, &["resize", "a", "-99"]).await;
    assert_fails(&output, 1, "cannot resize semaphore \"a\" by -99: its capacity is 7");
    assert_eq!(objects(server, &["list"]).await[0]["capacity"], 7);
    let generation =
        objects(server, &["resize", "a", "9"]).await[0]["generation"].as_str().unwrap().to_owned();
    let output = ran(server, &["resize", "--generation", &generation, "a", "-1", "--no-header"]).await;
    assert!(stdout(&output).starts_with("8\t0\t"), "{output:?}");
    let output = ran(server, &["resize", "a", "-1", "--generation", &generation]).await;
    assert_fails(&output, 1, "cannot resize semaphore \"a\" by -1: the semaphore was changed since");
    let output = ran(server, &["remove", "a", "--generation", &generation]).await;
    assert_fails(&output, 1, "cannot remove semaphore \"a\": the semaphore was changed since");
    assert_eq!(stdout(&ran(server, &["remove", "a"]).await), "");
    assert_fails(
        &ran(server, &["remove", "a"]).await,
        1,
        "cannot remove semaphore \"a\": it is not declared",
    );
}

#[tokio::test]
async fn a_resize_refuses_waiting_requests_only_if_it_is_told_to() {
    let mut daemon = Daemon::start();
    let server = daemon.address("semaphore");
    objects(server, &["declare", "gpu", "--capacity", "4", "--slots"]).await;
    let held = acquired(server, &["gpu", "--resources", "4"]).await;
    let run = |wanted: &[&str]| {
        let arguments = [&["run", "gpu"], wanted, &["--wait", "max", "--", "echo", "started"]].concat();
        program_at(server, &arguments).spawn().unwrap()
    };
    let refused = [run(&["--resources", "3"]), run(&["--slot", "3"])];
    let kept = run(&["--resources", "2"]);
    while objects(server, &["status", "--waiters", "gpu"]).await.len() < 3 {}
    for change in ["2", "-2"] {
        let output = ran(server, &["resize", "gpu", change]).await;
        assert_fails(
            &output,
            1,
            "semaphore \"gpu\" was not changed: 2 waiting requests need more than the new capacity 2",
        );
        assert!(stderr(&output).contains("--refuse-waiters"), "{output:?}");
    }
    assert_eq!(objects(server, &["list"]).await[0]["capacity"], 4);
    let output = ran(server, &["resize", "gpu", "3"]).await;
    assert_fails(&output, 1, "semaphore \"gpu\" was not changed: 1 waiting request needs more than");
    assert_eq!(objects(server, &["resize", "gpu", "2", "--refuse-waiters"]).await[0]["capacity"], 2);
    for waiter in refused {
        assert_eq!(finished(waiter).await.status.code(), Some(1));
    }
    assert_eq!(objects(server, &["status", "--waiters", "gpu"]).await.len(), 1);
    release(server, &held).await;
    assert_eq!(stdout(&finished(kept).await), "started\n");
}

#[tokio::test]
async fn slots_are_shown_to_holders_and_to_others() {
    let mut daemon = Daemon::start();
    let server = daemon.address("semaphore");
    objects(server, &["declare", "gpu", "--capacity", "6", "--slots"]).await;
    objects(server, &["declare", "licences", "--capacity", "6"]).await;
    let first = acquired(server, &["gpu", "--resources", "2"]).await;
    assert_eq!(first["slots"], json!([[0, 1]]));
    let second = acquired(server, &["licences", "gpu=1"]).await;
    assert_eq!(second["slots"], json!([[], [2]]), "in the order of the names");
    let script = r#"eval "$("$1" acquire --semaphore gpu=2 licences --lease 1h)" && echo "$SIGNALBOX_SLOTS""#;
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_signalbox")]);
    command.env("SIGNALBOX_SERVER", server.to_string()).stdin(Stdio::null());
    let output = soon("the script to end", command.output()).await.unwrap();
    assert_eq!(stdout(&output), "3,4:\n");
    let run = ["run", "--semaphore", "gpu", "--", "sh", "-c", "echo slot $SIGNALBOX_SLOTS"];
    // The slots of the script are still held.
    assert_eq!(stdout(&ran(server, &run).await), "slot 5\n");
    release(server, &second).await;
    acquired(server, &["gpu", "--resources", "2"]).await;
    let holders = objects(server, &["status", "--holders", "gpu", "--semaphore"]).await;
    let slots: Vec<_> = holders.iter().map(|holder| &holder["slots"]).collect();
    assert_eq!(slots, [&json!([0, 1]), &json!([3, 4]), &json!([2, 5])]);
    let holders = ran(server, &["status", "--holders", "gpu", "--semaphore", "--no-header"]).await;
    let slots: Vec<_> = stdout(&holders).lines().map(|row| row.split('\t').nth(3).unwrap()).collect();
    assert_eq!(slots, ["0-1", "3-4", "2,5"]);
}

#[tokio::test]
async fn a_declared_semaphore_is_acquired_without_its_capacity() {
    let mut daemon = Daemon::start();
    let server = daemon.address("semaphore");
    objects(server, &["declare", "a", "a=5", "--capacity", "2", "--exact"]).await;
    let get = [env!("CARGO_BIN_EXE_signalbox"), "get", "--semaphore"];
    for (wanted, name, left) in [
        (&["a"][..], "a", "1\n"),
        (&["a=2"], "a", "0\n"),
        (&["a", "--resources", "2"], "a", "0\n"),
        (&["a=5", "--exact"], "a=5", "1\n"),
        (&["a=5", "a", "--exact", "--resources", "2"], "a=5", "0\n"),
        (&["a", "--wait", "max"], "a", "1\n"),
    ] {
        let arguments = [&["run", "--semaphore"], wanted, &["--"], &get, &[name]].concat();
        assert_eq!(stdout(&ran(server, &arguments).await), left, "{wanted:?}");
    }
}

#[tokio::test]
async fn a_held_semaphore_is_removed_as_requested() {
    let mut daemon = Daemon::start();
    let server = daemon.address("semaphore");
    objects(server, &["declare", "a", "--capacity", "2"]).await;
    let held = acquired(server, &["a"]).await;
    assert_fails(&ran(server, &["remove", "a"]).await, 1, "cannot remove semaphore \"a\": it is held");
    assert_eq!(stdout(&ran(server, &["remove", "a", "--when", "last-holder"]).await), "");
    assert_eq!(objects(server, &["list"]).await[0]["removing"], true);
    let exported = ran(server, &["export-declarations"]).await;
    assert!(!stdout(&exported).contains("name"), "who applies it must not declare it again: {exported:?}");
    let verified = ran(server, &["verify", grant_of(&held), "--no-header"]).await;
    assert_eq!((verified.status.code(), stderr(&verified)), (Some(2), ""));
    assert!(verified.stdout.starts_with(b"retiring\t"), "{verified:?}");
    assert_fails(
        &ran(server, &["resize", "a", "3"]).await,
        1,
        "cannot resize semaphore \"a\" to 3: it is being removed",
    );
    let mut waiting = program_at(server, &["await-idle", "--semaphore", "a"]).spawn().unwrap();
    let mut waited = stdout_of(&mut waiting);
    assert_eq!(stdout(&ran(server, &["remove", "a", "--when", "now", "--grace", "0.2"]).await), "");
    assert_eq!(line(&mut waited).await, "0", "the grace period has ended");
    assert_eq!(objects(server, &["list"]).await, [] as [Value; 0]);
    let verified = ran(server, &["verify", grant_of(&held), "--json"]).await;
    assert_eq!((verified.status.code(), stderr(&verified)), (Some(1), ""));
    let verified: Value = serde_json::from_slice(&verified.stdout).unwrap();
    assert_eq!(verified, json!({"grant": held["grant"], "standing": "gone", "session": null, "left": null}));
}

#[tokio::test]
async fn a_grant_is_held_or_retiring_or_gone() {
    let mut daemon = Daemon::start();
    let server = daemon.address("semaphore");
    objects(server, &["declare", "a", "--capacity", "2", "--slots"]).await;
    let held = acquired(server, &["a", "--resources", "2"]).await;
    let verified = objects(server, &["verify", grant_of(&held)]).await.pop().unwrap();
    assert_eq!((&verified["standing"], &verified["session"]), (&json!("held"), &held["session"]));
    assert!((3000.0..=3600.0).contains(&verified["left"].as_f64().unwrap()), "{verified}");
    objects(server, &["resize", "a", "1"]).await;
    let verified = ran(server, &["verify", grant_of(&held), "--no-header"]).await;
    assert!(
        verified.stdout.starts_with(b"retiring\t"),
        "its second slot is above the capacity: {verified:?}"
    );
    objects(server, &["resize", "a", "2"]).await;
    assert!(stdout(&ran(server, &["verify", grant_of(&held), "--no-header"]).await).starts_with("held\t"));
    release(server, &held).await;
    let verified = ran(server, &["verify", grant_of(&held), "--no-header"]).await;
    assert_eq!((&verified.stdout[..], verified.status.code()), (&b"gone\t-\t-\n"[..], Some(1)));
}

#[tokio::test]
async fn a_wait_above_the_maximum_of_the_server_is_refused_at_once() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    objects(server, &["declare", "gpu", "--capacity", "1", "--slots"]).await;
    let held = acquired(server, &["gpu"]).await;
    for arguments in [
        &["run", "job", "--max", "1", "--wait", "25h", "--", "echo", "started"][..],
        &["acquire", "job", "--max", "1", "--wait", "25h", "--lease", "1m"],
        &["await-idle", "gpu", "--wait", "25h"],
        &["slot", "gpu", "0", "--out", "--wait", "25h"],
    ] {
        let output = ran(server, arguments).await;
        assert_fails(
            &output,
            64,
            "--wait 90000 s is longer than the server allows, at most 86400 s (session.max_wait)",
        );
    }
    assert_eq!(objects(server, &["list"]).await[0]["slots_out"], json!([]), "nothing was changed");
    release(server, &held).await;
    let waits = ["run", "gpu", "--wait", "24h", "--", "echo", "started"];
    assert_eq!(stdout(&ran(server, &waits).await), "started\n");
}

#[tokio::test]
async fn a_name_becomes_idle_or_does_not_in_time() {
    let mut daemon = Daemon::start();
    let server = daemon.address("semaphore");
    objects(server, &["declare", "a", "--capacity", "6", "--slots"]).await;
    let first = acquired(server, &["a"]).await;
    let second = acquired(server, &["a", "--resources", "2"]).await;
    for wait in ["0", "0.1"] {
        let idle = ["await-idle", "a", "--semaphore", "--wait", wait];
        let output = ran(server, &idle).await;
        assert_fails(&output, 75, "semaphore \"a\": not idle");
        let output = ran(server, &[&idle[..], &["--level", "2"]].concat()).await;
        assert_fails(&output, 75, "(3 in use, at most 2 requested)");
        let output = ran(server, &[&idle[..], &["--slot", "1"]].concat()).await;
        assert_fails(&output, 75, "slot 1 of semaphore \"a\": not free");
        assert_eq!(stdout(&ran(server, &[&idle[..], &["--level", "3"]].concat()).await), "3\n");
        assert_eq!(stdout(&ran(server, &[&idle[..], &["--slot", "3"]].concat()).await), "3\n");
    }
    let mut children = Vec::new();
    for until in [&["--slot", "0"][..], &["--level", "2"], &[]] {
        let arguments = [&["await-idle", "a", "--semaphore"], until].concat();
        children.push(program_at(server, &arguments).spawn().unwrap());
    }
    let mut outputs: Vec<_> = children.iter_mut().map(stdout_of).collect();
    release(server, &first).await;
    assert_eq!(line(&mut outputs[0]).await, "2");
    assert_eq!(line(&mut outputs[1]).await, "2");
    release(server, &second).await;
    assert_eq!(line(&mut outputs[2]).await, "0");
    let mut plain = daemon.counter();
    assert_eq!(plain.acquire(b"job", 2, 3).status, 0);
    assert_eq!(stdout(&ran(server, &["await-idle", "job", "--level", "2"]).await), "2\n");
    assert_eq!(stdout(&ran(server, &["await-idle", "none"]).await), "0\n", "nothing of it is in use");
}

#[tokio::test]
async fn a_request_for_a_name_that_is_being_removed_beside_one_in_use_says_so() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    stdout(&ran(server, &["declare", "gone", "--capacity", "1"]).await);
    stdout(&ran(server, &["acquire", "gone", "busy:1", "--lease", "1h"]).await);
    stdout(&ran(server, &["remove", "gone", "--when", "last-holder"]).await);
    let refused = ran(server, &["run", "gone", "busy:1", "--", "true"]).await;
    assert_fails(&refused, 75, "\"gone\" (it is being removed)");
}
