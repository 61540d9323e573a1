//! `status` and `delete`: what a name is and who uses it, and a mistyped counter.

use serde_json::{Value, json};

use super::{assert_fails, program_at, ran, stdout};
use crate::support::daemon::Daemon;

#[tokio::test]
async fn the_status_of_a_name_is_found_for_either_kind() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let ran = async |arguments: &[&str]| ran(server, arguments).await;
    assert_fails(&ran(&["status", "gpu"]).await, 1, "limit \"gpu\" does not exist; check the name");
    stdout(&ran(&["declare", "gpu", "--capacity", "4", "--slots", "--label", "room 3"]).await);
    stdout(&ran(&["acquire", "gpu=3", "--lease", "1h"]).await);
    let _waiter = program_at(server, &["run", "gpu=2", "--wait", "max", "--", "true"]).spawn().unwrap();
    let status = loop {
        let status: Value = serde_json::from_str(stdout(&ran(&["status", "gpu", "--json"]).await)).unwrap();
        if status["waiting"] == 1 {
            break status;
        }
    };
    assert_eq!(
        (&status["kind"], &status["name"], &status["in_use"], &status["capacity"], &status["peak"]),
        (&json!("semaphore"), &json!("gpu"), &json!(3), &json!(4), &json!(3))
    );
    assert_eq!(status["available"], 1);
    let declared = &status["declared"];
    assert_eq!((&declared["slots"], &declared["label"]), (&json!(true), &json!("room 3")));
    assert_eq!((&declared["paused"], &declared["slots_out"]), (&json!(false), &json!([])));
    assert_eq!(status["holders"][0]["slots"], json!([0, 1, 2]));
    assert_eq!((&status["queue"][0]["position"], &status["queue"][0]["resources"]), (&json!(1), &json!(2)));
    let text = ran(&["status", "gpu"]).await;
    let text = stdout(&text);
    assert!(
        text.starts_with(
            "kind        semaphore\nname        gpu\nin_use      3\ncapacity    4\navailable   1\n"
        ),
        "{text}"
    );
    assert!(text.contains("\nholders:\n") && text.contains("\nqueue:\nPOSITION\tGRANT\t"), "{text}");

    assert_eq!(daemon.counter().acquire(b"job", 1, 2).status, 0);
    let status: Value = serde_json::from_str(stdout(&ran(&["status", "job", "--json"]).await)).unwrap();
    assert_eq!((&status["kind"], &status["capacity"]), (&json!("counter"), &Value::Null));
    assert_eq!(status.get("available"), Some(&Value::Null));
    assert_fails(&ran(&["status", "job", "--semaphore"]).await, 1, "semaphore \"job\" does not exist");
}

#[tokio::test]
async fn a_mistyped_counter_is_deleted_unless_it_is_in_use() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let ran = async |arguments: &[&str]| ran(server, arguments).await;
    stdout(&ran(&["run", "bakcup", "--max", "1", "--", "true"]).await);
    let mut plain = daemon.counter();
    assert_eq!(plain.acquire(b"backup", 1, 1).status, 0);
    assert_eq!(stdout(&ran(&["dump", "--no-header"]).await).lines().count(), 2);
    assert_eq!(stdout(&ran(&["delete", "bakcup"]).await), "");
    assert_fails(&ran(&["delete", "bakcup"]).await, 1, "counter \"bakcup\" does not exist");
    assert_fails(
        &ran(&["delete", "backup"]).await,
        1,
        "cannot delete counter \"backup\": 1 in use, 0 waiting",
    );
    assert_eq!(stdout(&ran(&["dump"]).await), "CONSUMPTION\tPEAK\tNAME\n1\t1\tbackup\n");
    stdout(&ran(&["declare", "gpu", "--capacity", "4"]).await);
    // The advice is a command that works on the same port.
    assert_fails(&ran(&["delete", "gpu"]).await, 1, "\"signalbox remove\"");
    assert_fails(&ran(&["get", "gpu"]).await, 1, "\"signalbox status\" shows it");
    assert_fails(&ran(&["delete", "gpu", "--semaphore"]).await, 64, "--semaphore");
}

/// A counter stays for a while after its last use.
#[tokio::test]
async fn an_idle_counter_exists_but_is_not_shown_beside_a_declared_semaphore() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let ran = async |arguments: &[&str]| ran(server, arguments).await;
    let kinds = async |arguments: &[&str]| {
        let output = ran(arguments).await;
        let kind = |line| serde_json::from_str::<Value>(line).unwrap()["kind"].clone();
        stdout(&output).lines().map(kind).collect::<Vec<_>>()
    };
    stdout(&ran(&["run", "gpu", "--max", "1", "--", "true"]).await);
    for command in ["status", "list"] {
        assert_eq!(kinds(&[command, "gpu", "--json"]).await, ["counter"], "{command}");
    }
    assert!(kinds(&["list", "--json"]).await.is_empty());
    stdout(&ran(&["declare", "gpu", "--capacity", "1"]).await);
    for command in ["status", "list"] {
        assert_eq!(kinds(&[command, "gpu", "--json"]).await, ["semaphore"], "{command}");
    }
    assert_eq!(kinds(&["status", "gpu", "--counter", "--json"]).await, ["counter"]);
    let mut plain = daemon.counter();
    assert_eq!(plain.acquire(b"gpu", 1, 1).status, 0);
    assert_eq!(kinds(&["status", "gpu", "--json"]).await, ["counter", "semaphore"]);
}
