//! Pauses and slots on the command line, against the real server: `pause`, `resume`, `slot`, and `--slot` of `run` and
//! `acquire`.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::{assert_fails, finished, objects, program_at, ran, stdout};
use crate::support::daemon::Daemon;
use crate::support::fake_server::soon;

/// The object that the program prints.
async fn printed(server: SocketAddr, arguments: &[&str]) -> Value {
    objects(server, arguments).await.remove(0)
}

async fn wait_for_a_waiter(server: SocketAddr, name: &str) {
    soon("the request waits", async { while printed(server, &["list", name]).await["waiting"] != 1 {} })
        .await;
}

#[tokio::test]
async fn a_paused_semaphore_starts_no_command_and_keeps_its_queue() {
    let mut daemon = Daemon::start();
    let server = daemon.address("semaphore");
    let declared = printed(server, &["declare", "deploys", "--capacity", "1"]).await;
    let paused = printed(server, &["pause", "deploys"]).await;
    assert_eq!(
        (&paused["name"], &paused["capacity"], &paused["in_use"], &paused["paused"]),
        (&json!("deploys"), &json!(1), &json!(0), &json!(true))
    );
    assert_ne!(paused["generation"], declared["generation"]);
    assert_eq!(printed(server, &["pause", "deploys"]).await, paused, "it is paused already");
    let run = ["run", "--semaphore", "deploys", "--", "echo", "ran"];
    let refused = ran(server, &run).await;
    assert_fails(
        &refused,
        75,
        "semaphore \"deploys\": an administrator has paused it; try again later or use --wait",
    );
    let waiting = ["run", "--semaphore", "deploys", "--wait", "1m", "--", "echo", "ran"];
    let waiting = program_at(server, &waiting).spawn().unwrap();
    wait_for_a_waiter(server, "deploys").await;
    let listed = ran(server, &["list", "--no-header"]).await;
    assert_eq!(stdout(&listed).split('\t').nth(6), Some("paused"));

    printed(server, &["resume", "deploys"]).await;
    assert_eq!(stdout(&finished(waiting).await), "ran\n");
    assert_fails(
        &ran(server, &["pause", "none"]).await,
        1,
        "cannot pause semaphore \"none\": it is not declared",
    );
    let old = paused["generation"].as_str().unwrap();
    let differs = ran(server, &["resume", "deploys", "--generation", old]).await;
    assert_fails(&differs, 1, "the semaphore was changed since");
}

#[tokio::test]
async fn lists_of_holders_and_waiters_say_what_is_paused_or_out_of_service() {
    let mut daemon = Daemon::start();
    let server = daemon.address("semaphore");
    printed(server, &["declare", "gpu", "--capacity", "4", "--slots"]).await;
    let [holders, waiters] = ["--holders", "--waiters"].map(|list| ["status", list, "--semaphore", "gpu"]);
    let marks = async |list: &[&str]| {
        let row = printed(server, list).await;
        let output = ran(server, &[list, &["--no-header"]].concat()).await;
        let flags = stdout(&output).trim_end().rsplit('\t').next().unwrap().to_owned();
        (row["paused"].clone(), row["slots_out"].clone(), flags)
    };
    let held = printed(server, &["acquire", "--semaphore", "gpu", "--lease", "1h"]).await;
    assert_eq!(marks(&holders).await, (json!(false), json!([]), "slots".to_owned()));

    printed(server, &["slot", "gpu", "1", "--out"]).await;
    printed(server, &["slot", "gpu", "3", "--out"]).await;
    printed(server, &["pause", "gpu"]).await;
    assert_eq!(marks(&holders).await, (json!(true), json!([1, 3]), "slots,paused,out=1+3".to_owned()));
    let waiting = ["run", "--semaphore", "gpu", "--wait", "1m", "--", "echo", "ran"];
    let waiting = program_at(server, &waiting).spawn().unwrap();
    wait_for_a_waiter(server, "gpu").await;
    assert_eq!(marks(&waiters).await, (json!(true), json!([1, 3]), "slots,paused,out=1+3".to_owned()));

    // A list without rows says it too, for people.
    let (session, key) = (held["session"].as_str().unwrap(), held["key"].as_str().unwrap());
    stdout(&ran(server, &["release", "--session", session, "--key", key]).await);
    let empty = ran(server, &[&holders[..], &["--no-header"]].concat()).await;
    assert_eq!(empty.stdout, b"");
    let said = String::from_utf8_lossy(&empty.stderr);
    assert_eq!(said, "signalbox: semaphore \"gpu\" has no holders; its flags: slots,paused,out=1+3\n");
    let empty = ran(server, &["status", "--holders", "--semaphore", "gpu", "--json"]).await;
    assert_eq!((&empty.stdout[..], &empty.stderr[..]), (&b""[..], &b""[..]));

    printed(server, &["resume", "gpu"]).await;
    assert_eq!(stdout(&finished(waiting).await), "ran\n");
}

#[tokio::test]
async fn a_slot_is_taken_out_of_service_when_its_holder_leaves_and_put_back() {
    let mut daemon = Daemon::start();
    let server = daemon.address("semaphore");
    printed(server, &["declare", "gpu", "--capacity", "4", "--slots"]).await;
    let holding = ["run", "--semaphore", "gpu", "--slot", "2", "--lease", "1m", "--"];
    let held = [&holding[..], &["sh", "-c", "echo $SIGNALBOX_SLOTS; cat"]].concat();
    let mut command = program_at(server, &held);
    let mut holder = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    soon("it holds the slot", async { while printed(server, &["list", "gpu"]).await["in_use"] != 1 {} })
        .await;
    let late = ran(server, &["slot", "gpu", "2", "--out", "--wait", "0.05"]).await;
    assert_fails(
        &late,
        75,
        "slot 2 of semaphore \"gpu\" is out of service, but was not released within 0.05 s",
    );
    let listed = printed(server, &["list", "gpu"]).await;
    assert_eq!((&listed["slots_out"], &listed["capacity"]), (&json!([2]), &json!(4)));
    let listed = ran(server, &["list", "--no-header"]).await;
    assert_eq!(stdout(&listed).split('\t').nth(6), Some("slots,out=2"));

    let emptied =
        program_at(server, &["slot", "gpu", "2", "--out", "--wait", "max", "--no-header"]).spawn().unwrap();
    drop(holder.stdin.take());
    assert_eq!(stdout(&finished(holder).await), "2\n");
    assert!(
        stdout(&finished(emptied).await).starts_with("semaphore\t0\t4\t"),
        "it has printed the semaphore"
    );
    let refused = ran(server, &[&holding[..], &["true"]].concat()).await;
    assert_fails(&refused, 75, "semaphore \"gpu\": slot 2 is out of service; try again later or use --wait");
    let timed_out = ["run", "--semaphore", "gpu", "--slot", "2", "--wait", "0.1", "--", "true"];
    assert_fails(&ran(server, &timed_out).await, 75, "not granted within 0.1 s (slot 2 is out of service)");
    let waiting = [
        "run",
        "--semaphore",
        "gpu",
        "--slot",
        "2",
        "--wait",
        "1m",
        "--",
        "sh",
        "-c",
        "echo $SIGNALBOX_SLOTS",
    ];
    let waiting = program_at(server, &waiting).spawn().unwrap();
    wait_for_a_waiter(server, "gpu").await;
    printed(server, &["slot", "gpu", "2", "--in"]).await;
    assert_eq!(stdout(&finished(waiting).await), "2\n");
}
