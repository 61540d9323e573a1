//! Clients that learn where the leader is, as real processes on a real etcd.

use std::time::Duration;

use nix::sys::signal::Signal;
use signalbox_client::blocking::Client;
use signalbox_model::{Notice, Status};
use signalbox_protocol::{Extended, Moved};

use crate::support::caller::Caller;
use crate::support::cluster::{RENEW_DEADLINE, TestCluster};
use crate::support::daemon::stderr;
use crate::support::eventually;

const LEASE: Duration = Duration::from_secs(60);

/// An address at which nothing answers (RFC 5737).
const NOWHERE: &str = "192.0.2.1";

/// The leader of a cluster, and another node.
fn leader_and_other(cluster: &TestCluster) -> (usize, usize) {
    let leader = cluster.leader();
    (leader, cluster.others(leader)[0])
}

/// A client that knows one node and waits long for it.
fn client_of(cluster: &TestCluster, node: usize) -> Client {
    cluster.client_of(node, |builder| builder.ttl(LEASE).unreachable_after(LEASE))
}

/// The number of connections that a node relays, according to its last heartbeat.
fn relayed(cluster: &mut TestCluster, node: usize) -> u64 {
    let name = cluster.node(node).name.clone();
    let status = cluster.status(node);
    let nodes = status["nodes"].as_array().unwrap();
    let node = nodes.iter().find(|node| node["node"] == *name).unwrap();
    node["relays"].as_u64().unwrap_or_default()
}

#[test]
fn a_relayed_client_moves_to_the_leader_and_needs_its_relay_no_more() {
    let Some(mut cluster) = TestCluster::start_advertising(1, 2, "127.0.0.1") else { return };
    let (leader, relay) = leader_and_other(&cluster);
    let holder = client_of(&cluster, leader);
    let held = holder.wait(holder.counter("job").maximum(1).acquire()).unwrap();
    let client = client_of(&cluster, relay);
    let mut watcher = cluster.wire(leader);
    std::thread::scope(|scope| {
        // A request that waits goes with the session.
        let waiting = scope.spawn(|| client.wait(client.counter("job").maximum(1).acquire()));
        eventually("it waits", || watcher.stat("waiters") == 1);
        // The leader has one connection each of the two clients, and this one.
        eventually("it has moved", || {
            relayed(&mut cluster, relay) == 0 && watcher.stat("curr_connections") == 3
        });
        cluster.daemon(relay).signal(Signal::SIGKILL);
        holder.wait(held.release()).unwrap();
        let granted = waiting.join().unwrap().unwrap();
        assert!(granted.is_held());
        client.wait(granted.release()).unwrap();
    });
}

#[test]
fn a_client_that_does_not_reach_the_leader_stays_with_its_relay() {
    let Some(mut cluster) = TestCluster::start_advertising(1, 2, NOWHERE) else { return };
    let (leader, relay) = leader_and_other(&cluster);
    let client = client_of(&cluster, relay);
    let permit = client.wait(client.counter("job").maximum(1).acquire()).unwrap();
    eventually("it is relayed", || relayed(&mut cluster, relay) == 1);
    cluster.daemon(leader).signal(Signal::SIGKILL);
    let second = client.wait(client.counter("other").maximum(1).acquire()).unwrap();
    assert!(permit.is_held() && second.is_held());
}

/// For each way in which a leader ends: the client is connected to it directly, and knows another node from its configuration.
#[test]
fn a_direct_client_finds_the_next_leader() {
    for signal in [Signal::SIGTERM, Signal::SIGKILL, Signal::SIGSTOP] {
        let Some(mut cluster) = TestCluster::start_advertising(1, 3, "127.0.0.1") else { return };
        let (leader, relay) = leader_and_other(&cluster);
        let client = client_of(&cluster, relay);
        let permit = client.wait(client.counter("job").maximum(1).acquire()).unwrap();
        let mut watcher = cluster.wire(leader);
        // The client, and this connection.
        eventually("it has moved", || {
            relayed(&mut cluster, relay) == 0 && watcher.stat("curr_connections") == 2
        });
        cluster.daemon(leader).signal(signal);
        let second = client.wait(client.counter("other").maximum(1).acquire()).unwrap();
        assert!(permit.is_held() && second.is_held(), "{signal}");
        assert!(second.id() > permit.id());
        cluster.daemon(leader).signal(Signal::SIGKILL);
    }
}

/// Its lease is the shortest that docs/cluster.md recommends. Attempts at the frozen node take 5 s each, so it must not be tried
/// first.
#[test]
fn a_client_with_one_address_outlives_the_node_there() {
    let Some(mut cluster) = TestCluster::start_advertising(1, 3, "127.0.0.1") else { return };
    let (leader, _) = leader_and_other(&cluster);
    eventually("the leader knows all nodes", || {
        let mut caller = Caller::new(cluster.wire(leader));
        caller.hello("where");
        caller.ask(&Extended::Where).whereabouts().unwrap().others.len() == 2
    });
    let lease = Duration::from_secs(15);
    let client = cluster.client_of(leader, |builder| builder.ttl(lease).unreachable_after(lease));
    let permit = client.wait(client.counter("job").maximum(1).acquire()).unwrap();
    cluster.daemon(leader).signal(Signal::SIGSTOP);
    let second = client.wait(client.counter("other").maximum(1).acquire()).unwrap();
    assert!(permit.is_held() && second.is_held());
    assert!(second.id() > permit.id());
    cluster.daemon(leader).signal(Signal::SIGKILL);
}

#[test]
fn the_leader_says_where_the_nodes_are_and_where_it_moves() {
    let Some(mut cluster) = TestCluster::start_advertising(1, 3, "127.0.0.1") else { return };
    let (leader, relay) = leader_and_other(&cluster);
    let addresses = |cluster: &mut TestCluster, numbers: &[usize]| -> Vec<String> {
        numbers.iter().map(|number| cluster.node(*number).counters.to_string()).collect()
    };
    let others = cluster.others(leader);
    let (own, others) = (addresses(&mut cluster, &[leader]), addresses(&mut cluster, &others));
    let [mut direct, mut relayed] = [leader, relay].map(|node| Caller::new(cluster.wire(node)));
    for (caller, is_relayed) in [(&mut direct, false), (&mut relayed, true)] {
        caller.hello("where");
        eventually("the leader knows all nodes", || {
            let mut found = caller.ask(&Extended::Where).whereabouts().unwrap();
            found.others.sort();
            let mut others = others.clone();
            others.sort();
            assert_eq!((found.epoch, &found.leader, found.is_relayed), (1, &own, is_relayed));
            assert_eq!(Duration::from(found.renew_deadline), RENEW_DEADLINE);
            found.others == others
        });
    }
    let to = cluster.others(leader)[1];
    let next = addresses(&mut cluster, &[to]);
    let (name, to) = (cluster.node(leader).name.clone(), cluster.node(to).name.clone());
    let drained = cluster.administer(relay, &["drain", &name, "--to", &to]);
    assert!(drained.status.success(), "{}", stderr(&drained));
    for caller in [&mut direct, &mut relayed] {
        let moved = Moved { epoch: 1, addresses: next.clone() };
        assert_eq!(caller.next().notice(), Ok(Some(Notice::Moved(moved))));
        assert!(matches!(caller.next().notice(), Ok(Some(Notice::ShuttingDown))));
    }
}

#[test]
fn a_server_without_a_cluster_does_not_know_where() {
    let mut daemon = crate::support::daemon::Daemon::start();
    let mut caller = Caller::new(daemon.counter());
    caller.hello("where");
    assert_eq!(caller.ask(&Extended::Where).status, Status::UnknownCommand.code());
}
