//! The history of grants over a failover.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::support::cluster::TestCluster;
use crate::support::daemon::{SIGNALBOX, outcome, stderr};
use crate::support::eventually;

#[test]
fn a_grant_that_survives_a_failover_has_one_beginning_and_its_end_at_the_next_leader() {
    let Some(mut cluster) = TestCluster::start(1, 0) else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = |node: usize| -> PathBuf { directory.path().join(format!("{node}.log")) };
    for node in 0..2 {
        cluster.add(&format!("node-{node}"));
        cluster.configure(node, |text| format!("log.grants = \"{}\"\n{text}", file(node).display()));
        cluster.start_node(node);
    }
    let leader = cluster.leader();
    let client = cluster.client(|builder| builder.ttl(Duration::from_secs(60)));
    let permit = client.wait(client.counter("job").maximum(1).acquire()).unwrap();
    let next = 1 - leader;
    let events = |node: usize| -> Vec<String> {
        let text = fs::read_to_string(file(node)).unwrap_or_default();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| line["event"].as_str().unwrap().to_owned()).collect()
    };
    eventually("the grant is recorded", || events(leader) == ["started", "granted"]);
    cluster.kill(leader);
    cluster.leader_among(&[next]);
    client.wait(permit.release()).unwrap();
    eventually("its end is recorded", || events(next) == ["started", "released"]);
    let mut command = Command::new(SIGNALBOX);
    command.args(["history", "job", "--json", "--file"]).arg(file(next)).arg("--file").arg(file(leader));
    let output = outcome(command);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
    let row: Value = serde_json::from_slice(&output.stdout).expect("the two lines are one row");
    assert_eq!(row["end"], "released");
    assert!(row["waited"].is_number() && row["held"].is_number(), "{row}");
}
