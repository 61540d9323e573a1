//! The list of sessions on the command line, and the revocation of those of a client.

use serde_json::Value;
use signalbox_client::{Client, Namespace};

use super::{assert_fails, ran, stdout};
use crate::support::daemon::Daemon;

#[tokio::test]
async fn sessions_are_lines_of_columns_or_objects_with_harmless_labels() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let ran = async |arguments: &[&str]| ran(server, arguments).await;
    let label = b"tricky\x1b[31m\t\xe2\x80\xae\xff".to_vec();
    let client = Client::builder(server.to_string().parse().unwrap()).label(label).build().unwrap();
    let permit = client.counter("job").maximum(1).acquire().await.unwrap();

    let listed = ran(&["sessions", "--no-header"]).await;
    let rows: Vec<Vec<_>> = stdout(&listed).lines().map(|row| row.split('\t').collect()).collect();
    assert!(rows.iter().all(|row| row.len() == 10), "{rows:?}");
    let of_kind = |kind: &str| rows.iter().filter(|row| row[0] == kind).collect::<Vec<_>>();
    let (leased, connections) = (of_kind("leased"), of_kind("connection"));
    assert_eq!((leased.len(), connections.len()), (1, 2), "that of the command is one: {rows:?}");
    let row = leased[0];
    assert!(row[2].starts_with("127.0.0.1:"), "{row:?}");
    assert_eq!((row[3], row[5], row[6]), ("yes", "1", "0"));
    assert_eq!(row[8], r"tricky\x1b[31m\t\xe2\x80\xae\xff");
    assert!(row[4].parse::<u32>().is_ok() && row[7].parse::<u32>().is_ok(), "{row:?}");
    assert!(connections.iter().all(|row| row[7] == "-"), "{rows:?}");
    assert!(rows.iter().all(|row| row[9] == "-"), "no client has shown a token: {rows:?}");

    let listed = ran(&["sessions", "--json"]).await;
    assert!(!stdout(&listed).contains(['\u{1b}', '\u{202e}']), "{listed:?}");
    let objects: Vec<Value> =
        stdout(&listed).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let leased = objects.iter().find(|object| object["kind"] == "leased").unwrap();
    assert_eq!((&leased["grants"], &leased["connected"]), (&Value::from(1), &Value::from(true)));
    assert_eq!(leased["label_hex"], "747269636b791b5b33316d09e280aeff");
    let connection = objects.iter().find(|object| object["kind"] == "connection").unwrap();
    assert_eq!(connection["ttl_left"], Value::Null);
    drop(permit);
}

#[tokio::test]
async fn the_leased_sessions_of_a_client_are_revoked() {
    let mut daemon = Daemon::start();
    let server = daemon.address("counter");
    let ran = async |arguments: &[&str]| ran(server, arguments).await;
    let acquired = ran(&["acquire", "job", "--max", "1", "--lease", "1h"]).await;
    stdout(&acquired);
    let none = ran(&["revoke", "--client", "192.0.2.0/24", "--grace", "0"]).await;
    assert_eq!(stdout(&none), "0\n");
    let dry = ran(&["revoke", "--client", "127.0.0.0/8", "--dry-run", "--no-header"]).await;
    assert!(stdout(&dry).starts_with("leased\t") && stdout(&dry).lines().count() == 1, "{dry:?}");
    let one = ran(&["revoke", "--client", "127.0.0.0/8", "--grace", "0"]).await;
    assert_eq!(stdout(&one), "1\n");
    let client = Client::builder(server.to_string().parse().unwrap()).build().unwrap();
    let direct = client.direct().await.unwrap();
    let is_free = async || direct.inspect(Namespace::Counters, b"job").await.unwrap().in_use == 0;
    while !is_free().await {
        tokio::task::yield_now().await;
    }
    let nothing = ran(&["sessions"]).await;
    assert!(!stdout(&nothing).contains("leased"), "{nothing:?}");
    for held in ["other:1", "other:2"] {
        stdout(&ran(&["acquire", held, "--lease", "1h"]).await);
    }
    assert_fails(&ran(&["revoke", "other"]).await, 64, "this would revoke 2 grants of counter \"other\"");
    assert_eq!(stdout(&ran(&["revoke", "other", "--yes", "--grace", "0"]).await), "2\n");
}
