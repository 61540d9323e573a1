//! Unmodified programs with System V semaphores, which know the addresses of all nodes.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::cluster::TestCluster;
use crate::support::eventually;
use crate::support::sysv_program::SysvProgram;

/// One of the durable keys of the nodes.
const KEY: i32 = 42;

/// The value of the set's semaphore, and how many calls wait for it to grow; `None` if no node answers.
fn state(cluster: &TestCluster) -> Option<(u64, u64)> {
    let shown = cluster.run(["sysv", "show", "42", "--json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).ok()?;
    let semaphore = &shown["values"][0];
    Some((semaphore["value"].as_u64()?, semaphore["ncount"].as_u64()?))
}

#[test]
fn programs_go_on_while_other_nodes_take_over() {
    if !SysvProgram::is_possible() {
        return;
    }
    let Some(mut cluster) = TestCluster::start(1, 3) else { return };
    let first = cluster.leader();
    let servers = cluster.servers();
    let mut holder = SysvProgram::start(&servers, &[]);
    let mut waiter = SysvProgram::start(&servers, &[("SIGNALBOX_SYSV_TTL", "2s")]);
    holder.make_set(KEY, 1);
    holder.add(-1);
    assert_eq!(holder.answer(), "done");
    waiter.find_set(KEY);
    waiter.add(-1);
    eventually("the call waits", || state(&cluster) == Some((0, 1)));

    cluster.daemon(first).signal(Signal::SIGKILL);
    let second = cluster.leader_among(&cluster.others(first));
    eventually("the call waits again", || state(&cluster) == Some((0, 1)));
    assert!(waiter.is_silent());
    holder.add(1);
    assert_eq!(holder.answer(), "done", "it has kept its process and its adjustment");
    assert_eq!(waiter.answer(), "done");

    cluster.daemon(second).signal(Signal::SIGTERM);
    assert!(cluster.daemon(second).exit_status().success());
    let third: Vec<_> = cluster.others(first).into_iter().filter(|node| *node != second).collect();
    cluster.leader_among(&third);
    // The new leader never hears of this process, and keeps its adjustment for its time to live.
    waiter.kill();
    eventually("the unit is free", || state(&cluster) == Some((1, 0)));
    assert_eq!(holder.value(), "1");
}
