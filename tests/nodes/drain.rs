//! `signalbox cluster drain` with real processes on a real etcd.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::cluster::TestCluster;
use crate::support::daemon::stderr;
use crate::support::{OK, eventually};

const LEASE: Duration = Duration::from_secs(30);

fn name(number: usize) -> String {
    format!("node-{number}")
}

#[test]
fn a_drained_leader_hands_over_what_is_stored_while_clients_go_on() {
    let Some(mut cluster) = TestCluster::start_relaying(1, 3) else { return };
    let leader = cluster.leader();
    let to = cluster.others(leader)[1];
    let declared = cluster.run(["declare", "gpu", "--capacity", "2", "--slots"]);
    assert!(declared.status.success(), "{}", stderr(&declared));
    let client = cluster.client(|builder| builder.ttl(LEASE));
    let held = client.wait(client.semaphore("gpu").declared().acquire()).unwrap();

    let drained = cluster.administer(leader, &["drain", &name(leader), "--to", &name(to), "--json"]);
    assert!(drained.status.success(), "{}", stderr(&drained));
    let drained: Value = serde_json::from_slice(&drained.stdout).unwrap();
    assert_eq!(drained, serde_json::json!({"drained": name(leader), "leader": name(to), "epoch": 2}));
    assert!(cluster.daemon(leader).exit_status().success());
    assert!(cluster.daemon(leader).said().contains("handing over"));
    assert_eq!(cluster.leader_among(&cluster.others(leader)), to);

    let second = client.wait(client.semaphore("gpu").declared().acquire()).unwrap();
    assert!(held.is_held());
    assert_ne!(held.slots(), second.slots());
    assert!(second.id() > held.id());
    client.wait(held.release()).unwrap();

    // It comes back as a standby, and the next leader can be drained, too.
    cluster.start_node(leader);
    cluster.await_standby(leader);
    let again = cluster.administer(leader, &["drain", &name(to)]);
    assert!(again.status.success(), "{}", stderr(&again));
    let said = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(said.starts_with(&format!("node \"{}\" has left the cluster; node ", name(to))), "{said}");
    assert!(said.trim_end().ends_with("leads in epoch 3"), "{said}");
    assert!(second.is_held());
    client.wait(second.release()).unwrap();
}

#[test]
fn a_standby_that_is_drained_disconnects_the_clients_that_it_relays() {
    let Some(mut cluster) = TestCluster::start_relaying(1, 2) else { return };
    let leader = cluster.leader();
    let standby = cluster.others(leader)[0];
    let mut relayed = cluster.wire(standby);
    assert_eq!(relayed.acquire(b"job", 1, 1).status, OK);
    let named = cluster.administer(leader, &["drain", &name(standby), "--to", &name(leader)]);
    assert_eq!(named.status.code(), Some(1));
    assert!(stderr(&named).contains("does not lead, so it has nothing to hand over"), "{}", stderr(&named));
    let drained = cluster.administer(leader, &["drain", &name(standby)]);
    assert!(drained.status.success(), "{}", stderr(&drained));
    let said = String::from_utf8_lossy(&drained.stdout).into_owned();
    assert_eq!(said, format!("node \"{}\" has left the cluster; it did not lead\n", name(standby)));
    assert!(relayed.is_closed());
    assert!(cluster.daemon(standby).exit_status().success());
    let mut direct = cluster.wire(leader);
    eventually("what it held is free", || direct.acquire(b"job", 1, 1).status == OK);
}

#[test]
fn a_drain_that_is_not_possible_is_refused_and_the_leader_goes_on() {
    let Some(mut cluster) = TestCluster::start(1, 2) else { return };
    let leader = cluster.leader();
    let standby = cluster.others(leader)[0];
    let mut client = cluster.wire(leader);
    assert_eq!(client.acquire(b"job", 1, 2).status, OK);
    cluster.await_standby(standby);
    cluster.freeze(standby);
    let (leads, stands_by) = (name(leader), name(standby));
    // Reasons that the command or the leader finds; `crates/cluster/tests/cluster/handover.rs` has the others.
    for (arguments, why) in [
        (&["x"][..], "the cluster has no node \"x\"; it has \"node-0\", \"node-1\"".to_owned()),
        (&[&stands_by], format!("node \"{stands_by}\" sends no heartbeats, so it cannot hand over")),
        (&[&leads, "--to", &stands_by], format!("node \"{stands_by}\" sends no heartbeats; start it")),
    ] {
        let refused = cluster.administer(leader, &[&["drain"], arguments].concat());
        assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
        assert!(stderr(&refused).contains(&why), "{arguments:?}: {}", stderr(&refused));
    }
    assert_eq!(client.acquire(b"job", 1, 2).status, OK, "the leader has gone on with its connections");
    cluster.daemon(standby).signal(Signal::SIGCONT);
    let drained = cluster.administer(leader, &["drain", &leads]);
    assert!(drained.status.success(), "{}", stderr(&drained));
}
