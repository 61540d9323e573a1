//! Nodes as real processes on a real etcd: a leader that fails in different ways, and another node that takes over.

use std::fs;
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Output;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use signalbox_client::Lost;
use signalbox_cluster::timing::Timing;

use crate::support::cluster::{RENEW_DEADLINE, TestCluster};
use crate::support::daemon::{outcome, stderr};
use crate::support::{GET, OK, PATIENCE, eventually, frame, named};

const LEASE: Duration = Duration::from_secs(30);

#[test]
fn another_node_takes_over_what_a_killed_leader_has_stored() {
    let Some(mut cluster) = TestCluster::start(1, 3) else { return };
    let leader = cluster.leader();
    let declared = cluster.run(["declare", "gpu", "--capacity", "2", "--slots"]);
    assert!(declared.status.success(), "{}", stderr(&declared));
    let client = cluster.client(|builder| builder.ttl(LEASE));
    let first = client.wait(client.semaphore("gpu").declared().acquire()).unwrap();
    let (id, slots) = (first.id(), first.slots().to_vec());

    cluster.daemon(leader).signal(Signal::SIGKILL);
    // It is started while no node leads.
    let arguments = ["run", "other", "--max", "1", "--lease", "9s", "--timeout", "60", "--", "echo", "ran"];
    let ran = cluster.run(arguments);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "ran\n", "{}", stderr(&ran));
    let next = cluster.leader_among(&cluster.others(leader));
    let second = client.wait(client.semaphore("gpu").declared().acquire()).unwrap();
    assert!(first.is_held(), "the client has kept its permit");
    assert!(second.id() > id, "ids grow: {:?}, {id:?}", second.id());
    assert_ne!(second.slots(), slots, "each slot has one holder");
    let full = client.wait(client.semaphore("gpu").declared().try_acquire());
    assert!(full.is_err(), "both slots are taken");
    client.wait(first.release()).unwrap();
    let third = client.wait(client.semaphore("gpu").declared().try_acquire()).unwrap();
    assert_eq!(third.slots(), slots);
    assert!(third.id() > second.id());

    // The killed one is a standby when it is started again.
    cluster.start_node(leader);
    cluster.await_standby(leader);
    assert_eq!(cluster.leader(), next);
}

#[test]
fn declarations_are_applied_to_a_cluster_and_outlive_their_leader() {
    let Some(mut cluster) = TestCluster::start(1, 2) else { return };
    let leader = cluster.leader();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("limits.toml");
    let path = file.to_str().unwrap();
    let done = |output: Output| {
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let gpu = |capacity| {
        format!(
            "prefix = 'ci/'\n[[semaphore.declare]]\nname = 'ci/gpu'\ncapacity = {capacity}\nslots = true\n"
        )
    };
    let deploys = "[[semaphore.declare]]\nname = 'ci/deploys'\ncapacity = 2\nlabel = 'team web'\n";
    fs::write(&file, gpu(4) + deploys).unwrap();
    for options in [&["--dry-run"][..], &[]] {
        let changes = done(cluster.run([&["apply", "-f", path], options].concat()));
        assert_eq!(changes.matches("declare ").count(), 2, "a dry run declares nothing: {changes}");
    }

    cluster.daemon(leader).signal(Signal::SIGKILL);
    cluster.leader_among(&cluster.others(leader));
    let changes = done(cluster.run(["apply", "-f", path]));
    assert_eq!(changes.matches("unchanged ").count(), 2, "{changes}");
    fs::write(&file, gpu(6)).unwrap();
    let changes = done(cluster.run(["apply", "-f", path, "--prune"]));
    assert!(changes.contains("change     ci/gpu") && changes.contains("remove     ci/deploys"), "{changes}");
    let exported = done(cluster.run(["export-declarations", "--prefix", "ci/"]));
    assert!(exported.contains("capacity = 6") && !exported.contains("deploys"), "{exported}");
}

#[test]
fn another_node_takes_over_at_once_after_an_orderly_stop() {
    let Some(mut cluster) = TestCluster::start(1, 2) else { return };
    let leader = cluster.leader();
    let client = cluster.client(|builder| builder.ttl(LEASE));
    let permit = client.wait(client.counter("job").maximum(1).acquire()).unwrap();
    cluster.daemon(leader).signal(Signal::SIGTERM);
    assert!(cluster.daemon(leader).exit_status().success());
    let leadership = cluster.etcd.control(&["get", "/signalbox/main/p/0000/o"]);
    assert!(leadership.contains("released") || leadership.contains(r#""epoch":2"#), "{leadership}");
    cluster.leader_among(&cluster.others(leader));
    assert!(client.wait(client.counter("job").maximum(1).try_acquire()).is_err());
    assert!(permit.is_held());
    let status = cluster.status(0);
    assert_eq!(status["nodes"].as_array().unwrap().len(), 1, "the other one has left: {status}");
}

#[test]
fn a_leader_that_was_frozen_sends_nothing_more_and_ends() {
    let Some(mut cluster) = TestCluster::start(1, 2) else { return };
    let leader = cluster.leader();
    let mut client = cluster.wire(leader);
    assert_eq!(client.acquire(b"job", 1, 1).status, OK);
    cluster.freeze(leader);
    // The kernel takes this, and the process finds it when it wakes.
    client.send(&frame(GET, *b"late", &named(&[], b"job")));
    cluster.leader_among(&cluster.others(leader));
    for arguments in
        [&["get", "job"][..], &["list"], &["run", "job", "--max", "1", "--lease", "9s", "--", "true"]]
    {
        let output = cluster.run(arguments);
        assert!(
            output.status.success() || stderr(&output).contains("does not exist"),
            "{arguments:?} asks the node that leads: {}",
            stderr(&output)
        );
    }
    cluster.daemon(leader).signal(Signal::SIGCONT);
    assert!(client.try_answer().is_err(), "nothing was sent after another node had taken over");
    let status = cluster.daemon(leader).exit_status();
    assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
    assert!(cluster.daemon(leader).said().contains("no longer leads the cluster"));
}

#[test]
fn a_leader_without_etcd_serves_until_its_deadline_and_no_longer() {
    let Some(mut cluster) = TestCluster::start(1, 2) else { return };
    let leader = cluster.leader();
    let mut client = cluster.wire(leader);
    assert_eq!(client.acquire(b"job", 1, 2).status, OK);
    cluster.etcd.freeze(0);
    assert_eq!(client.acquire(b"job", 1, 2).status, OK, "plain operations need no etcd");
    let status = cluster.daemon(leader).exit_status();
    assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
    assert!(client.is_closed());
    let none = cluster.administer(leader, &["status"]);
    assert_eq!(none.status.code(), Some(69), "{}", stderr(&none));
    cluster.etcd.thaw(0);
    cluster.leader_among(&cluster.others(leader));
}

#[test]
fn a_leader_that_must_not_commit_any_more_is_killed_and_writes_no_core_file() {
    let Some(mut cluster) = TestCluster::start(1, 1) else { return };
    let leader = cluster.leader();
    let mut client = cluster.wire(leader);
    assert_eq!(client.acquire(b"job", 1, 1).status, OK);
    // Only a commit reads the number of the last one.
    cluster.etcd.control(&["del", "/signalbox/main/p/0000/m"]);
    let declared = cluster.run(["declare", "gpu", "--capacity", "2"]);
    assert_eq!(declared.status.code(), Some(69), "{}", stderr(&declared));
    let status = cluster.daemon(leader).exit_status();
    assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
    assert!(client.is_closed());
    assert!(cluster.daemon(leader).said().contains("no longer owns its records"));
}

#[test]
fn nothing_is_lost_or_granted_twice_while_nodes_and_members_of_etcd_are_killed() {
    let Some(mut cluster) = TestCluster::start(3, 3) else { return };
    cluster.leader();
    let client = cluster.client(|builder| builder.ttl(LEASE).unreachable_after(LEASE));
    let mut held = Vec::new();
    let mut last = None;
    for round in 0..6 {
        let leader = cluster.leader();
        match round % 3 {
            0 => cluster.daemon(leader).signal(Signal::SIGKILL),
            1 => {
                let member = cluster.etcd.leader();
                cluster.etcd.kill(member);
                cluster.etcd.start_again(member);
            }
            _ => cluster.daemon(leader).signal(Signal::SIGTERM),
        }
        for _ in 0..5 {
            let permit = client.wait(client.counter("jobs").maximum(30).acquire()).unwrap();
            assert!(Some(permit.id()) > last, "ids grow");
            last = Some(permit.id());
            held.push(permit);
        }
        if round % 3 != 1 {
            cluster.daemon(leader).exit_status();
            cluster.start_node(leader);
        }
    }
    assert!(held.iter().all(|permit| permit.is_held()));
    let usage = cluster.run(["get", "jobs"]);
    assert_eq!(String::from_utf8(usage.stdout).unwrap().trim(), "30");
    assert!(client.wait(client.counter("jobs").maximum(30).try_acquire()).is_err());
}

#[test]
fn a_bench_measures_the_node_that_leads() {
    let Some(mut cluster) = TestCluster::start(1, 2) else { return };
    let leader = cluster.leader();
    let leading = cluster.node(leader).counters.to_string();
    let standby = cluster.others(leader)[0];
    let standby = cluster.node(standby).counters.to_string();
    for servers in [format!("{leading},{standby}"), format!("{standby},{leading}")] {
        let bench = ["bench", "--server", &servers, "--count", "100", "--warmup", "0", "--json"];
        let output = cluster.run(bench);
        assert!(output.status.success(), "{}", stderr(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&report["answers"], &report["server"]), (&Value::from(100), &Value::from(&leading[..])));
    }
}

#[test]
fn a_client_learns_from_the_leader_alone_that_its_session_is_lost() {
    let Some(mut cluster) = TestCluster::start(1, 2) else { return };
    cluster.leader();
    let client = cluster.client(|builder| builder.ttl(LEASE));
    let permit = client.wait(client.counter("job").maximum(1).acquire()).unwrap();
    // Everything is forgotten, as after a restore of an empty backup, while no node runs.
    for node in 0..2 {
        cluster.kill(node);
    }
    cluster.etcd.control(&["del", "--prefix", "/signalbox/main/"]);
    cluster.start_node(0);
    let lost = client.wait(async { tokio::time::timeout(PATIENCE, permit.lost()).await.unwrap() });
    assert_eq!(lost, Lost::Expired, "long before its lease ends");
}

#[test]
fn the_exit_status_of_status_says_whether_the_cluster_is_healthy() {
    let Some(mut cluster) = TestCluster::start(1, 2) else { return };
    let leader = cluster.leader();
    let other = cluster.others(leader)[0];
    let status_of = |cluster: &TestCluster, node| cluster.administer(node, &["status"]).status.code();
    assert_eq!([leader, other].map(|node| status_of(&cluster, node)), [Some(0), Some(0)]);
    cluster.kill(other);
    assert_eq!([leader, other].map(|node| status_of(&cluster, node)), [Some(1), Some(1)]);
    cluster.kill(leader);
    assert_eq!(status_of(&cluster, other), Some(2));
    let status = cluster.status(other);
    assert_eq!((&status["leader"], &status["nodes"][0]["state"]), (&Value::Null, &"silent".into()));
}

#[test]
fn a_relay_is_forgotten_after_the_lease_duration() {
    let Some(mut cluster) = TestCluster::start_relaying(1, 2) else { return };
    let leader = cluster.leader();
    let relay = cluster.others(leader)[0];
    cluster.await_standby(relay);
    let name = cluster.node(relay).name.clone();
    let alive = cluster.administer(leader, &["forget", &name]);
    assert!(stderr(&alive).contains("sends heartbeats"), "{}", stderr(&alive));
    // It might continue to relay for the renew deadline.
    cluster.freeze(relay);
    let began = Instant::now();
    let forgotten = cluster.administer(leader, &["forget", &name]);
    assert!(forgotten.status.success(), "{}", stderr(&forgotten));
    let lease_duration = Timing::new(RENEW_DEADLINE).unwrap().lease_duration();
    assert!(began.elapsed() >= lease_duration, "{:?}", began.elapsed());
}

#[test]
fn a_release_ends_the_wait_for_a_dead_leader_and_forget_removes_a_dead_standby() {
    let Some(mut cluster) = TestCluster::start(1, 2) else { return };
    let leader = cluster.leader();
    let other = cluster.others(leader)[0];
    let (leader_name, other_name) = (cluster.node(leader).name.clone(), cluster.node(other).name.clone());
    for (name, reason) in [(&leader_name, "leads the cluster"), (&other_name, "sends heartbeats")] {
        let refused = cluster.administer(other, &["forget", name]);
        assert_eq!(refused.status.code(), Some(1));
        assert!(stderr(&refused).contains(reason), "{}", stderr(&refused));
    }
    let unsure = cluster.administer(leader, &["release"]);
    assert_eq!(unsure.status.code(), Some(64));
    assert!(stderr(&unsure).contains("--process-has-ended"), "{}", stderr(&unsure));
    // As systemd runs it after SIGKILL and its timeout, with and without a main process that is left. In the second case there
    // are other processes: those of this test.
    for exit_code in [None, Some("killed")] {
        let mut stopped = cluster.administration(leader, &["release"]);
        stopped.env("INVOCATION_ID", "run").env("SERVICE_RESULT", "timeout");
        exit_code.map(|code| stopped.env("EXIT_CODE", code));
        let kept = outcome(stopped);
        assert_eq!(kept.status.code(), Some(1));
        assert!(stderr(&kept).contains("may still have a process"), "{}", stderr(&kept));
    }
    let wrong = cluster.administer(leader, &["release", "--process-has-ended"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(stderr(&wrong).contains("sends heartbeats"), "{}", stderr(&wrong));

    // Both, so that the other one cannot take over by itself.
    for node in [leader, other] {
        cluster.kill(node);
    }
    let released = cluster.administer(leader, &["release", "--process-has-ended", "--json"]);
    let released: Value = serde_json::from_slice(&released.stdout).unwrap();
    assert_eq!(released["result"], "released");
    let again = cluster.administer(leader, &["release", "--process-has-ended", "--json"]);
    assert_eq!(serde_json::from_slice::<Value>(&again.stdout).unwrap()["result"], "nothing");
    let forgotten = cluster.administer(leader, &["forget", &other_name]);
    assert!(forgotten.status.success(), "{}", stderr(&forgotten));
    let missing = cluster.administer(leader, &["forget", &other_name]);
    assert!(stderr(&missing).contains("has no node"), "{}", stderr(&missing));

    cluster.start_node(other);
    cluster.leader_among(&[other]);
}

#[test]
fn a_node_with_a_name_in_use_or_another_renew_deadline_does_not_join() {
    let Some(mut cluster) = TestCluster::start(1, 1) else { return };
    cluster.leader();
    for (name, renew_deadline, why) in [
        ("node-0", "renew_deadline = 2", "node \"node-0\" runs already"),
        (
            "other",
            "renew_deadline = 3",
            "the cluster's renew deadline is 2000 ms, and this node's is 3000 ms",
        ),
    ] {
        let node = cluster.add(name);
        cluster.configure(node, |text| text.replace("renew_deadline = 2", renew_deadline));
        cluster.start_node(node);
        assert_eq!(cluster.daemon(node).exit_status().code(), Some(78));
        let said = cluster.daemon(node).said();
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn a_standby_refuses_connections_and_waits_for_an_etcd_that_is_not_there() {
    let Some(mut cluster) = TestCluster::start(1, 0) else { return };
    let node = cluster.add("node-0");
    cluster.etcd.freeze(0);
    cluster.start_node(node);
    cluster.daemon(node).logged_message("etcd does not answer as it should");
    assert!(TcpStream::connect(cluster.node(node).counters).is_err());
    cluster.etcd.thaw(0);
    cluster.daemon(node).logged_message("etcd answers again");
    cluster.leader();
    assert!(cluster.daemon(node).is_running());
    eventually("the wire works", || cluster.wire(node).get(b"job").status != OK);
}
