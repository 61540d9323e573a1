//! `signalbox data … --cluster`: the contents of a data directory move into a cluster, and come out of it again.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use signalbox_cluster::coordinator::{Coordinator, Operation, Transaction};
use signalbox_cluster::keys::{Format, Keys, UNFINISHED_IMPORT, encode};

use crate::support::cluster::TestCluster;
use crate::support::daemon::{ANY_PORTS, Daemon, SIGNALBOX, outcome, serve, stderr};

fn data(arguments: &[&str]) -> Command {
    let mut command = Command::new(SIGNALBOX);
    command.arg("data").args(arguments);
    command
}

fn with_input(mut command: Command, input: &[u8]) -> Output {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

/// A data directory of a server that has stopped, with a semaphore and a leased session that holds it.
fn filled(directory: &Path) {
    let mut daemon =
        Daemon::spawn(serve(ANY_PORTS.iter().copied().chain(["--data-dir", directory.to_str().unwrap()])));
    let address = daemon.address("counter").to_string();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(SIGNALBOX);
        command.args(arguments).args(["--server", &address]);
        let output = outcome(command);
        assert!(output.status.success(), "{}", stderr(&output));
    };
    run(&["declare", "gpu", "--capacity", "2"]);
    run(&["acquire", "gpu", "--lease", "600s"]);
    daemon.signal(Signal::SIGTERM);
    daemon.exit_status();
}

#[test]
fn the_contents_of_a_data_directory_move_into_a_cluster_and_an_import_that_was_killed_is_repeated() {
    let Some(mut cluster) = TestCluster::start(1, 0) else { return };
    let node = cluster.add("node-0");
    let config = cluster.node(node).file.to_str().unwrap().to_owned();
    let of_cluster = |arguments: &[&str]| data(&[arguments, &["--cluster", "--config", &config]].concat());
    let missing = outcome(of_cluster(&["check"]));
    assert_eq!(missing.status.code(), Some(69));
    assert!(stderr(&missing).contains("there is no cluster"), "{}", stderr(&missing));
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("data");
    filled(&directory);
    let exported = outcome(data(&["export", directory.to_str().unwrap()]));
    assert!(exported.status.success(), "{}", stderr(&exported));

    // The state that an import leaves if it is killed after its first records.
    let keys = Keys::new("main");
    let format = Format {
        layout: UNFINISHED_IMPORT,
        record_format: signalbox_storage::FORMAT,
        renew_deadline_ms: 2000,
    };
    let then =
        [(keys.format(), encode(&format)), ([keys.records(), b"\x01xyz".to_vec()].concat(), Vec::new())];
    let then = then.map(|(key, value)| Operation::Put { key, value }).to_vec();
    cluster.etcd.client().transact(&Transaction { then, ..Transaction::default() }).unwrap();
    cluster.start_node(node);
    assert_eq!(cluster.daemon(node).exit_status().code(), Some(65), "it keeps nodes out");
    let said = cluster.daemon(node).said();
    assert!(said.contains("import into the cluster was not completed"), "{said}");

    let imported = with_input(of_cluster(&["import"]), &exported.stdout);
    assert!(imported.status.success(), "{}", stderr(&imported));
    let twice = with_input(of_cluster(&["import"]), &exported.stdout);
    assert_eq!(twice.status.code(), Some(64));
    assert!(stderr(&twice).contains("the cluster is or was in use"), "{}", stderr(&twice));
    assert_eq!(outcome(of_cluster(&["export"])).stdout, exported.stdout, "the same records");

    cluster.start_node(node);
    cluster.leader();
    let client = cluster.client(|builder| builder.ttl(Duration::from_secs(30)));
    let permit = client.wait(client.semaphore("gpu").declared().try_acquire()).unwrap();
    assert!(client.wait(client.semaphore("gpu").declared().try_acquire()).is_err(), "one was held before");
    let checked = outcome(of_cluster(&["check", "--json"]));
    let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(checked["problems"], Value::Array(Vec::new()));
    assert_eq!(
        (&checked["declared"], &checked["grants"]),
        (&1.into(), &2.into()),
        "while a node leads: {checked}"
    );
    client.wait(permit.release()).unwrap();
}

#[test]
fn the_node_that_leads_exports_the_records_of_the_cluster() {
    let Some(mut cluster) = TestCluster::start(1, 2) else { return };
    let leader = cluster.leader();
    let client = cluster.client(|builder| builder.ttl(Duration::from_secs(30)));
    let _permit = client.wait(client.counter("job").maximum(1).acquire()).unwrap();
    let config = cluster.node(leader).file.to_str().unwrap().to_owned();
    let servers = cluster.servers();
    let by_node = outcome(data(&["export", "--server", &servers]));
    assert!(by_node.status.success(), "{}", stderr(&by_node));
    let at_rest = outcome(data(&["export", "--cluster", "--config", &config]));
    let sorted = |output: &Output| {
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&by_node), sorted(&at_rest));
    assert!(sorted(&by_node).iter().any(|line| line.contains("\"grant\"")), "{by_node:?}");

    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("data");
    let imported = with_input(data(&["import", directory.to_str().unwrap()]), &by_node.stdout);
    assert!(imported.status.success(), "{}", stderr(&imported));
}
